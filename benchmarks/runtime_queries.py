"""TPC-H queries: an unseen scale, an unseen number of executors, an unseen query.

`python -m benchmarks.runtime_queries`. The truth is a list schedule of the measured stages (first
wave and rest) on so many executors, not a measured run: a predictor that simulates shares its
form. The sizes of the kernels are fitted once, on 16 stages with all their scales and executors.
The shares of models for unseen queries are, for each sixth of the queries, the best on the others.

An unseen scale is foreseen twice: with numbers of tasks after those of other scales, and with
those that the plan of the query has there, which a table of stages may tell before a run.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from benchmarks._data import shared
from presage.foresee.runtime.queries import QueryModel
from presage.foresee.runtime.query_known import known_schedules, without
from presage.foresee.runtime.stages import measured_total


def main() -> None:
    """Print the errors of each way to leave out, by fold and in all."""
    stages = pl.read_parquet(shared("runtime/tpch_stages.parquet"))
    edges = pl.read_parquet(shared("runtime/tpch_edges.parquet"))
    model = QueryModel.fit(stages, edges)
    for name, error in model.errors.items():
        print(f"{name}: {100 * error:.2f} %", flush=True)
    print(f"scale left out, tasks as planned: {100 * _planned(model):.2f} %")
    print(f"shares for unseen queries (stages, totals, process, recurrent): {model.shares}")
    print(f"powers of the kernels: {np.round(model.powers, 2).tolist()}")


def _planned(model: QueryModel) -> float:
    """The error at each scale left out if only the numbers of tasks are known of it."""
    off = []
    for query in model.queries.values():
        for scale in {place[0] for place in query.places()}:
            rest = replace(without(query, 0, scale), tasks=query.tasks)
            places = [place for place in query.places() if place[0] == scale]
            for place, said in zip(
                places, known_schedules(rest, places, model.powers), strict=True
            ):
                truth = measured_total(query, *place)
                assert truth is not None
                off.append(abs(said.total_s / truth.total_s - 1))
    return float(np.mean(off))


if __name__ == "__main__":
    main()
