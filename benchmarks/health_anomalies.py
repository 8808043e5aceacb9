"""How well anomalies are found in SMD, on machines that were not fitted on, and what it costs.

Forms and constants were chosen on machines 1-2, 1-4, 1-6 and 1-8; the others were looked at
afterwards; the same holds for the causes. Each machine is scored by a model fitted, without
labels, on the training part of all others; the alarm's threshold is set there, for one false
alarm a day. No point adjustment. An alarm is false if no labelled sample is within an hour of it.
Needs the shared data.

    python -m benchmarks.health_anomalies [--only anomalies|causes|cost] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from benchmarks._data import shared
from benchmarks._health import auc_pr, vus_pr
from presage.observe.health._watch import Kind, Watch
from presage.observe.health.anomalies import QUANTILES, AnomalyModel
from presage.observe.health.causes import find_causes
from presage.telemetry.series import Series

Floats = npt.NDArray[np.float64]
DEVELOPED_ON = ("machine-1-2", "machine-1-4", "machine-1-6", "machine-1-8")
METRICS = tuple(f"m{number}" for number in range(1, 39))
MINUTE_S, HOUR = 60.0, 60
SERIES, STEPS = 100_000, 20


def machines(part: str) -> dict[str, tuple[Series, npt.NDArray[np.int64]]]:
    """Each machine with its labels; none in training."""
    table = pl.read_parquet(shared(f"faults/smd_group1_{part}.parquet"))
    found = {}
    for (name,), rows in table.sort("machine", "t").group_by("machine", maintain_order=True):
        times = rows["t"].to_numpy() * MINUTE_S
        values = rows.select(METRICS).to_numpy().astype(float)
        label = rows["label"].to_numpy() if "label" in rows.columns else np.zeros(len(rows))
        found[str(name)] = Series(str(name), times, values, METRICS), label.astype(np.int64)
    return dict(sorted(found.items()))


def scored(
    train: Mapping[str, Any], test: Mapping[str, tuple[Series, npt.NDArray[np.int64]]]
) -> dict[str, dict[str, float]]:
    """Per machine."""
    found = {}
    for name, (pod, label) in test.items():
        print(f"anomalies: {name}", file=sys.stderr, flush=True)
        model = AnomalyModel.fit([one for other, (one, _) in train.items() if other != name])
        (judged,) = model.judge([pod])
        alarm = judged.alarm(1.0)
        expected = model.forecast(pod).quantiles[60:]
        inside = (pod.values[60:] >= expected[..., 0]) & (pod.values[60:] <= expected[..., -1])
        days = len(label) * MINUTE_S / 86_400
        found[name] = {
            "auc_pr": auc_pr(label, judged.score),
            "vus_pr": vus_pr(label, judged.score),
            "precision": float(label[alarm].mean()) if alarm.any() else 0.0,
            "recall": float(alarm[label > 0].mean()),
            "segments_found": _segments_found(label, alarm),
            "false_alarms_a_day": _false_alarms(label, alarm) / days,
            f"inside_{QUANTILES[-1] - QUANTILES[0]:.0%}": float(inside.mean()),
        }
    return found


def _bounds(flags: npt.NDArray[Any]) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(flags.astype(np.int8), prepend=0, append=0))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _segments_found(label: npt.NDArray[np.int64], alarm: npt.NDArray[np.bool_]) -> float:
    return float(np.mean([alarm[begin:end].any() for begin, end in _bounds(label > 0)]))


def _false_alarms(label: npt.NDArray[np.int64], alarm: npt.NDArray[np.bool_]) -> int:
    count, last = 0, -HOUR
    for begin, end in _bounds(alarm):
        apart = begin - last > HOUR // 2
        last = end
        count += apart and not label[max(0, begin - HOUR) : end + HOUR].any()
    return count


def named(test: Mapping[str, tuple[Series, npt.NDArray[np.int64]]]) -> dict[str, dict[str, float]]:
    """Whether a labelled metric is among the first 1, 3, 5 of `find_causes`."""
    truth = pl.read_parquet(shared("faults/smd_root_causes.parquet"))
    hits: dict[str, list[list[bool]]] = {"developed on": [], "others": []}
    for row in truth.iter_rows(named=True):
        if row["machine"] not in test:
            continue
        pod = test[row["machine"]][0]
        guilty = {f"m{each}" for each in row["root_cause_dims"].split(",")}
        print(f"causes: {row['machine']} {row['start']}", file=sys.stderr, flush=True)
        causes = find_causes([pod], row["start"] * MINUTE_S, row["end"] * MINUTE_S).causes
        names = [cause.metric for cause in causes]
        part = "developed on" if row["machine"] in DEVELOPED_ON else "others"
        hits[part].append([bool(guilty & set(names[:k])) for k in (1, 3, 5)])
    hits["all"] = hits["developed on"] + hits["others"]
    return {
        part: {"n": len(each), **dict(zip(("hit@1", "hit@3", "hit@5"), _means(each), strict=True))}
        for part, each in hits.items()
    }


def _means(hits: Sequence[Sequence[bool]]) -> list[float]:
    return [float(each) for each in np.mean(hits, axis=0)]


def cost() -> dict[str, float]:
    """Seconds of CPU for one sample of each of 100,000 series of one metric."""
    kind = Kind(("m",), np.full(1, 0.1), np.full(1, 0.03))
    watch = Watch(kind, SERIES)
    values = np.random.default_rng(0).random((STEPS, SERIES, 1))
    started = time.process_time()
    for each in values:
        watch.step(each)
    return {"series": SERIES, "cpu_s_per_sample_of_all": (time.process_time() - started) / STEPS}


def anomalies() -> dict[str, dict[str, float]]:
    """Per machine, and the means."""
    rows = scored(machines("train"), machines("test"))
    others = [name for name in rows if name not in DEVELOPED_ON]
    parts = {"developed on": DEVELOPED_ON, "others": others, "all": list(rows)}
    return rows | {part: _mean([rows[name] for name in names]) for part, names in parts.items()}


def _mean(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}


PARTS: dict[str, Callable[[], dict[str, dict[str, float]]]] = {
    "anomalies": anomalies,
    "causes": lambda: named(machines("test")),
    "cost": lambda: {"one sample": cost()},
}


def main(argv: Sequence[str] | None = None) -> None:
    """Print tables, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", choices=tuple(PARTS))
    options = parser.parse_args(argv)
    chosen = PARTS if options.only is None else {options.only: PARTS[options.only]}
    found = {name: measure() for name, measure in chosen.items()}
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for part, rows in found.items():
        print(part)
        for name, row in rows.items():
            print(f"  {name:14}" + ", ".join(f"{key} {each:.3f}" for key, each in row.items()))


if __name__ == "__main__":
    main()
