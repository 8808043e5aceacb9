"""Models whose graphs are known beforehand: a table that names one is answered as from its graph.

`known_models.npz` holds, for the image models of timm at their own input size, the operators of a
training step (as `steptime.Operators`) and the features of memory at a few batches. It was
computed from shapes alone; no measurement is in it. `tools/known_models.py` makes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from presage.foresee.gpus import Gpu
from presage.foresee.learn import Floats
from presage.foresee.steptime import Operators, step_features

__all__ = ["KnownModels", "known_models"]

_FILE = Path(__file__).with_name("known_models.npz")


class KnownModels:
    """Features of known models by name."""

    def __init__(self, path: Path) -> None:
        with np.load(path, allow_pickle=False) as file:
            self._place = {str(name): i for i, name in enumerate(file["names"])}
            self._operators = file["operators"]
            self._offsets = file["offsets"]
            self._params = file["params"]
            self._memory = file["memory"].astype(np.float64)
            self._batches = file["batches"].astype(np.float64)
            self._size = file["size"]

    def __len__(self) -> int:
        return len(self._place)

    def places(self, names: Sequence[object]) -> npt.NDArray[np.int64]:
        """Where each is, -1 for a stranger; `resnet50.a1_in1k` is a `resnet50`."""
        found = [self._place.get(str(name).partition(".")[0], -1) for name in names]
        return np.array(found, np.int64)

    def size(self, place: int) -> int:
        """Pixels on a side of the images its graph was made for."""
        return int(self._size[place])

    def memory(self, places: npt.NDArray[np.int64], batch: Floats) -> Floats:
        """Features of memory: between two known batches along a straight line."""
        grid = self._batches
        at = np.clip(np.searchsorted(grid, batch, side="right") - 1, 0, len(grid) - 2)
        share = ((batch - grid[at]) / (grid[at + 1] - grid[at]))[:, None]
        low, high = self._memory[places, at], self._memory[places, at + 1]
        rows: Floats = np.maximum(low + share * (high - low), 0.0)
        rows[:, -1] = batch
        return rows

    def operators(self, place: int) -> Operators:
        """The operators of one model."""
        begin, end = self._offsets[place], self._offsets[place + 1]
        rows = self._operators[begin:end].astype(np.float64)
        return Operators.from_rows(rows, float(self._params[place]))

    def steps(
        self,
        places: npt.NDArray[np.int64],
        batch: Floats,
        gpus: Sequence[Gpu],
        precision: Sequence[str],
    ) -> Floats:
        """Features of a training step; like rows are computed once."""
        done: dict[tuple[int, float, str, str], Floats] = {}
        rows = []
        for place, size, gpu, kind in zip(
            places.tolist(), batch.tolist(), gpus, precision, strict=True
        ):
            key = (place, size, gpu.name, kind)
            if key not in done:
                done[key] = step_features(self.operators(place), size, gpu, kind)
            rows.append(done[key])
        return np.array(rows)


@cache
def known_models() -> KnownModels:
    """Those that are shipped."""
    return KnownModels(_FILE)
