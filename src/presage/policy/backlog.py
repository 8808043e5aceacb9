"""The waiting jobs, kept sorted: one heap per group of jobs that every rule treats alike.

Jobs of a group share queue, roles and placement, so when the first of them does not fit, none
does: a
pass costs as many tries as there are groups, however long the queue. Entries of jobs that no
longer wait
are dropped when they come up.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

from presage.core.ports import SortKey
from presage.core.state import State
from presage.model.job import Job, JobState
from presage.policy.elastic import least_workers

__all__ = ["Backlog", "Group", "waits"]

_PENDING = JobState.PENDING


class Group:
    """Waiting jobs that are alike but for their place in the order."""

    __slots__ = ("elastic", "failed_at", "heap", "key", "least", "milli", "queue")

    def __init__(self, key: Any, job: Job) -> None:
        self.key = key
        self.queue = job.spec.queue
        self.least = least_workers(job)
        self.milli = job.spec.min_gpu_milli
        self.elastic = job.spec.elastic
        self.heap: list[tuple[SortKey, Job]] = []
        self.failed_at = -1
        """`Capacity.released` when its first job last did not fit."""


class Backlog:
    """All groups that have waiting jobs."""

    def __init__(self, ask_first: bool = False) -> None:
        self.groups: dict[Any, Group] = {}
        self._ask_first = ask_first
        """Whether `first` will be called."""
        self._firsts: list[tuple[SortKey, int, Group]] = []
        """Every group under the key of its first job, among entries that are out of date."""
        self._serial = 0

    def push(self, key: SortKey, job: Job) -> None:
        """Add a job that began to wait."""
        spec = job.spec
        kind = (
            spec.queue,
            spec.placement,
            spec.roles,
            job.out_of_memory > 0 or not spec.shareable,
        )
        group = self.groups.get(kind)
        if group is None:
            group = self.groups[kind] = Group(kind, job)
        heap = group.heap
        heappush(heap, (key, job))
        if self._ask_first and heap[0][1] is job:
            self._note_first(group)

    def pop(self, group: Group) -> None:
        """Take the first job of a group off; a group without jobs is forgotten."""
        heap = group.heap
        heappop(heap)
        if not heap:
            del self.groups[group.key]
        elif self._ask_first:
            self._note_first(group)

    def first(self) -> Group | None:
        """The group whose first job comes before all others."""
        firsts = self._firsts
        while firsts:
            key, _, group = firsts[0]
            if group.heap and group.heap[0][0] == key:
                return group
            heappop(firsts)
        return None

    def _note_first(self, group: Group) -> None:
        self._serial += 1
        heappush(self._firsts, (group.heap[0][0], self._serial, group))


def waits(job: Job, state: State) -> bool:
    """Whether a job is pending and nothing is held for it yet."""
    return job.state is _PENDING and job.spec.id not in state.reservations
