"""Telemetry made for tests: pods that go through three known behaviours."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from presage.telemetry.series import Series

LEVELS = np.array([[0.2, 1.0, 5.0], [2.0, 1.5, 5.0], [4.0, 8.0, 1.0]])
FEATURES = ("cpu_cores", "mem_bytes", "io")


def pod(name: str, seed: int, stretches: int = 6) -> tuple[Series, npt.NDArray[np.int64]]:
    """A pod that cycles through the behaviours, 15 s between samples, and the truth."""
    random = np.random.default_rng(seed)
    lengths = random.integers(8, 16, stretches)
    truth = np.repeat((np.arange(stretches) + seed) % 3, lengths)
    values = LEVELS[truth] + random.normal(0, 0.05, (len(truth), 3))
    times = 1000.0 * seed + 15.0 * np.arange(len(truth), dtype=np.float64)
    resources = {"cpu": ("cpu_cores",), "memory": ("mem_bytes",)}
    return Series(name, times, values, FEATURES, ("cores", "bytes", ""), resources), truth


def pods(count: int = 12) -> list[Series]:
    """Some of them."""
    return [pod(f"pod{seed}", seed)[0] for seed in range(count)]
