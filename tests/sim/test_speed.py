"""Speeds of simulated jobs: by the number of workers, or by measured steps and nodes."""

from __future__ import annotations

import pytest

from presage.model.cluster import Worker
from presage.sim.speed import MeasuredSpeed, SpeedModel


def on(*names: str) -> tuple[Worker, ...]:
    return tuple(Worker(0, k, name) for k, name in enumerate(names))


def test_without_steps_only_the_number_of_workers_counts() -> None:
    speed = SpeedModel(sync_share=0.1)
    assert speed.of("a", on("x", "x"), 2) == 1.0
    assert speed.of("a", on("x", "x"), 1) == speed.of("a", on("x", "y"), 1) == 2 / 1.1


def test_measured_steps_know_the_nodes() -> None:
    speed = MeasuredSpeed(
        steps={"a": lambda workers, nodes: nodes / workers}, node_gpus=2, sync_share=0.1
    )
    assert speed.of("a", on("x", "x"), 2) == 1.0
    assert speed.of("a", on("x", "y"), 2) == 0.5
    assert speed.of("a", on("x", "x", "y", "y"), 2) == 1.0
    assert speed.of("a", on("x", "x"), 4) == pytest.approx(1.0)  # four take two nodes
    assert speed.of("unknown", on("x", "y"), 1) == pytest.approx(2 / 1.1)
