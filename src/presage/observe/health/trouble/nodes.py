"""Nodes on which jobs fail, and workers that somebody killed: what the ends of runs say.

A job that fails on two nodes fails by itself, and says nothing about either.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from presage.observe.health.trouble.findings import (
    Evidence,
    Subject,
    SubjectKind,
    Trouble,
    TroubleKind,
)
from presage.observe.health.trouble.formulas import fisher_tail, posterior, rates_differ

__all__ = ["RunEnd", "RunEnds"]

_PRIOR = 0.01
"""Of nodes, so many are bad."""
_LEAST_FAILED = 3
_LEVEL = 0.01
_KEPT_S = 24 * 3600.0
_MOST = 5000
_KILLED = re.compile(r"^(\S+) was killed by (SIGKILL|SIGTERM)")
_KILLED_S = 300.0
"""That a worker was killed is told for so long."""


@dataclass(frozen=True, slots=True)
class RunEnd:
    """A run that is over."""

    at: float
    job: str
    attempt: int
    work: str
    """The same for jobs that do the same."""
    nodes: tuple[str, ...]
    failed: bool
    text: str = ""
    worker_node: str = ""
    """Where the worker was that its text names."""


class RunEnds:
    """The ends of the last day."""

    def __init__(self, ends: Iterable[RunEnd] = ()) -> None:
        self._ends: deque[RunEnd] = deque(ends, maxlen=_MOST)
        self._known: list[Trouble] | None = None
        """What was found of them, until another comes or goes."""

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, end: RunEnd) -> None:
        """Take in another."""
        self._ends.append(end)
        self._known = None

    def look(self, now: float) -> list[Trouble]:
        """Nodes that are bad by what ended there."""
        while self._ends and self._ends[0].at < now - _KEPT_S:
            self._ends.popleft()
            self._known = None
        if self._known is None:
            self._known = self._bad_nodes()
        return self._known + self._killed(now)

    def _bad_nodes(self) -> list[Trouble]:
        fates: dict[str, dict[str, bool]] = {}
        """Job -> node -> whether it failed there."""
        for end in self._ends:
            nodes = (end.worker_node,) if end.failed and end.worker_node else end.nodes
            for node in nodes:
                on = fates.setdefault(end.job, {})
                on[node] = on.get(node, False) or end.failed
        failed: dict[str, set[str]] = {}
        ran: dict[str, set[str]] = {}
        for job, on in fates.items():
            own_fault = sum(on.values()) > 1
            for node, bad in on.items():
                ran.setdefault(node, set()).add(job)
                if bad and not own_fault:
                    failed.setdefault(node, set()).add(job)
        runs, fails = sum(map(len, ran.values())), sum(map(len, failed.values()))
        troubles = []
        for node, jobs in failed.items():
            here, of = len(jobs), len(ran[node])
            there, of_there = fails - here, runs - of
            if here < _LEAST_FAILED or of_there < _LEAST_FAILED:
                continue
            if here / of <= there / of_there:
                continue
            chance = fisher_tail(here, of, there, of_there) * len(ran)
            if chance > _LEVEL:
                continue
            factor = rates_differ(here, of, there, of_there)
            troubles.append(_bad(node, sorted(jobs), (here, of, there, of_there), chance, factor))
        return troubles

    def _killed(self, now: float) -> list[Trouble]:
        troubles = []
        over = set()
        for end in reversed(self._ends):
            if end.at < now - _KILLED_S:
                break
            killed = _KILLED.match(end.text) if end.failed else None
            if killed is None or end.job in over:
                over.add(end.job)
                continue
            over.add(end.job)
            worker, signal = killed.groups()
            evidence = Evidence("ends", f"attempt {end.attempt}: {end.text[:200]}", (end.at,), ())
            troubles.append(
                Trouble(
                    TroubleKind.KILLED,
                    Subject(SubjectKind.WORKER, f"{end.job}/{worker}"),
                    0.99,
                    f"{worker} was killed by {signal} from outside; the run had to start again",
                    "see who did: the log of the machine, its memory, other users",
                    (evidence,),
                    end.job,
                    end.attempt,
                    end.worker_node,
                )
            )
        return troubles


def _bad(
    node: str,
    jobs: list[str],
    counts: tuple[int, int, int, int],
    chance: float,
    factor: float,
) -> Trouble:
    here, of, there, of_there = counts
    probability = posterior(_PRIOR, 1 / factor)
    text = (
        f"{here} of {of} jobs failed on it, {there} of {of_there} elsewhere "
        f"(by chance: {chance:.2g})"
    )
    evidence = (
        Evidence("failed jobs", f"here {here} of {of}, elsewhere {there} of {of_there}"),
        Evidence("Fisher's exact test", f"{chance:.3g}, for all nodes", (), (chance,)),
        Evidence("Bayes factor", f"{factor:.3g} for two rates", (), (min(factor, 1e300),)),
        Evidence("jobs", ", ".join(jobs[:8])),
    )
    action = f"drain it and have it checked: presage drain {node}"
    subject = Subject(SubjectKind.NODE, node)
    kind = TroubleKind.BAD_NODE
    return Trouble(kind, subject, probability, text, action, evidence, node=node)
