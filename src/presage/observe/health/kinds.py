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
from typing import Any, Literal, Self

import numpy as np

from presage.learn import Floats
from presage.model.errors import MissingExtra, NotFitted, UserError
from presage.observe.health.causes import Moved

__all__ = ["FaultKinds", "Likely"]

Method = Literal["tree", "network"]

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
        self.kinds_ = tuple(sorted(set(kinds)))
        changes = np.array([_by_sort(moved) for moved in faults])
        if self.method == "tree":
            levels = np.array([_levels(moved) for moved in faults])
            self.model_ = _tree(np.hstack([changes, levels]), kinds)
        else:
            self.model_ = _network(_states(changes), kinds)
        return self

    def rank(self, moved: Mapping[str, Moved]) -> list[Likely]:
        """All kinds, the likeliest first."""
        if not hasattr(self, "model_"):
            raise NotFitted("this FaultKinds is not fitted; call fit")
        row = _by_sort(moved)
        if self.method == "tree":
            shares = self.model_.predict_proba(np.array([row + _levels(moved)]))[0]
            chances = dict(zip(self.model_.classes_, shares, strict=True))
        else:
            chances = _ask(self.model_, _states(np.array([row]))[0], self.kinds_)
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
