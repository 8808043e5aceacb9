"""The chance that a run fails: at submission from its request and its owner's history, or later
from its first minute, by one estimator with what speaks for its answer.

A support vector machine with classes weighted (failures are rare), boosted trees and a forest of
trees split at random each give a chance; a logistic mixture, fitted on later runs than theirs,
puts them together and calibrates. Fitting needs scikit-learn (`presage[learn]`), answering needs
NumPy alone. History is what had ended when a run was submitted: nothing here may look at a later
end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from presage.learn import Floats, sklearn_ensemble
from presage.learn.bundle import load_bundle, prefixed, save_bundle, under
from presage.learn.trees import TreeEnsemble
from presage.model.errors import BundleError, MissingExtra, NotFitted, UserError
from presage.model.estimate import Estimate

__all__ = ["FailureChance", "FailureModel", "SpeaksFor"]

_NAME, _VERSION = "health-failures", "2"
_LATER = 0.3
"""The share of runs, the last ones, that the mixture is fitted on."""
_REASONS = 5
_MEMBERS = 3
_FOREST, _LEAF = 200, 3
_SMALL = 1e-4
_MOST_VECTORS = 4_000


@dataclass(frozen=True, slots=True)
class SpeaksFor:
    """What one feature adds to the chance, against a usual run."""

    feature: str
    value: float
    adds: float


@dataclass(frozen=True, slots=True)
class FailureChance:
    """The answer for one run. The estimate's p10 and p90 are the members' lowest and highest."""

    estimate: Estimate
    reasons: tuple[SpeaksFor, ...]


class FailureModel:
    """Chance of failure of runs, each a row of numbers; NaN where something is unknown."""

    names_: tuple[str, ...]
    card_: Mapping[str, Any]
    """What its bundle says of it, once it is on disk."""

    def __init__(self, iterations: int = 150, seed: int = 0) -> None:
        self.iterations = iterations
        self.seed = seed

    def fit(self, rows: Floats, failed: npt.ArrayLike, names: Sequence[str]) -> Self:
        """Learn from runs in the order of time."""
        rows, failed = np.asarray(rows, dtype=float), np.asarray(failed, dtype=int)
        if len(rows) != len(failed) or rows.shape[1] != len(names):
            raise UserError("give an end for each run, and a name for each column")
        split = int(len(rows) * (1 - _LATER))
        for part in (failed[:split], failed[split:]):
            if part.min(initial=1) == part.max(initial=0):
                raise UserError("failures and successes are needed, both early and late")
        self.names_ = tuple(names)
        self._members(rows[:split], failed[:split])
        self._mix(self._logits(rows[split:]), failed[split:])
        self._members(rows, failed)
        return self

    def _members(self, rows: Floats, failed: npt.NDArray[np.int64]) -> None:
        ensemble = sklearn_ensemble("fitting chances of failure")
        try:
            from sklearn.svm import SVC
        except ImportError:
            raise MissingExtra("learn", "fitting chances of failure") from None
        boosted = ensemble.HistGradientBoostingClassifier(
            max_iter=self.iterations,
            learning_rate=0.06,
            max_leaf_nodes=15,
            l2_regularization=1.0,
            random_state=self.seed,
        )
        known = np.isfinite(rows)
        some = known.any(axis=0)
        boosted.fit(np.where(some, rows, 0.0), failed)  # it cannot bin a column of nothing
        self.trees_ = TreeEnsemble.from_sklearn(boosted)
        self.typical_ = np.zeros(rows.shape[1])
        self.typical_[some] = np.nanmedian(np.where(known, rows, np.nan)[:, some], axis=0)
        filled = self._filled(rows)
        self.scale_ = np.maximum(filled.std(axis=0), 1e-9)
        forest = ensemble.ExtraTreesClassifier(
            _FOREST, min_samples_leaf=_LEAF, random_state=self.seed
        ).fit(filled, failed)
        self.forest_ = TreeEnsemble.from_sklearn(forest)
        scaled = self._scaled(rows)[-_MOST_VECTORS:]
        svm = SVC(class_weight="balanced", gamma=1.0 / rows.shape[1], C=1.0)
        svm.fit(scaled, failed[-_MOST_VECTORS:])
        self.vectors_ = np.asarray(svm.support_vectors_)
        self.weights_ = np.asarray(svm.dual_coef_)[0]
        self.offset_ = float(svm.intercept_[0])

    def _mix(self, logits: Floats, failed: npt.NDArray[np.int64]) -> None:
        from sklearn.linear_model import LogisticRegression

        both = LogisticRegression(C=10.0).fit(logits, failed)
        self.mixture_ = np.append(both.coef_[0], both.intercept_)
        self.alone_ = np.array(
            [
                [one.coef_[0, 0], one.intercept_[0]]
                for one in (
                    LogisticRegression(C=10.0).fit(logits[:, [at]], failed)
                    for at in range(_MEMBERS)
                )
            ]
        )

    def _filled(self, rows: Floats) -> Floats:
        return np.where(np.isfinite(rows), rows, self.typical_)

    def _scaled(self, rows: Floats) -> Floats:
        return np.asarray(np.clip((self._filled(rows) - self.typical_) / self.scale_, -5.0, 5.0))

    def _logits(self, rows: Floats) -> Floats:
        """What each member says: the margin of the machine, the log odds of the others."""
        scaled = self._scaled(rows)
        apart = (
            (scaled**2).sum(axis=1)[:, None]
            + (self.vectors_**2).sum(axis=1)
            - 2 * scaled @ self.vectors_.T
        )
        alike = np.exp(-np.maximum(apart, 0.0) / rows.shape[1])
        trees = [self.trees_.predict(rows), self.forest_.predict(self._filled(rows))]
        chance = np.clip(np.column_stack(trees), _SMALL, 1 - _SMALL)
        odds = np.log(chance / (1 - chance))
        return np.column_stack([alike @ self.weights_ + self.offset_, odds])

    def predict(self, rows: Floats) -> Floats:
        """The chance of each run."""
        if not hasattr(self, "mixture_"):
            raise NotFitted("this FailureModel is not fitted; call fit or load a bundle")
        logits = self._logits(np.asarray(rows, dtype=float))
        return _chance(logits @ self.mixture_[:-1] + self.mixture_[-1])

    def foresee(self, row: Floats) -> FailureChance:
        """The chance of one run, and what speaks for it: by how much the chance falls when a
        feature is put to what it is in a usual run."""
        row = np.asarray(row, dtype=float)
        usual = np.repeat(row[None], len(row) + 1, axis=0)
        at = np.arange(len(row))
        usual[at, at] = self.typical_
        chances = self.predict(usual)
        adds = chances[-1] - chances[:-1]
        logits = self._logits(row[None])[0]
        members = _chance(logits * self.alone_[:, 0] + self.alone_[:, 1])
        chance = float(chances[-1])
        estimate = Estimate(
            min(chance, float(members.min())),
            chance,
            max(chance, float(members.max())),
            "chance",
            f"{_NAME} {_VERSION}",
        )
        order = [each for each in np.argsort(-np.abs(adds))[:_REASONS] if adds[each]]
        reasons = tuple(
            SpeaksFor(self.names_[each], float(row[each]), float(adds[each])) for each in order
        )
        return FailureChance(estimate, reasons)

    def save(
        self,
        path: Path,
        *,
        date: str,
        data: str,
        licence: str = "that of the data",
        more: Mapping[str, Any] = {},
    ) -> None:
        """Write a bundle; `more` is for whoever makes the rows."""
        arrays = {
            name: getattr(self, f"{name}_")
            for name in ("typical", "scale", "vectors", "weights", "mixture", "alone")
        }
        arrays["offset"] = np.array(self.offset_)
        card = {
            "name": _NAME,
            "version": _VERSION,
            "date": date,
            "data": data,
            "licence": licence,
            "features": list(self.names_),
            "splits": f"mixture on the last {_LATER:.0%} by time",
            "errors": {},
            **more,
        }
        arrays |= prefixed("trees", self.trees_.to_arrays())
        arrays |= prefixed("forest", self.forest_.to_arrays())
        save_bundle(path, arrays, card)

    @classmethod
    def load(cls, path: Path) -> FailureModel:
        """Read a bundle; anything wrong with it is a `BundleError`."""
        arrays, card = load_bundle(path)
        if card["name"] != _NAME or card["version"] != _VERSION:
            raise BundleError(f"{path} holds no chances of failure; fit them first")
        try:
            return cls._from(arrays, card)
        except (KeyError, TypeError, ValueError):
            raise BundleError(f"{path} is damaged: fit it again") from None

    @classmethod
    def _from(
        cls, arrays: Mapping[str, npt.NDArray[Any]], card: Mapping[str, Any]
    ) -> FailureModel:
        model = cls()
        model.names_, model.card_ = tuple(map(str, card["features"])), card
        model.trees_ = TreeEnsemble.from_arrays(under("trees", arrays))
        model.forest_ = TreeEnsemble.from_arrays(under("forest", arrays))
        model.typical_, model.scale_ = arrays["typical"], arrays["scale"]
        model.vectors_, model.weights_ = arrays["vectors"], arrays["weights"]
        model.mixture_, model.alone_ = arrays["mixture"], arrays["alone"]
        model.offset_ = float(arrays["offset"])
        return model


def _chance(logit: Floats) -> Floats:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(logit, -30.0, 30.0))))
