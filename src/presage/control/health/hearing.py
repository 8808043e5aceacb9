"""What turns of the deciding loop say about health: reports of runs, and how runs ended where.

It hears of every turn that is on disk, on the thread that decides, and only notes it down; the
advisor takes it from here. Ends are kept in `Knowledge`, since a bad node shows over days.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Mapping, Sequence

from presage.core.ports import Entry, Knowledge
from presage.core.state import State
from presage.model import event as ev
from presage.model.cluster import Worker
from presage.model.codec import decode, encode
from presage.model.job import JobSpec
from presage.model.workload import same_work
from presage.observe.health.trouble.nodes import RunEnd

__all__ = ["Hearing", "read_ends", "worker_names", "write_ends"]

_ENDS = "health/ends"
_MOST_ENDS = 5000
_MOST_NEWS = 200_000
_FAILED = frozenset({ev.Outcome.FAILED, ev.Outcome.LOST})
_JUDGED = _FAILED | {ev.Outcome.SUCCEEDED}
_NAMED = re.compile(r"^([^\s:]+)[\s:]")


class Hearing:
    """News for the advisor."""

    def __init__(self) -> None:
        self._reports: deque[tuple[float, ev.Progress]] = deque(maxlen=_MOST_NEWS)
        self._ends: deque[RunEnd] = deque(maxlen=_MOST_NEWS)
        self._places: dict[str, tuple[int, str, Mapping[str, str]]] = {}
        """Job -> attempt, what it does, and worker -> node."""

    def heard(
        self, position: int, now: float, events: Sequence[ev.Event], count: int, state: State
    ) -> None:
        """A turn is on disk."""
        for event in events:
            if isinstance(event, ev.Progress):
                self._reports.append((now, event))
            elif isinstance(event, ev.Launch):
                job = state.jobs.get(event.job)
                if job is not None:
                    self.place(event.job, event.attempt, job.spec, event.workers)
            elif isinstance(event, ev.JobExited):
                self._ended(now, event)

    def place(self, job: str, attempt: int, spec: JobSpec, workers: Sequence[Worker]) -> None:
        """Where the workers of a run are."""
        known = self._places.get(job)
        named = {name: worker.node for name, worker in worker_names(spec, workers).items()}
        if known is not None and known[0] == attempt:
            named = {**known[2], **named}
        self._places[job] = attempt, same_work(spec), named

    def knows(self, job: str, attempt: int) -> bool:
        """Whether it was told where a run is."""
        known = self._places.get(job)
        return known is not None and known[0] == attempt

    def _ended(self, now: float, event: ev.JobExited) -> None:
        known = self._places.get(event.job)
        if known is None or known[0] != event.attempt:
            return
        del self._places[event.job]
        if event.outcome not in _JUDGED:
            return
        text = event.reason.text if event.reason is not None else ""
        named = _NAMED.match(text)
        at_fault = known[2].get(named.group(1), "") if named else ""
        nodes = tuple(dict.fromkeys(known[2].values()))
        failed = event.outcome in _FAILED
        run = event.job, event.attempt, known[1], nodes
        self._ends.append(RunEnd(now, *run, failed, text[:200], at_fault if failed else ""))

    def take(self) -> tuple[list[tuple[float, ev.Progress]], list[RunEnd]]:
        """Everything since the last time."""
        reports = [self._reports.popleft() for _ in range(len(self._reports))]
        ends = [self._ends.popleft() for _ in range(len(self._ends))]
        return reports, ends


def worker_names(spec: JobSpec, workers: Sequence[Worker]) -> dict[str, Worker]:
    """The workers of a run by the names that telemetry has for them."""
    return {f"{spec.roles[one.role].name}-{one.index}": one for one in workers}


def read_ends(knowledge: Knowledge) -> list[RunEnd]:
    """The ends that were kept, oldest first."""
    return [decode(RunEnd, json.loads(line)) for line in knowledge.tail(_ENDS, _MOST_ENDS)]


def write_ends(knowledge: Knowledge, ends: Sequence[RunEnd]) -> None:
    """Keep these as well."""
    lines = (json.dumps(encode(end)).encode() for end in ends)
    knowledge.write(*(Entry(_ENDS, line, _MOST_ENDS) for line in lines))
