"""The learning kit that the estimators share: trees, intervals, splits and bundles.

Fitting uses scikit-learn (`presage[learn]`), imported where it is needed; a fitted estimator needs
NumPy alone. This file holds the contract of an estimator and nothing else.
"""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from presage.model.errors import MissingExtra, NotFitted, UserError

__all__ = ["Estimator", "Floats", "one_thread", "sklearn_ensemble"]

Floats = npt.NDArray[np.float64]


class Estimator:
    """The part of scikit-learn's contract that needs no data.

    A subclass stores the arguments of `__init__` under their own names and does nothing else
    there; `fit(X, y, groups=None)` learns attributes that end in `_` and returns self; `predict`
    gives the median and `predict_interval` an (n, 3) array of p10 ≤ p50 ≤ p90.
    """

    def predict_interval(self, X: Any) -> Floats:
        """p10, p50, p90 of each row."""
        raise NotImplementedError

    def predict(self, X: Any) -> Floats:
        """The median of each row."""
        return self.predict_interval(X)[:, 1]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments of `__init__` with their values; `deep` has nothing to add here."""
        return {name: getattr(self, name) for name in self._parameter_names()}

    def set_params(self, **params: Any) -> Self:
        """Change arguments of `__init__` by name."""
        known = self._parameter_names()
        for name, value in params.items():
            if name not in known:
                raise UserError(
                    f"{type(self).__name__} has no parameter '{name}'; "
                    f"there are: {', '.join(known) or 'none'}"
                )
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={value!r}" for name, value in self.get_params().items())
        return f"{type(self).__name__}({inside})"

    def _check_fitted(self, attribute: str) -> None:
        if not hasattr(self, attribute):
            raise NotFitted(f"this {type(self).__name__} is not fitted; call fit or load a bundle")

    @classmethod
    def _parameter_names(cls) -> list[str]:
        return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]


def sklearn_ensemble(what: str) -> ModuleType:
    """`sklearn.ensemble`, or an error that says how to get it; `what` names what needs it."""
    try:
        import sklearn.ensemble
    except ImportError:
        raise MissingExtra("learn", what) from None
    module: ModuleType = sklearn.ensemble
    return module


def one_thread(what: str) -> AbstractContextManager[object]:
    """Fits inside use one thread: on a busy machine, threads that wait for each other at every
    split of a tree take many times as long as one alone. `what` names what needs scikit-learn."""
    sklearn_ensemble(what)  # limits hold for libraries that are there
    from threadpoolctl import threadpool_limits

    limits: AbstractContextManager[object] = threadpool_limits(1)
    return limits
