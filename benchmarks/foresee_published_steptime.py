"""Step times of trainings that others published, on one GPU, foreseen without their group.

`python -m benchmarks.foresee_published_steptime [--json] [--inference] [--nested]`. A family of
models, a GPU or a whole source is left out of the fit by turns. Sources whose licence does not let
Presage learn from them are never fitted on: they only judge, where sources are left out. The
typical error is the median of |foreseen ÷ measured − 1|; intervals are calibrated on the other
groups' errors. Rows of other frameworks than PyTorch are told apart.

With `--nested` what was chosen for the shipped model is chosen anew each time a group is left out,
on folds of the others alone: how loose effects are, and the settings of the intervals. It takes
some eight times as long.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks._data import shared
from presage.foresee.roofline import Roofline
from presage.foresee.roofline_fitting import (
    WAYS,
    fit_compiled,
    fit_effects,
    fit_roofline,
    foreseen,
    label,
    left_out,
    machine,
)
from presage.foresee.roofline_rows import SHIPPED, fitted_rows, published_rows
from presage.foresee.roofline_slopes import Observation
from presage.foresee.roofline_steps import DOUBTS, by_drivers, difficulty
from presage.learn import Floats
from presage.learn.evaluate import grouped_folds
from presage.learn.groups import GroupConformal

LOOSE = (0.7, 1.0, 1.4)
"""How loose effects may be, to choose from; 1 is shipped."""
LEAST = (0.1, 0.2, 0.3)
"""Likewise what no fit explains; 0.2 is shipped."""
_MISSED = 10.0
"""What an interval of 80 % costs for each unit that it misses by, beside its width: 2 ÷ 0.2."""


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--inference", action="store_true", help="published inference as well")
    parser.add_argument("--nested", action="store_true", help="choose settings on inner folds")
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
        choose = partial(_choose, way=way, begin=whole) if arguments.nested else None
        guess, scale = left_out(rows, helpers, way, whole, asked[len(rows) :], choose)
        least = LEAST if arguments.nested else (DOUBTS[1],)
        found = _intervals(asked, guess, scale, way, len(rows), least)
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


def _choose(kept: Sequence[Observation], way: str, begin: Roofline) -> float:
    """How loose effects are best, by the errors of two halves of the groups that are left."""
    rows = [row for row in kept if row.note.get("framework") == "pytorch"]
    helpers = [row for row in kept if row.note.get("framework") != "pytorch"][::2]
    groups = np.array([label(row, way) for row in rows])
    place = grouped_folds(groups, 2, 1)
    missed = dict.fromkeys(LOOSE, 0.0)
    for fold in np.unique(place):
        gone = set(groups[place == fold])
        inside = [row for row in (*rows, *helpers) if label(row, way) not in gone]
        for loose in LOOSE:
            fitted = fit_effects(inside, begin=begin, loose=loose).roofline
            for at in np.flatnonzero(place == fold).tolist():
                missed[loose] += abs(np.log(foreseen(fitted, rows[at])[0] / rows[at].ms))
    return min(LOOSE, key=lambda loose: missed[loose])


def _intervals(
    asked: Sequence[Observation],
    guess: Floats,
    scale: Floats,
    way: str,
    fitted: int,
    least: Sequence[float],
) -> Floats:
    """p10, p50, p90 of each: calibrated on the errors of the groups that it is not of, with the
    setting that gives those the best intervals."""
    truth = np.array([row.ms for row in asked])
    groups = np.array([label(row, way) for row in asked])
    alike = np.array([machine(row) for row in asked])
    drivers = np.array([by_drivers(row.gpu) for row in asked])
    ours = np.arange(len(asked)) < fitted
    usual, shipped = DOUBTS
    left = np.sqrt(np.maximum((scale * usual) ** 2 - shipped**2, 0.0))
    found = np.empty((len(asked), 3))
    for group in np.unique(groups):
        here, others = groups == group, ours & (groups != group)
        best = np.inf
        for one in least:
            wide = difficulty(left, one)
            scaled = truth * np.exp(np.log(guess / truth) / wide)
            known = GroupConformal.fit(truth[others], scaled[others], {way: alike[others]})
            tried = known.interval(guess, wide * drivers)
            cost = _score(truth[others], tried[others])
            if cost < best:
                best, found[here] = cost, tried[here]
        found[here, 1] = guess[here]
    return found


def _score(truth: Floats, found: Floats) -> float:
    """Mean width of intervals in logarithms, and what they miss by."""
    low, high, off = np.log(found[:, 0]), np.log(found[:, 2]), np.log(truth)
    missed = np.maximum(low - off, 0.0) + np.maximum(off - high, 0.0)
    return float(np.mean(high - low + _MISSED * missed))


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
