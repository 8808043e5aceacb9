"""GPU utilization foreseen from the network: random and family-out splits side by side.

Every figure is RMSLE of log(1 + percent), on rows that the model was not fitted on, next to what a
constant and a forest that knows only names and batch sizes reach on the same rows. Two more rows
repeat the protocol of Yeung et al. (HotCloud 2020): their eight features, an 80/20 split, and a
5-fold grid search over n_estimators and max_depth; that takes long, so it is done for the first
few splits, with Presage's error on the same splits beside it. Families: layout and activation
function of synthetic networks, the architecture's name of real ones. Needs the shared data and
scikit-learn.

    python -m benchmarks.foresee_utilization [--quick] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor
from sklearn.model_selection import GridSearchCV

from benchmarks._data import shared
from presage.foresee.utilization import (
    Features,
    LayerClass,
    UtilizationEstimator,
    families_of,
    features_of,
    names_of,
    usable_rows,
    utilization_of,
)
from presage.learn.evaluate import coverage, family_out, random_split, rmsle1p

Floats = npt.NDArray[np.float64]
Split = tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]
TARGETS = {
    ("real workloads", "random"): 0.154,
    ("CNNs", "random"): 0.09,
    ("MLPs → CNNs", "transfer"): 0.25,
    ("CNNs → MLPs", "transfer"): 0.30,
}


@dataclass(frozen=True, slots=True)
class Data:
    """One population of jobs."""

    X: Features
    y: Floats
    families: npt.NDArray[np.str_]
    names: npt.NDArray[np.str_]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what was asked for and print it."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few splits and few rows")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args(argv)
    rows = measure(options.quick)
    if options.json:
        print(json.dumps(rows, allow_nan=False))
    else:
        _print_table(rows)
    return 0


def measure(quick: bool) -> list[dict[str, Any]]:
    """All rows of the table."""
    real = read("lucid_single_rtx3090", "miso_util_a100")
    cnns, mlps = read("gpumemnet_cnn_a100"), read("gpumemnet_mlp_a100")
    if quick:
        mlps = _some(mlps, 800)
    splits, searched = (5, 1) if quick else (100, 10)
    return [
        compare("real workloads", "random", real, random_splits(real, splits), searched),
        compare("real workloads", "family-out", real, family_out(real.families, 5, 0)),
        compare("CNNs", "random", cnns, random_splits(cnns, 1 if quick else 5), 1),
        compare("CNNs", "family-out", cnns, family_out(cnns.families, 5, 0)),
        compare("MLPs", "random", mlps, random_splits(mlps, 1)),
        compare("MLPs", "family-out", mlps, family_out(mlps.families, 5, 0)),
        _transfer("MLPs → CNNs", mlps, cnns),
        _transfer("CNNs → MLPs", cnns, mlps),
    ]


def read(*tables: str) -> Data:
    """The usable rows of tables under `profiles/`, one after the other."""
    found = [usable_rows(pl.read_parquet(shared(f"profiles/{name}.parquet"))) for name in tables]
    return Data(
        Features.joined([features_of(table) for table in found]),
        np.concatenate([utilization_of(table) for table in found]),
        np.concatenate([families_of(table) for table in found]),
        np.concatenate([names_of(table) for table in found]),
    )


def compare(
    what: str, kind: str, data: Data, splits: Iterable[Split], searched: int = 0
) -> dict[str, Any]:
    """Mean errors over splits; the grid searches run on the first `searched` of them."""
    errors: dict[str, list[float]] = {}
    inside: list[float] = []
    for n, (train, test) in enumerate(splits):
        groups = None if kind == "random" else data.families[train]
        fitted = UtilizationEstimator().fit(data.X[train], data.y[train], groups)
        interval = fitted.predict_interval(data.X[test])
        inside.append(coverage(data.y[test], interval))
        guesses = {
            "presage": interval[:, 1],
            "step_model": np.expm1(fitted.base(data.X[test])),
            "constant": _constant(data.y[train], test.size),
            "test_constant": _constant(data.y[test], test.size),
            "names_forest": _names_forest(data, train, test),
        }
        if n < searched:
            guesses |= {
                "presage_there": interval[:, 1],
                "hotcloud_forest": _searched(RandomForestRegressor, data, train, test),
                "hotcloud_boosting": _searched(GradientBoostingRegressor, data, train, test),
            }
        for name, guess in guesses.items():
            errors.setdefault(name, []).append(rmsle1p(data.y[test], guess))
        mean = np.mean(errors["presage"])
        print(f"{what}, {kind}: split {n + 1}, mean error {mean:.4f}", file=sys.stderr)
    means: dict[str, Any] = {name: round(float(np.mean(of)), 4) for name, of in errors.items()}
    head = {"data": what, "split": kind, "splits": len(inside), "rows": len(data.y)}
    target = TARGETS.get((what, kind))
    return {**head, "target": target, **means, "coverage": round(float(np.mean(inside)), 3)}


def random_splits(data: Data, count: int) -> list[Split]:
    """Seeded 80/20 splits."""
    return [random_split(len(data.y), 0.2, seed) for seed in range(count)]


def _transfer(what: str, train: Data, test: Data) -> dict[str, Any]:
    """Fit on one population, test on all of the other."""
    both = Data(
        Features.joined([train.X, test.X]),
        np.concatenate([train.y, test.y]),
        np.concatenate([train.families, test.families]),
        np.concatenate([train.names, test.names]),
    )
    split = np.arange(len(train.y)), np.arange(len(train.y), len(both.y))
    return compare(what, "transfer", both, [split])


def _constant(y: Floats, n: int) -> Floats:
    """The constant with the least RMSLE on `y`."""
    return np.full(n, np.expm1(np.mean(np.log1p(y))))


def _names_forest(data: Data, train: npt.NDArray[np.intp], test: npt.NDArray[np.intp]) -> Floats:
    known = np.unique(data.names[train])
    X = np.column_stack([data.names[:, None] == known, data.X.rows[:, 0]]).astype(np.float64)
    forest = RandomForestRegressor(200, random_state=0).fit(X[train], np.log1p(data.y[train]))
    return np.asarray(np.expm1(forest.predict(X[test])))


def _searched(
    model: Callable[..., Any],
    data: Data,
    train: npt.NDArray[np.intp],
    test: npt.NDArray[np.intp],
) -> Floats:
    """The protocol of HotCloud 2020, on its eight features."""
    kinds, macs, _, _, params = data.X.layers.T
    counts = [data.X.total(kinds == kind) for kind in LayerClass]
    totals = [2 * data.X.total(macs), data.X.total(params), *counts]
    X = np.column_stack([*totals, data.X.rows[:, 1], data.X.rows[:, 0]])
    grid = {"n_estimators": [50, 150], "max_depth": [3, 6, 12]}
    search = GridSearchCV(model(random_state=0), grid, cv=5, scoring="neg_mean_squared_error")
    search.fit(X[train], np.log1p(data.y[train]))
    return np.asarray(np.expm1(search.predict(X[test])))


def _some(data: Data, count: int) -> Data:
    chosen = np.random.default_rng(0).permutation(len(data.y))[:count]
    return Data(data.X[chosen], data.y[chosen], data.families[chosen], data.names[chosen])


def _print_table(rows: list[dict[str, Any]]) -> None:
    names = {
        "data": "data",
        "split": "split",
        "splits": "splits",
        "target": "target",
        "presage": "Presage",
        "coverage": "80 % holds",
        "step_model": "step model",
        "names_forest": "names only",
        "constant": "constant",
        "test_constant": "(of test)",
        "presage_there": "| Presage",
        "hotcloud_forest": "HC'20 RF",
        "hotcloud_boosting": "HC'20 GB",
    }
    cells = [["" if row.get(n) is None else str(row[n]) for n in names] for row in rows]
    table = [list(names.values()), *cells]
    widths = [max(len(line[n]) for line in table) for n in range(len(names))]
    for line in table:
        left = [cell.ljust(width) for cell, width in zip(line[:2], widths[:2], strict=True)]
        right = [cell.rjust(width) for cell, width in zip(line[2:], widths[2:], strict=True)]
        print("  ".join(left + right))


if __name__ == "__main__":
    sys.exit(main())
