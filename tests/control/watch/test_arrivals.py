"""Pods that are yet to come: how they are drawn, and what they mean for those who wait."""

from __future__ import annotations

import numpy as np

from presage.control.watch.outlook import PRIORS, Outlook
from presage.model import event as ev
from presage.model.cluster import Device, Node, Resources
from presage.model.job import JobSpec, Role
from presage.model.watched import SeenCluster, SeenJob, SeenNode, SeenRun, SeenWorker
from presage.sim.past import PastArrivals, RunLearner

DAY_S = 86_400.0


def role(gpus: int) -> Role:
    return Role(resources=Resources(cpu_milli=100, gpu_milli=1000 * gpus))


def hourly(hours: int) -> PastArrivals:
    past = PastArrivals()
    for hour in range(hours):
        past.add(hour * 3600.0, ev.JobSubmitted(JobSpec(f"j{hour}", (role(1),))))
    return past


def test_who_comes_is_who_came_and_not_for_longer_than_was_watched() -> None:
    past, rng, now = hourly(10), np.random.default_rng(1), 36_000.0
    for _ in range(20):
        drawn = past.draw(now, 0.0, rng)
        assert 9 <= len(drawn) <= 10
        assert len({fact.spec.id for _, fact in drawn}) == len(drawn)
        times = [at for at, _ in drawn]
        assert times == sorted(times)
        assert now <= times[0] <= times[-1] <= now + 36_000.0
    assert len(past.draw(now, now - 3.5 * 3600, rng)) == 3, "before that only some were seen"
    assert not past.draw(now, now, rng)


def test_with_days_behind_it_the_same_time_of_day_is_replayed() -> None:
    past, now = PastArrivals(), 4 * DAY_S
    for day in range(4):  # all of them in the third hour after midnight
        past.add(day * DAY_S + 2.5 * 3600, ev.JobSubmitted(JobSpec(f"j{day}", (role(1),))))
    for seed in range(10):
        ((at, _),) = past.draw(now, 0.0, np.random.default_rng(seed))
        assert at == now + 2.5 * 3600


def crowd(every_s: float) -> RunLearner:
    """Small pods that run for an hour came again and again, for half a day."""
    learner = RunLearner()
    for number in range(int(43_200 / every_s)):
        at, name = number * every_s, f"past-{number}"
        learner.heard(at, ev.JobSubmitted(JobSpec(name, (role(1),), entrypoint=("small",))))
        learner.heard(at, ev.JobStarted(name, 1))
        learner.heard(at + 3600, ev.JobExited(name, 1, ev.Outcome.SUCCEEDED))
    return learner


def seen(name: str, gpus: int, at: float) -> SeenJob:
    return SeenJob(name, "small" if gpus == 1 else "large", "ann", "default", at, role(gpus))


def running(name: str, at: float) -> SeenJob:
    small = seen(name, 1, at)
    workers = (SeenWorker("n", small.role.resources),)
    return SeenJob(name, "small", "ann", "default", at, small.role, (SeenRun(1, at, workers),))


def test_small_pods_that_come_later_go_past_a_large_one_that_waits() -> None:
    node = Node("n", (Device(),) * 4, 8000, 8192)
    now = 43_200.0
    jobs = (*(running(f"r{k}", now - 900 * k - 60) for k in range(4)), seen("large", 4, now - 10))
    sight = SeenCluster(now, jobs, (SeenNode(node),))

    def median_of(kind: str, learner: RunLearner) -> float:
        start = Outlook(kind, learner, PRIORS[kind], 0.0).starts(sight).starts["large"]
        assert start.p50_s is not None
        return start.p50_s

    quiet, busy = crowd(14_400.0), crowd(900.0)
    assert median_of("kubernetes", quiet) < 3 * 3600
    assert median_of("kubernetes", busy) > 4 * 3600, "there is nearly always somebody small"
    assert median_of("slurm", busy) < 2 * 3600, "who is first has its place kept"


def test_with_few_forecasts_behind_it_the_interval_is_wide() -> None:
    narrow, wide = (PRIORS[kind].interval(1800, 3600, 7200) for kind in ("slurm", "kubernetes"))
    assert wide[0] < narrow[0] < narrow[2] < wide[2]
    assert wide[1] == narrow[1]
