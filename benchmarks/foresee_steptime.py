"""Step times of timm's models: training on an RTX 3090, inference on GPUs never seen.

`python -m benchmarks.foresee_steptime [--json]`. Training by families never seen and at random,
from graphs and from the totals of a table, with and without the model's name (whose pieces tell of
relatives), beside the best constant and a forest on names alone; inference with each GPU left out
in turn. Needs `presage[learn]`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks._baselines import Constant, Named
from benchmarks._data import shared
from presage.foresee.fitting import infer_data, step_data
from presage.foresee.known import graph_step_rows
from presage.foresee.steptime import (
    StepTimeEstimator,
    Totals,
    TotalsStepTimeEstimator,
    totals,
)
from presage.learn.evaluate import coverage, family_of, grouped_folds, mape, rmsle

FOLDS = 10


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    data = shared("profiles/timm_train_rtx3090.parquet").parent.parent
    known, graphs = graph_step_rows(step_data(data))
    truth = known["step_time"].to_numpy()
    names = known["model"].to_list()
    families = np.array([family_of(name) for name in names])
    nhwc = known["layout"].to_numpy() == "nhwc"
    codes = np.unique(names, return_inverse=True)[1]
    named = np.c_[codes, known["batch_size"].to_numpy(), nhwc].astype(float)
    lines: list[dict[str, Any]] = []

    def note(split: str, way: str, of: str, truth: Any, found: Any) -> None:
        lines.append(_line(split, way, of, truth, found))
        if not arguments.json:
            _show(lines[-1])

    for split, place in (
        ("family-out", grouped_folds(families, FOLDS, 0)),
        ("random", np.random.default_rng(0).permutation(len(truth)) % FOLDS),
    ):
        ways: dict[str, tuple[Callable[[], Any], Any]] = {
            "graph": (lambda: StepTimeEstimator(folds=5), graphs),
            "totals": (TotalsStepTimeEstimator, totals(known)),
            "nameless": (TotalsStepTimeEstimator, totals(known.drop("model"))),
            "names only": (Named, named),
            "constant": (Constant, named),
        }
        for way, (make, rows) in ways.items():
            found = np.empty((len(truth), 3))
            for fold in range(FOLDS):
                test = place == fold
                model = make().fit(rows[~test], truth[~test], families[~test])
                found[test] = model.predict_interval(rows[test])
            for layout, here in (("nchw", ~nhwc), ("nhwc", nhwc), ("both", truth > 0)):
                note(split, way, layout, truth[here], found[here])
    infer = infer_data(data).drop_nulls(["gmacs", "macts"])
    rows, times = totals(infer), infer["step_time"].to_numpy()
    device = infer["device"].to_numpy()
    families = np.array([family_of(name) for name in infer["model"]])
    for gpu in sorted(set(device)):
        test = device == gpu
        model = TotalsStepTimeEstimator(folds=3).fit(rows[~test], times[~test], families[~test])
        nameless = Totals(rows.rows[test], np.full(test.sum(), ""))
        for way, these in (("totals", rows[test]), ("nameless", nameless)):
            note("GPU left out", way, gpu, times[test], model.predict_interval(these))
    if arguments.json:
        print(json.dumps(lines, indent=2))


def _show(line: dict[str, Any]) -> None:
    print(
        f"{line['split']:<13}{line['from']:<12}{line['of']:<13}"
        f"MAPE {100 * line['mape']:6.2f} %  RMSLE {line['rmsle']:.4f}  "
        f"80 % interval holds {100 * line['holds']:.0f} %",
        flush=True,
    )


def _line(split: str, way: str, of: str, truth: Any, found: Any) -> dict[str, Any]:
    return {
        "split": split,
        "from": way,
        "of": of,
        "mape": float(mape(truth, found[:, 1])),
        "rmsle": float(rmsle(truth, found[:, 1])),
        "holds": float(coverage(truth, found)),
    }


if __name__ == "__main__":
    main()
