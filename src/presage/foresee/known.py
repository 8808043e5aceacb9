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
import polars as pl

from presage.foresee.gpus import Gpu, find
from presage.foresee.steptime import Operators, step_features
from presage.learn import Floats

__all__ = ["KnownModels", "graph_memory_rows", "graph_step_rows", "known_models", "scaled_batches"]

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
        rows = [self._place.get(str(name).partition(".")[0], -1) for name in names]
        return np.array(rows, np.int64)

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


def graph_memory_rows(table: pl.DataFrame) -> tuple[pl.DataFrame, Floats]:
    """The rows whose model is known, and their features."""
    places = known_models().places(table["model"].to_list())
    known = table.filter(pl.Series(places >= 0))
    places = places[places >= 0]
    batch = known["batch_size"].cast(pl.Float64).to_numpy()
    rows = known_models().memory(places, batch)
    if "faketensor_est_mb" in known.columns:
        rows = _of_the_same_images(known, places, batch, rows)
    return known, rows


_APART = 0.2
"""Logarithm beyond which a tracer's estimate was not made on the images of our graph."""


def _of_the_same_images(
    table: pl.DataFrame, places: npt.NDArray[np.int64], batch: Floats, rows: Floats
) -> Floats:
    """The features at a batch that has the activations which a tracer found: images of another
    size than those of the known graph are like more or fewer of them."""
    traced = table["faketensor_est_mb"].cast(pl.Float64).fill_null(float("nan")).to_numpy()
    peak, lasting = rows[:, 1], rows[:, 2]
    share = (traced - lasting) / np.maximum(peak - lasting, 1.0)
    with np.errstate(invalid="ignore"):
        other = (np.abs(np.log(traced / peak)) > _APART) & (share > 0.01)
    scaled = np.where(other, batch * np.clip(share, 0.01, 100.0), batch)
    out = known_models().memory(places, scaled)
    out[:, -1] = batch
    return out


def graph_step_rows(table: pl.DataFrame) -> tuple[pl.DataFrame, Floats]:
    """The rows whose model is known, and their features with the layout as last column."""
    places = known_models().places(table["model"].to_list())
    known = table.filter(pl.Series(places >= 0))
    places = places[places >= 0]
    batch = scaled_batches(known, places)
    devices = known["device"].to_list() if "device" in known.columns else ["rtx3090"] * len(places)
    gpus = {name: find(name) for name in set(devices)}
    kinds = known["dtype"].to_list() if "dtype" in known.columns else ["amp"] * len(places)
    rows = known_models().steps(places, batch, [gpus[name] for name in devices], kinds)
    nhwc = [layout == "nhwc" for layout in known["layout"]] if "layout" in known.columns else 0.0
    return known, np.c_[rows.reshape(len(places), -1), np.broadcast_to(nhwc, len(places))]


def scaled_batches(table: pl.DataFrame, places: npt.NDArray[np.int64]) -> Floats:
    """Batch sizes, scaled by pixels where an image is not of the size that is known: a
    convolution does the same work on twice the pixels as on twice the images."""
    batch: Floats = table["batch_size"].cast(pl.Float64).to_numpy().copy()
    if "img_size" in table.columns:
        own = np.array([known_models().size(place) for place in places], np.float64)
        asked = table["img_size"].cast(pl.Float64).fill_null(0.0).to_numpy()
        batch *= np.where(asked > 0, (asked / own) ** 2, 1.0)
    return batch
