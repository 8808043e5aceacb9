"""Tree ensembles as plain arrays: taken from a fitted scikit-learn model, used without it.

The nodes of all trees lie in one table, the two children of a node side by side and after it. A
leaf is its own left child behind a threshold that nothing exceeds, so a row that has arrived stays
where it is. Nothing here fits a tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from presage.learn import Floats
from presage.model.errors import UserError

__all__ = ["TreeEnsemble"]

Link = Literal["identity", "exp", "sigmoid", "softmax"]
_BLOCK = 1 << 16
"""Rows × trees that are walked at once: large enough for NumPy, small enough for the cache."""

_COLUMNS = ("feature", "threshold", "left", "missing_left", "value", "roots", "base")


@dataclass(frozen=True, slots=True, eq=False)
class TreeEnsemble:
    """A fitted ensemble: link(base + factor × sum over trees of the value of the leaf)."""

    feature: npt.NDArray[np.int32]
    """Per node, the column it looks at; leaves look at column 0."""
    threshold: Floats
    """Per node: at most this goes left; infinite for a leaf."""
    left: npt.NDArray[np.int32]
    """Per node, its left child; the right one is next to it. A leaf names itself."""
    missing_left: npt.NDArray[np.bool_]
    """Per node, whether a missing value (NaN) goes left."""
    value: Floats
    """Per node and output."""
    roots: npt.NDArray[np.int32]
    """Per tree, its first node."""
    base: Floats
    """Per output."""
    factor: float
    n_features: int
    single_precision: bool
    """Whether the model was fitted on features rounded to 32 bits, as forests are."""
    link: Link
    depth: int = field(default=0)

    @classmethod
    def from_sklearn(cls, model: Any) -> TreeEnsemble:
        """Take over a fitted forest, extra trees, gradient boosting or histogram boosting.

        Classifiers become probabilities: of the second class if there are two, else of each.
        """
        kind = type(model).__name__
        if kind in ("RandomForestRegressor", "ExtraTreesRegressor"):
            trees = [_classic(tree.tree_, tree.tree_.value[:, 0, :]) for tree in model.estimators_]
            return cls._assemble(trees, np.zeros(1), 1 / len(trees), model.n_features_in_, True)
        if kind in ("RandomForestClassifier", "ExtraTreesClassifier"):
            keep = slice(1, 2) if len(model.classes_) == 2 else slice(None)
            trees = [
                _classic(tree.tree_, tree.tree_.value[:, 0, keep]) for tree in model.estimators_
            ]
            base = np.zeros(trees[0]["value"].shape[1])
            return cls._assemble(trees, base, 1 / len(trees), model.n_features_in_, True)
        if kind == "GradientBoostingRegressor":
            trees = [
                _classic(tree.tree_, tree.tree_.value[:, 0, :]) for tree in model.estimators_[:, 0]
            ]
            return cls._assemble(
                trees, _start(model), float(model.learning_rate), model.n_features_in_, True
            )
        if kind in ("HistGradientBoostingRegressor", "HistGradientBoostingClassifier"):
            return cls._from_histogram_boosting(model, kind.endswith("Classifier"))
        raise UserError(f"a {kind} cannot be turned into a TreeEnsemble; fit a forest or boosting")

    @classmethod
    def _from_histogram_boosting(cls, model: Any, classifies: bool) -> TreeEnsemble:
        base = np.asarray(model._baseline_prediction, dtype=np.float64).reshape(-1)
        trees = [
            _histogram(tree.nodes, output, base.size)
            for step in model._predictors
            for output, tree in enumerate(step)
        ]
        link: Link = "identity"
        if classifies:
            link = "sigmoid" if base.size == 1 else "softmax"
        elif type(model._loss.link).__name__ == "LogLink":
            link = "exp"
        return cls._assemble(trees, base, 1.0, model.n_features_in_, False, link)

    @classmethod
    def _assemble(
        cls,
        trees: list[dict[str, npt.NDArray[Any]]],
        base: Floats,
        factor: float,
        n_features: int,
        single_precision: bool,
        link: Link = "identity",
    ) -> TreeEnsemble:
        laid_out = [_children_side_by_side(tree) for tree in trees]
        sizes = [tree["feature"].size for tree in laid_out]
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int32)
        joined = {
            name: np.concatenate([tree[name] for tree in laid_out])
            for name in ("feature", "threshold", "missing_left", "value")
        }
        left = np.concatenate(
            [tree["left"] + start for tree, start in zip(laid_out, starts, strict=True)]
        )
        return cls.from_arrays(
            {
                **joined,
                "left": left.astype(np.int32),
                "roots": starts,
                "base": base,
                "settings": np.array([factor, n_features, single_precision], dtype=np.float64),
                "link": np.array(link),
            }
        )

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What `from_arrays` takes; nothing in it needs pickle."""
        arrays: dict[str, npt.NDArray[Any]] = {name: getattr(self, name) for name in _COLUMNS}
        arrays["settings"] = np.array(
            [self.factor, self.n_features, self.single_precision], dtype=np.float64
        )
        arrays["link"] = np.array(self.link)
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> TreeEnsemble:
        """The ensemble in these arrays; refuses any that could lead a walk astray."""
        try:
            feature = np.ascontiguousarray(arrays["feature"], dtype=np.int32)
            left = np.ascontiguousarray(arrays["left"], dtype=np.int32)
            roots = np.ascontiguousarray(arrays["roots"], dtype=np.int32)
            threshold = np.ascontiguousarray(arrays["threshold"], dtype=np.float64)
            missing_left = np.ascontiguousarray(arrays["missing_left"], dtype=np.bool_)
            value = np.ascontiguousarray(arrays["value"], dtype=np.float64)
            base = np.ascontiguousarray(arrays["base"], dtype=np.float64)
            factor, n_features, single = (float(part) for part in arrays["settings"])
            link = str(arrays["link"])
        except (KeyError, ValueError, TypeError) as wrong:
            raise UserError(f"these arrays hold no tree ensemble: {wrong}") from None
        own = np.arange(feature.size, dtype=np.int32)
        leaf = left == own
        sound = (
            feature.ndim == left.ndim == roots.ndim == threshold.ndim == base.ndim == 1
            and left.shape == threshold.shape == missing_left.shape == feature.shape
            and value.shape == (feature.size, base.size)
            and roots.size > 0
            and bool(np.all((roots >= 0) & (roots < feature.size)))
            and bool(np.all((feature >= 0) & (feature < n_features)))
            and bool(np.all(leaf | ((left > own) & (left < feature.size - 1))))
            and bool(np.all(~leaf | (np.isposinf(threshold) & missing_left)))
            and link in get_args(Link)
        )
        if not sound:
            raise UserError("these arrays hold no tree ensemble: they contradict each other")
        depth = _depth(left, leaf, roots)
        return cls(
            feature,
            threshold,
            left,
            missing_left,
            value,
            roots,
            base,
            factor,
            int(n_features),
            bool(single),
            link,  # type: ignore[arg-type]  # checked above
            depth,
        )

    def predict(self, X: npt.ArrayLike) -> Floats:
        """One number a row, or one column for each output where there are several."""
        rows = self._checked(X)
        n_trees = self.roots.size
        at_once = max(1, min(len(rows), _BLOCK // 4))
        total = np.empty((len(rows), self.base.size))
        for first in range(0, len(rows), at_once):
            block = rows[first : first + at_once]
            missing = bool(np.isnan(block).any())
            trees = max(1, _BLOCK // len(block))
            summed = np.zeros((len(block), self.base.size))
            for tree in range(0, n_trees, trees):
                leaves = self._walk(block, self.roots[tree : tree + trees], missing)
                summed += self.value[leaves].sum(axis=0)
            total[first : first + at_once] = summed
        raw = self.base + self.factor * total
        linked = _linked(raw, self.link)
        return linked[:, 0] if linked.shape[1] == 1 else linked

    def leaves(self, X: npt.ArrayLike) -> npt.NDArray[np.int32]:
        """The node in which each row (second axis) ends, by tree (first axis); of few rows."""
        rows = self._checked(X)
        return self._walk(rows, self.roots, bool(np.isnan(rows).any()))

    def _checked(self, X: npt.ArrayLike) -> Floats:
        rows = np.asarray(X, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != self.n_features:
            raise UserError(
                f"the model takes rows of {self.n_features} features; got shape {rows.shape}"
            )
        return rows.astype(np.float32).astype(np.float64) if self.single_precision else rows

    def _walk(
        self, rows: Floats, roots: npt.NDArray[np.int32], missing: bool
    ) -> npt.NDArray[np.int32]:
        """The leaf of each tree (first axis) and row (second axis)."""
        flat = rows.reshape(-1)
        start = np.tile(np.arange(len(rows), dtype=np.intp) * rows.shape[1], roots.size)
        node = np.repeat(roots, len(rows))
        waiting = np.arange(node.size)  # places in `node` that have not reached a leaf
        here, offset = node, start
        for _ in range(self.depth):
            seen = flat.take(offset + self.feature.take(here))
            right = seen > self.threshold.take(here)
            if missing:
                right |= np.isnan(seen) & ~self.missing_left.take(here)
            below = self.left.take(here) + right
            node[waiting] = below
            walking = self.left.take(below) != below
            if not walking.any():
                break
            waiting, here, offset = waiting[walking], below[walking], offset[walking]
        return node.reshape(roots.size, len(rows))


def _classic(tree: Any, value: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """A tree of scikit-learn's forests and of its older boosting."""
    nodes = tree.__getstate__()["nodes"]
    return {
        "feature": tree.feature,
        "threshold": tree.threshold,
        "left": tree.children_left,
        "right": tree.children_right,
        "leaf": tree.children_left < 0,
        "missing_left": nodes["missing_go_to_left"].astype(np.bool_),
        "value": np.asarray(value, dtype=np.float64),
    }


def _histogram(nodes: Any, output: int, n_outputs: int) -> dict[str, npt.NDArray[Any]]:
    """A tree of scikit-learn's histogram boosting, which adds to one output."""
    leaf = nodes["is_leaf"].astype(np.bool_)
    if np.any(nodes["is_categorical"].astype(np.bool_) & ~leaf):
        raise UserError("a model with categorical splits cannot be turned into a TreeEnsemble")
    value = np.zeros((nodes.size, n_outputs))
    value[:, output] = nodes["value"]
    return {
        "feature": nodes["feature_idx"],
        "threshold": nodes["num_threshold"],
        "left": nodes["left"],
        "right": nodes["right"],
        "leaf": leaf,
        "missing_left": nodes["missing_go_to_left"].astype(np.bool_),
        "value": value,
    }


def _children_side_by_side(tree: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """The same tree by breadth, each right child directly after its left one."""
    leaf = tree["leaf"]
    levels = [np.array([0])]
    while (inner := levels[-1][~leaf[levels[-1]]]).size:
        pairs = np.stack([tree["left"][inner], tree["right"][inner]], axis=1)
        levels.append(pairs.reshape(-1).astype(np.intp))
    old = np.concatenate(levels)
    new = np.empty(leaf.size, dtype=np.intp)
    new[old] = np.arange(old.size)
    ends = leaf[old]
    left = np.where(ends, np.arange(old.size), new[np.where(ends, 0, tree["left"][old])])
    return {
        "feature": np.where(ends, 0, tree["feature"][old]).astype(np.int32),
        "threshold": np.where(ends, np.inf, tree["threshold"][old]).astype(np.float64),
        "left": left.astype(np.int32),
        "missing_left": ends | tree["missing_left"][old],
        "value": tree["value"][old],
    }


def _depth(
    left: npt.NDArray[np.int32], leaf: npt.NDArray[np.bool_], roots: npt.NDArray[np.int32]
) -> int:
    depth, level = 0, np.unique(roots)
    while (inner := level[~leaf[level]]).size:
        level = np.concatenate([left[inner], left[inner] + 1])
        depth += 1
    return depth


def _start(model: Any) -> Floats:
    """What gradient boosting starts from."""
    if isinstance(model.init_, str):  # "zero"
        return np.zeros(1)
    constant = getattr(model.init_, "constant_", None)
    if constant is None:
        raise UserError("gradient boosting that starts from another model cannot be taken over")
    return np.asarray(constant, dtype=np.float64).reshape(-1)


def _linked(raw: Floats, link: Link) -> Floats:
    if link == "exp":
        return np.exp(raw)
    if link == "sigmoid":
        return np.asarray(1 / (1 + np.exp(-raw)))
    if link == "softmax":
        powers = np.exp(raw - raw.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))
    return raw
