"""Training memory of timm's models on an A100: errors on families never seen, and at random.

`python -m benchmarks.foresee_memory [--json]`. From graphs and from the table; beside them the
best constant, a forest on names alone, and FakeTensor's estimate. Needs `presage[learn]`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks._baselines import Constant, Named
from benchmarks._data import shared
from presage.foresee.fitting import memory_data
from presage.foresee.known import graph_memory_rows
from presage.foresee.memory import MemoryEstimator
from presage.foresee.memory_table import TableMemoryEstimator, table_features
from presage.learn.evaluate import coverage, family_of, grouped_folds, mape, rmsle

FOLDS = 10


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    table = memory_data(shared("profiles/timm_train_memory_a100.parquet").parent.parent)
    known, graph_rows = graph_memory_rows(table)
    plain_rows = table_features(known)
    truth = known["max_gpu_mem_mib"].cast(float).to_numpy()
    names = known["model"].to_list()
    families = np.array([family_of(name) for name in names])
    batch = known["batch_size"].to_numpy()
    codes = np.unique(names, return_inverse=True)[1]
    named = np.c_[codes, batch].astype(float)
    rng = np.random.default_rng(0)
    lines: list[dict[str, Any]] = []
    if not arguments.json:
        print(f"{len(truth)} runs of {len(set(names))} models, {len(set(families))} families")
    for split, place in (
        ("family-out", grouped_folds(families, FOLDS, 0)),
        ("random", rng.permutation(len(truth)) % FOLDS),
    ):
        ways: dict[str, tuple[Callable[[], Any], Any]] = {
            "graph": (MemoryEstimator, graph_rows),
            "table": (TableMemoryEstimator, plain_rows),
            "names only": (Named, named),
            "constant": (Constant, named),
        }
        for name, (make, rows) in ways.items():
            lines.append(_measure(split, name, make, rows, truth, families, place))
            if not arguments.json:
                _show(lines[-1])
        tracer = plain_rows[:, 0]
        lines.append(
            {
                "split": split,
                "from": "FakeTensor",
                "mape": mape(truth, tracer),
                "rmsle": rmsle(truth, tracer),
            }
        )
        if not arguments.json:
            _show(lines[-1])
    if arguments.json:
        print(json.dumps(lines, indent=2))


def _show(line: dict[str, Any]) -> None:
    held = f"  80 % interval holds {100 * line['holds']:.1f} %" if "holds" in line else ""
    print(
        f"{line['split']:<11}{line['from']:<12}MAPE {100 * line['mape']:6.2f} %  "
        f"RMSLE {line['rmsle']:.4f}{held}",
        flush=True,
    )


def _measure(
    split: str,
    name: str,
    make: Callable[[], Any],
    rows: Any,
    truth: Any,
    families: Any,
    place: Any,
) -> dict[str, Any]:
    found = np.empty((len(truth), 3))
    for fold in range(FOLDS):
        test = place == fold
        model = make().fit(rows[~test], truth[~test], families[~test])
        found[test] = model.predict_interval(rows[test])
    line = {
        "split": split,
        "from": name,
        "mape": float(mape(truth, found[:, 1])),
        "rmsle": float(rmsle(truth, found[:, 1])),
    }
    if name in ("graph", "table"):
        line["holds"] = float(coverage(truth, found))
    return line


if __name__ == "__main__":
    main()
