"""The waiting jobs, kept sorted: one heap per group of jobs that every rule treats alike.

Jobs of a group share queue, roles and placement, so when the first of them does not fit, none does: a
pass costs as many tries as there are groups, however long the queue. Entries of jobs that no longer wait
are dropped when they come up.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

from presage.core.ports import SortKey
from presage.core.state import State
from presage.model.job import Job, JobState

__all__ = ["Backlog", "Group"]

_PENDING = JobState.PENDING


class Group:
    """Waiting jobs that are alike but for their place in the order."""

    __slots__ = ("failed_at", "heap", "key", "queue")

    def __init__(self, key: Any, queue: str) -> None:
        self.key = key
        self.queue = queue
        self.heap: list[tuple[SortKey, Job]] = []
        self.failed_at = -1
        """`Capacity.released` when its first job last did not fit."""


class Backlog:
    """All groups that have waiting jobs."""

    def __init__(self) -> None:
        self.groups: dict[Any, Group] = {}

    def push(self, key: SortKey, job: Job) -> None:
        """Add a job that began to wait."""
        spec = job.spec
        shape = (spec.queue, spec.placement, spec.roles, job.out_of_memory > 0 or not spec.shareable)
        group = self.groups.get(shape)
        if group is None:
            group = self.groups[shape] = Group(shape, spec.queue)
        heappush(group.heap, (key, job))

    def pop(self, group: Group) -> None:
        """Take the first job of a group off; a group without jobs is forgotten."""
        heappop(group.heap)
        if not group.heap:
            del self.groups[group.key]


def waits(job: Job, state: State) -> bool:
    """Whether a job is pending and nothing is held for it yet."""
    return job.state is _PENDING and job.spec.id not in state.reservations
