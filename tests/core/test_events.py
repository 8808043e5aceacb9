"""Facts and decisions on paper: every type comes back as it was, and nothing else is let in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from presage.model.cluster import Node, Resources, Worker
from presage.model.estimate import Estimate, Estimates
from presage.model.event import (
    DECISIONS,
    FACTS,
    JobStarted,
    JobSubmitted,
    NodeUp,
    Outcome,
    Remedy,
    event_from_json,
    event_to_json,
)
from presage.model.job import JobSpec, OomRetry, Reason, ReasonCode, Role, StopIntent
from presage.model.speed import SpeedPoint
from presage.testing.strategies import job_specs, nodes

EVENTS = (*FACTS, *DECISIONS)

names = st.text(min_size=1, max_size=8)
counts = st.integers(0, 1 << 40)
times = st.floats(allow_nan=False, allow_infinity=False)
reasons = st.builds(Reason, st.sampled_from(ReasonCode), st.text(max_size=20))
estimates = st.builds(Estimate, times, times, times, names, names)
positive = st.floats(0.0, exclude_min=True, allow_infinity=False)
workers = st.builds(Worker, counts, counts, names, st.lists(counts, max_size=3).map(tuple))

FIELDS: dict[Any, SearchStrategy[Any]] = {
    str: names,
    int: counts,
    bool: st.booleans(),
    float: times,
    float | None: st.none() | times,
    int | None: st.none() | counts,
    Mapping[str, float]: st.dictionaries(names, times, max_size=2),
    Node: nodes(),
    JobSpec: job_specs(),
    Outcome: st.sampled_from(Outcome),
    StopIntent: st.sampled_from(StopIntent),
    Remedy: st.sampled_from(Remedy),
    Reason: reasons,
    Resources: st.builds(Resources, counts, counts, counts, counts),
    Estimates | None: st.none() | st.builds(Estimates, names, runtime_s=st.none() | estimates),
    Reason | None: st.none() | reasons,
    OomRetry | None: st.none() | st.builds(OomRetry),
    SpeedPoint: st.builds(SpeedPoint, st.integers(9, 99), st.integers(1, 9), positive, positive),
    tuple[Worker, ...]: st.lists(workers, max_size=3).map(tuple),
    tuple[str, ...]: st.lists(names, max_size=2).map(tuple),
}


def events(kind: type[Any]) -> SearchStrategy[Any]:
    fields = {name: FIELDS[hint] for name, hint in get_type_hints(kind).items()}
    return st.builds(kind, **fields)


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
@settings(max_examples=settings().max_examples // 4)  # of each kind
@given(data=st.data())
def test_every_event_comes_back(kind: type[Any], data: st.DataObject) -> None:
    event = data.draw(events(kind))
    paper = json.dumps(event_to_json(event), allow_nan=False)
    again = event_from_json(json.loads(paper))
    assert again == event
    assert type(again) is kind


def test_what_has_its_default_is_not_written() -> None:
    assert event_to_json(JobStarted("j", 1)) == {"type": "JobStarted", "job": "j", "attempt": 1}
    assert event_to_json(JobSubmitted(JobSpec("j", (Role(),)))) == {
        "type": "JobSubmitted",
        "spec": {"id": "j", "roles": [{}]},
    }


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({}, "unknown event type None"),
        ({"type": "Explode"}, "unknown event type 'Explode'"),
        ({"type": "Event"}, "unknown event type"),
        ({"type": ["Woke"]}, "unknown event type"),
        ({"type": "Woke", "job": "j"}, "Woke has no field 'job'"),
        ({"type": "JobStarted", "job": "j"}, "attempt"),
        ({"type": "JobStarted", "job": 7, "attempt": 1}, "expected str"),
        ({"type": "JobStarted", "job": "j", "attempt": "1"}, "expected int"),
        ({"type": "JobStarted", "job": "j", "attempt": True}, "expected int"),
        ({"type": "WakeAt", "at": "soon"}, "expected float"),
        ({"type": "WakeAt", "at": True}, "expected float"),
        ({"type": "JobExited", "job": "j", "attempt": 1, "outcome": "bored"}, "bored"),
        ({"type": "Launch", "job": "j", "attempt": 1, "workers": {}}, "expected"),
        ({"type": "Launch", "job": "j", "attempt": 1, "workers": [{"gpu": 1}]}, "no field 'gpu'"),
        ({"type": "NodeUp", "node": {"name": "n", "_hash": 1}}, "no field '_hash'"),
        ({"type": "NodeUp", "node": "n0"}, "expected Node"),
        ({"type": "JobSubmitted", "spec": {"id": "j", "roles": [{"_hash": 1}]}}, "_hash"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_anything_else_is_refused(data: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem.replace("[", "\\[")):
        event_from_json(data)


def test_labels_are_kept_and_count_in_a_comparison() -> None:
    node = Node("n0", labels={"rack": "r1"})
    again = event_from_json(event_to_json(NodeUp(node)))
    assert again == NodeUp(node)
    assert again != NodeUp(Node("n0"))
