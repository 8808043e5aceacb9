"""Fit the estimators: those that are shipped, from public measurements, and a user's own.

`python -m presage.foresee.fitting DATA DATE [NAME…]` writes the shipped bundles anew. Only data
whose licence allows it goes into them; each bundle has a card that says what it is made of and how
well it does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from presage.foresee import interference, roofline_rows, utilization
from presage.foresee.known import graph_memory_rows, graph_step_rows
from presage.foresee.memory import GRAPH_FEATURES, MemoryEstimator
from presage.foresee.memory_table import TABLE_FEATURES, TableMemoryEstimator, table_features
from presage.foresee.roofline_fitting import fit_steps
from presage.foresee.steptime import (
    TOTALS,
    StepTimeEstimator,
    TotalsStepTimeEstimator,
    step_feature_names,
    totals,
)
from presage.learn import Floats
from presage.learn.bundle import prefixed, save_bundle
from presage.learn.evaluate import coverage, family_of, mape, rmsle
from presage.model.errors import UserError

__all__ = ["MODELS", "fit_shipped", "fit_tables", "memory_data", "step_data"]

MODELS = Path(__file__).with_name("models")
"""Where the shipped bundles are."""

Arrays = dict[str, npt.NDArray[Any]]
_GPUMEMNET = "GPUMemNet (itu-rad/GPUMemNet): timm models on an A100"
_TIMM = "timm benchmark results (huggingface/pytorch-image-models)"


def memory_data(data: Path) -> pl.DataFrame:
    """Measured training memory without the rows that ran out of it."""
    table = pl.read_parquet(data / "profiles" / "timm_train_memory_a100.parquet")
    return table.filter(~pl.col("oom_suspect"))


def step_data(data: Path) -> pl.DataFrame:
    """Measured training steps."""
    return pl.read_parquet(data / "profiles" / "timm_train_rtx3090.parquet")


def infer_data(data: Path) -> pl.DataFrame:
    """Measured inference on GPUs, with the totals of a model from any of its rows."""
    table = pl.read_parquet(data / "profiles" / "timm_infer_multi_gpu.parquet")
    table = table.filter(
        pl.col("step_time").is_not_null() & ~pl.col("device").str.starts_with("i")
    )
    facts = table.select("model", "img_size", "gmacs", "macts").drop_nulls()
    facts = facts.unique(["model", "img_size"], keep="first", maintain_order=True)
    return table.drop("gmacs", "macts").join(
        facts, on=["model", "img_size"], how="left", maintain_order="left"
    )


def fit_memory(table: pl.DataFrame, date: str) -> tuple[Arrays, dict[str, Any]]:
    """Both memory estimators."""
    known, X = graph_memory_rows(table)
    y = known["max_gpu_mem_mib"].cast(pl.Float64).to_numpy()
    families = _families(known)
    possible = y > X[:, 1]  # less than the tensors alone: the run had failed
    graph = MemoryEstimator().fit(X[possible], y[possible], families[possible])
    X, y = X[possible], y[possible]
    rows, truth = table_features(table), table["max_gpu_mem_mib"].cast(pl.Float64).to_numpy()
    plain = TableMemoryEstimator().fit(rows, truth, _families(table))
    factor, guess = graph.residual_.out_of_fold_, graph.out_of_fold_
    card = {
        "name": "memory",
        "version": "2",
        "date": date,
        "data": f"{_GPUMEMNET}; {len(truth)} runs, {len(np.unique(_families(table)))} families",
        "licence": "CC-BY-4.0",
        "features": [*GRAPH_FEATURES, *TABLE_FEATURES],
        "splits": "10 folds, no family in training and test; graphs without the runs that show "
        "less than their tensors alone",
        "errors": {
            "graph": _errors(y, guess),
            "graph_coverage_80": round(
                float(coverage(y, graph.residual_.intervals_[0].interval(factor))), 4
            ),
            "table": _errors(truth, plain.residual_["traced"].out_of_fold_),
            "totals": _errors(truth, plain.residual_["totals"].out_of_fold_),
        },
    }
    return prefixed("graph", graph.to_arrays()) | prefixed("table", plain.to_arrays()), card


def fit_step_time(
    train: pl.DataFrame, infer: pl.DataFrame | None, date: str
) -> tuple[Arrays, dict[str, Any]]:
    """Training from graphs and from totals, inference from totals."""
    known, X = graph_step_rows(train)
    y = known["step_time"].to_numpy()
    graph = StepTimeEstimator().fit(X, y, _families(known))
    rows, truth = totals(train), train["step_time"].to_numpy()
    plain = TotalsStepTimeEstimator().fit(rows, truth, _families(train))
    nhwc = known["layout"].to_numpy() == "nhwc"
    errors = {
        "graph_nchw": _errors(y[~nhwc], graph.out_of_fold_[~nhwc]),
        "graph_nhwc": _errors(y[nhwc], graph.out_of_fold_[nhwc]),
        "totals": _errors(truth, plain.out_of_fold_),
    }
    arrays = prefixed("graph", graph.to_arrays()) | prefixed("train", plain.to_arrays())
    if infer is not None:
        times = infer["step_time"].to_numpy()
        steps = TotalsStepTimeEstimator().fit(totals(infer), times, _families(infer))
        errors["inference"] = _errors(times, steps.out_of_fold_)
        arrays |= prefixed("infer", steps.to_arrays())
    card = {
        "name": "step_time",
        "version": "1",
        "date": date,
        "data": f"{_TIMM}; {len(truth)} training and {0 if infer is None else infer.height} "
        "inference rows",
        "licence": "Apache-2.0",
        "features": [*step_feature_names(), *TOTALS],
        "splits": "10 folds (graph) and 5 (totals), no family in training and test",
        "errors": errors,
    }
    return arrays, card


def fit_roofline_steps(data: Path, date: str) -> tuple[Arrays, dict[str, Any]]:
    """Efficiencies of operators on GPUs, from published trainings."""
    rows, helpers = roofline_rows.fitted_rows(data)
    steps, foreseen = fit_steps(rows, helpers)
    truth = np.array([row.ms for row in rows])
    errors = {}
    for way, guess in foreseen.items():
        typical = float(np.median(np.abs(guess / truth - 1.0)))
        errors[f"{way}_left_out"] = {
            "typical": round(typical, 4),
            "rmsle": round(float(rmsle(truth, guess)), 4),
        }
    sources = sorted({row.source for row in (*rows, *helpers)})
    card = {
        "name": "roofline",
        "version": "2",
        "date": date,
        "data": f"{', '.join(sources)}; {len(rows)} published steps and {len(helpers)} others",
        "licence": "Apache-2.0, BSD-3-Clause, MIT",
        "features": ["arithmetic", "traffic", "launches", "class", "precision", "GPU"],
        "splits": "families, GPUs and sources left out by turns",
        "errors": errors,
    }
    return steps.to_arrays(), card


def _families(table: pl.DataFrame) -> npt.NDArray[np.str_]:
    return np.array([family_of(str(name)) for name in table["model"].to_list()])


def _errors(truth: Floats, guess: Floats) -> dict[str, float]:
    return {
        "mape": round(float(mape(truth, guess)), 4),
        "rmsle": round(float(rmsle(truth, guess)), 4),
    }


def fit_shipped(data: Path, date: str, *names: str) -> None:
    """Write the shipped bundles anew: all of them, or those that are named."""
    made: dict[str, Callable[[], tuple[Arrays, dict[str, Any]]]] = {
        "memory": lambda: fit_memory(memory_data(data), date),
        "roofline": lambda: fit_roofline_steps(data, date),
        "step_time": lambda: fit_step_time(step_data(data), infer_data(data), date),
        "utilization": lambda: utilization.fit_shipped(data, date),
        "interference": lambda: interference.fit_shipped(data, date),
    }
    MODELS.mkdir(exist_ok=True)
    for name in names or made:
        arrays, card = made[name]()
        save_bundle(MODELS / f"{name}.npz", arrays, card)
        print(f"{name}: {card['errors']}")


_MEASURED = {"memory": "max_gpu_mem_mib", "step_time": "step_time"}


def fit_tables(target: str, directory: Path, out: Path, date: str) -> dict[str, Any]:
    """Fit one target from the Parquet and CSV files of a directory; returns the card."""
    files = sorted([*directory.glob("*.parquet"), *directory.glob("*.csv")])
    if not files:
        raise UserError(f"{directory} has no .parquet or .csv file with profiles")
    tables = [
        pl.read_csv(path) if path.suffix == ".csv" else pl.read_parquet(path) for path in files
    ]
    try:
        table = pl.concat(tables, how="diagonal_relaxed")
    except pl.exceptions.PolarsError as error:
        raise UserError(f"the files in {directory} do not go together: {error}") from None
    if target == "utilization":
        X, y = utilization.features_of(table), utilization.utilization_of(table)
        fitted = utilization.UtilizationEstimator().fit(X, y, utilization.families_of(table))
        arrays = fitted.to_arrays()
        card: dict[str, Any] = {"errors": {k: round(v, 4) for k, v in fitted.held_out_.items()}}
    else:
        measured = _MEASURED.get(target)
        if measured is None:
            raise UserError(f"unknown target '{target}': memory, step_time or utilization")
        lacking = [c for c in ("model", "batch_size", measured) if c not in table.columns]
        if lacking:
            raise UserError(f"the profiles for {target} lack the column {', '.join(lacking)}")
        table = table.drop_nulls([measured])
        if table.height < 40:
            raise UserError(f"{table.height} profiles are too few to fit on: 40 at least")
        if target == "memory":
            arrays, card = fit_memory(table, date)
        else:
            arrays, card = fit_step_time(table, None, date)
    card |= {
        "name": target,
        "version": "own",
        "date": date,
        "data": f"{len(files)} files, {table.height} rows",
        "licence": "the user's",
    }
    card.setdefault("features", [])
    card.setdefault("splits", "families left out by turns")
    save_bundle(out, arrays, card)
    return card


if __name__ == "__main__":
    fit_shipped(Path(sys.argv[1]), *sys.argv[2:])
