"""A series: what was measured of one pod (a container, a worker, a run) over time.

Samples may come at any pace. Times are seconds and strictly rise; a value that was not measured is
NaN. Readers map a source's own columns to named resources, so that a policy can ask for `memory`
whatever the source calls it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from presage.model.errors import UserError

__all__ = ["RESOURCES", "Series", "TelemetryError"]

Floats = npt.NDArray[np.float64]

RESOURCES = ("cpu", "memory", "gpu", "gpu_memory", "net_tx", "net_rx", "disk")
"""What a pod can be given; the names that policies, reports and manifests use."""


class TelemetryError(UserError):
    """Telemetry cannot be read, or makes no sense; the message names the place."""

    code = "bad_telemetry"


@dataclass(frozen=True, eq=False)
class Series:
    """One pod's samples: a row for each time, a column for each feature."""

    pod: str
    times: Floats
    values: Floats
    features: tuple[str, ...]
    units: tuple[str, ...] = ()
    """One for each feature; empty when the source does not say."""
    resources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Resource -> the features that add up to it."""
    rows: npt.NDArray[np.int64] | None = None
    """For each row of the input, in the input's order, the sample it became (rows of one time
    become one sample); None when they are the same."""

    def __post_init__(self) -> None:
        if self.values.shape != (len(self.times), len(self.features)):
            raise TelemetryError(
                f"pod {self.pod}: {len(self.times)} times and {len(self.features)} features, "
                f"but values of shape {self.values.shape}"
            )
        if not np.isfinite(self.times).all() or (np.diff(self.times) <= 0).any():
            raise TelemetryError(f"pod {self.pod}: times must be finite and strictly rise")
        if self.units and len(self.units) != len(self.features):
            raise TelemetryError(f"pod {self.pod}: one unit for each feature, or none")

    def __len__(self) -> int:
        return len(self.times)

    @cached_property
    def cadence(self) -> float:
        """The median time between samples, in seconds; NaN for fewer than two."""
        return float(np.median(np.diff(self.times))) if len(self.times) > 1 else float("nan")

    def column(self, name: str) -> Floats:
        """A feature by its name, or a resource as the sum of its features."""
        if name in self.features:
            found: Floats = self.values[:, self.features.index(name)]
            return found
        if name in self.resources:
            parts = [self.features.index(part) for part in self.resources[name]]
            total: Floats = self.values[:, parts].sum(axis=1)
            return total
        known = ", ".join(dict.fromkeys((*self.features, *self.resources)))
        raise TelemetryError(f"pod {self.pod} has no feature '{name}'; it has {known}")

    def matrix(self, names: Sequence[str]) -> Floats:
        """Some features or resources, one column each."""
        return np.column_stack([self.column(name) for name in names])

    def by_input_row(self, answers: Sequence[Any] | npt.NDArray[Any]) -> list[Any]:
        """One answer for each input row, from one for each sample."""
        found = answers.tolist() if isinstance(answers, np.ndarray) else list(answers)
        return found if self.rows is None else [found[sample] for sample in self.rows]
