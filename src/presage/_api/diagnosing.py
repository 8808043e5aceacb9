"""Trouble in telemetry that was kept: the detectors of a running server, stepped through files or
what a Prometheus remembers. Nothing is asked of a server here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from presage.model.errors import TelemetryError
from presage.observe.health.trouble import (
    LiveRun,
    Trouble,
    TroubleRules,
    TroubleWatch,
    WorkerPlace,
)
from presage.telemetry.rows import Row, rows
from presage.telemetry.series import Series

__all__ = ["PastTrouble", "diagnose_rows", "diagnose_series", "rows_of_file"]

_MIB = 1 << 20
_LOOKS = 500
"""So often at most it is looked at a series, evenly over its time."""
_MORE = ("disk_free_mib", "disk_total_mib", "step", "gpu_xid", "gpu_ecc_errors")
"""Metrics that are found by these names only."""
_UNITS = {"bytes": _MIB, "MiB": 1.0, "kB": 1024.0, "": 1.0}


@dataclass(frozen=True, slots=True)
class PastTrouble:
    """Trouble, and from when to when it was seen."""

    first: float
    last: float
    trouble: Trouble
    """As it was at its likeliest."""
    to_the_end: bool
    """Whether it was still there at the last sample."""


def rows_of_file(file: Path) -> list[Row] | None:
    """The rows of a file of guardians; None where it is none."""
    if file.suffix.lower() != ".jsonl" or not file.is_file():
        return None
    try:
        return sorted(rows(file.read_bytes().splitlines())) or None
    except OSError as error:
        raise TelemetryError(f"{file} cannot be read: {error.strerror or error}") from None


def diagnose_rows(
    job: str, rows: Sequence[Row], place: WorkerPlace, rules: TroubleRules
) -> list[PastTrouble]:
    """What was wrong in a run, by the rows of its workers in order."""
    names = list(dict.fromkeys(row.worker for row in rows))
    places = {name: _at(place, number) for number, name in enumerate(names)}
    watch = TroubleWatch(rules)
    watch.begin(LiveRun(job, 1, rows[0].at, places))
    every = max(2 * len(names), len(rows) // _LOOKS)
    seen: dict[object, PastTrouble] = {}
    step, fed = 0.0, 0
    for start in range(0, len(rows), every):
        part = rows[start : start + every]
        now = part[-1].at
        watch.rows(job, part, now)
        for row in part:
            if row.step is not None and row.step > step:
                step = row.step
                watch.report(job, row.at, 0.0, {"step": step})
        fed += len(part)
        for trouble in watch.look(now):
            _keep(seen, trouble, now, to_the_end=fed == len(rows))
    return _sorted(seen)


def diagnose_series(
    series: Sequence[Series],
    place: WorkerPlace,
    rules: TroubleRules,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> list[PastTrouble]:
    """What was wrong in each series, which is taken for a run of one worker."""
    troubles: list[PastTrouble] = []
    looked = False
    for number, one in enumerate(series):
        listed = _rows(one)
        if listed:
            looked = True
            troubles += diagnose_rows(one.pod, listed, place, rules)
        report(number + 1, len(series))
    if not looked:
        has = ", ".join(dict.fromkeys(name for one in series for name in one.features))
        raise TelemetryError(
            "trouble is told by CPU, memory, GPUs, GPU memory, "
            f"{', '.join(_MORE)}; none of the metrics is one of them: {has}"
        )
    return sorted(troubles, key=lambda one: (not one.to_the_end, -one.last))


def _rows(series: Series) -> list[Row]:
    columns = {name: series.values[:, k] for k, name in enumerate(series.features)}
    units = dict(zip(series.features, series.units, strict=False))
    wanted = {"cpu": "cpu_cores", "memory": "rss_mib", "gpu": "gpu_util_pct"}
    wanted["gpu_memory"] = "gpu_memory_mib"
    values = {}
    for resource, field in wanted.items():
        for feature in series.resources.get(resource, ())[:1]:
            scale = _UNITS.get(units.get(feature, ""), 1.0) if "mib" in field else 1.0
            values[field] = columns[feature] / scale
    values |= {name: columns[name] for name in _MORE if name in columns}
    if not values:
        return []
    samples = []
    for k, at in enumerate(series.times):
        known: dict[str, Any] = {
            name: float(column[k]) for name, column in values.items() if isfinite(column[k])
        }
        samples.append(Row(float(at), series.pod, **known))
    return samples


def _at(place: WorkerPlace, number: int) -> WorkerPlace:
    limits = place.cores, place.memory_mib, place.gpu_memory_mib
    return WorkerPlace(place.node, number, place.devices, *limits)


def _keep(
    seen: dict[object, PastTrouble], trouble: Trouble, now: float, *, to_the_end: bool
) -> None:
    known = seen.get(trouble.key)
    if known is None:
        seen[trouble.key] = PastTrouble(now, now, trouble, to_the_end)
    else:
        likelier = trouble.probability >= known.trouble.probability
        best = trouble if likelier else known.trouble
        seen[trouble.key] = PastTrouble(known.first, now, best, to_the_end)


def _sorted(seen: dict[object, PastTrouble]) -> list[PastTrouble]:
    return sorted(seen.values(), key=lambda one: (not one.to_the_end, -one.last))
