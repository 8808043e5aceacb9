"""Backfill beside runs that take longer than was foreseen."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.model.cluster import Worker
from presage.model.estimate import Estimate
from presage.model.job import Job
from presage.policy.config import PolicyConfig
from presage.policy.runs import Runs
from presage.policy.walks.shadow import end
from tests.policy.test_backfill import KINDS, Cluster, ends
from tests.scenario import Known, Scenario, job, nodes

EASY = PolicyConfig(backfill=True)


class Unsure(Known):
    """Says how unsure it is: three times as long in one of ten cases."""

    def runtime(self, job: Job, workers: Sequence[Worker] = ()) -> Estimate:
        p50 = self.runtimes.get(job.id, 100.0)
        return Estimate(p50 / 3, p50, 3 * p50, "s", self.version)


def blocked(predict: Known, time_limit_s: float | None = None) -> Scenario:
    """A head that waits for a run that was foreseen to take 100 s."""
    s = Scenario(nodes(4), EASY)
    s.engine.predict = predict
    s.submit(job("a", gpus=2, time_limit_s=time_limit_s), job("head", gpus=4))
    return s


@pytest.mark.parametrize(
    ("predict", "at", "starts"),
    [
        (Unsure(), 150.0, True),  # `a` is taken to run until 300
        (Unsure(), 290.0, False),
        (Unsure(), 310.0, True),  # until 450
        (Known(), 150.0, False),  # who was sure told no second time: it ends now
    ],
)
def test_a_run_that_is_overdue_goes_on_by_what_was_unsure(
    predict: Known, at: float, starts: bool
) -> None:
    s = blocked(predict)
    predict.runtimes["short"] = 50.0
    s.go(at=at)
    s.submit(job("short", gpus=2))
    assert ("short" in s.running) is starts


def test_no_run_goes_on_beyond_its_time_limit() -> None:
    s = blocked(Unsure({"short": 50.0}), time_limit_s=180.0)
    s.go(at=150.0)
    s.submit(job("short", gpus=2))
    assert s.running == ["a"]


@given(
    st.lists(
        st.tuples(st.sampled_from(KINDS), st.integers(0, 9), st.sampled_from([0, 1, 16, 100])),
        min_size=1,
        max_size=40,
    ),
    st.integers(0, 2),
)
def test_ends_of_overdue_runs_that_were_kept_are_those_of_now(
    steps: list[tuple[str, int, int]], when: int
) -> None:
    cluster, kept = Cluster(), Runs(end)
    unsure = Unsure(cluster.predict.runtimes)
    for number, step in enumerate(steps):
        cluster.step(*step)
        if number % 3 == when:
            assert ends(kept, cluster, unsure) == ends(Runs(end), cluster, unsure)
    assert ends(kept, cluster, unsure) == ends(Runs(end), cluster, unsure)
