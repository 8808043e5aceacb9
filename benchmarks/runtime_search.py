"""How good is the configuration that `presage tune` chooses? Each program left out in turn.

`python -m benchmarks.runtime_search [--quick] [--kind botorch-transfer] [--json]`.

A program (`kmeans`, `terasort`) is left out with all its sizes, frameworks and clusters; what the
others took is known. The settings of the search are chosen on the known programs alone (each left
out in turn among them). A measurement is the mean of its repeats, configurations that never
completed are dropped, and searches are not stopped early. Regret is how much longer (or dearer)
the best configuration tried is than the best there is.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
import polars as pl

from benchmarks._data import shared
from benchmarks._search_libraries import LIBRARIES
from presage.foresee.runtime.search import ConfigSearch, SearchSettings, settings_for, teach
from presage.foresee.runtime.trials import Objective, read_trials

_LEAST_CONFIGS = 10
_AFTER = (1, 3, 6, 10)


def left_out(
    table: pl.DataFrame,
    program: str,
    objective: Objective,
    runs: int,
    most: int,
    kind: str = "presage",
) -> dict[str, list[float]]:
    """Regrets after so many runs, and how many times longer the median takes, by workload."""
    found: dict[str, list[float]] = {}
    for name in sorted(table[program].unique().to_list()):
        mine, rest = table.filter(pl.col(program) == name), table.filter(pl.col(program) != name)
        if "completed" in table.columns and not mine["completed"].any():
            continue
        trials, known = read_trials([mine, rest], objective)
        look = LIBRARIES[kind](trials, known, runs) if kind in LIBRARIES else None
        settings = SearchSettings() if look or kind == "alone" else settings_for(known, runs)
        done = 0
        for workload in sorted(set(trials.workload.tolist())):
            values = trials.of(workload)
            if len(values) < _LEAST_CONFIGS or done >= most:
                continue
            done += 1
            words = trials.words.get(workload, ())
            taught = teach(None if kind == "alone" else known, trials.configs.height, words)
            if look is not None:
                times = look(list(values), values, taught, max(_AFTER))
            else:
                search = ConfigSearch(trials, list(values), taught, settings)
                tuning = search.run(values.__getitem__, max(_AFTER), later_runs=np.inf)
                times = [pick.took for pick in tuning.picks]
            took = np.minimum.accumulate(times)
            best = min(values.values())
            after = [100 * (took[min(n, len(took)) - 1] / best - 1) for n in _AFTER]
            median = float(np.median(list(values.values())))
            found[workload] = [*after, median / took[min(runs, len(took)) - 1]]
        print(f"  {name}: alike {settings.alike:g}, cliffs {settings.cliffs}", flush=True)
    return found


def main() -> None:
    """Print regrets beside what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two workloads of each program")
    parser.add_argument(
        "--kind",
        choices=["presage", "alone", *LIBRARIES],
        default="presage",
        help="who searches: Presage, without what is known (alone), or a library",
    )
    parser.add_argument("--only", default="", help="part of the name of a case")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    scout = pl.read_parquet(shared("runtime/scout_runs.parquet"))
    single = scout.filter(pl.col("set") == "osr_single_node")
    many = scout.filter(pl.col("set") == "osr_multiple_nodes")
    cases: list[tuple[str, pl.DataFrame, str, Objective, int]] = [
        ("scout single-node time", single, "workload", "time", 3),
        ("scout multi-node cost", many, "workload", "cost", 6),
        ("scout multi-node time", many, "workload", "time", 6),
        ("scout single-node cost", single, "workload", "cost", 6),
        ("aloja time", aloja(), "Benchmark", "time", 6),
    ]
    out: dict[str, Any] = {}
    for name, table, program, objective, runs in cases:
        if asked.only not in name:
            continue
        rows = left_out(table, program, objective, runs, 2 if asked.quick else 10_000, asked.kind)
        values = np.array(list(rows.values()))
        mean = values.mean(axis=0)
        regrets = ", ".join(f"{n}: {mean[i]:.1f}" for i, n in enumerate(_AFTER))
        print(
            f"{name} ({len(rows)} searches, settings chosen for {runs} runs): mean regret % after"
            f" {regrets}; median configuration ÷ chosen {mean[-1]:.2f}",
            flush=True,
        )
        out[name] = {"searches": len(rows), "regret_pct": dict(zip(_AFTER, mean, strict=False))}
        out[name]["median_over_chosen"] = mean[-1]
    if asked.json:
        print(json.dumps(out))


def aloja() -> pl.DataFrame:
    """The shared rows without the outliers that its guide names, one search for each benchmark on
    each cluster."""
    table = pl.read_parquet(shared("runtime/aloja.parquet"))
    ratio = pl.col("Exe.Time") / pl.col("Exe.Time").median().over("Benchmark")
    return table.filter(ratio.is_between(0.2, 5))


if __name__ == "__main__":
    main()
