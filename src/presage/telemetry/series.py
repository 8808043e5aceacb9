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

from presage.model.errors import TelemetryError

__all__ = ["RESOURCES", "Series", "assemble", "rate", "resources_of", "stack", "unit_of"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

RESOURCES = ("cpu", "memory", "gpu", "gpu_memory", "net_tx", "net_rx", "disk")
"""What a pod can be given; the names that policies, reports and manifests use."""

_MEANINGS: dict[str, tuple[tuple[str, ...], ...]] = {
    "cpu": (
        ("cpu",),
        ("cpu_cores",),
        ("cpu.usage.cores",),
        ("cpu_usr_pct", "cpu_sys_pct"),
        ("cpu_pct",),
        ("cpu_util",),
        ("cpu_usage",),
    ),
    "memory": (
        ("memory",),
        ("memory_bytes",),
        ("mem.working.set",),
        ("mem_anon_kb",),
        ("rss_mib",),
        ("memory_util",),
        ("mem",),
    ),
    "gpu": (("gpu",), ("gpu_util_pct",), ("gpu_duty_cycle",), ("gpu_util",)),
    "gpu_memory": (
        ("gpu_memory",),
        ("gpu_memory_bytes",),
        ("gpu_memory_used_bytes",),
        ("gpu_memory_mib",),
        ("gpu_mem",),
    ),
    "net_tx": (("net_tx",), ("net_tx_bytes_s",), ("net_tx_kb_s",), ("net_sent_bytes_s",)),
    "net_rx": (("net_rx",), ("net_rx_bytes_s",), ("net_rx_kb_s",), ("net_received_bytes_s",)),
    "disk": (("disk",), ("disk_bytes_s",), ("disk_util_pct",), ("read_bytes_s", "write_bytes_s")),
}
"""Which features make a resource; of several ways the first that a source has."""

_UNITS = {
    "cpu.num.cores": "cores",
    "cpu.usage": "ns",
    "cpu.usage.cores": "cores",
    "cpu.usage.pct.container.requested": "%",
    "mem.current": "bytes",
    "mem.limit": "bytes",
    "mem.working.set": "bytes",
    "disk_rd_sec_s": "sectors/s",
    "disk_wr_sec_s": "sectors/s",
}
_UNIT_ENDINGS = {
    "_bytes_s": "bytes/s",
    "_kb_s": "kB/s",
    "_bytes": "bytes",
    "_mib": "MiB",
    "_kb": "kB",
    "_pct": "%",
    ".pct": "%",
    "_cores": "cores",
    "gpu_duty_cycle": "%",
    "memory_util": "share",
}


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
    rows: Ints | None = None
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
        return _column(self, self.values, name)

    def matrix(self, names: Sequence[str]) -> Floats:
        """Some features or resources, one column each."""
        return np.column_stack([self.column(name) for name in names])

    def measured(self) -> Series:
        """Only the features that were ever measured of this pod, and without input rows."""
        has = np.flatnonzero(np.isfinite(self.values).any(axis=0))
        names = tuple(self.features[i] for i in has)
        units = tuple(self.units[i] for i in has) if self.units else ()
        return Series(self.pod, self.times, self.values[:, has], names, units, resources_of(names))

    def by_input_row(self, answers: Sequence[Any] | npt.NDArray[Any]) -> list[Any]:
        """One answer for each input row, from one for each sample."""
        items = answers.tolist() if isinstance(answers, np.ndarray) else list(answers)
        return items if self.rows is None else [items[sample] for sample in self.rows]


def resources_of(features: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Which resources the features make, by their names, in upper or lower case."""
    named = {feature.lower(): feature for feature in features}
    resources = {}
    for resource, ways in _MEANINGS.items():
        way = next((way for way in ways if set(way) <= named.keys()), None)
        if way is not None:
            resources[resource] = tuple(named[part] for part in way)
    return resources


def unit_of(feature: str) -> str:
    """The unit that a feature's name tells; empty when it tells none."""
    name = feature.lower()
    endings = (unit for ending, unit in _UNIT_ENDINGS.items() if name.endswith(ending))
    return _UNITS.get(name) or next(endings, "")


def rate(times: Floats, counter: Floats, window_s: float = 0.0) -> Floats:
    """A counter as a rate a second, over the last `window_s` or one sample if that is longer. The
    first sample has no rate of its own and takes that of the second; a counter that fell began
    anew, and its rate is 0 there."""
    count = len(times)
    after = np.arange(count)
    before = np.searchsorted(times, times - window_s, side="right") - 1
    before = np.maximum(np.minimum(before, after - 1), 0)
    if count > 1:
        after[0] = 1
    span = np.maximum(times[after] - times[before], 1e-6)
    return np.asarray(np.maximum(counter[after] - counter[before], 0.0) / span)


def assemble(
    pods: Sequence[str],
    pod_of_row: Ints,
    times: Floats,
    features: Sequence[str],
    units: Sequence[str],
    values: Floats,
    feature_of_row: Ints | None = None,
) -> list[Series]:
    """One series for each pod. `values` has a column for each feature; or, with `feature_of_row`,
    one value for each row. Rows of a pod are put in the order of time; those of one time become
    one sample, the mean of what they measured."""
    order = np.lexsort((times, pod_of_row))
    pod, time = pod_of_row[order], times[order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (np.diff(pod) != 0) | (np.diff(time) != 0)
    sample = np.cumsum(new) - 1
    count = int(sample[-1]) + 1
    if feature_of_row is not None:
        cell = sample * len(features) + feature_of_row[order]
        means = _mean_by(cell, values[order], count * len(features))
        matrix = means.reshape(count, len(features))
    elif count == len(order):
        matrix = values[order]
    else:
        columns = values[order].T
        matrix = np.column_stack([_mean_by(sample, column, count) for column in columns])
    starts = np.searchsorted(pod[new], np.arange(len(pods) + 1))
    rows = _sample_of_row(order, sample - starts[pod], pod_of_row)
    bounds = np.searchsorted(pod, np.arange(len(pods) + 1))
    time = time[new]
    resources = resources_of(features)
    return [
        Series(
            name,
            time[starts[i] : starts[i + 1]],
            matrix[starts[i] : starts[i + 1]],
            tuple(features),
            tuple(units),
            resources,
            _unless_same(rows[bounds[i] : bounds[i + 1]]),
        )
        for i, name in enumerate(pods)
    ]


def _mean_by(cell: Ints, values: Floats, cells: int) -> Floats:
    """The mean of the values in each cell, NaN left out; NaN for a cell without any."""
    known = np.isfinite(values)
    totals = np.bincount(cell[known], weights=values[known], minlength=cells)
    counts = np.bincount(cell[known], minlength=cells)
    means = np.full(cells, np.nan)
    np.divide(totals, counts, out=means, where=counts > 0)
    return means


def _sample_of_row(order: Ints, sample: Ints, pod_of_row: Ints) -> Ints:
    """For the rows of the input, one pod after the other and otherwise in their order, the sample
    that each became; `sample` has it for the rows in `order`."""
    by_row = np.empty(len(order), dtype=np.int64)
    by_row[order] = sample
    return by_row[np.argsort(pod_of_row, kind="stable")]


def _unless_same(rows: Ints) -> Ints | None:
    return None if np.array_equal(rows, np.arange(len(rows))) else rows


def _column(pod: Series, values: Floats, name: str) -> Floats:
    """A feature or resource of values that have the pod's columns."""
    if name in pod.features:
        column: Floats = values[:, pod.features.index(name)]
        return column
    if name in pod.resources:
        parts = [pod.features.index(part) for part in pod.resources[name]]
        total: Floats = values[:, parts].sum(axis=1)
        return total
    known = ", ".join(dict.fromkeys((*pod.features, *pod.resources)))
    raise TelemetryError(f"pod {pod.pod} has no feature '{name}'; it has {known}")


def stack(series: Sequence[Series], names: Sequence[str]) -> Floats:
    """The samples of all pods, one pod after the other; some features or resources, one column
    each. Pods of one source share their columns, and are looked through once."""
    if not series:
        return np.empty((0, len(names)))
    head = series[0]
    if all(pod.features == head.features and pod.resources == head.resources for pod in series):
        values = np.concatenate([pod.values for pod in series])
        return np.column_stack([_column(head, values, name) for name in names])
    return np.concatenate([pod.matrix(names) for pod in series])
