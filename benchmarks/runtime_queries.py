"""TPC-H queries: an unseen scale, an unseen number of executors, an unseen query.

`python -m benchmarks.runtime_queries`. The truth is a list schedule of the measured stages (first
wave and rest) on so many executors, not a measured run: a predictor that simulates shares its
form. The sizes of the kernels are fitted once, on 16 stages with all their scales and executors.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from benchmarks._data import shared
from presage.foresee.runtime.queries import QueryModel


def main() -> None:
    """Print the errors of each way to leave out, by fold and in all."""
    stages = pl.read_parquet(shared("runtime/tpch_stages.parquet"))
    edges = pl.read_parquet(shared("runtime/tpch_edges.parquet"))
    model = QueryModel.fit(stages, edges)
    for name, error in model.errors.items():
        print(f"{name}: {100 * error:.2f} %", flush=True)
    print(f"shares for unseen queries (stages, totals, process, recurrent): {model.shares}")
    print(f"powers of the kernels: {np.round(model.powers, 2).tolist()}")


if __name__ == "__main__":
    main()
