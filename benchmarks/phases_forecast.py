"""The phase after the current one, on telemetry that the model has not seen.

At each horizon: macro F1 of the phase that is named, the calibration error of the probabilities
(ECE: 15 bins of the highest one) and the log loss, next to "the phase stays" (with certainty; for
the log loss, 99.9 %) and to a first-order Markov chain of the rows, both from the same training.
Splits: scout by workload (runs of at least 24 samples), VR by time, GenAI by pod. The choice
between the two forecasts was made on pods kept aside in training. Needs the shared data.

    python -m benchmarks.phases_forecast [--quick] [--seed N] [--json]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from benchmarks._phases import GENAI, genai_by_pod, scout_by_workload, vr_by_time
from presage.observe.phases import PhaseModel
from presage.observe.phases.forecast import ForecastKind, macro_f1
from presage.observe.phases.paths import Path
from presage.telemetry.series import Series

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def calibration_error(probabilities: Floats, happened: Ints, bins: int = 15) -> float:
    """The mean distance between how sure a forecast is and how often it is right."""
    sure = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == happened
    at = np.minimum((sure * bins).astype(np.int64), bins - 1)
    gaps = [abs(float(sure[at == b].mean() - right[at == b].mean())) for b in np.unique(at)]
    shares = [float((at == b).mean()) for b in np.unique(at)]
    return float(np.dot(gaps, shares))


def scored(named: Ints, probabilities: Floats, happened: Ints) -> dict[str, float]:
    """The three scores."""
    at_truth = probabilities[np.arange(len(happened)), happened]
    return {
        "f1": macro_f1(happened, named),
        "ece": calibration_error(probabilities, happened),
        "log_loss": float(-np.log(np.maximum(at_truth, 1e-9)).mean()),
    }


def compared(train: Sequence[Series], test: Sequence[Series], horizons: Sequence[int]) -> Any:
    """All forecasts at all horizons; {horizon: {forecast: scores}}, and the fit."""
    started = time.perf_counter()
    model = PhaseModel.fit(train)
    fit_s = time.perf_counter() - started
    forecaster = model.forecaster
    assert forecaster is not None
    seen = model.followed(test)
    n_phases = model.n_phases
    step = _one_step(forecaster.counts.path)
    table: dict[str, Any] = {}
    for rows in horizons:
        after = seen.path.outcomes(seen.places, rows)
        where = seen.situations.take(np.searchsorted(seen.places, after.places))
        stays = np.eye(n_phases)[where.phase]
        chain = np.linalg.matrix_power(step, rows)[where.phase]
        scores = {
            "stays": scored(where.phase, stays * 0.999 + 0.001 / n_phases, after.at),
            "markov": scored(chain.argmax(axis=1), chain, after.at),
        }
        for kind in get_args(ForecastKind):
            found = forecaster.forecast(where, rows, model.every, kind)
            scores[kind] = scored(found.phase, found.at, after.at)
        table[str(rows)] = scores
    return {
        "phases": n_phases,
        "every_s": model.every,
        "fit_s": fit_s,
        "samples": sum(len(pod) for pod in train),
        "choice": forecaster.choice,
        "horizons": table,
    }


def _one_step(path: Path) -> Floats:
    """The first-order chain of the rows."""
    before, after = path.phases[:-1], path.phases[1:]
    both = (before >= 0) & (after >= 0)
    counts = np.full((path.n_phases, path.n_phases), 1e-3)
    np.add.at(counts, (before[both], after[both]), 1)
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table for each data set, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="scout alone")
    parser.add_argument("--seed", type=int, default=0, help="of the splits")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    scout = scout_by_workload(options.seed)
    found = {"scout by workload": compared(*scout, (1, 4, 12, 24))}
    if not options.quick:
        found["VR by time"] = compared(*vr_by_time(), (1, 6, 12))
        for name in GENAI:
            found[f"GenAI {name} by pod"] = compared(*genai_by_pod(name, options.seed), (1, 5, 10))
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for title, data in found.items():
        print(
            f"\n{title}: {data['phases']} phases, a row each {data['every_s']:g} s, "
            f"{data['samples']:,} samples fitted in {data['fit_s']:.1f} s, "
            f"choice {data['choice']}"
        )
        print(f"  {'rows ahead':>10} {'forecast':12} {'macro F1':>9} {'ECE':>7} {'log loss':>9}")
        for rows, scores in data["horizons"].items():
            for kind, row in scores.items():
                mark = "*" if kind == data["choice"] else " "
                print(
                    f"  {rows:>10} {kind + mark:12} {row['f1']:9.4f} {row['ece']:7.4f} "
                    f"{row['log_loss']:9.4f}"
                )


if __name__ == "__main__":
    main()
