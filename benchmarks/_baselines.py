"""What every estimate is compared with: a constant, and names alone."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

__all__ = ["Constant", "Named"]


class Constant:
    """The best one number in logarithms."""

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Learn it."""
        self.value = float(np.exp(np.median(np.log(y))))
        return self

    def predict_interval(self, X: Any) -> Any:
        """The same for all."""
        return np.full((len(X), 3), self.value)


class Named:
    """A forest on a model's name, batch and layout."""

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Learn names by heart."""
        from sklearn.ensemble import RandomForestRegressor

        self.model = RandomForestRegressor(100, random_state=0).fit(X, np.log(y))
        return self

    def predict_interval(self, X: Any) -> Any:
        """The middle, three times."""
        return np.repeat(np.exp(self.model.predict(X))[:, None], 3, axis=1)
