"""What relatives did: rows that are alike in numbers and in name tell of one another.

Kernel regression (the mean of a Gaussian process). Two rows are alike if their numbers are close,
more so if pieces of their names agree: `regnetz` was never measured, but `regnety` was. Rows of
another setting (a memory layout, say) count half. A measurement that nothing explains would bend
all that is near it, so a row counts less the farther off it stays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from presage.learn import Floats
from presage.model.errors import UserError

__all__ = ["Relatives", "pieces"]

Names = npt.NDArray[np.str_]
Singles = npt.NDArray[np.float32]

_NUMBERS, _NAMES, _LINE, _NOISE = 0.3, 0.25, 0.05, 0.02
"""Variance that rows with close numbers share, that namesakes share, that follows a straight line
in each number, and that is chance."""
_NAMESAKES = 4.0
"""How many times farther apart the numbers of namesakes may be."""
_OTHER_SETTING = 0.5
_FAR = 0.02
"""A row that stays farther off than this counts less."""
_ROUNDS = 3
_AT_ONCE = 128


@dataclass(frozen=True, slots=True, eq=False)
class Relatives:
    """Fitted rows, and how much each adds to the answer for a row that is like it."""

    numbers: Floats
    """Per row, in standard deviations from the mean."""
    setting: Floats
    names: Names
    weights: Floats
    middle: Floats
    """The median of the target, as an array without dimensions."""
    vocabulary: Names
    """Pieces of names, from two families at least: those of one alone tell nothing of another."""
    rarity: Floats
    """Per piece; what few families have says more."""
    scale: Floats
    """Per number (columns): mean, standard deviation, how many of the latter count as close."""
    _place: dict[str, int] = field(init=False)
    """Of each piece in the vocabulary."""
    _spelt_once: Singles = field(init=False)
    """The unlike names of the fitted rows, as `_spelt`."""
    _which: npt.NDArray[np.intp] = field(init=False)
    """Per row, its name in `_spelt_once`."""

    def __post_init__(self) -> None:
        unlike, which = np.unique(self.names, return_inverse=True)
        object.__setattr__(self, "_place", {w: n for n, w in enumerate(self.vocabulary.tolist())})
        object.__setattr__(self, "_spelt_once", self._spelt(unlike))
        object.__setattr__(self, "_which", which)

    @classmethod
    def fit(
        cls,
        numbers: Floats,
        setting: Floats,
        names: Names,
        target: Floats,
        groups: npt.NDArray[Any],
        closeness: Sequence[float],
    ) -> Relatives:
        """Learn from rows of several families; time grows with the cube of the rows."""
        mean, spread = numbers.mean(axis=0), np.maximum(numbers.std(axis=0), 1e-9)
        scale = np.stack([mean, spread, np.asarray(closeness)])
        middle = np.median(target)
        known = cls(
            (numbers - mean) / spread,
            np.asarray(setting, np.float64),
            np.asarray(names),
            np.zeros(len(target)),
            np.asarray(middle),
            *_vocabulary(names, groups),
            scale,
        )
        alike = known._alike(known.numbers, known.names) * known._same(known.setting)
        alike += _LINE * (known.numbers @ known.numbers.T)
        noise = np.full(len(target), _NOISE)
        for _ in range(_ROUNDS):
            weights = np.linalg.solve(alike + np.diag(noise), target - middle)
            noise = _NOISE * np.maximum(1.0, np.abs(noise * weights) / _FAR)
        known.weights[:] = weights
        return known

    def predict(self, numbers: Floats, setting: Floats, names: Names) -> Floats:
        """The target of each row; numbers beyond those of the fitted rows count as the last."""
        mean, spread, _ = self.scale
        inside = np.clip(
            (numbers - mean) / spread, self.numbers.min(axis=0), self.numbers.max(axis=0)
        )
        settings, which = np.unique(setting, return_inverse=True)
        weights = (self._same(settings) * self.weights).T
        out = self.middle + _LINE * (inside @ (self.numbers.T @ self.weights))
        by_name = np.argsort(names, kind="stable")  # so that few names are spelt in a block
        for first in range(0, len(inside), _AT_ONCE):
            block = by_name[first : first + _AT_ONCE]
            sums = self._alike(inside[block], names[block]) @ weights
            out[block] += np.take_along_axis(sums, which[block, None], axis=1)[:, 0]
        return np.asarray(out)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What `from_arrays` takes."""
        return {column.name: getattr(self, column.name) for column in fields(self) if column.init}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Relatives:
        """The rows in these arrays."""
        try:
            parts = {column.name: arrays[column.name] for column in fields(cls) if column.init}
        except KeyError as wrong:
            raise UserError(f"these arrays hold no relatives: {wrong} is not there") from None
        shape = {name: part.shape for name, part in parts.items()}
        rows, columns = shape["numbers"] if len(shape["numbers"]) == 2 else (0, 0)
        sound = (
            shape["setting"] == shape["names"] == shape["weights"] == (rows,)
            and shape["scale"] == (3, columns)
            and shape["vocabulary"] == shape["rarity"]
            and shape["middle"] == ()
        )
        if not rows or not sound:
            raise UserError("these arrays hold no relatives: they contradict each other")
        return cls(**parts)

    def _alike(self, numbers: Floats, names: Names) -> Floats:
        """What each given row (first axis) and fitted row (second axis) share, if their setting
        is the same; the straight line is left out."""
        close = self.scale[2]
        apart = _squares(numbers / close, self.numbers / close)
        shared = _NAMES * np.exp(apart * (-0.5 / _NAMESAKES**2))
        shared *= self._namesakes(names)
        shared += _NUMBERS * np.exp(apart * -0.5)
        return np.asarray(shared)

    def _same(self, setting: Floats) -> Floats:
        return np.where(setting[:, None] == self.setting, 1.0, _OTHER_SETTING)

    def _namesakes(self, names: Names) -> Singles:
        """0 to 1: the cosine between the pieces of two names, weighed by rarity."""
        unlike, which = np.unique(names, return_inverse=True)
        cosine = self._spelt(unlike) @ self._spelt_once.T
        return np.asarray(cosine.take(self._which, axis=1).take(which, axis=0))

    def _spelt(self, names: Names) -> Singles:
        """Per name, the rarity of each piece that it has, as a vector of length 1."""
        known = self._place.keys()
        has = [[self._place[piece] for piece in pieces(name) & known] for name in names.tolist()]
        row = np.repeat(np.arange(len(names)), [len(places) for places in has])
        column = np.fromiter(chain.from_iterable(has), np.intp, row.size)
        length = np.sqrt(np.bincount(row, self.rarity[column] ** 2, len(names)))
        out = np.zeros((len(names), len(known)), np.float32)
        out[row, column] = self.rarity[column] / np.maximum(length[row], 1e-9)
        return out


def pieces(name: str) -> set[str]:
    """Three to five characters that follow one another; how large a number is does not matter."""
    if not name:
        return set()
    plain = "^" + re.sub(r"\d+", "0", name.lower()) + "$"
    return {
        plain[first : first + size] for size in (3, 4, 5) for first in range(len(plain) - size + 1)
    }


def _vocabulary(names: Names, groups: npt.NDArray[Any]) -> tuple[Names, Floats]:
    families: dict[str, set[Any]] = {}
    for name, family in set(zip(names.tolist(), groups.tolist(), strict=True)):
        for piece in pieces(name):
            families.setdefault(piece, set()).add(family)
    count = {piece: len(of) for piece, of in sorted(families.items()) if len(of) > 1}
    all_of_them = len(np.unique(groups))
    rarity = np.log((1 + all_of_them) / (1 + np.array(list(count.values()), np.float64)))
    return np.array(list(count), np.str_), rarity


def _squares(a: Floats, b: Floats) -> Floats:
    """Squared distances between rows, but for rounding."""
    return np.asarray((a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2 * a @ b.T)
