"""What kind of fault it was, told from how the metrics of the guilty series changed.

Two models that people can read: a decision tree, and a Bayesian network in which the kind decides
how each sort of metric moves (down, as ever, up). Metrics are taken by sort (computing, memory,
network, latency, …), so what was learned on one service speaks of another. The tree also sees how
high the metrics were that are shares of a limit. Fitting and asking the
network needs pgmpy (`presage[health]`), the tree scikit-learn (`presage[learn]`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from presage.learn import Floats
from presage.learn.bundle import load_bundle, save_bundle
from presage.learn.evaluate import family_out
from presage.model.errors import BundleError, MissingExtra, NotFitted, UserError
from presage.observe.health.causes import Moved

__all__ = ["FaultKinds", "Likely", "Method"]

Method = Literal["tree", "network"]

_NAME, _VERSION = "health-kinds", "1"

_SORTS = {
    "node": r"^(node|host)",
    "computing": r"cpu",
    "memory": r"mem|rss",
    "read": r"read|receive|rx",
    "written": r"write|transmit|tx|sent",
    "asked": r"client.*latency|latency.*client",
    "answered": r"latency|duration|response",
    "work": r"workload|ops|request|qps",
}
"""Sort of metric -> names of it; the first that fits counts."""
_LEVELS = {
    "computing of limit": r"^(?!node|host).*cpu.*(rate|util|pct|percent)",
    "memory of limit": r"^(?!node|host).*mem.*(rate|util|pct|percent)",
    "succeeded": r"success",
}
"""Shares of a limit -> names of the metrics."""
_FAR = 1.0
_MOST = 8.0
_DEPTH, _LEAF = 6, 2


@dataclass(frozen=True, slots=True)
class Likely:
    """A kind of fault and how likely it is."""

    kind: str
    probability: float


class FaultKinds:
    """Kinds of fault, learned from labelled ones."""

    kinds_: tuple[str, ...]

    def __init__(self, method: Method = "tree") -> None:
        self.method = method

    def fit(self, faults: Sequence[Mapping[str, Moved]], kinds: Sequence[str]) -> Self:
        """Learn from what each fault's guilty series did, by metric."""
        if len(faults) != len(kinds) or len(set(kinds)) < 2:
            raise UserError("kinds of fault need a kind for each fault, and two kinds or more")
        changes = np.array([_by_sort(moved) for moved in faults])
        levels = np.array([_levels(moved) for moved in faults])
        return self._learn(changes, levels, kinds)

    def _learn(self, changes: Floats, levels: Floats, kinds: Sequence[str]) -> Self:
        self.changes_, self.levels_, self.truth_ = changes, levels, tuple(kinds)
        self.kinds_ = tuple(sorted(set(kinds)))
        if self.method == "tree":
            self.model_ = _tree(np.hstack([changes, levels]), kinds)
        else:
            self.model_ = _network(_states(changes), kinds)
        return self

    def right_on_others(self, groups: Sequence[str], folds: int = 10) -> float:
        """The share of its own faults whose kind is named by what was learned from other groups
        (services, say)."""
        right = 0
        for train, test in family_out(np.array(groups), min(folds, len(set(groups))), seed=0):
            truth = [self.truth_[at] for at in train]
            if len(set(truth)) < 2:
                continue
            part = FaultKinds(self.method)
            part._learn(self.changes_[train], self.levels_[train], truth)
            for at in test:
                first = part._ranked(self.changes_[at], self.levels_[at])[0]
                right += first.kind == self.truth_[at]
        return right / len(self.truth_)

    def save(self, path: Path, *, date: str, data: str) -> None:
        """Write a bundle: the faults it learned from, for they are few."""
        place = {kind: at for at, kind in enumerate(self.kinds_)}
        truth = np.array([place[kind] for kind in self.truth_])
        card = {
            "name": _NAME,
            "version": _VERSION,
            "date": date,
            "data": data,
            "licence": "that of the data",
            "features": [*_SORTS, *_LEVELS],
            "splits": "",
            "errors": {},
            "kinds": list(self.kinds_),
        }
        arrays = {"changes": self.changes_, "levels": self.levels_, "truth": truth}
        save_bundle(path, arrays, card)

    @classmethod
    def load(cls, path: Path, method: Method = "tree") -> FaultKinds:
        """Learn again from the faults of a bundle."""
        arrays, card = load_bundle(path)
        if card["name"] != _NAME or card["version"] != _VERSION:
            raise BundleError(f"{path} holds no kinds of fault; fit them first")
        if card["features"] != [*_SORTS, *_LEVELS]:
            raise BundleError(f"{path} sorts metrics in another way: fit it again")
        try:
            truth = [str(card["kinds"][at]) for at in arrays["truth"].tolist()]
            model = cls(method)
            return model._learn(
                arrays["changes"].reshape(len(truth), len(_SORTS)),
                arrays["levels"].reshape(len(truth), len(_LEVELS)),
                truth,
            )
        except (KeyError, TypeError, ValueError, IndexError):
            raise BundleError(f"{path} is damaged: fit it again") from None

    def rank(self, moved: Mapping[str, Moved]) -> list[Likely]:
        """All kinds, the likeliest first."""
        if not hasattr(self, "model_"):
            raise NotFitted("this FaultKinds is not fitted; call fit")
        return self._ranked(np.array(_by_sort(moved)), np.array(_levels(moved)))

    def _ranked(self, changes: Floats, levels: Floats) -> list[Likely]:
        if self.method == "tree":
            shares = self.model_.predict_proba(np.append(changes, levels)[None])[0]
            chances = dict(zip(self.model_.classes_, shares, strict=True))
        else:
            chances = _ask(self.model_, _states(changes[None])[0], self.kinds_)
        found = [Likely(kind, float(chances.get(kind, 0.0))) for kind in self.kinds_]
        return sorted(found, key=lambda each: -each.probability)

    def text(self) -> str:
        """The model for people: the questions of the tree, or what each kind does to metrics."""
        if self.method == "tree":
            from sklearn.tree import export_text

            return str(export_text(self.model_, feature_names=[*_SORTS, *_LEVELS]))
        tables = [self.model_.get_cpds(name) for name in _SORTS]
        return "\n".join(f"{name}\n{table}" for name, table in zip(_SORTS, tables, strict=True))


def _by_sort(moved: Mapping[str, Moved]) -> list[float]:
    """For each sort the mean change of its metrics; 0 where there is none."""
    found: dict[str, list[float]] = {name: [] for name in _SORTS}
    for metric, each in moved.items():
        lower, value = metric.lower(), each.change
        sort = next((name for name, like in _SORTS.items() if re.search(like, lower)), None)
        if sort is not None and np.isfinite(value):
            found[sort].append(float(np.clip(value, -_MOST, _MOST)))
    return [sum(values) / len(values) if values else 0.0 for values in found.values()]


def _levels(moved: Mapping[str, Moved]) -> list[float]:
    """For each share of a limit the mean in the window; 0 where there is none."""
    found = []
    for like in _LEVELS.values():
        then = [each.then for metric, each in moved.items() if re.search(like, metric.lower())]
        then = [value for value in then if np.isfinite(value)]
        found.append(sum(then) / len(then) if then else 0.0)
    return found


def _states(rows: Floats) -> list[dict[str, str]]:
    words = np.array(["down", "same", "up"])
    at = np.where(rows > _FAR, 2, np.where(rows < -_FAR, 0, 1))
    return [dict(zip(_SORTS, words[each].tolist(), strict=True)) for each in at]


def _tree(rows: Floats, kinds: Sequence[str]) -> Any:
    try:
        from sklearn.tree import DecisionTreeClassifier
    except ImportError:
        raise MissingExtra("learn", "a decision tree of faults") from None
    tree = DecisionTreeClassifier(max_depth=_DEPTH, min_samples_leaf=_LEAF, random_state=0)
    return tree.fit(rows, list(kinds))


def _network(states: Sequence[Mapping[str, str]], kinds: Sequence[str]) -> Any:
    """The kind is the parent of every sort; tables are counts with one of each added."""
    pgmpy = _pgmpy()
    network = pgmpy["network"]([("kind", name) for name in _SORTS])
    names = tuple(sorted(set(kinds)))
    words = ("down", "same", "up")
    share = [[(kinds.count(kind) + 1) / (len(kinds) + len(names))] for kind in names]
    network.add_cpds(pgmpy["table"]("kind", len(names), share, state_names={"kind": list(names)}))
    for sort in _SORTS:
        counts = np.ones((len(words), len(names)))
        for state, kind in zip(states, kinds, strict=True):
            counts[words.index(state[sort]), names.index(kind)] += 1
        network.add_cpds(
            pgmpy["table"](
                sort,
                len(words),
                (counts / counts.sum(axis=0)).tolist(),
                evidence=["kind"],
                evidence_card=[len(names)],
                state_names={sort: list(words), "kind": list(names)},
            )
        )
    network.check_model()
    return network


def _ask(network: Any, state: Mapping[str, str], kinds: Sequence[str]) -> dict[str, float]:
    answer = _pgmpy()["asked"](network).query(["kind"], evidence=dict(state), show_progress=False)
    return {kind: float(answer.get_value(kind=kind)) for kind in kinds}


def _pgmpy() -> dict[str, Any]:
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of its own deprecations when imported
            from pgmpy.factors.discrete import TabularCPD
            from pgmpy.inference import VariableElimination
            from pgmpy.models import DiscreteBayesianNetwork
    except ImportError:
        raise MissingExtra("health", "a Bayesian network of faults") from None
    return {"network": DiscreteBayesianNetwork, "table": TabularCPD, "asked": VariableElimination}
