"""EASY backfill: holes are used, and the head starts no later than it would have."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from presage.policy.config import PolicyConfig
from presage.policy.registry import build
from presage.sim.clusters import read_cluster
from presage.sim.run import simulate
from presage.sim.traces import Trace
from tests.scenario import Scenario, job, nodes
from tests.sim.results import trace_of

EASY = PolicyConfig(backfill=True)


def test_a_short_job_fills_the_hole_and_a_long_one_does_not() -> None:
    s = Scenario(nodes(4), EASY, {"a": 100, "head": 10, "short": 90, "long": 110})
    s.submit(job("a", gpus=2), job("head", gpus=4))
    s.submit(job("long", gpus=2), job("short", gpus=2))
    assert s.running == ["a", "short"]


def test_a_long_job_may_start_on_gpus_that_the_head_will_not_need() -> None:
    s = Scenario(nodes(4, 4), EASY, {"a": 100, "b": 200, "head": 10, "long": 1000})
    s.submit(job("a", gpus=3), job("b", gpus=2), job("head", gpus=4))
    s.submit(job("long", gpus=2))  # the head will start on n0, when `a` ends
    assert s.where("long") == ["n1"]


def test_nothing_passes_a_blocked_head_without_backfill() -> None:
    s = Scenario(nodes(4), "fifo", {"short": 1})
    s.submit(job("a", gpus=2), job("head", gpus=4), job("short", gpus=2))
    assert s.running == ["a"]


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(1, 60), st.integers(1, 4)),
        min_size=2,
        max_size=14,
    )
)
def test_with_exact_estimates_the_first_blocked_job_is_never_delayed(
    rows: list[tuple[int, int, int]],
) -> None:
    trace = trace_of(rows)
    fifo, easy = (_starts(trace, config) for config in (PolicyConfig(), EASY))
    # The first job that waits under fifo is a head: nothing that passed it may have cost it time.
    first = next((k for k in range(len(rows)) if fifo[k][0] < fifo[k][1]), None)
    if first is not None:
        assert easy[first][1] <= fifo[first][1]


def _starts(trace: Trace, config: PolicyConfig) -> list[tuple[float, float]]:
    result = simulate(trace, read_cluster("1x4"), build(config), name="x", check_every=1)
    return list(result.jobs.select("submit_s", "start_s").iter_rows())
