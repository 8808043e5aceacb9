"""The waiting jobs, kept sorted: one queue per group of jobs that every rule treats alike.

Jobs of a group share queue, roles and placement, so when the first of them does not fit, none
does: a pass costs as many tries as there are groups, however long the queue. Entries of jobs that
no longer wait are dropped when they come up.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any

from presage.core.ports import SortKey
from presage.core.state import State
from presage.core.workers import ask_of, least_milli
from presage.model.cluster import WHOLE_GPU
from presage.model.job import Job, JobState, Reason
from presage.policy.elastic import least_workers

__all__ = ["Backlog", "Group", "Groups", "waits"]

_PENDING = JobState.PENDING
_FIRST = itemgetter(0)
_MOST_KNOWN = 10_000


class Group:
    """Waiting jobs that are alike but for their place in the order."""

    __slots__ = (
        "checked",
        "elastic",
        "failed_at",
        "front",
        "heap",
        "key",
        "kind",
        "least",
        "milli",
        "never",
        "queue",
        "size",
        "whole",
        "wishes",
    )

    def __init__(self, key: Any, job: Job) -> None:
        self.key = key
        self.queue = job.spec.queue
        self.least = least_workers(job)
        self.wishes = (self.least,)
        self.milli = least_milli(job)
        self.elastic = job.spec.elastic
        self.kind, self.size = _size(job)
        """For `at_most`: only groups of the same kind can be compared, by their sizes."""
        self.front: list[tuple[SortKey, Job]] = []
        """The first who wait, in order, as far as anybody looked; all others are in the heap."""
        self.heap: list[tuple[SortKey, Job]] = []
        self.whole = max(ask_of(job, r).gpu_milli for r in range(len(job.spec.roles))) // WHOLE_GPU
        """Wholly free GPUs that one node must have for its largest worker."""
        self.failed_at = -1
        """`Capacity.released` when its first job last did not fit."""
        self.never: Reason | None = None
        """Why no state of the cluster could hold these jobs."""
        self.checked = 0
        """For how many nodes that was found out."""

    @property
    def one_role(self) -> bool:
        """Whether all workers are alike: then no choice of nodes keeps out what would fit."""
        return self.kind is not None

    def has(self, place: int) -> bool:
        """Whether so many wait before another; who that is stands at that place of `front`."""
        while len(self.front) <= place:
            if not self.heap:
                return False
            self.front.append(heappop(self.heap))
        return True

    def at_most(self, other: Group) -> bool:
        """Whether a job of this group needs no more of anything than one of the other."""
        return (
            self.kind is not None
            and self.kind == other.kind
            and all(mine <= theirs for mine, theirs in zip(self.size, other.size, strict=True))
        )


class Groups:
    """Which group a job belongs to."""

    def __init__(self, apart: Callable[[Job], tuple[object, ...]] | None = None) -> None:
        self._known: dict[Any, Group] = {}
        self._apart = apart
        """What tells jobs apart besides what they ask for."""

    def of(self, job: Job) -> Group:
        """Its group."""
        spec = job.spec
        kind: tuple[object, ...] = (
            spec.queue,
            spec.placement,
            spec.roles,
            job.out_of_memory > 0 or not spec.shareable,
        )
        if self._apart is not None:
            kind += self._apart(job)
        group = self._known.get(kind)
        if group is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known = {key: one for key, one in self._known.items() if one.front}
            group = self._known[kind] = Group(kind, job)
        return group


class Backlog:
    """The waiting jobs by group."""

    def __init__(self) -> None:
        self.groups: dict[Any, Group] = {}
        """Groups that have waiting jobs."""

    def push(self, key: SortKey, job: Job, group: Group) -> None:
        """Add a job that began to wait."""
        front = group.front
        if not front:
            self.groups[group.key] = group
            front.append((key, job))
        elif key < front[-1][0]:
            insort(front, (key, job), key=_FIRST)
        else:
            heappush(group.heap, (key, job))

    def pop(self, group: Group, place: int = 0) -> None:
        """Take a job off that is in front of a group; a group without jobs is forgotten."""
        del group.front[place]
        if not group.front and not group.has(0):
            del self.groups[group.key]


def _size(job: Job) -> tuple[object, tuple[int, ...]]:
    if len(job.spec.roles) > 1:
        return None, ()
    role, ask = job.spec.roles[0], ask_of(job, 0)
    size = (role.min, ask.gpu_milli, ask.cpu_milli, ask.memory_mib, ask.gpu_memory_mib)
    return (role.gpu_types, role.where, job.spec.placement, job.spec.queue), size


def waits(job: Job, state: State) -> bool:
    """Whether a job is pending and nothing is held for it yet."""
    return job.state is _PENDING and job.spec.id not in state.reservations
