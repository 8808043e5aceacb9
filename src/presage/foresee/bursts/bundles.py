"""Burst models as bundles: which model a setting gets, how sure it is, and what it foresees.

A bundle is for one setting. Models are compared on families left out by turns and the best one is
kept; its errors there give the intervals (group-wise conformal). A transfer starts from the
network of another setting's bundle. Nothing here measures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from presage.foresee.answer import Quantiles
from presage.foresee.bursts.forest import SIZES
from presage.foresee.bursts.graphs import GraphInput
from presage.foresee.bursts.models import (
    TREE_SUMS,
    BurstModel,
    ModelKind,
    NetModel,
    make,
    read,
)
from presage.foresee.bursts.rows import MeasuredSetting, noise_of
from presage.foresee.bursts.settings import Setting
from presage.foresee.bursts.training import TrainOptions
from presage.foresee.graph.opgraph import OpGraph
from presage.learn import Floats
from presage.learn.bundle import load_bundle, prefixed, save_bundle, under
from presage.learn.evaluate import grouped_folds
from presage.learn.groups import GroupConformal
from presage.model.errors import BundleError, UserError
from presage.telemetry.bursts import METRICS, RESOURCES, TARGETS

__all__ = [
    "LEAST_FAMILIES",
    "BurstBundle",
    "chosen_out_of_fold",
    "errors_of",
    "fit_bundle",
    "held_out",
    "relative",
]

LEAST_FAMILIES = 3
_FOLDS = 5
_WITHOUT_GROUPS = {
    ModelKind.CONSTANT: [],
    ModelKind.FOREST: [*SIZES, "buckets"],
    ModelKind.TREES: [*TREE_SUMS],
}
"""Kinds that are not told of a graph's groups, with what they are told."""

Say = Callable[[str], object]


@dataclass(frozen=True, slots=True, eq=False)
class BurstBundle:
    """A fitted model with its intervals."""

    setting: Setting
    model: BurstModel
    intervals: list[GroupConformal]
    """Of each of `TARGETS`."""
    card: dict[str, Any]

    def predict_interval(self, inputs: Sequence[GraphInput]) -> Floats:
        """(n, 12, 3): p10, p50 and p90 of each label."""
        guess = self.model.predict(inputs)
        made = [each.interval(guess[:, at]) for at, each in enumerate(self.intervals)]
        return np.maximum(np.stack(made, axis=1), 0.0)

    def foresee(self, graph: OpGraph, batch: int) -> dict[str, dict[str, Quantiles]]:
        """The twelve numbers by resource, with intervals."""
        from presage.foresee.bursts.graphs import graph_input, summary

        if self.model.kind in _WITHOUT_GROUPS:
            told = GraphInput(np.zeros((1, 3)), np.zeros((1, 1)), summary(graph, batch))
        else:
            told = graph_input(graph, batch)
        rows = iter(self.predict_interval([told])[0])
        return {
            resource: {
                f"burst_{unit}" if metric == "burst" else metric: Quantiles.of(next(rows), 2)
                for metric in METRICS
            }
            for resource, unit in RESOURCES.items()
        }

    def save(self, path: Path) -> None:
        """Write it as plain arrays with its card."""
        arrays = prefixed("model", self.model.to_arrays())
        for at, each in enumerate(self.intervals):
            arrays |= prefixed(f"interval{at}", each.to_arrays())
        path.parent.mkdir(parents=True, exist_ok=True)
        save_bundle(path, arrays, self.card)

    @classmethod
    def load(cls, path: Path) -> BurstBundle:
        """Read what `save` wrote."""
        arrays, card = load_bundle(path)
        try:
            setting, kind = Setting.parse(card["setting"]), ModelKind(card["model"])
            model = read(kind, under("model", arrays))
        except (KeyError, ValueError, UserError):
            raise BundleError(f"{path} is no bundle of bursts; fit one first") from None
        spans = [
            GroupConformal.from_arrays(under(f"interval{at}", arrays))
            for at in range(len(TARGETS))
        ]
        return cls(setting, model, spans, card)


def relative(actual: Floats, guess: Floats) -> Floats:
    """By label, the mean of |error| over the mean of the truth."""
    level = np.maximum(np.abs(actual).mean(0), 1e-9)
    out: Floats = np.abs(guess - actual).mean(0) / level
    return out


def errors_of(actual: Floats, guess: Floats) -> dict[str, Any]:
    """For people: by label, |error| over the mean of the truth, and the root mean square error
    over it; `score`, by which models are compared, is the mean |error| of log(1 + y), each label's
    over its spread, so that no label counts more than another."""
    level = np.maximum(np.abs(actual).mean(0), 1e-9)
    root = np.sqrt(((guess - actual) ** 2).mean(0)) / level
    each = {
        name: {"error": round(float(e), 4), "nrmse": round(float(r), 4)}
        for name, e, r in zip(TARGETS, relative(actual, guess), root, strict=True)
    }
    return {"score": round(_score(actual, guess), 4), "labels": each}


def _score(actual: Floats, guess: Floats) -> float:
    true, said = np.log1p(actual), np.log1p(guess)
    spread = np.abs(true - np.median(true, axis=0)).mean(0)
    told = spread > 1e-6  # a label that is the same everywhere compares nothing
    if not told.any():
        return 0.0
    return float((np.abs(said - true).mean(0)[told] / spread[told]).mean())


def held_out(
    start: Callable[[], BurstModel],
    inputs: Sequence[GraphInput],
    labels: Floats,
    families: Sequence[str],
    step_ms: Floats | None = None,
) -> Floats:
    """Each row foreseen by a model that saw nothing of its family."""
    names = np.asarray(families)
    folds = grouped_folds(names, min(_FOLDS, len(np.unique(names))), 0)
    guess = np.empty_like(labels)
    for fold in np.unique(folds):
        kept, test = (np.flatnonzero(part).tolist() for part in (folds != fold, folds == fold))
        steps = None if step_ms is None else step_ms[kept]
        model = start().fit([inputs[i] for i in kept], labels[kept], steps)
        guess[test] = model.predict([inputs[i] for i in test])
    return guess


def chosen_out_of_fold(
    guesses: Mapping[ModelKind, Floats], labels: Floats, families: Sequence[str]
) -> Floats:
    """The guess of the kind that does best on the other folds, fold by fold: what choosing a kind
    is worth on families that had no say in it."""
    names = np.asarray(families)
    folds = grouped_folds(names, min(_FOLDS, len(np.unique(names))), 0)
    out = np.empty_like(labels)
    for fold in np.unique(folds):
        rest = folds != fold
        best = min(guesses, key=lambda kind: (_score(labels[rest], guesses[kind][rest]), kind))
        out[~rest] = guesses[best][~rest]
    return out


def fit_bundle(
    measured: MeasuredSetting,
    inputs: Sequence[GraphInput],
    date: str,
    kinds: Sequence[ModelKind] = (ModelKind.FOREST, ModelKind.TREES, ModelKind.GCN),
    *,
    options: TrainOptions | None = None,
    base: BurstBundle | None = None,
    say: Say = lambda text: None,
) -> BurstBundle:
    """The best of these kinds for a setting, and its intervals. With `base`, the bundle of another
    setting, its network goes on by transfer and nothing else is tried."""
    names = sorted(set(measured.families))
    if len(names) < LEAST_FAMILIES:
        raise UserError(
            f"{measured.setting} has runs of {len(names)} model families: {LEAST_FAMILIES} at "
            "least, since errors are told for families left out"
        )
    setting, steps = measured.setting, measured.step_ms if len(measured.step_ms) else None
    starts = _starts(kinds, setting, options, base)
    guesses, errors = {}, {}
    for kind, start in {ModelKind.CONSTANT: lambda: make(ModelKind.CONSTANT), **starts}.items():
        say(f"{measured.setting}: {kind}")
        guesses[kind] = held_out(start, inputs, measured.labels, measured.families, steps)
        errors[str(kind)] = errors_of(measured.labels, guesses[kind])
    best = min(starts, key=lambda kind: (errors[str(kind)]["score"], str(kind)))
    model = starts[best]().fit(inputs, measured.labels, steps)
    by_family = {"family": measured.families}
    spans = [
        GroupConformal.fit(measured.labels[:, at], guesses[best][:, at], by_family, space="log1p")
        for at in range(len(TARGETS))
    ]
    card = _card(measured, best, errors, date, base)
    return BurstBundle(measured.setting, model, spans, card)


def _starts(
    kinds: Sequence[ModelKind],
    setting: Setting,
    options: TrainOptions | None,
    base: BurstBundle | None,
) -> dict[ModelKind, Callable[[], BurstModel]]:
    if base is None:
        return {kind: lambda kind=kind: make(kind, setting, options) for kind in kinds}  # type: ignore[misc]
    known = base.model
    if not isinstance(known, NetModel):
        raise UserError(
            f"the bundle of {base.setting} holds {known.kind}, and only networks can be "
            "transferred: fit it with --kinds gcn"
        )
    return {known.kind: lambda: NetModel(known.net_.kind, options, base=known)}


def _card(
    measured: MeasuredSetting,
    best: ModelKind,
    errors: dict[str, Any],
    date: str,
    base: BurstBundle | None,
) -> dict[str, Any]:
    noise = noise_of(measured)
    return {
        "name": "bursts",
        "version": "own",
        "date": date,
        "setting": str(measured.setting),
        "model": str(best),
        "transferred_from": None if base is None else str(base.setting),
        "data": f"{len(measured.workloads)} workloads of {len(set(measured.families))} families",
        "licence": "the user's",
        "features": _WITHOUT_GROUPS.get(best, ["tensor size", "nodes", "type frequency"]),
        "splits": f"{_FOLDS} folds at most, no family in training and test; the kind was chosen "
        "on them",
        "errors": errors,
        "noise": None
        if noise is None
        else dict(zip(TARGETS, (round(float(each), 4) for each in noise), strict=True)),
    }
