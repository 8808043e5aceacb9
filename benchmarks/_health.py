"""How well a score finds what is labelled: areas under precision and recall."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["auc_pr", "recall_at", "vus_pr"]

Floats = npt.NDArray[np.float64]
_WIDEST, _WIDTHS = 100, 11


def _curve(truth: npt.NDArray[np.int64] | Floats, score: Floats) -> tuple[Floats, Floats]:
    """Precision and recall at each different score, from the highest; truth may be a share."""
    order = np.argsort(-score, kind="stable")
    last = np.append(np.flatnonzero(np.diff(score[order])), len(score) - 1)
    found = np.cumsum(truth[order])[last]
    return found / (last + 1), found / truth.sum()


def auc_pr(truth: npt.NDArray[np.int64] | Floats, score: Floats) -> float:
    """Average precision; no point adjustment."""
    precision, recall = _curve(truth, score)
    return float(np.sum(np.diff(recall, prepend=0.0) * precision))


def recall_at(truth: npt.NDArray[np.int64], score: Floats, precision: float) -> float:
    """The highest recall with at least this precision."""
    reached, recall = _curve(truth, score)
    good = recall[reached >= precision]
    return float(good.max()) if len(good) else 0.0


def vus_pr(truth: npt.NDArray[np.int64], score: Floats) -> float:
    """Mean of the areas when each labelled stretch is widened softly by 0 to `_WIDEST` samples in
    all, half before and half after, with weights that fall as a square root does."""
    marked = np.flatnonzero(truth)
    at = np.arange(len(truth))
    after = np.searchsorted(marked, at)
    left = at - marked[np.maximum(after - 1, 0)]
    right = marked[np.minimum(after, len(marked) - 1)] - at
    left = np.where(after > 0, left, len(truth))
    right = np.where(after < len(marked), right, len(truth))
    apart = np.where(truth > 0, 0, np.minimum(left, right))
    areas = []
    for width in np.linspace(0, _WIDEST, _WIDTHS):
        soft = np.where(
            apart <= width / 2, np.sqrt(np.maximum(1 - apart / (width + 1e-9), 0.0)), 0.0
        )
        areas.append(auc_pr(np.where(truth > 0, 1.0, np.maximum(soft, 0.0)), score))
    return float(np.mean(areas))
