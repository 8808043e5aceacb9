"""A fully connected network as plain arrays: fitted by scikit-learn, used without it.

Inputs are standardised, numbers after log(1 + x); the output is a logarithm of a time. Nothing
here chooses columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from presage.learn import Floats
from presage.model.errors import BundleError, MissingExtra

__all__ = ["Network"]

_SOFT = 0.05
"""Added to a column's spread: a category that is nearly always absent must not shout."""
_FARTHEST = 4.0
"""Standard deviations beyond which an input counts as being there: networks extrapolate wildly."""


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """Layers of weights; ReLU between them."""

    n_numbers: int
    """The first so many columns are numbers; the others are 0 or 1."""
    centre: Floats
    spread: Floats
    weights: tuple[Floats, ...]
    offsets: tuple[Floats, ...]
    target_centre: float
    target_spread: float

    @classmethod
    def fit(
        cls,
        rows: Floats,
        logs: Floats,
        n_numbers: int,
        hidden: tuple[int, ...] = (64, 32),
        steps: int = 2500,
        seed: int = 0,
    ) -> Network:
        """Learn the logarithm of a time from rows."""
        try:
            from sklearn.exceptions import ConvergenceWarning
            from sklearn.neural_network import MLPRegressor
            from sklearn.utils._testing import ignore_warnings
        except ImportError:
            raise MissingExtra("learn", "fitting a network") from None
        scaled = _logged(rows, n_numbers)
        centre, spread = scaled.mean(axis=0), scaled.std(axis=0) + _SOFT
        middle, width = float(logs.mean()), float(logs.std()) or 1.0
        batch = min(200, len(rows))
        model = MLPRegressor(
            hidden_layer_sizes=hidden,
            alpha=1e-3,
            batch_size=batch,
            learning_rate_init=3e-3,
            max_iter=max(3, steps * batch // len(rows)),
            n_iter_no_change=1000,
            random_state=seed,
        )
        with ignore_warnings(category=ConvergenceWarning):
            model.fit((scaled - centre) / spread, (logs - middle) / width)
        return cls(
            n_numbers,
            centre,
            spread,
            tuple(np.asarray(part, np.float64) for part in model.coefs_),
            tuple(np.asarray(part, np.float64) for part in model.intercepts_),
            middle,
            width,
        )

    def predict(self, rows: Floats) -> Floats:
        """The logarithm of the time of each row."""
        scaled = (_logged(rows, self.n_numbers) - self.centre) / self.spread
        now = np.clip(scaled, -_FARTHEST, np.where(self.centre < 1, np.inf, _FARTHEST))
        last = len(self.weights) - 1
        for layer, (weight, offset) in enumerate(zip(self.weights, self.offsets, strict=True)):
            now = now @ weight + offset
            if layer < last:
                now = np.maximum(now, 0.0)
        out: Floats = now[:, 0] * self.target_spread + self.target_centre
        return out

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What `from_arrays` takes."""
        arrays: dict[str, npt.NDArray[Any]] = {
            "centre": self.centre,
            "spread": self.spread,
            "settings": np.array([self.n_numbers, self.target_centre, self.target_spread]),
        }
        for layer, (weight, offset) in enumerate(zip(self.weights, self.offsets, strict=True)):
            arrays[f"weight{layer}"], arrays[f"offset{layer}"] = weight, offset
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Network:
        """The network in these arrays."""
        count = sum(name.startswith("weight") for name in arrays)
        try:
            weights = tuple(np.asarray(arrays[f"weight{n}"], np.float64) for n in range(count))
            offsets = tuple(np.asarray(arrays[f"offset{n}"], np.float64) for n in range(count))
            n_numbers, middle, width = map(float, arrays["settings"])
            centre, spread = arrays["centre"], arrays["spread"]
        except (KeyError, ValueError) as wrong:
            raise BundleError(f"these arrays hold no network: {wrong}") from None
        sizes = [len(centre), *(weight.shape[1] for weight in weights)]
        fits = all(w.shape[0] == size for w, size in zip(weights, sizes, strict=False))
        if not count or not fits or sizes[-1] != 1:
            raise BundleError("these arrays hold no network: their shapes contradict each other")
        return cls(int(n_numbers), centre, spread, weights, offsets, middle, width)


def _logged(rows: Floats, n_numbers: int) -> Floats:
    out = np.array(rows, np.float64)
    out[:, :n_numbers] = np.sign(out[:, :n_numbers]) * np.log1p(np.abs(out[:, :n_numbers]))
    return out
