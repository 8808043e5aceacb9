"""What follows a run that ended badly."""

from __future__ import annotations

from typing import Any

import pytest

from presage.core.retry import judge
from presage.model.cluster import Resources
from presage.model.event import Outcome
from presage.model.job import Job, JobSpec, OomRetry, Reason, ReasonCode, Role

LATE = Reason(ReasonCode.TIME_LIMIT, "it ran longer than 5 s")
MISSING = Reason(ReasonCode.LAUNCH_FAILED, "there is no program 'trian'")
ASK = Resources(1000, 400, 500, 2000)


def waiting(failures: int = 0, lost: int = 0, overflows: int = 0, **spec: Any) -> Job:
    job = Job(JobSpec("j", (Role(resources=ASK),), **spec), 0, 0.0, 0.0)
    job.failures, job.lost, job.out_of_memory = failures, lost, overflows
    return job


@pytest.mark.parametrize(
    ("job", "outcome", "reason", "again", "counts"),
    [
        (waiting(), Outcome.FAILED, None, False, (1, 0, 0)),
        (waiting(max_retries=1), Outcome.FAILED, None, True, (1, 0, 0)),
        (waiting(1, max_retries=1), Outcome.FAILED, None, False, (2, 0, 0)),
        (waiting(max_retries=1), Outcome.FAILED, LATE, False, (1, 0, 0)),
        (waiting(max_retries=1), Outcome.FAILED, MISSING, True, (1, 0, 0)),
        (waiting(max_retries=1, relaunch=False), Outcome.FAILED, MISSING, False, (1, 0, 0)),
        (waiting(max_retries=1, relaunch=False), Outcome.FAILED, None, True, (1, 0, 0)),
        (waiting(), Outcome.LOST, None, True, (0, 1, 0)),
        (waiting(lost=99), Outcome.LOST, None, True, (0, 100, 0)),
        (waiting(lost=100), Outcome.LOST, None, False, (1, 100, 0)),
        (waiting(lost=100, max_retries=1), Outcome.LOST, None, True, (1, 100, 0)),
        (waiting(lost=2, max_lost=2), Outcome.LOST, None, False, (1, 2, 0)),
        (waiting(), Outcome.OUT_OF_MEMORY, None, False, (1, 0, 1)),
        (waiting(max_retries=1), Outcome.OUT_OF_MEMORY, None, True, (1, 0, 1)),
        (waiting(oom=OomRetry()), Outcome.OUT_OF_MEMORY, None, True, (0, 0, 1)),
        (waiting(overflows=3, oom=OomRetry()), Outcome.OUT_OF_MEMORY, None, False, (1, 0, 4)),
    ],
)
def test_who_is_started_again(
    job: Job, outcome: Outcome, reason: Reason | None, again: bool, counts: tuple[int, int, int]
) -> None:
    spec = job.spec
    verdict = judge(job, outcome, reason)
    assert verdict.again is again
    assert (verdict.failures, verdict.lost, verdict.out_of_memory) == counts
    assert verdict.spec.shareable is (outcome is not Outcome.OUT_OF_MEMORY)
    assert job.spec is spec, "it only says what should be"


@pytest.mark.parametrize(
    ("oom", "overflows", "memory"),
    [
        (OomRetry(), 0, (600, 3000)),
        (OomRetry(factor=2.0, ceiling_mib=700), 0, (700, 2000)),  # never less than it had
        (OomRetry(ceiling_mib=100), 0, (400, 2000)),  # once more, alone on its device
        (OomRetry(ceiling_mib=100), 1, None),
    ],
)
def test_how_much_memory_it_gets(
    oom: OomRetry, overflows: int, memory: tuple[int, int] | None
) -> None:
    verdict = judge(waiting(overflows=overflows, oom=oom), Outcome.OUT_OF_MEMORY, None)
    assert verdict.again is (memory is not None)
    ask = verdict.spec.roles[0].resources
    assert (ask.memory_mib, ask.gpu_memory_mib) == (memory or (400, 2000))
    assert (ask.cpu_milli, ask.gpu_milli) == (ASK.cpu_milli, ASK.gpu_milli)
