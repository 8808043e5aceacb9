"""k-means, the number of clusters, and the scores of a clustering (against scikit-learn)."""

from __future__ import annotations

import numpy as np
import pytest

from presage.observe.phases.clusters import (
    adjusted_rand,
    cohesion_curve,
    enough,
    kmeans,
    nearest,
    silhouette,
)


def blobs(seed: int = 0, n: int = 300, k: int = 4) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    truth = random.integers(k, size=n)
    centres = 10.0 * np.arange(k)[:, None] * np.array([1, -1, 0.5])
    return centres[truth] + random.normal(0, 0.5, (n, 3)), truth


def test_k_means_finds_the_blobs_and_repeats_itself() -> None:
    points, truth = blobs()
    found = kmeans(points, 4, seed=1)
    assert adjusted_rand(found.labels, truth) == 1.0
    np.testing.assert_array_equal(found.centres, kmeans(points, 4, seed=1).centres)
    labels, distances = nearest(points, found.centres)
    np.testing.assert_array_equal(labels, found.labels)
    assert found.cohesion == pytest.approx(distances.sum())


def test_k_is_where_one_more_cluster_gains_little() -> None:
    points, _ = blobs()
    curve = cohesion_curve(points, range(1, 9), seed=0)
    assert list(curve) == list(range(1, 9))
    assert list(curve.values()) == sorted(curve.values(), reverse=True)
    assert enough(curve) == 4
    assert enough(cohesion_curve(np.zeros((50, 2)), range(1, 9), seed=0)) == 1


def test_more_clusters_than_different_points_are_no_problem() -> None:
    points = np.repeat([[0.0, 0.0], [1.0, 1.0]], 10, axis=0)
    found = kmeans(points, 5, seed=0)
    assert found.cohesion == 0.0
    assert np.isfinite(found.centres).all()


def test_scores_are_those_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    points, truth = blobs(3)
    rough = kmeans(points, 3, seed=0).labels
    assert silhouette(points, rough) == pytest.approx(metrics.silhouette_score(points, rough))
    random = np.random.default_rng(0).integers(3, size=len(truth))
    for other in (rough, random):
        expected = metrics.adjusted_rand_score(truth, other)
        assert adjusted_rand(truth, other) == pytest.approx(expected)
    assert silhouette(points, np.zeros(len(points), dtype=np.int64)) == 0.0
