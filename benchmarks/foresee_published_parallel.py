"""Speed of published trainings on several GPUs, with their model, GPU or source left out.

`python -m benchmarks.foresee_published_parallel [--json]`: tokens a second a GPU of language
models (published_llm_training), and what eight GPUs do over eight times one
(published_training). About three minutes of one core.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
import polars as pl

from benchmarks._data import shared
from presage.foresee.communication_fitting import EightFold, efficiency, fit_exposure, pairs
from presage.foresee.throughput_fitting import Trainings, learn, published_rows
from presage.learn import Floats
from presage.learn.conformal import grouped_folds

MODEL_FOLDS = 12
INNER_FOLDS = 6
POINTS = 0.07


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    lines: list[dict[str, Any]] = []
    table = pl.read_parquet(shared("profiles/published_llm_training.parquet"))
    trainings = Trainings.of(published_rows(table))
    for kind in ("model", "size", "gpu", "stack"):
        lines += _tokens(trainings, kind, show=not arguments.json)
    table = pl.read_parquet(shared("profiles/published_training.parquet"))
    for kind in ("model", "gpu", "source"):
        lines.append(_eight(pairs(table), kind))
        if not arguments.json:
            print(_said(lines[-1]), flush=True)
    if arguments.json:
        print(json.dumps(lines, indent=2))


def _tokens(trainings: Trainings, kind: str, *, show: bool) -> list[dict[str, Any]]:
    """Each row by a fit, and an interval, that saw nothing of its group."""
    labels = trainings.labels(kind)
    folds = MODEL_FOLDS if kind == "model" else len(set(labels))
    place = grouped_folds(labels, folds, 0)
    found = np.empty((len(labels), 3))
    for fold in np.unique(place):
        out = place == fold
        ways = ("model", "size") if kind == "model" else (kind,)
        model, _ = learn(trainings[~out], ways, INNER_FOLDS)
        held = trainings[out]
        parts = model.parts(held.columns, held.groups)
        found[out] = model.interval(parts, [kind])
        if kind == "model":  # as shipped: a size that no other model has is new as well
            new = np.array(
                [
                    "size" in model.unseen(g, r.shape)
                    for g, r in zip(held.groups, held.rows, strict=True)
                ]
            )
            found[np.flatnonzero(out)[new]] = model.interval(parts, ["size"])[new]
    split = f"{'source' if kind == 'stack' else kind}-out"
    lines = [_line(split, "all", trainings.seconds, found)]
    members = labels if kind in ("gpu", "stack") else trainings.labels("stack")
    for member in sorted(set(members)):
        here = members == member
        lines.append(_line(split, str(member), trainings.seconds[here], found[here]))
    if show:
        for line in lines:
            print(_said(line), flush=True)
    return lines


def _line(split: str, of: str, truth: Floats, found: Floats) -> dict[str, Any]:
    # tokens a second foreseen over measured are seconds measured over foreseen
    off = np.abs(truth / found[:, 1] - 1)
    inside = (found[:, 0] <= truth) & (truth <= found[:, 2])
    return {
        "what": "tokens/s/GPU",
        "split": split,
        "of": of,
        "n": len(truth),
        "typical": float(np.median(off)),
        "nine_in_ten": float(np.quantile(off, 0.9)),
        "rmsle": float(np.sqrt(np.mean(np.log(truth / found[:, 1]) ** 2))),
        "holds": float(inside.mean()),
        "width": float(np.median(found[:, 2] / found[:, 0])),
    }


def _eight(of: list[EightFold], kind: str) -> dict[str, Any]:
    labels = np.array([getattr(pair, kind) for pair in of])
    truth = np.array([pair.efficiency for pair in of])
    found = np.empty(len(of))
    for member in sorted(set(labels)):
        here = labels == member
        how = fit_exposure([p for p, out in zip(of, here, strict=True) if not out])
        found[here] = efficiency([p for p, out in zip(of, here, strict=True) if out], how)
    off = np.abs(found - truth)
    return {
        "what": "1 to 8 GPUs",
        "split": f"{kind}-out",
        "of": "all",
        "n": len(of),
        "typical": float(np.median(off)),
        "nine_in_ten": float(np.quantile(off, 0.9)),
        "within": float(np.mean(off <= POINTS)),
    }


def _said(line: dict[str, Any]) -> str:
    start = f"{line['what']:<14}{line['split']:<12}{line['of']:<24}n {line['n']:<5}"
    if "within" in line:
        return (
            f"{start}typical error {100 * line['typical']:.1f} points, 9 in 10 within "
            f"{100 * line['nine_in_ten']:.0f}, {100 * line['within']:.0f} % within 7"
        )
    return (
        f"{start}typical error {100 * line['typical']:5.1f} %  9 in 10 within "
        f"{100 * line['nine_in_ten']:4.0f} %  RMSLE {line['rmsle']:.2f}  80 % interval holds "
        f"{100 * line['holds']:3.0f} % (p90/p10 {line['width']:.2f})"
    )


if __name__ == "__main__":
    main()
