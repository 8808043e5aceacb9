"""What policies that rank decide, step by step, as a hash: a faster way must decide the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from presage.policy.registry import build
from presage.sim.clusters import read_cluster
from presage.sim.generate import make_trace
from presage.sim.run import simulate
from presage.sim.world import WorldRules


class Decisions:
    """Keeps a hash of when what was decided."""

    def __init__(self) -> None:
        self.found = hashlib.sha256()

    def append(
        self, now: float, facts: Sequence[Any], decisions: Sequence[Any], *, lease: int = 0
    ) -> None:
        self.found.update(repr((now, list(decisions))).encode())

    def read(self, since: int = 0) -> Iterator[Any]:
        return iter(())


@pytest.mark.parametrize(
    ("policy", "cluster", "restart_cost_s", "stops", "expected"),
    [
        ("srtf", "3x8", 0.0, 1068, "e49ab36315d3320f"),
        ("srtf", "6x4", 30.0, 1152, "f5ea50224e715d09"),
        ("tiresias", "3x8", 0.0, 573, "340c9d3abda2a641"),
        ("tiresias", "6x4", 30.0, 729, "37c5f8cc3ab0dd86"),
        ("qssf", "3x8", 0.0, 47, "ee5052f4a69c3b66"),
    ],
)
def test_decisions_are_those_of_before(
    policy: str, cluster: str, restart_cost_s: float, stops: int, expected: str
) -> None:
    trace = make_trace("poisson", 1000, 7, gpus=24, load=1.3)
    rules = WorldRules(restart_cost_s=restart_cost_s, node_mtbf_s=200_000.0, seed=3)
    journal = Decisions()
    result = simulate(
        trace, read_cluster(cluster), build(policy), name=policy, rules=rules, store=journal
    )
    assert (result.preemptions, journal.found.hexdigest()[:16]) == (stops, expected)
