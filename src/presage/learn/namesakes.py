"""What the same thing did elsewhere: how far rows of a name were off on average.

A name has an effect, and so has a name in a setting (a memory layout, say) beside it. Each shrinks
as if one more row had none. A name that was never seen has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from presage.learn import Floats
from presage.model.errors import UserError

__all__ = ["Namesakes"]

Names = npt.NDArray[np.str_]


@dataclass(frozen=True, slots=True, eq=False)
class Namesakes:
    """Effects of names, and of names in a setting."""

    names: Names
    """Sorted."""
    effects: Floats
    inside: Names
    """Name and setting, sorted."""
    inside_effects: Floats

    @classmethod
    def fit(cls, names: Names, setting: Floats, left: Floats) -> Namesakes:
        """Learn from what is left of each row; `setting` is a whole number."""
        known, effects, place = _shrunk(names, left)
        inside, inside_effects, _ = _shrunk(_joined(names, setting), left - effects[place])
        return cls(known, effects, inside, inside_effects)

    def predict(self, names: Names, setting: Floats) -> Floats:
        """The effect of each row; 0 for a name that was never seen."""
        by_name = _looked_up(self.names, self.effects, names)
        return by_name + _looked_up(self.inside, self.inside_effects, _joined(names, setting))

    def knows(self, names: Names) -> npt.NDArray[np.bool_]:
        """Whether each name was seen."""
        return np.isin(names, self.names)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What `from_arrays` takes."""
        return {
            "names": self.names,
            "effects": self.effects,
            "inside": self.inside,
            "inside_effects": self.inside_effects,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Namesakes:
        """The effects in these arrays."""
        try:
            made = cls(
                np.asarray(arrays["names"], np.str_),
                np.asarray(arrays["effects"], np.float64),
                np.asarray(arrays["inside"], np.str_),
                np.asarray(arrays["inside_effects"], np.float64),
            )
        except (KeyError, TypeError, ValueError) as wrong:
            raise UserError(f"the bundle holds no namesakes: {wrong}") from None
        pairs = ((made.names, made.effects), (made.inside, made.inside_effects))
        if any(keys.ndim != 1 or keys.shape != of.shape for keys, of in pairs):
            raise UserError("the bundle holds no namesakes: names and effects do not match")
        return made


def _joined(names: Names, setting: Floats) -> Names:
    return np.char.add(np.char.add(names, " "), setting.astype(np.int64).astype(np.str_))


def _shrunk(keys: Names, left: Floats) -> tuple[Names, Floats, npt.NDArray[np.intp]]:
    known, place = np.unique(keys, return_inverse=True)
    return known, np.bincount(place, left) / (np.bincount(place) + 1.0), place


def _looked_up(keys: Names, effects: Floats, wanted: Names) -> Floats:
    if not len(keys):
        return np.zeros(len(wanted))
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, effects[place], 0.0)
