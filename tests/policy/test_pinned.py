"""Decisions of backfill and co-location on made traces, pinned: whoever makes them faster must not
change them. A hash that differs is a change of policy, to be made on purpose."""

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
