"""What kind of fault it was, told from how the metrics of the guilty series changed.

Two models that people can read: a decision tree, and a Bayesian network in which the kind decides
how each sort of metric moves (down, as ever, up) and how near to their limits its metrics are.
Asked together, their chances are averaged. Metrics are taken by sort (computing, memory, network,
latency, …), so what was learned on one service speaks of another. Fitting and asking the network
needs pgmpy (`presage[health]`), the tree scikit-learn (`presage[learn]`).
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

Method = Literal["both", "tree", "network"]

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
_MOVES: tuple[float, ...] = (-1.0, 1.0)
_MOVED: tuple[str, ...] = ("down", "same", "up")
_STEPS: tuple[float, ...] = (10.0, 30.0, 60.0, 90.0)
"""Percent of a limit."""
_HEIGHTS: tuple[str, ...] = ("idle", "low", "middle", "high", "full")
_NODES = dict.fromkeys(_SORTS, _MOVED) | dict.fromkeys(_LEVELS, _HEIGHTS)
"""What the network sees -> the words for it."""
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

    def __init__(self, method: Method = "both") -> None:
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
        if self.method != "network":
            self.tree_ = _tree(np.hstack([changes, levels]), kinds)
        if self.method != "tree":
            self.percent_ = np.where(levels.max(axis=0) <= 1.0, 100.0, 1.0)
            self.network_ = _network(_states(changes, levels * self.percent_), kinds)
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
    def load(cls, path: Path, method: Method = "both") -> FaultKinds:
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
        if not hasattr(self, "truth_"):
            raise NotFitted("this FaultKinds is not fitted; call fit")
        return self._ranked(np.array(_by_sort(moved)), np.array(_levels(moved)))

    def _ranked(self, changes: Floats, levels: Floats) -> list[Likely]:
        said: list[Mapping[str, float]] = []
        if self.method != "network":
            shares = self.tree_.predict_proba(np.append(changes, levels)[None])[0]
            said.append(dict(zip(self.tree_.classes_, shares.tolist(), strict=True)))
        if self.method != "tree":
            state = _states(changes[None], levels[None] * self.percent_)[0]
            said.append(_ask(self.network_, state, self.kinds_))
        chance = {
            kind: sum(one.get(kind, 0.0) for one in said) / len(said) for kind in self.kinds_
        }
        return sorted((Likely(*each) for each in chance.items()), key=lambda one: -one.probability)

    def text(self) -> str:
        """The models for people: the questions of the tree, and what each kind does to metrics."""
        parts = []
        if self.method != "network":
            from sklearn.tree import export_text

            parts.append(str(export_text(self.tree_, feature_names=[*_SORTS, *_LEVELS])))
        if self.method != "tree":
            parts += [_told(self.network_, name, words) for name, words in _NODES.items()]
        return "\n".join(parts)


def _by_sort(moved: Mapping[str, Moved]) -> list[float]:
    """For each sort the mean change of its metrics; 0 where there is none."""
    changes: dict[str, list[float]] = {name: [] for name in _SORTS}
    for metric, each in moved.items():
        lower, value = metric.lower(), each.change
        sort = next((name for name, like in _SORTS.items() if re.search(like, lower)), None)
        if sort is not None and np.isfinite(value):
            changes[sort].append(float(np.clip(value, -_MOST, _MOST)))
    return [sum(values) / len(values) if values else 0.0 for values in changes.values()]


def _levels(moved: Mapping[str, Moved]) -> list[float]:
    """For each share of a limit the mean in the window; 0 where there is none."""
    levels = []
    for like in _LEVELS.values():
        then = [each.then for metric, each in moved.items() if re.search(like, metric.lower())]
        then = [value for value in then if np.isfinite(value)]
        levels.append(sum(then) / len(then) if then else 0.0)
    return levels


def _states(changes: Floats, percent: Floats) -> list[dict[str, str]]:
    """Per fault, what each sort did and how near its limit each level was, in words."""
    moved = np.array(_MOVED)[np.digitize(changes, _MOVES)]
    height = np.array(_HEIGHTS)[np.digitize(percent, _STEPS)]
    names = (*_SORTS, *_LEVELS)
    words = np.hstack([moved, height]).tolist()
    return [dict(zip(names, each, strict=True)) for each in words]


def _tree(rows: Floats, kinds: Sequence[str]) -> Any:
    try:
        from sklearn.tree import DecisionTreeClassifier
    except ImportError:
        raise MissingExtra("learn", "a decision tree of faults") from None
    tree = DecisionTreeClassifier(max_depth=_DEPTH, min_samples_leaf=_LEAF, random_state=0)
    return tree.fit(rows, list(kinds))


def _network(states: Sequence[Mapping[str, str]], kinds: Sequence[str]) -> Any:
    """The kind is the parent of every sort and level; tables are counts with one of each added."""
    pgmpy = _pgmpy()
    network = pgmpy["network"]([("kind", name) for name in _NODES])
    names = tuple(sorted(set(kinds)))
    share = [[(kinds.count(kind) + 1) / (len(kinds) + len(names))] for kind in names]
    network.add_cpds(pgmpy["table"]("kind", len(names), share, state_names={"kind": list(names)}))
    for sort, words in _NODES.items():
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


def _told(network: Any, node: str, words: Sequence[str]) -> str:
    """The table of a node, a line for each kind."""
    table = network.get_cpds(node)
    lines = [node]
    for kind, shares in zip(table.state_names["kind"], table.get_values().T, strict=True):
        each = (f"{word} {share:.0%}" for word, share in zip(words, shares, strict=True))
        lines.append(f"  {kind}: {', '.join(each)}")
    return "\n".join(lines)


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
