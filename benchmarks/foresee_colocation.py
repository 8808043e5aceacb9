"""Speed of jobs that share a GPU, foreseen from each alone: splits by pair and by model.

Figures are the mean absolute error of the normalised speed on rows that the model was not fitted
on, beside the best constant and a monotone fit on summed solo utilization (or, where utilization
was not measured, on the summed share of peak FLOP/s). By pair: no unordered pair of (model, batch)
is in training and test. By configuration, by model: nothing of a test configuration or model is in
training, on either side of a pair. The F1 of pairs that cannot share flatters: the memory of the
jobs was worked out a second time after those pairs were seen. Needs the shared data and
scikit-learn.

    python -m benchmarks.foresee_colocation [--quick] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.isotonic import IsotonicRegression

from benchmarks._data import data_dir
from presage.foresee.interference import (
    FEATURES,
    InterferenceEstimator,
    MemoryLimit,
    Pairs,
    read_gavel,
    read_lucid,
)
from presage.learn.evaluate import coverage, f1, family_out, mae

Split = tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]
TARGETS = {"pair": 0.06, "model": 0.09}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what was asked for and print it."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help="few trees, no split by configuration"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args(argv)
    lucid, gavel = read_lucid(data_dir()), read_gavel(data_dir())
    able = gavel.take(~gavel.cannot)
    rows = []
    for name, pairs in (("Lucid", lucid), ("Gavel", able)):
        load = "summed utilization" if name == "Lucid" else "summed share of peak FLOP/s"
        splits = {"pair": by_pair(pairs), "model": leave_out(pairs.models)}
        if not options.quick:
            splits["configuration"] = leave_out(pairs.configurations)
        for kind, parts in splits.items():
            trees = 30 if options.quick else 150
            rows.append(compare(name, kind, pairs, parts, FEATURES.index(load), trees))
    limits = {"pair": by_pair(gavel), "configuration": leave_out(gavel.configurations)}
    sharing = [cannot_share(kind, gavel, parts) for kind, parts in limits.items()]
    if options.json:
        print(json.dumps({"speed": rows, "cannot_share": sharing}, allow_nan=False))
    else:
        _print_table(rows)
        print()
        _print_table(sharing)
    return 0


def by_pair(pairs: Pairs) -> list[Split]:
    """Five folds without a common unordered pair of configurations."""
    rows = np.arange(len(pairs.speed))
    return [
        (np.isin(rows, train), np.isin(rows, test)) for train, test in family_out(pairs.pair, 5, 0)
    ]


def leave_out(names: npt.NDArray[np.str_]) -> list[Split]:
    """For each name, the rows without it and the rows with it on either side."""
    found = [np.any(names == name, axis=1) for name in np.unique(names)]
    return [(~with_it, with_it) for with_it in found]


def compare(
    data: str, kind: str, pairs: Pairs, splits: Sequence[Split], load: int, trees: int
) -> dict[str, Any]:
    """Errors over all test rows of the splits."""
    truth, inside = [], []
    guesses: dict[str, list[npt.NDArray[np.float64]]] = {}
    for train, test in splits:
        fitted = InterferenceEstimator(trees=trees).fit(
            pairs.X[train], pairs.speed[train], pairs.models[train]
        )
        interval = fitted.predict_interval(pairs.X[test])
        monotone = IsotonicRegression(increasing=False, out_of_bounds="clip")
        monotone.fit(pairs.X[train, load], pairs.speed[train])
        truth.append(pairs.speed[test])
        inside.append(interval)
        found = {
            "presage": interval[:, 1],
            "monotone": monotone.predict(pairs.X[test, load]),
            "constant": np.full(test.sum(), np.median(pairs.speed[train])),
        }
        for name, guess in found.items():
            guesses.setdefault(name, []).append(guess)
        print(f"{data}, {kind}: {len(truth)} of {len(splits)}", file=sys.stderr)
    actual = np.concatenate(truth)
    errors = {name: round(mae(actual, np.concatenate(of)), 4) for name, of in guesses.items()}
    held = round(coverage(actual, np.concatenate(inside)), 3)
    head = {"data": data, "split by": kind, "rows": len(actual), "target": TARGETS.get(kind)}
    return {**head, **errors, "80 % holds": held}


def cannot_share(kind: str, pairs: Pairs, splits: Sequence[Split]) -> dict[str, Any]:
    """F1 of the pairs that cannot share, over all test rows."""
    truth, guess, simple = [], [], []
    for train, test in splits:
        fitted = MemoryLimit().fit(pairs.limits[train], pairs.cannot[train])
        truth.append(pairs.cannot[test])
        guess.append(fitted.predict(pairs.limits[test]))
        simple.append(pairs.limits[test, 0] > 1.0)
    actual = np.concatenate(truth)
    return {
        "cannot share": "Gavel",
        "split by": kind,
        "rows": len(actual),
        "target": 0.8 if kind == "pair" else None,
        "F1": round(f1(actual, np.concatenate(guess)), 4),
        "memory > GPU": round(f1(actual, np.concatenate(simple)), 4),
        "always": round(f1(actual, np.ones(actual.size)), 4),
    }


def _print_table(rows: list[dict[str, Any]]) -> None:
    table = [list(rows[0])]
    table += [["" if row[n] is None else str(row[n]) for n in rows[0]] for row in rows]
    widths = [max(len(line[n]) for line in table) for n in range(len(table[0]))]
    for line in table:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))


if __name__ == "__main__":
    sys.exit(main())
