"""What policies decide on made traces, step by step, as a hash: whoever makes them faster must not
change it. A hash that differs is a change of policy, to be made on purpose."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from hashlib import sha256

import pytest

from presage.model.event import Decision, Event, Fact, event_to_json
from presage.policy.registry import build
from presage.sim.clusters import read_cluster
from presage.sim.generate import make_trace
from presage.sim.run import simulate
from presage.sim.world import WorldRules


class Hashed:
    """A journal of which only the hash is kept."""

    def __init__(self) -> None:
        self._hash = sha256()

    def append(
        self, now: float, facts: Sequence[Fact], decisions: Sequence[Decision], *, lease: int = 0
    ) -> None:
        """Take a step in."""
        step = [now, [event_to_json(event) for event in (*facts, *decisions)]]
        self._hash.update(json.dumps(step, sort_keys=True).encode())

    def read(self, since: int = 0) -> Iterable[tuple[float, Event]]:
        """Nothing was kept."""
        return ()

    def told(self) -> str:
        """What it comes to."""
        return self._hash.hexdigest()[:16]


@pytest.mark.parametrize(
    ("policy", "cluster", "load", "sharers", "told"),
    [
        ("backfill", "4x8", 1.2, 1, "13d5aed8bb8458bf"),
        ("backfill", "10x8", 3.0, 1, "d24ffc540085f00a"),
        ("colocate", "4x8", 3.0, 1, "4820e002b2dec097"),
        ("colocate", "10x8", 1.0, 1, "fbcf98d8cd610816"),
        ("colocate", "4x8", 1.5, 3, "567356b11dcc83ff"),
        ("colocate", "8x4", 3.0, 2, "8e920a6e33ce7bae"),
    ],
)
def test_decisions_stay_what_they_were(
    policy: str, cluster: str, load: float, sharers: int, told: str
) -> None:
    journal, nodes = Hashed(), read_cluster(cluster)
    trace = make_trace("poisson", 600, 7, gpus=sum(len(n.devices) for n in nodes), load=load)
    simulate(trace, nodes, build(policy), name=policy, sharers=sharers, store=journal)
    assert journal.told() == told


@pytest.mark.parametrize(
    ("policy", "cluster", "restart_cost_s", "stops", "told"),
    [
        ("srtf", "3x8", 0.0, 1068, "25b5a599e2944c1f"),
        ("srtf", "6x4", 30.0, 1152, "56e56b9312d38608"),
        ("tiresias", "3x8", 0.0, 573, "fbba8a722870c58a"),
        ("tiresias", "6x4", 30.0, 729, "60e09cb450c70ef9"),
        ("qssf", "3x8", 0.0, 47, "3f3c94ab989c15e2"),
    ],
)
def test_decisions_of_those_that_rank_stay_what_they_were(
    policy: str, cluster: str, restart_cost_s: float, stops: int, told: str
) -> None:
    journal, nodes = Hashed(), read_cluster(cluster)
    trace = make_trace("poisson", 1000, 7, gpus=24, load=1.3)
    rules = WorldRules(restart_cost_s=restart_cost_s, node_mtbf_s=200_000.0, seed=3)
    result = simulate(trace, nodes, build(policy), name=policy, rules=rules, store=journal)
    assert (result.preemptions, journal.told()) == (stops, told)
