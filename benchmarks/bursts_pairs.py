"""Pairs of trainings on one link: chosen by foreseen bursts, at random, and one after the other.

    python -m benchmarks.bursts_pairs [--setting W2/100mbit] [--jobs 8] [--runs 5] [--json]

Live, so root. In each of `--runs`, so many workloads are drawn from the data set. Each runs alone
first; then pairs chosen by bursts and pairs at random, in turns, each pair on the same two links.
Bursts are those that trees foresaw which saw nothing of the workload's family. Throughput of a
pair is the sum over both of speed over speed alone: one after the other is 1 by definition, 2 is
what two links would give. Jobs share cores here as well as links, as a note in the result says.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from benchmarks._burst_runs import Lab, Limits
from benchmarks.bursts_data import DATA
from presage.foresee.bursts.bundles import held_out
from presage.foresee.bursts.models import ModelKind, make
from presage.foresee.bursts.pairs import Pulse, best_pairs
from presage.foresee.bursts.rows import MeasuredSetting, read_runs
from presage.foresee.bursts.settings import NETWORKS, Setting
from presage.telemetry.bursts.counters import copied_bytes_s

Pairs = Sequence[tuple[int, int]]


def drawn(rows: MeasuredSetting, count: int, random: np.random.Generator) -> list[int]:
    """Workloads of a run: of different models, and with steps short enough to count some."""
    order = random.permutation(np.flatnonzero(rows.step_ms < 1500.0))
    models: dict[str, int] = {}
    for at in order.tolist():
        models.setdefault(str(rows.workloads[at]["model"]), at)
    return list(models.values())[:count]


def at_random(count: int, random: np.random.Generator) -> list[tuple[int, int]]:
    order = random.permutation(count).tolist()
    return [(order[at], order[at + 1]) for at in range(0, count, 2)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Pairs on one link.")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--setting", default="W2/100mbit")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    setting = Setting.parse(options.setting)
    rate = NETWORKS[setting.network]
    if rate is None:
        sys.exit("error: pairs need a link with a limit")
    rows = read_runs(options.data, setting)
    inputs = rows.inputs(options.data / "graphs")
    told = held_out(
        lambda: make(ModelKind.FOREST, setting), inputs, rows.labels, rows.families, rows.step_ms
    )
    random = np.random.default_rng(options.seed)
    out: dict[str, Any] = {"setting": str(setting), "cores": len(os.sched_getaffinity(0))}
    runs = []
    peak = copied_bytes_s()
    with tempfile.TemporaryDirectory() as home, Lab(2, Limits(), peak) as lab:
        log = Path(home) / "last.log"
        for number in range(options.runs):
            chosen = drawn(rows, options.jobs, random)
            pulses = [Pulse.of(told[at], rate / 8 / (1 << 20)) for at in chosen]
            works = [rows.workloads[at] for at in chosen]
            alone = [lab.together([w], setting, options.seconds, log)[0] for w in works]
            ways = {"bursts": best_pairs(pulses), "random": at_random(len(chosen), random)}
            found: dict[str, float] = {}
            for way in sorted(ways, reverse=bool(number % 2)):
                found[way] = _throughput(lab, works, alone, ways[way], setting, options, log)
            runs.append({way: round(value, 3) for way, value in found.items()})
            print(f"run {number + 1}: {runs[-1]}", file=sys.stderr, flush=True)
    out["runs"] = runs
    ratios = [one["bursts"] / one["random"] for one in runs]
    for way in ("bursts", "random"):
        out[way] = round(mean(one[way] for one in runs), 3)
    out["one after the other"] = 1.0
    out["bursts over random"] = round(mean(ratios), 3)
    out["standard error"] = round(stdev(ratios) / len(ratios) ** 0.5, 3) if runs[1:] else None
    print(json.dumps(out, indent=None if options.json else 1))


def _throughput(
    lab: Lab,
    works: list[dict[str, Any]],
    alone: list[float],
    pairs: Pairs,
    setting: Setting,
    options: argparse.Namespace,
    log: Path,
) -> float:
    """The mean over the pairs of what both get of their speed alone."""
    sums = []
    for a, b in pairs:
        speeds = lab.together([works[a], works[b]], setting, options.seconds, log)
        sums.append(speeds[0] / alone[a] + speeds[1] / alone[b])
    return mean(sums)


if __name__ == "__main__":
    main()
