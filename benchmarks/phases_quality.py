"""How good the phases of each method are, on telemetry that the models have not seen.

All methods see the same windows and get the same number of phases. Explained: the part of the
variance of the scaled windows that phases explain (1 − SSW ÷ SST), the cohesion in one space for
all (it is what k-means on windows optimises); next: the same for the row that follows, which no
method has seen. Silhouette: in the space of the windows. Stability: the mean
adjusted Rand index between the test phases of the model and those of models fitted on bootstrap
samples of the training pods (of blocks, where there is one pod). Given: allocation ÷ use (mean
over resources) that the policies `phase` and `forecast` make of the phases, and the share of
samples that fits into it, with margins for 95 % on the training. Needs the shared data.

    python -m benchmarks.phases_quality [--k N] [--json]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from benchmarks._phases import genai_by_pod, scout_by_workload, vr_by_time
from presage.observe.phases import PhaseModel
from presage.observe.phases.clusters import adjusted_rand, silhouette
from presage.observe.phases.model import Method
from presage.provision.rightsize import rightsize
from presage.telemetry.series import Series

Floats = npt.NDArray[np.float64]
MOST_PODS, BOOTSTRAPS = 500, 3


def measured(
    train: Sequence[Series],
    test: Sequence[Series],
    method: Method,
    k: int,
    window_s: float,
) -> dict[str, float]:
    """The scores of one method."""
    started = time.perf_counter()
    model = PhaseModel.fit(train, k=k, method=method)
    fit_s = time.perf_counter() - started
    seen = model.followed(test)
    labels = seen.situations.phase
    windows = seen.situations.windows.reshape(len(labels), -1)
    follows = np.flatnonzero(np.diff(seen.places) == 1)
    after = seen.situations.windows[follows + 1, -1]
    random = np.random.default_rng(1)
    agreement = []
    for turn in range(BOOTSTRAPS):
        drawn = _bootstrap(train, random)
        other = PhaseModel.fit(
            drawn, k=k, method=method, every=model.every, seed=turn + 1, forecast=False
        )
        agreement.append(adjusted_rand(labels, other.followed(test).situations.phase))
    return {
        "explained": _explained(windows, labels),
        "next": _explained(after, labels[follows]),
        "silhouette": silhouette(windows, labels),
        "stability": float(np.mean(agreement)),
        "fit_s": fit_s,
        **_allocation(model, test, window_s),
    }


def _allocation(model: PhaseModel, test: Sequence[Series], window_s: float) -> dict[str, float]:
    """What provisioning makes of the phases."""
    outcome = rightsize(test, ["phase", "forecast"], window_s, model=model, target_pct=95.0)
    found = {}
    for policy, by_resource in outcome.to_json().items():
        rows = [row for row in by_resource.values() if row["alloc_over_use"] is not None]
        found[f"{policy} given"] = float(np.mean([row["alloc_over_use"] for row in rows]))
        found[f"{policy} met"] = float(np.mean([row["fulfilment_pct"] for row in rows]))
    return found


def _explained(rows: Floats, labels: npt.NDArray[np.int64]) -> float:
    parts = [rows[labels == phase] for phase in np.unique(labels)]
    within = sum(float(((part - part.mean(axis=0)) ** 2).sum()) for part in parts)
    return 1 - within / float(((rows - rows.mean(axis=0)) ** 2).sum())


def _bootstrap(train: Sequence[Series], random: np.random.Generator) -> list[Series]:
    """As many pods, drawn with replacement; a single pod is cut into twenty first."""
    pods = list(train)
    if len(pods) == 1:
        pods = [
            replace(pods[0], times=times, values=values)
            for times, values in zip(
                np.array_split(pods[0].times, 20), np.array_split(pods[0].values, 20), strict=True
            )
        ]
    return [
        replace(pods[at], pod=f"{pods[at].pod} {turn}")
        for turn, at in enumerate(random.integers(len(pods), size=len(pods)))
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table for each data set, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--k", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    train, test = scout_by_workload()
    random = np.random.default_rng(0)
    sets = {
        "scout by workload": (
            [train[at] for at in random.permutation(len(train))[:MOST_PODS]],
            [test[at] for at in random.permutation(len(test))[:MOST_PODS]],
            60.0,
        ),
        "VR by time": (*vr_by_time(), 120.0),
        "GenAI gpu_duty_cycle by pod": (*genai_by_pod("gpu_duty_cycle"), 600.0),
    }
    found: dict[str, dict[str, Any]] = {
        title: {
            kind: measured(train, test, kind, options.k, window_s) for kind in get_args(Method)
        }
        for title, (train, test, window_s) in sets.items()
    }
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for title, rows in found.items():
        print(f"\n{title}, {options.k} phases")
        columns = list(next(iter(rows.values())))
        print(f"  {'method':14}" + "".join(f"{name:>15}" for name in columns))
        for kind, row in rows.items():
            print(f"  {kind:14}" + "".join(f"{row[name]:15.3f}" for name in columns))


if __name__ == "__main__":
    main()
