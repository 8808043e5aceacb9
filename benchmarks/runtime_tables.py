"""Run times of ALOJA: rows at random, a cluster never seen, a benchmark never seen.

`python -m benchmarks.runtime_tables [--rows 30] [--draws 10] [--together 4] [--only Cluster]`.

Rows above 5 × or below 0.2 × their benchmark's median are dropped. For a group never seen, models
are fitted on all others; five of its runs are drawn, the rest foreseen, several times. With
`--together 4`, groups are left out four at a time: fewer fits, on fewer groups. `--rows` keeps at
most so many rows of each benchmark on each cluster in the fit (0: all); all rows of what is left
out are candidates. Everything in the models is chosen inside the fit, on the known groups.
"""

from __future__ import annotations

import argparse

import numpy as np
import polars as pl

from benchmarks.runtime_search import aloja
from presage.foresee.runtime.model import JobTimes
from presage.learn.evaluate import coverage, mape

_TARGET = "Exe.Time"
_FEW = 5
_MOST_TESTED = 600


def main() -> None:
    """Print the error of each group left out, and their means."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--together", type=int, default=1)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    table = aloja().sample(fraction=1.0, shuffle=True, seed=0)
    if "random".startswith(asked.only):
        _at_random(table)
    for group in ("Cluster", "Benchmark"):
        if group.startswith(asked.only):
            _left_out(table, group, asked)


def _at_random(table: pl.DataFrame) -> None:
    cut = int(0.8 * table.height)
    test = table[cut:]
    said = JobTimes.fit(table[:cut], _TARGET, ["Cluster"]).predict(test)
    truth = test[_TARGET].to_numpy()
    print(
        f"rows at random: MAPE {100 * mape(truth, said[:, 1]):.1f} %, 80 % interval holds"
        f" {100 * coverage(truth, said):.0f} %",
        flush=True,
    )


def _left_out(table: pl.DataFrame, group: str, asked: argparse.Namespace) -> None:
    found = []
    values = np.random.default_rng(0).permutation(sorted(table[group].unique().to_list())).tolist()
    for first in range(0, len(values), asked.together):
        out = values[first : first + asked.together]
        rest = table.filter(~pl.col(group).is_in(out))
        if asked.rows:
            rest = rest.filter(pl.int_range(pl.len()).over("Cluster", "Benchmark") < asked.rows)
        model = JobTimes.fit(rest, _TARGET, [group])
        for value in out:
            mine = table.filter(pl.col(group) == value)
            off, held = _foreseen(model, mine, asked.draws)
            found.append((mine.height, 100 * off, 100 * held))
            print(
                f"  {group} {value} ({mine.height} rows): MAPE {100 * off:.1f} %,"
                f" holds {100 * held:.0f} %",
                flush=True,
            )
    sizes, off_pct, held_pct = (np.array(column) for column in zip(*found, strict=True))
    print(
        f"{group} left out, {_FEW} runs seen: MAPE {off_pct.mean():.1f} % (mean of groups),"
        f" {np.average(off_pct, weights=sizes):.1f} % (of rows); 80 % interval holds"
        f" {held_pct.mean():.0f} % (groups), {np.average(held_pct, weights=sizes):.0f} % (rows)",
        flush=True,
    )


def _foreseen(model: JobTimes, mine: pl.DataFrame, draws: int) -> tuple[float, float]:
    """MAPE and coverage for one group, the mean over draws of the runs that are seen."""
    rng = np.random.default_rng(0)
    off, held = [], []
    for _ in range(draws):
        order = rng.permutation(mine.height)
        seen, test = mine[order[:_FEW]], mine[order[_FEW : _FEW + _MOST_TESTED]]
        said, truth = model.predict(test, seen), test[_TARGET].to_numpy()
        off.append(mape(truth, said[:, 1]))
        held.append(coverage(truth, said))
    return float(np.mean(off)), float(np.mean(held))


if __name__ == "__main__":
    main()
