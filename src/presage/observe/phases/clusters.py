"""k-means in NumPy, and how many clusters to take.

Cohesion is the sum of squared distances within clusters (SSW). It always falls as k grows; the k
that is chosen is the one after which it hardly falls any more. Everything is seeded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

__all__ = [
    "Clustering",
    "adjusted_rand",
    "cohesion_curve",
    "enough",
    "kmeans",
    "nearest",
    "silhouette",
]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_BLOCK = 1 << 16
_WORTHWHILE = 0.02


@dataclass(frozen=True, slots=True, eq=False)
class Clustering:
    """Centres (k, dimensions), the cluster of each point, and the cohesion."""

    centres: Floats
    labels: Ints
    cohesion: float


def nearest(points: Floats, centres: Floats) -> tuple[Ints, Floats]:
    """The nearest centre of each point and the squared distance to it; ties go to the first."""
    squares = (centres**2).sum(axis=1)
    if len(points) == 1:
        apart = squares - 2 * (points @ centres.T)
        best = apart.argmin(axis=1)
        return best, np.maximum(apart[0, best] + (points**2).sum(), 0)
    labels = np.empty(len(points), dtype=np.int64)
    distances = np.empty(len(points))
    for first in range(0, len(points), _BLOCK):
        block = points[first : first + _BLOCK]
        apart = squares - 2 * (block @ centres.T)
        best = apart.argmin(axis=1)
        labels[first : first + _BLOCK] = best
        least = apart[np.arange(len(block)), best] + (block**2).sum(axis=1)
        distances[first : first + _BLOCK] = np.maximum(least, 0)
    return labels, distances


def kmeans(points: Floats, k: int, seed: int, starts: int = 4, rounds: int = 100) -> Clustering:
    """The best of some starts, each spread out by k-means++."""
    random = np.random.default_rng(seed)
    return min((_once(points, k, random, rounds) for _ in range(starts)), key=_cohesion)


def cohesion_curve(points: Floats, ks: Iterable[int], seed: int) -> dict[int, float]:
    """The cohesion for each k, made to fall with k: the best for a smaller k is a bound."""
    curve: dict[int, float] = {}
    best = np.inf
    nothing = 1e-12 * float((points**2).sum())  # less is rounding
    for k in ks:
        best = min(best, kmeans(points, k, seed, starts=2, rounds=50).cohesion)
        curve[k] = best if best > nothing else 0.0
    return curve


def enough(curve: Mapping[int, float]) -> int:
    """The first k of the curve, which starts at 1, after which one more cluster takes less than
    2 % of the whole spread away."""
    ks = list(curve)
    for k, more in pairwise(ks):
        if curve[k] - curve[more] <= _WORTHWHILE * curve[ks[0]]:
            return k
    return ks[-1]


def silhouette(points: Floats, labels: Ints, seed: int = 0, most: int = 2000) -> float:
    """The mean silhouette of at most so many points drawn by seed; 0 for one cluster."""
    random = np.random.default_rng(seed)
    if len(points) > most:
        chosen = random.choice(len(points), most, replace=False)
        points, labels = points[chosen], labels[chosen]
    names, own = np.unique(labels, return_inverse=True)
    if len(names) < 2:
        return 0.0
    squares = (points**2).sum(axis=1)
    apart = np.sqrt(np.maximum(squares[:, None] + squares - 2 * points @ points.T, 0))
    member = np.eye(len(names))[own]
    totals, sizes = apart @ member, member.sum(axis=0)
    row = np.arange(len(points))
    inside = totals[row, own] / np.maximum(sizes[own] - 1, 1)
    means = totals / sizes
    means[row, own] = np.inf
    outside = means.min(axis=1)
    largest = np.maximum(inside, outside)
    score = np.divide(outside - inside, largest, out=np.zeros(len(points)), where=largest > 0)
    return float(np.where(sizes[own] > 1, score, 0).mean())


def adjusted_rand(first: Ints, second: Ints) -> float:
    """How far two clusterings of the same points agree: 1 the same, 0 as by chance."""
    a = np.unique(first, return_inverse=True)[1]
    b = np.unique(second, return_inverse=True)[1]
    table = np.zeros((a.max() + 1, b.max() + 1))
    np.add.at(table, (a, b), 1)
    pairs = (table * (table - 1) / 2).sum()
    rows, columns = table.sum(axis=1), table.sum(axis=0)
    in_rows, in_columns = (rows * (rows - 1) / 2).sum(), (columns * (columns - 1) / 2).sum()
    all_pairs = len(first) * (len(first) - 1) / 2
    by_chance = in_rows * in_columns / all_pairs
    most = (in_rows + in_columns) / 2
    return 1.0 if most == by_chance else float((pairs - by_chance) / (most - by_chance))


def _once(points: Floats, k: int, random: np.random.Generator, rounds: int) -> Clustering:
    centres = _spread(points, k, random)
    labels, distances = nearest(points, centres)
    for _ in range(rounds):
        sizes = np.bincount(labels, minlength=k).astype(np.float64)
        sums = np.stack([np.bincount(labels, column, minlength=k) for column in points.T], axis=1)
        filled = sizes > 0
        centres = centres.copy()
        centres[filled] = sums[filled] / sizes[filled, None]
        if not filled.all():  # a cluster that lost its points restarts at the farthest one
            farthest = np.argsort(-distances, kind="stable")[: int((~filled).sum())]
            centres[~filled] = points[farthest]
        before = distances.sum()
        labels, distances = nearest(points, centres)
        if before - distances.sum() <= 1e-6 * before:
            break
    return Clustering(centres, labels, float(distances.sum()))


def _spread(points: Floats, k: int, random: np.random.Generator) -> Floats:
    """k-means++: each further centre is drawn with probability ∝ squared distance."""
    centres = points[[random.integers(len(points))]]
    least = np.full(len(points), np.inf)
    while len(centres) < k:
        least = np.minimum(least, nearest(points, centres[-1:])[1])
        total = least.sum()
        share = least / total if total > 0 else None
        centres = np.concatenate([centres, points[[random.choice(len(points), p=share)]]])
    return centres


def _cohesion(clustering: Clustering) -> float:
    return clustering.cohesion
