"""The placement that goes by links: where it sends workers, and of whom it takes no notice."""

from __future__ import annotations

import numpy as np
import pytest

from presage.core.plan import Plan
from presage.core.workers import ask_of
from presage.model import event as ev
from presage.model.cluster import Worker
from presage.model.codec import decode, encode
from presage.model.estimate import Estimate, Estimates
from presage.model.job import JobSpec, Reason, ReasonCode, StopIntent
from presage.policy.config import PolicyConfig
from presage.policy.links import Links
from presage.policy.request import Floats, Request
from tests.scenario import Scenario, job, nodes

APART = PolicyConfig(placement={"pack": 1, "links": 2})


def talks(share: float) -> Estimates:
    """What is foreseen of a job that talks for such a part of its step."""
    return Estimates("test", link_share=Estimate.exact(share, "share", "test"))


def submitted(spec: JobSpec, share: float | None) -> ev.JobSubmitted:
    return ev.JobSubmitted(spec, None if share is None else talks(share))


def scores(scene: Scenario, name: str, workers: int) -> Floats:
    """Of all nodes for a worker of a job."""
    state = scene.engine.state
    found = state.jobs[name]
    ask = ask_of(found, 0)
    return Links()(Request(found, Plan(state), state.capacity, ask, (), None, workers, ask))


def crowded(policy: PolicyConfig | str, *shares: float | None) -> Scenario:
    """Four nodes of three GPUs: `quiet` holds two of n0, `first` is on n1 and n2, and `next` comes
    with four workers: three fit on n3."""
    scene = Scenario(nodes(3, 3, 3, 3), policy)
    scene.submit(job("quiet", gpus=2))
    scene.go(submitted(job("first", workers=4), shares[0]))
    scene.go(submitted(job("next", workers=4), shares[1]))
    return scene


@pytest.mark.parametrize(
    ("policy", "shares", "last"),
    [
        (PolicyConfig(), (0.5, 0.5), "n2"),  # where most is free
        (APART, (0.5, 0.5), "n0"),
        (APART, (0.5, None), "n2"),  # it is not known to talk
        (APART, (None, 0.5), "n2"),  # nobody else is
        (APART, (0.5, 0.0), "n2"),
    ],
)
def test_where_the_last_worker_goes(
    policy: PolicyConfig, shares: tuple[float | None, float | None], last: str
) -> None:
    scene = crowded(policy, *shares)
    assert scene.where("first") == ["n1", "n1", "n1", "n2"]
    assert scene.where("next") == ["n3", "n3", "n3", last]


def test_scores_by_hand() -> None:
    scene = crowded(PolicyConfig(), 0.5, 0.4)
    scene.go(submitted(job("last", gpus=3, workers=2), 0.8))
    # first: n1 and n2, next: n3 and n2; 0.8 of both meet on n2
    expected = [1.0, 1 / 1.4, 1 / 1.72, 1 / 1.32]
    assert scores(scene, "last", 2) == pytest.approx(np.array(expected))
    assert scores(scene, "last", 1).tolist() == [1.0] * 4  # alone, it talks to nobody


def test_who_leaves_and_who_is_on_one_node_load_nothing() -> None:
    scene = crowded(PolicyConfig(), 0.5, 0.4)
    state = scene.engine.state
    plan = Plan(state)
    plan.stop(
        state.jobs["first"], StopIntent.REQUEUE, Reason(ReasonCode.REQUESTED, "to make room")
    )
    scene.go(submitted(job("last", gpus=3, workers=2), 0.8))
    assert scores(scene, "last", 2) == pytest.approx(np.array([1.0, 1.0, 1 / 1.32, 1 / 1.32]))
    whole = Scenario(nodes(4, 4))
    whole.go(submitted(job("one", workers=4), 0.9))
    whole.go(submitted(job("last", gpus=3, workers=2), 0.8))
    assert whole.where("one") == ["n0"] * 4
    assert scores(whole, "last", 2).tolist() == [1.0, 1.0]


def test_room_that_is_promised_counts() -> None:
    scene = Scenario(nodes(1, 1, 1))
    scene.submit(job("busy", gpus=1, workers=3))
    scene.go(submitted(job("promised", workers=2), 0.5), submitted(job("last", workers=2), 0.5))
    state = scene.engine.state
    Plan(state).reserve(
        state.jobs["promised"], (Worker(0, 0, "n1", (0,)), Worker(0, 1, "n2", (0,)))
    )
    assert scores(scene, "last", 2) == pytest.approx(np.array([1.0, 0.8, 0.8]))


def test_a_worker_that_joins_minds_links_too() -> None:
    scene = crowded(PolicyConfig(), 0.5, 0.4)
    assert scores(scene, "next", 1) == pytest.approx(np.array([1.0, 1 / 1.2, 1 / 1.2, 1.0]))


def test_what_is_foreseen_of_links_is_journaled_and_older_journals_have_none() -> None:
    said = talks(0.25)
    assert decode(Estimates, encode(said)) == said
    assert "link_share" not in encode(Estimates("test"))
    assert decode(Estimates, {"version": "test"}).link_share is None
