"""Fit the effects of a `Roofline` to measured steps.

One Gauss–Newton fit of all effects at once, in logarithms, with Huber's loss; each effect has a
penalty that says how large such effects usually are, which is what shares them among GPUs.
Sources and machines have effects of their own while fitting, which nobody asks for later: a lab
with a slow host does not make a class of operators slow. Nothing here predicts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from presage.foresee.roofline import Roofline
from presage.foresee.roofline_slopes import (
    USUAL,
    Doubt,
    EffectNames,
    LogSteps,
    Observation,
    effect_spread,
)
from presage.foresee.roofline_steps import RooflineSteps, StepParts, difficulty
from presage.learn import Floats
from presage.learn.evaluate import grouped_folds
from presage.learn.groups import GroupConformal

__all__ = [
    "WAYS",
    "FittedEffects",
    "fit_compiled",
    "fit_effects",
    "fit_roofline",
    "fit_steps",
    "foreseen",
    "label",
    "left_out",
    "machine",
]

_NUISANCE = ("source ", "host source ", "host system ")
_FAR = 0.25
"""Where Huber's loss turns from quadratic to linear."""
_ROUNDS = 40
_TRUST = 0.15**-2
"""One over the variance of a measured step that all effects explain."""
_IMMOVABLE = 1e9


def _huber(error: Floats) -> float:
    """Half the squares of small errors, and no more than the lines that go on from them."""
    off = np.abs(error)
    return float(np.where(off < _FAR, 0.5 * off**2, _FAR * (off - 0.5 * _FAR)).sum())


@dataclass(frozen=True, eq=False)
class FittedEffects:
    """Effects, those of labs too, and how sure they are."""

    roofline: Roofline
    curved: Floats
    """The curvature of the cost by the data, over the effects in their order."""

    def doubt(self) -> Doubt:
        """What is left open of them."""
        return Doubt.of(list(self.roofline.effects), self.curved)


def fit_roofline(rows: Sequence[Observation], begin: Roofline | None = None) -> Roofline:
    """The effects that explain the rows best; where to `begin` only saves time."""
    return fit_effects(rows, begin).roofline


def fit_compiled(roofline: Roofline, rows: Sequence[Observation]) -> Roofline:
    """The same with the effects of compiling, from rows of compiled models: what is known of eager
    ones stays as it is."""
    if not rows:
        return roofline
    fitted = fit_effects(rows, begin=roofline, kept=roofline).roofline
    return Roofline(
        roofline.effects | {k: v for k, v in fitted.effects.items() if "compiled" in k}
    )


def fit_effects(
    rows: Sequence[Observation],
    begin: Roofline | None = None,
    kept: Roofline | None = None,
    loose: float = 1.0,
) -> FittedEffects:
    """The same, with how sure they are; effects that are `kept` do not change. `loose` is how many
    times as large as usual effects may be."""
    names = EffectNames()
    problem = LogSteps(rows, names)
    known = list(names.place)
    centre = np.array([USUAL.get(name, 0.0) for name in known])
    stiff = np.array([1.0] + [(loose * effect_spread(name)) ** -2 for name in known[1:]])
    if kept is not None:
        fixed = np.array([name in kept.effects for name in known])
        centre[fixed] = [kept.effects[name] for name in known if name in kept.effects]
        stiff[fixed] = _IMMOVABLE
    truth = np.log([row.ms for row in rows])

    def cost(guess: Floats, theta: Floats) -> float:
        prior = 0.5 * float((stiff * (theta - centre) ** 2).sum())
        return _TRUST * _huber(truth - guess) + prior

    theta, damp = centre.copy(), 1.0
    if begin is not None:
        theta[1:] = [begin.effects.get(name, 0.0) for name in known[1:]]
        damp = 0.01
    guess, slopes = problem.predict(theta)
    best = cost(guess, theta)
    for _ in range(_ROUNDS):
        error = truth - guess
        weights = _TRUST * np.minimum(1.0, _FAR / np.maximum(np.abs(error), 1e-9))
        square = slopes.T @ (slopes * weights[:, None])
        square[np.diag_indices_from(square)] += stiff * (1.0 + damp)
        toward = slopes.T @ (error * weights) - stiff * (theta - centre)
        step = np.clip(np.linalg.solve(square, toward), -0.7, 0.7)
        tried = problem.predict(theta + step)
        tried_cost = cost(tried[0], theta + step)
        if tried_cost < best:
            gained, best = best - tried_cost, tried_cost
            theta, (guess, slopes), damp = theta + step, tried, damp / 4
            if gained < 3e-4 * best:
                break
        else:
            damp = min(damp * 8, 1e6)
    error = truth - guess
    weights = _TRUST * np.minimum(1.0, _FAR / np.maximum(np.abs(error), 1e-9))
    curved = (slopes.T @ (slopes * weights[:, None]))[1:, 1:]
    return FittedEffects(Roofline(dict(zip(known[1:], theta[1:].tolist(), strict=True))), curved)


WAYS = ("family", "gpu", "source")
"""Ways to leave rows out."""
_FOLDS = 8
"""Groups that are left out together, to save time: families and GPUs. There are fewer sources."""


def label(row: Observation, way: str) -> str:
    """The group of a row."""
    return row.gpu.name if way == "gpu" else row.family if way == "family" else row.source


def machine(row: Observation) -> str:
    """What errs alike, whatever is left out: the steps of one source on one GPU. Sources alone are
    too few to tell how the next one will err."""
    return f"{row.source} {row.gpu.name}"


def foreseen(roofline: Roofline, row: Observation) -> tuple[float, StepParts]:
    """Milliseconds that the measurement of a row should show, and the parts of its step."""
    each = roofline.kernels(row.work, row.gpu, row.setup) * row.work.count
    parts = StepParts(float(each.sum()), roofline.host_ms(row.launches, row.setup))
    return parts.step_ms + roofline.copied_ms(row.extra_ms), parts


def left_out(
    rows: Sequence[Observation],
    helpers: Sequence[Observation],
    way: str,
    begin: Roofline,
    judged: Sequence[Observation] = (),
    choose: Callable[[Sequence[Observation]], float] | None = None,
) -> tuple[Floats, Floats]:
    """What each of `rows` and `judged` is foreseen as by a fit without its group, and by how much
    its interval is wider. `helpers` are fitted on where they are not of the group, `judged` never.
    `choose` says how loose effects are, from the rows without the group alone.
    """
    asked = [*rows, *judged]
    groups = np.array([label(row, way) for row in asked])
    fold = grouped_folds(groups, min(_FOLDS, len(np.unique(groups))), 0)
    guess, scale = np.empty(len(asked)), np.empty(len(asked))
    for n in np.unique(fold):
        gone, here = set(groups[fold == n]), np.flatnonzero(fold == n)
        kept = [row for row in (*rows, *helpers) if label(row, way) not in gone]
        loose = choose(kept) if choose else 1.0
        fitted = fit_effects(kept, begin=begin, loose=loose)
        members = [asked[place] for place in here]
        scale[here] = difficulty(fitted.doubt().deviation(members, fitted.roofline.effects))
        guess[here] = [foreseen(fitted.roofline, row)[0] for row in members]
    return guess, scale


def fit_steps(
    rows: Sequence[Observation], helpers: Sequence[Observation]
) -> tuple[RooflineSteps, dict[str, Floats]]:
    """A roofline with the intervals of groups left out, and what each of `rows` was foreseen as
    with its group left out, by way."""
    eager = [row for row in helpers if not row.setup.compile]
    whole = fit_effects([*rows, *eager])
    guesses = {way: left_out(rows, eager, way, whole.roofline) for way in WAYS}
    labels = dict.fromkeys(WAYS, np.array([machine(row) for row in rows]))
    truth = np.array([row.ms for row in rows])
    scaled = {
        way: truth * np.exp(np.log(guess / truth) / scale)
        for way, (guess, scale) in guesses.items()
    }
    intervals = GroupConformal.fit(truth, scaled, labels)
    roofline = fit_compiled(whole.roofline, [row for row in helpers if row.setup.compile])
    kept = {k: v for k, v in roofline.effects.items() if not k.startswith(_NUISANCE)}
    steps = RooflineSteps(Roofline(kept), intervals, whole.doubt().without(_NUISANCE))
    return steps, {way: guess for way, (guess, _) in guesses.items()}
