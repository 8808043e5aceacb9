"""Intervals that hold for a group nobody has seen: another GPU, another source, another family.

`GroupConformal` keeps offsets for each way to group the rows. The rows of a group err alike, so
pooled quantiles are too narrow for the next group. Each group is therefore left out by turns: the
quantiles of the others' errors are what it would have been told, and a side is stretched until it
holds nine rows in ten of the groups left out. Rows are weighed by group as in
`presage.learn.conformal`. The errors must come from predictions by models that had not seen the
group either (`out_of_fold` with the same groups), or the intervals promise too much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from presage.learn import Floats
from presage.learn.conformal import _BACK, _FORWARD, LEVELS, Space
from presage.model.errors import UserError

__all__ = ["GroupConformal"]

_LEAST_STRETCH, _MOST_STRETCH = 0.7, 6.0
_NARROWEST = 1e-6
"""Distance from the middle below which a quantile says nothing."""


@dataclass(frozen=True, slots=True)
class GroupConformal:
    """How far the truth is from a prediction for a group left out, for each way to group."""

    middle: float
    """The median of (transformed truth − transformed prediction) ÷ difficulty."""
    low: dict[str, float]
    """For each way to group, the offset from the prediction that 10 % are below."""
    high: dict[str, float]
    space: Space

    @classmethod
    def fit(
        cls,
        actual: npt.ArrayLike,
        predicted: npt.ArrayLike | Mapping[str, npt.ArrayLike],
        groups: Mapping[str, npt.ArrayLike],
        scale: npt.ArrayLike | None = None,
        space: Space = "log",
        balance: float = 0.5,
    ) -> GroupConformal:
        """Learn from predictions out of fold.

        `groups` has a label for every row under each way to group, as {"gpu": ..., "source": ...};
        `predicted` may have one prediction for each of them, made without the row's group. `scale`
        is each row's difficulty (1 if not given), `balance` as of `Conformal.fit`.
        """
        if not groups:
            raise UserError("intervals by group need one way to group at least")
        difficulty = 1.0 if scale is None else np.asarray(scale, np.float64)
        forward = _FORWARD[space]
        truth = forward(np.asarray(actual, np.float64))
        low, high, middles = {}, {}, []
        for name, labels in groups.items():
            guess = predicted[name] if isinstance(predicted, Mapping) else predicted
            error = (truth - forward(np.asarray(guess, np.float64))) / difficulty
            if error.ndim != 1 or not error.size or not np.all(np.isfinite(error)):
                raise UserError(
                    "intervals need predictions and truths that are finite and in range"
                )
            member = np.unique(np.asarray(labels), return_inverse=True)[1].reshape(-1)
            low[name], middle, high[name] = _offsets(error, member, balance)
            middles.append(middle)
        centre = float(np.mean(middles))
        return cls(
            centre,
            {name: min(value, centre) for name, value in low.items()},
            {name: max(value, centre) for name, value in high.items()},
            space,
        )

    def interval(
        self,
        predicted: npt.ArrayLike,
        scale: npt.ArrayLike | None = None,
        unseen: Sequence[str] | None = None,
    ) -> Floats:
        """p10, p50, p90 for each prediction, as three columns in order: the widest of the ways to
        group that are `unseen` (all of them if not given; the narrowest way if none is)."""
        names = list(self.low) if unseen is None else [n for n in unseen if n in self.low]
        if names:
            low, high = (min(self.low[n] for n in names), max(self.high[n] for n in names))
        else:
            low, high = max(self.low.values()), min(self.high.values())
        moved = _FORWARD[self.space](np.asarray(predicted, np.float64))
        difficulty = np.ones(moved.shape) if scale is None else np.asarray(scale, np.float64)
        offsets = np.array([low, self.middle, high])
        spread = (offsets - self.middle) * difficulty[:, None] + self.middle
        return _BACK[self.space](moved[:, None] + spread)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What `from_arrays` takes."""
        return {
            "middle": np.array(self.middle),
            "names": np.array(list(self.low)),
            "low": np.array(list(self.low.values())),
            "high": np.array([self.high[name] for name in self.low]),
            "space": np.array(self.space),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> GroupConformal:
        """The intervals in these arrays."""
        try:
            names = [str(name) for name in arrays["names"]]
            low = dict(zip(names, map(float, arrays["low"]), strict=True))
            high = dict(zip(names, map(float, arrays["high"]), strict=True))
            middle, space = float(arrays["middle"]), str(arrays["space"])
        except (KeyError, ValueError, TypeError) as wrong:
            raise UserError(f"these arrays hold no intervals by group: {wrong}") from None
        ordered = all(low[n] <= middle <= high[n] for n in names)
        if space not in get_args(Space) or not names or not ordered:
            raise UserError("these arrays hold no intervals by group: they contradict each other")
        return cls(middle, low, high, space)  # type: ignore[arg-type]  # checked above


def _offsets(
    error: Floats, member: npt.NDArray[np.intp], balance: float
) -> tuple[float, float, float]:
    """Offsets below which 10, 50 and 90 % of a group nobody has seen will be."""
    sizes = np.bincount(member)
    weights = sizes[member].astype(np.float64) ** -balance
    low, middle, high = _quantiles(error, weights)
    count = len(sizes)
    if count < 2:  # nothing to leave out: as far again on both sides
        return low - (middle - low), middle, high + (high - middle)
    below, above = np.empty(len(error)), np.empty(len(error))
    for group in range(count):
        here = member == group
        lo, mid, hi = _quantiles(error[~here], weights[~here])
        below[here] = (mid - error[here]) / max(mid - lo, _NARROWEST)
        above[here] = (error[here] - mid) / max(hi - mid, _NARROWEST)
    # the p(n + 1)-th smallest of n: groups are what can be exchanged for the unseen one
    level = min(LEVELS[2] + (LEVELS[2] - 0.5) / count, 1.0)
    down, up = (
        float(np.clip(_quantile(side, weights, level), _LEAST_STRETCH, _MOST_STRETCH))
        for side in (below, above)
    )
    return middle - down * (middle - low), middle, middle + up * (high - middle)


def _quantiles(error: Floats, weights: Floats) -> tuple[float, float, float]:
    low, middle, high = (_quantile(error, weights, level) for level in LEVELS)
    return low, middle, high


def _quantile(values: Floats, weights: Floats, level: float) -> float:
    order = np.argsort(values)
    share = (np.cumsum(weights[order]) - 0.5 * weights[order]) / weights.sum()
    return float(np.interp(level, share, values[order]))
