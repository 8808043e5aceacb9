"""Step times of trainings that others published, on one GPU, foreseen without their group.

`python -m benchmarks.foresee_published_steptime [--json] [--inference]`. A model family, a GPU or
a whole source is left out of the fit by turns. Sources whose licence does not let Presage learn
from them are never fitted on: they only judge, where sources are left out. The typical error is
the median of |foreseen ÷ measured − 1|; intervals are calibrated on the other groups' errors. Rows
of other frameworks than PyTorch are told apart.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks._data import shared
from presage.foresee.roofline import Roofline
from presage.foresee.roofline_fitting import (
    WAYS,
    fit_compiled,
    fit_roofline,
    foreseen,
    label,
    left_out,
    machine,
)
from presage.foresee.roofline_rows import SHIPPED, fitted_rows, published_rows
from presage.foresee.roofline_slopes import Observation
from presage.foresee.roofline_steps import by_drivers
from presage.learn import Floats
from presage.learn.evaluate import grouped_folds
from presage.learn.groups import GroupConformal


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--inference", action="store_true", help="published inference as well")
    arguments = parser.parse_args()
    data = shared("profiles/published_training.parquet").parent.parent
    rows, helpers = fitted_rows(data)
    judges = [row for row in published_rows(data) if row.source not in SHIPPED]
    lines: list[dict[str, Any]] = []

    def note(way: str, of: str, members: Sequence[Observation], found: Floats) -> None:
        lines.append(_line(way, of, np.array([row.ms for row in members]), found))
        if not arguments.json:
            _show(lines[-1])

    compiled = [row for row in helpers if row.setup.compile]
    helpers = [row for row in helpers if not row.setup.compile]
    whole = fit_roofline([*rows, *helpers])
    for way in WAYS:
        asked = [*rows, *(judges if way == "source" else ())]
        guess, scale = left_out(rows, helpers, way, whole, asked[len(rows) :])
        found = _intervals(asked, guess, scale, way, len(rows))
        torch = np.array([row.note.get("framework") == "pytorch" for row in asked])
        chosen = [row for row, kept in zip(asked, torch, strict=True) if kept]
        note(way, "all in PyTorch", chosen, found[torch])
        for what, of in _parts(way):
            for name in sorted({of(row) for row in chosen}):
                here = np.array([of(row) == name for row in asked]) & torch
                members = [row for row, kept in zip(asked, here, strict=True) if kept]
                note(way, f"{what} {name}", members, found[here])
        if not torch.all():
            members = [row for row, kept in zip(asked, torch, strict=True) if not kept]
            note(way, "other frameworks", members, found[~torch])
    for way in ("gpu", "family"):
        for what, guess in _compiled(whole, compiled, way).items():
            note(way, f"compiled, {what}", compiled, np.c_[guess, guess, guess])
    if arguments.inference:
        served = published_rows(data, "published_inference")
        guess = np.array([foreseen(whole, row)[0] for row in served])
        note("as fitted", "inference", served, np.c_[guess, guess, guess])
    if arguments.json:
        print(json.dumps(lines, indent=2))


def _compiled(whole: Roofline, rows: Sequence[Observation], way: str) -> dict[str, Floats]:
    """Compiled inference as if it were eager, and with what compiling does to other groups."""
    eager = [replace(row, setup=replace(row.setup, compile=False)) for row in rows]
    groups = np.array([label(row, way) for row in rows])
    place = grouped_folds(groups, min(6, len(set(groups))), 0)
    found = np.empty(len(rows))
    for fold in np.unique(place):
        kept = [row for row, other in zip(rows, place, strict=True) if other != fold]
        fitted = fit_compiled(whole, kept)
        for at in np.flatnonzero(place == fold).tolist():
            found[at] = foreseen(fitted, rows[at])[0]
    return {
        "as if eager": np.array([foreseen(whole, row)[0] for row in eager]),
        "left out": found,
    }


def _parts(way: str) -> list[tuple[str, Callable[[Observation], str]]]:
    parts: list[tuple[str, Callable[[Observation], str]]] = [
        ("precision", lambda row: row.note["precision"]),
        ("source", lambda row: row.source),
    ]
    return [*parts, (way, lambda row: label(row, way))] if way != "source" else parts


def _intervals(
    asked: Sequence[Observation], guess: Floats, scale: Floats, way: str, fitted: int
) -> Floats:
    """p10, p50, p90 of each: calibrated on the errors of the groups that it is not of."""
    truth = np.array([row.ms for row in asked])
    groups = np.array([label(row, way) for row in asked])
    alike = np.array([machine(row) for row in asked])
    scaled = truth * np.exp(np.log(guess / truth) / scale)
    ours = np.arange(len(asked)) < fitted
    found = np.empty((len(asked), 3))
    for group in np.unique(groups):
        here, others = groups == group, ours & (groups != group)
        known = GroupConformal.fit(truth[others], scaled[others], {way: alike[others]})
        wider = np.array([by_drivers(row.gpu) for row in asked])
        found[here] = known.interval(guess[here], scale[here] * wider[here])
        found[here, 1] = guess[here]
    return found


def _line(way: str, of: str, truth: Floats, found: Floats) -> dict[str, Any]:
    off = np.log(found[:, 1] / truth)
    away = np.abs(np.expm1(off))
    holds = (found[:, 0] <= truth) & (truth <= found[:, 2])
    return {
        "left_out": way,
        "of": of,
        "n": len(truth),
        "typical": float(np.median(away)),
        "quartiles": [float(q) for q in np.quantile(away, (0.25, 0.75))],
        "rmsle": float(np.sqrt(np.mean(off**2))),
        "holds": float(holds.mean()),
    }


def _show(line: dict[str, Any]) -> None:
    low, high = line["quartiles"]
    print(
        f"{line['left_out']:<10}{line['of']:<28}n {line['n']:5d}  "
        f"typical {100 * line['typical']:5.1f} % ({100 * low:.1f} to {100 * high:.1f})  "
        f"RMSLE {line['rmsle']:.3f}  80 % interval holds {100 * line['holds']:.0f} %",
        flush=True,
    )


if __name__ == "__main__":
    main()
