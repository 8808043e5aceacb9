"""Memory of repeated tasks, on Sizey's traces of six workflows: what is wasted, how often too
little was given.

`python -m benchmarks.runtime_tasks [--choose] [--json]`.

How it is counted. Runs that completed (14,736), in the order of their submission. Each is sized
by the runs of its process that had ended when it was submitted, and by nothing of later; with
fewer than two, it gets what was asked for (the cold start, counted). A try that gets less than
the peak fails, wastes all it had for the whole time of the run, and is repeated with twice as
much, with the largest run known if that is more, and with what was asked for at most. The last
try wastes what it did not use. Failures are failed tries as a share of runs; beside it, runs
that failed at least once. Memory is `peak_rss` in GiB, time is `realtime`.

Baselines are counted alike: the largest run × 1.1, the 95 % quantile × 1.1, and an oracle that
gives the peak, each from three runs on.

`--choose` shows how the settings were chosen: for each workflow, those that waste least on the
other five with at most 2 % of tries failed there.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import product

import numpy as np
import polars as pl

from benchmarks._data import shared
from presage.provision.task_table import (
    TaskOutcome,
    TaskRun,
    read_tasks,
    replay_each,
    together,
)
from presage.provision.tasks import SizingCost

_MOST_FAILED = 0.02
_COLD = 3


def main() -> None:
    """Print what each way to size wastes, and how often it fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    table = pl.read_parquet(shared("runtime/sizey_nextflow_task_traces.parquet"))
    if asked.choose:
        _choose(table)
        return
    runs = read_tasks(table)
    made = together(_by_workflow(table, SizingCost()).values())
    rows = {
        "asked for": (made.asked_wasted_gib_h, 0.0, 0.0),
        "largest × 1.1": _baseline(runs, lambda known, _: 1.1 * max(known)),
        "95 % × 1.1": _baseline(runs, lambda known, _: 1.1 * float(np.quantile(known, 0.95))),
        "oracle": _baseline(runs, lambda _, run: run.peak_mib),
        "by cost": _figures(made),
    }
    if asked.json:
        print(json.dumps(rows))
        return
    for name, (wasted, tries, failed) in rows.items():
        print(
            f"{name:>14}: {wasted:8,.0f} GiB h wasted, {100 * tries:.2f} % of tries failed,"
            f" {100 * failed:.2f} % of runs"
        )
    for workflow, of in _by_workflow(table, SizingCost()).items():
        wasted, tries, _ = _figures(of)
        print(f"  {workflow}: {wasted:,.0f} GiB h, {100 * tries:.2f} % of {of.runs:,} runs")


def _figures(made: TaskOutcome) -> tuple[float, float, float]:
    return (
        made.wasted_gib_h,
        made.failed_tries / made.runs,
        made.failed_runs / made.runs,
    )


def _baseline(
    runs: list[TaskRun], rule: Callable[[list[float], TaskRun], float]
) -> tuple[float, float, float]:
    known: dict[str, list[float]] = defaultdict(list)
    going: list[tuple[float, int]] = []
    wasted, tries, failed = 0.0, 0, 0
    for number, run in enumerate(runs):
        while going and going[0][0] <= run.submitted_s:
            ended = runs[heappop(going)[1]]
            known[ended.task].append(ended.peak_mib)
        most = run.asked_mib or np.inf
        mine = known[run.task]
        given = min(rule(mine, run), most) if len(mine) >= _COLD else most
        failed += given < run.peak_mib
        while given < run.peak_mib:
            wasted, tries = wasted + given * run.hours, tries + 1
            given = min(2 * given, most) if given < most else 2 * given
        wasted += (given - run.peak_mib) * run.hours
        heappush(going, (run.ended_s, number))
    return wasted / 1024, tries / len(runs), failed / len(runs)


def _by_workflow(table: pl.DataFrame, cost: SizingCost) -> dict[str, TaskOutcome]:
    """What became of each workflow, when all ran on one cluster."""
    workflow = dict(table.select("process", "workflow").unique().iter_rows())
    found: dict[str, list[TaskOutcome]] = defaultdict(list)
    for task, made in replay_each(read_tasks(table), cost).items():
        found[workflow[task]].append(made)
    return {name: together(mine) for name, mine in sorted(found.items())}


def _choose(table: pl.DataFrame) -> None:
    """Settings by the other workflows, and the sum of what they do on each."""
    made = {
        cost: _by_workflow(table, cost)
        for cost in (
            SizingCost(failure, belief, least)
            for failure, belief, least in product((4096, 16_384, 65_536), (1, 3, 6), (2, 3))
        )
    }
    chosen = []
    for name in next(iter(made.values())):
        others = {
            cost: together(one for at, one in of.items() if at != name)
            for cost, of in made.items()
        }
        fits = [cost for cost, of in others.items() if of.failed_tries <= _MOST_FAILED * of.runs]
        best = min(fits, key=lambda cost: others[cost].wasted_gib_h)
        wasted, tries, _ = _figures(made[best][name])
        print(f"{name}: {best} wastes {wasted:,.0f} GiB h, {100 * tries:.2f} %", flush=True)
        chosen.append(made[best][name])
    wasted, tries, failed = _figures(together(chosen))
    print(
        f"in all: {wasted:,.0f} GiB h, {100 * tries:.2f} % of tries, {100 * failed:.2f} % of runs"
    )


if __name__ == "__main__":
    main()
