"""Predictions for the rows of a table: columns p10, p50, p90 are added, in order.

What was measured is never read. A row that names a known model is answered as from its graph;
others from the totals that the table has, with wider intervals the fewer there are.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import cast, get_args

import numpy as np
import numpy.typing as npt
import polars as pl

from presage.foresee import estimators, utilization
from presage.foresee.gpus import find
from presage.foresee.known import (
    graph_memory_rows,
    graph_step_rows,
    known_models,
    scaled_batches,
)
from presage.foresee.memory_table import table_features
from presage.foresee.roofline import plain_precision
from presage.foresee.steptime import MEASURED_ON, totals
from presage.learn import Floats
from presage.model.errors import UserError
from presage.model.setup import Layout, Setup, TrainingPrecision

__all__ = ["TARGETS", "predict_table"]


def predict_table(table: pl.DataFrame, target: str) -> pl.DataFrame:
    """The table with p10, p50 and p90 of a target."""
    if target not in TARGETS:
        raise UserError(f"unknown target '{target}': one of {', '.join(TARGETS)}")
    taken = [name for name in ("p10", "p50", "p90") if name in table.columns]
    if taken:
        raise UserError(f"the table has a column {taken[0]} already: drop it or rename it")
    _check(table)
    quantiles = TARGETS[target](table) if table.height else np.empty((0, 3))
    columns = [pl.Series(name, quantiles[:, i]) for i, name in enumerate(("p10", "p50", "p90"))]
    return table.with_columns(columns)


def _check(table: pl.DataFrame) -> None:
    """Sizes are positive numbers where they are given."""
    for name in ("batch_size", "gmacs", "macts", "param_count", "img_size"):
        if name not in table.columns:
            continue
        values = table[name].cast(pl.Float64, strict=False)
        if values.null_count() > table[name].null_count():
            raise UserError(f"column {name} of the table has values that are no numbers")
        if (values <= 0).any():
            raise UserError(f"column {name} of the table has values that are not above 0")
    if "device" in table.columns and table["device"].null_count():
        raise UserError("column device of the table has rows without a GPU")


def _memory(table: pl.DataFrame) -> Floats:
    known = _known(table)
    out = np.full((table.height, 3), np.nan)
    if known.any():
        _, rows = graph_memory_rows(table.filter(pl.Series(known)))
        out[known] = estimators.memory().graph.predict_interval(rows)
    if not known.all():
        rows = table_features(table.filter(pl.Series(~known)))
        out[~known] = estimators.memory().table.predict_interval(rows)
    return out


def _step_time(table: pl.DataFrame) -> Floats:
    phase = table["phase"].to_list() if "phase" in table.columns else ["train"] * table.height
    infers = np.array([value == "infer" for value in phase])
    known = _known(table) & ~infers
    out = np.full((table.height, 3), np.nan)
    lab = known & _as_measured(table)
    if lab.any():
        _, rows = graph_step_rows(table.filter(pl.Series(lab)))
        out[lab] = estimators.step_time().graph.predict_interval(rows)
    if (known & ~lab).any():
        out[known & ~lab] = _elsewhere(table.filter(pl.Series(known & ~lab)))
    for model, here in (
        (estimators.step_time().train, ~known & ~infers),
        (estimators.step_time().infer, infers),
    ):
        if here.any():
            out[here] = model.predict_interval(totals(_complete(table.filter(pl.Series(here)))))
    return out


def _as_measured(table: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """Rows of the GPU and the precision that hundreds of models were measured with."""
    here = np.ones(table.height, bool)
    if "device" in table.columns:
        names = {name: find(name).name == MEASURED_ON for name in table["device"].unique()}
        here &= np.array([names[name] for name in table["device"].to_list()])
    if "dtype" in table.columns:
        here &= np.array([dtype == "amp" for dtype in table["dtype"].to_list()])
    return here


def _elsewhere(table: pl.DataFrame) -> Floats:
    """Known models on other GPUs or at other precisions, from their operators."""
    places = known_models().places(table["model"].to_list())
    model = estimators.step_time().graph
    out = np.empty((table.height, 3))
    batches = scaled_batches(table, places)
    for n, row in enumerate(table.iter_rows(named=True)):
        said = plain_precision(str(row.get("dtype") or "amp"))
        if said not in get_args(TrainingPrecision):
            known = ", ".join(get_args(TrainingPrecision))
            raise UserError(f"unknown dtype '{said}' in the table: one of {known}")
        layout: Layout = "nhwc" if row.get("layout") == "nhwc" else "nchw"
        setup = Setup(precision=cast(TrainingPrecision, said), layout=layout)
        ops = known_models().operators(int(places[n]))
        gpu = find(row.get("device") or MEASURED_ON)
        out[n] = model.quantiles(ops, batches[n], gpu, setup)
    return out


def _complete(table: pl.DataFrame) -> pl.DataFrame:
    """A model's totals from another of its rows where one lacks them."""
    names = [name for name in ("gmacs", "macts") if name in table.columns]
    keys = [name for name in ("model", "img_size") if name in table.columns]
    if not names or not keys:
        return table
    return table.with_columns(
        pl.col(name).fill_null(pl.col(name).drop_nulls().first().over(keys)) for name in names
    )


def _utilization(table: pl.DataFrame) -> Floats:
    """NaN for a row that cannot be told, such as a model nobody knows, unless that is all."""
    try:
        return _percent(table)
    except UserError as error:
        reason = error
    out = np.full((table.height, 3), np.nan)
    for row in range(table.height):
        with suppress(UserError):
            out[row] = _percent(table[row : row + 1])[0]
    if np.isnan(out).all():
        raise reason
    return out


def _percent(table: pl.DataFrame) -> Floats:
    interval = estimators.utilization().predict_interval(utilization.features_of(table))
    return np.clip(interval, 0.0, 100.0)


def _known(table: pl.DataFrame) -> npt.NDArray[np.bool_]:
    if "model" not in table.columns or "batch_size" not in table.columns:
        return np.zeros(table.height, bool)
    known: npt.NDArray[np.bool_] = known_models().places(table["model"].to_list()) >= 0
    known &= table["batch_size"].is_not_null().to_numpy()
    return known


TARGETS: dict[str, Callable[[pl.DataFrame], Floats]] = {
    "memory": _memory,
    "step_time": _step_time,
    "utilization": _utilization,
}
