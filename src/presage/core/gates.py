"""Jobs that wait for other jobs: dependencies, and how many members of an array may go at once.

A job that waits here is BLOCKED and no policy sees it: it costs the walks nothing. `State` asks
when a job comes in, halts, resumes or ends, and does what is answered; nothing here moves a job.
A dependency that is met leaves the job's spec, so what is left there is what it still waits for,
and everything kept here follows from the jobs (`Gates.of`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any, cast

from presage.model.job import (
    Dependency,
    DependsOn,
    Job,
    JobSpec,
    JobState,
    Reason,
    ReasonCode,
)

__all__ = ["ArrayGate", "Gates", "still_after", "verdict"]

_BLOCKED, _HALTED, _SUCCEEDED = JobState.BLOCKED, JobState.HALTED, JobState.SUCCEEDED
_NAMED = 3
"""Dependencies that an explanation names."""
_WORDS = {
    DependsOn.OK: "to end well",
    DependsOn.ANY: "to end",
    DependsOn.FAILED: "to end badly",
}


class ArrayGate:
    """The members of one array that are not over."""

    __slots__ = ("failed", "inside", "line", "members", "most")

    def __init__(self, most: int, failed: bool = False) -> None:
        self.most = most
        """How many may be inside; 0 for any number."""
        self.failed = failed
        """Whether a member ended otherwise than well."""
        self.members: set[str] = set()
        self.inside: set[str] = set()
        """Those in the queue or running."""
        self.line: list[tuple[int, str]] = []
        """Blocked ones that only wait to get inside, a heap by submission; some left already."""

    @property
    def open(self) -> bool:
        """Whether one more may go in."""
        return not self.most or len(self.inside) < self.most


class Gates:
    """Who waits for whom in one state."""

    __slots__ = ("_closed", "_followers", "arrays", "blocked", "opened")

    def __init__(self) -> None:
        self.blocked: dict[str, Job] = {}
        self.arrays: dict[str, ArrayGate] = {}
        self._followers: dict[str, dict[str, None]] = {}
        """Job or array -> jobs with a dependency on it that is not met."""
        self._closed: tuple[float, dict[str, ArrayGate]] = 0.0, {}
        """Arrays that were over at a moment, the latest."""
        self.opened = 0
        """How many jobs were let through so far: a policy that has looked must look again."""

    @classmethod
    def of(cls, jobs: Iterable[Job], failed: Iterable[str] = ()) -> Gates:
        """What jobs of a state, in the order of their submission, wait for; members of these
        arrays failed before."""
        gates = cls()
        for job in jobs:
            spec, waits = job.spec, job.state is _BLOCKED
            if waits:
                gates.blocked[spec.id] = job
            for dependency in spec.after:
                gates._followers.setdefault(dependency.job, {})[spec.id] = None
            if spec.array:
                array = gates._join(spec)
                if not waits and job.state is not _HALTED:
                    array.inside.add(spec.id)
                elif waits and not spec.after:
                    heappush(array.line, (job.seq, spec.id))
        for name in failed:
            gates.arrays[name].failed = True
        return gates

    def copy(self, jobs: Mapping[str, Job]) -> Gates:
        """The same, of a copied state's jobs."""
        copy = Gates()
        copy.opened = self.opened
        copy.blocked = {job_id: jobs[job_id] for job_id in self.blocked}
        copy._followers = {name: them.copy() for name, them in self._followers.items()}
        for name, array in self.arrays.items():
            other = copy.arrays[name] = ArrayGate(array.most, array.failed)
            other.members, other.inside = array.members.copy(), array.inside.copy()
            other.line = array.line.copy()
        return copy

    @property
    def busy(self) -> bool:
        """Whether anybody could care that a job ended."""
        return bool(self.arrays or self._followers)

    def awaited(self) -> Iterable[str]:
        """Jobs and arrays that others wait for."""
        return self._followers.keys()

    def alive(self, name: str, jobs: Mapping[str, Job]) -> bool:
        """Whether this is a job, or an array with members, that is not over."""
        return name in jobs or name in self.arrays

    # -- coming in ------------------------------------------------------------------------------

    def submitted(
        self, now: float, job: Job, jobs: Mapping[str, Job], ended: Iterable[Job]
    ) -> Reason | None:
        """A job comes in: it gets the spec that says what it waits for from now on, and is in
        `blocked` if it does; or the reason why it can never start. Who submits names jobs and
        arrays that are not over, but for those that ended this moment."""
        left: list[Dependency] = []
        for dependency in job.spec.after:
            never, met = self._looked_at(now, dependency, job, jobs, ended)
            if never is not None:
                return never
            if not met:
                left.append(dependency)
        if len(left) != len(job.spec.after):
            job.spec = still_after(job.spec, left)
        for dependency in left:
            self._followers.setdefault(dependency.job, {})[job.spec.id] = None
        if job.spec.array:
            self._join(job.spec)
        self.enters(job)
        return None

    def _looked_at(
        self,
        now: float,
        dependency: Dependency,
        job: Job,
        jobs: Mapping[str, Job],
        ended: Iterable[Job],
    ) -> tuple[Reason | None, bool]:
        """Why a dependency that comes in can never be met, and whether it is met already."""
        name, on = dependency.job, dependency.on
        if name in (job.spec.id, job.spec.array):
            return _never(dependency, "is this job itself"), False
        if name in jobs:
            return None, False
        array = self.arrays.get(name)
        if array is not None:
            well, over = not array.failed, False
        elif self._closed[0] == now and name in self._closed[1]:
            well, over = not self._closed[1][name].failed, True
        else:
            states = [one.state for one in ended if one.spec.id == name]
            if not states:
                return _never(dependency, "is over or not known"), False
            well, over = states[-1] is _SUCCEEDED, True
        answer = verdict(on, well, over)
        return (_broken(dependency, name, well) if answer is False else None), bool(answer)

    def enters(self, job: Job) -> bool:
        """Whether a job goes straight to the queue; else it is in `blocked` from now on."""
        array = self.arrays.get(job.spec.array)
        if not job.spec.after and (array is None or array.open):
            if array is not None:
                array.inside.add(job.spec.id)
            return True
        self.blocked[job.spec.id] = job
        if not job.spec.after and array is not None:
            heappush(array.line, (job.seq, job.spec.id))
        return False

    def _join(self, spec: JobSpec) -> ArrayGate:
        array = self.arrays.get(spec.array)
        if array is None:
            array = self.arrays[spec.array] = ArrayGate(spec.at_once)
        array.members.add(spec.id)
        return array

    # -- going out ------------------------------------------------------------------------------

    def left(
        self, now: float, job: Job, jobs: Mapping[str, Job]
    ) -> list[tuple[Job, Reason | None]]:
        """A job ended or was halted: who goes to the queue now, and who never will and why."""
        answer: list[tuple[Job, Reason | None]] = []
        spec, array = job.spec, self.arrays.get(job.spec.array)
        self.blocked.pop(spec.id, None)
        if array is not None:
            array.inside.discard(spec.id)
        if job.state.ended:
            self._forget(job)
            well = job.state is _SUCCEEDED
            self._settle(spec.id, spec.id, well, True, jobs, answer)
            if array is not None:
                array.members.discard(spec.id)
                array.failed = array.failed or not well
                self._settle(spec.array, spec.id, well, not array.members, jobs, answer)
                if not array.members:
                    if self._closed[0] != now:
                        self._closed = now, {}
                    self._closed[1][spec.array] = self.arrays.pop(spec.array)
        if array is not None:
            while array.line and array.open:
                self._through(heappop(array.line)[1], array, answer)
        return answer

    def _settle(
        self,
        name: str,
        job_id: str,
        well: bool,
        over: bool,
        jobs: Mapping[str, Job],
        answer: list[tuple[Job, Reason | None]],
    ) -> None:
        """Tell those who wait for a job, or for its array, how it ended."""
        for follower_id in list(self._followers.get(name, ())):
            follower = jobs[follower_id]
            left = []
            never = None
            for dependency in follower.spec.after:
                said = verdict(dependency.on, well, over) if dependency.job == name else None
                if said is False:
                    never = never or _broken(dependency, job_id, well)
                elif said is None:
                    left.append(dependency)
            if never is not None:
                self._forget(follower)
                answer.append((follower, never))
            elif len(left) < len(follower.spec.after):
                self._forget(follower, keep=left)
                follower.spec = still_after(follower.spec, left)
                if not left and follower.state is _BLOCKED:
                    self._ready(follower, answer)

    def _ready(self, job: Job, answer: list[tuple[Job, Reason | None]]) -> None:
        """A blocked job waits for no other job any more."""
        array = self.arrays.get(job.spec.array)
        if array is not None and not array.open:
            heappush(array.line, (job.seq, job.spec.id))
        else:
            self._through(job.spec.id, array, answer)

    def _through(
        self, job_id: str, array: ArrayGate | None, answer: list[tuple[Job, Reason | None]]
    ) -> None:
        job = self.blocked.pop(job_id, None)
        if job is None or job.spec.after:
            return
        self.opened += 1
        if array is not None:
            array.inside.add(job_id)
        answer.append((job, None))

    def _forget(self, job: Job, keep: Iterable[Dependency] = ()) -> None:
        kept = {dependency.job for dependency in keep}
        for dependency in job.spec.after:
            them = self._followers.get(dependency.job)
            if them is not None and dependency.job not in kept:
                them.pop(job.spec.id, None)
                if not them:
                    del self._followers[dependency.job]

    # -- words ----------------------------------------------------------------------------------

    def why(self, job: Job, jobs: Mapping[str, Job]) -> Reason:
        """What a blocked job waits for."""
        array = self.arrays.get(job.spec.array)
        if not job.spec.after and array is not None:
            text = f"at most {array.most} of its array go at once, and {len(array.inside)} do"
            return Reason(ReasonCode.AT_ONCE, text)
        parts = [
            f"{dependency.job} ({self._standing(dependency.job, jobs)}) {_WORDS[dependency.on]}"
            for dependency in job.spec.after[:_NAMED]
        ]
        if (more := len(job.spec.after) - _NAMED) > 0:
            parts.append(f"{more} more")
        return Reason(ReasonCode.DEPENDENCY, f"waits for {', '.join(parts)}")

    def _standing(self, name: str, jobs: Mapping[str, Job]) -> str:
        if name in jobs:
            return str(jobs[name].state)
        array = self.arrays.get(name)
        left = len(array.members) if array is not None else 0
        return f"{left} job{'s' if left != 1 else ''} left"


def still_after(spec: JobSpec, left: Iterable[Dependency]) -> JobSpec:
    """A spec that waits for these jobs only."""
    changed: JobSpec = replace(cast(Any, spec), after=tuple(left))
    return changed


def verdict(on: DependsOn, well: bool, over: bool) -> bool | None:
    """Whether a dependency is met, now that a job of it ended well or not and perhaps all of it is
    over; None if that is still open. An array ends well if all its members do."""
    if on is DependsOn.ANY:
        return True if over else None
    if not well:
        return on is DependsOn.FAILED
    return (on is DependsOn.OK) if over else None


def _broken(dependency: Dependency, job_id: str, well: bool) -> Reason:
    how = "ended well" if well else "did not end well"
    return _never(dependency, how, job_id)


def _never(dependency: Dependency, how: str, job_id: str = "") -> Reason:
    wanted = f"this job was to wait for {dependency.job} {_WORDS[dependency.on]}"
    who = job_id or dependency.job
    return Reason(ReasonCode.DEPENDENCY, f"{who} {how}, and {wanted}: it can never start")
