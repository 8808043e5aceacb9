"""Alerts: trouble that was seen often enough to be told, from when it began until it is over.

The book is what people see. It is kept in `Knowledge`, so that the next server goes on with it.
Nothing is detected or decided here.
"""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from threading import Lock

from presage.core.ports import Entry, Knowledge
from presage.model import event as ev
from presage.model.codec import decode, encode
from presage.observe.health.trouble import Subject, Trouble, TroubleKind

__all__ = ["Alert", "AlertBook", "AlertChange"]

_OPEN, _OVER = "health/open", "health/over"
_MOST_OVER = 2000
_AT_ONCE = frozenset(
    {TroubleKind.NOT_FINITE, TroubleKind.GPU_ERROR, TroubleKind.KILLED, TroubleKind.BAD_NODE}
)
"""Kinds that one look is enough for: what they go by is counted, not guessed."""
_LOOKS = 2
"""Other kinds must be seen at so many looks in a row."""
_GONE = 3
"""Trouble that was not seen at so many looks is over."""
_SAME_S = 600.0
"""Trouble that comes back within this time is the alert it was."""
_MOST_RAISED = 30
_SPAN_S = 60.0
"""At most so many alerts are raised in this time; the others wait for their turn."""
_MOST_CHANGES = 1000
_KEPT_EVIDENCE = 6


@dataclass(frozen=True, slots=True)
class Alert:
    """Trouble, and when it was there."""

    id: str
    finding: Trouble
    raised_at: float
    seen_at: float
    cleared_at: float | None = None
    cleared: str = ""
    """Why it is over, in words."""
    done: tuple[str, ...] = ()
    """What was done about it by itself."""


@dataclass(frozen=True, slots=True)
class AlertChange:
    """News of an alert, with a number that rises."""

    number: int
    at: float
    alert: Alert


class AlertBook:
    """Open alerts, and the latest of those that are over. Any thread may read."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge, self._lock = knowledge, Lock()
        self._epoch: int | None = None
        self._open: dict[tuple[TroubleKind, Subject], Alert] = {}
        self._over: OrderedDict[str, Alert] = OrderedDict()
        self._seen: dict[tuple[TroubleKind, Subject], int] = {}
        """Looks in a row at which trouble that is not told yet was seen."""
        self._missed: dict[tuple[TroubleKind, Subject], int] = {}
        self._raised: deque[float] = deque()
        self._changes: deque[AlertChange] = deque(maxlen=_MOST_CHANGES)
        self._number = 0
        self.total: dict[TroubleKind, int] = {}
        """Alerts raised since the start, by kind."""
        self.held_back = 0
        """Alerts that had to wait since the start."""

    # -- reading --------------------------------------------------------------------------------

    def open(self) -> list[Alert]:
        """Those that are not over, the latest first."""
        with self._lock:
            self._catch_up()
            return sorted(self._open.values(), key=lambda one: -one.raised_at)

    def over(self, most: int = 100) -> list[Alert]:
        """Those that are over, the latest first."""
        with self._lock:
            self._catch_up()
            return list(reversed(self._over.values()))[:most]

    def of_job(self, job: str) -> list[Alert]:
        """The open alerts of a job."""
        return [one for one in self.open() if one.finding.job == job]

    def news(self, since: int) -> Sequence[AlertChange]:
        """What became of alerts after a number."""
        with self._lock:
            return [one for one in self._changes if one.number > since]

    @property
    def latest(self) -> int:
        """The number of the latest news."""
        return self._number

    # -- writing: one thread ----------------------------------------------------------------------

    def look(
        self, now: float, found: Iterable[Trouble], running: Iterable[str]
    ) -> list[ev.AlertRaised | ev.AlertCleared]:
        """Take in what detectors found at this look; what the journal is to know of it."""
        with self._lock:
            self._catch_up()
            facts: list[ev.AlertRaised | ev.AlertCleared] = []
            best: dict[tuple[TroubleKind, Subject], Trouble] = {}
            for finding in found:
                known = best.get(finding.key)
                if known is None or finding.probability > known.probability:
                    best[finding.key] = finding
            self._seen = {key: self._seen.get(key, 0) + 1 for key in best}
            for key, finding in best.items():
                self._missed.pop(key, None)
                if key in self._open:
                    self._open[key] = replace(self._open[key], finding=finding, seen_at=now)
                elif self._seen[key] >= (1 if finding.kind in _AT_ONCE else _LOOKS):
                    facts += self._raise(now, finding)
            facts += self._clear_missed(now, best.keys(), set(running))
            if facts:
                self._write(facts)
            return facts

    def note_done(self, alert: Alert, what: str) -> None:
        """Something was done about an alert."""
        with self._lock:
            key = alert.finding.key
            if key in self._open:
                self._open[key] = replace(self._open[key], done=(*self._open[key].done, what))
                self._write(())

    def forget(self) -> None:
        """Another server decides: read again what it left."""
        with self._lock:
            self._epoch = None
            self._seen.clear()
            self._missed.clear()

    # -- one alert ------------------------------------------------------------------------------

    def _raise(self, now: float, finding: Trouble) -> list[ev.AlertRaised | ev.AlertCleared]:
        while self._raised and self._raised[0] <= now - _SPAN_S:
            self._raised.popleft()
        if len(self._raised) >= _MOST_RAISED:
            self.held_back += 1
            return []
        self._raised.append(now)
        before = next(
            (
                one
                for one in reversed(self._over.values())
                if one.finding.key == finding.key and now - (one.cleared_at or 0.0) <= _SAME_S
            ),
            None,
        )
        if before is not None:
            del self._over[before.id]
            alert = replace(before, finding=finding, seen_at=now, cleared_at=None, cleared="")
        else:
            alert = Alert(_name(finding, now), finding, now, now)
            self.total[finding.kind] = self.total.get(finding.kind, 0) + 1
        self._open[finding.key] = alert
        self._tell(now, alert)
        about = finding.kind, str(finding.subject), round(finding.probability, 4), finding.text
        return [ev.AlertRaised(alert.id, *about, finding.job)]

    def _clear_missed(
        self, now: float, there: Iterable[tuple[TroubleKind, Subject]], running: set[str]
    ) -> list[ev.AlertRaised | ev.AlertCleared]:
        facts: list[ev.AlertRaised | ev.AlertCleared] = []
        present = set(there)
        for key, alert in list(self._open.items()):
            if key in present:
                continue
            ended = bool(alert.finding.job) and alert.finding.job not in running
            self._missed[key] = self._missed.get(key, 0) + 1
            if not ended and self._missed[key] < _GONE:
                continue
            why = "the run is over" if ended else "it is not seen any more"
            over = replace(alert, cleared_at=now, cleared=why)
            del self._open[key]
            self._missed.pop(key, None)
            self._over[over.id] = over
            while len(self._over) > _MOST_OVER:
                self._over.popitem(last=False)
            self._tell(now, over)
            facts.append(ev.AlertCleared(over.id, why, over.finding.job))
        return facts

    def _tell(self, now: float, alert: Alert) -> None:
        self._number += 1
        self._changes.append(AlertChange(self._number, now, alert))

    # -- keeping --------------------------------------------------------------------------------

    def _catch_up(self) -> None:
        epoch = self._knowledge.epoch
        if epoch == self._epoch:
            return
        kept = json.loads(self._knowledge.get(_OPEN) or b"[]")
        alerts = [decode(Alert, body) for body in kept]
        self._open = {alert.finding.key: alert for alert in alerts}
        self._over = OrderedDict()
        for line in self._knowledge.tail(_OVER, _MOST_OVER):
            alert = decode(Alert, json.loads(line))
            self._over.pop(alert.id, None)
            self._over[alert.id] = alert
        for alert in alerts:
            self._over.pop(alert.id, None)
        self._epoch = epoch

    def _write(self, facts: Iterable[ev.AlertRaised | ev.AlertCleared]) -> None:
        cleared = {fact.alert for fact in facts if isinstance(fact, ev.AlertCleared)}
        over = [_body(self._over[name]) for name in cleared if name in self._over]
        now_open = [_body(alert) for alert in self._open.values()]
        epoch, self._epoch = self._epoch, None  # what cannot be written is read again
        self._knowledge.write(
            Entry(_OPEN, json.dumps(now_open).encode()),
            *(Entry(_OVER, json.dumps(body).encode(), _MOST_OVER) for body in over),
        )
        self._epoch = epoch


def _name(finding: Trouble, now: float) -> str:
    about = f"{finding.kind}\0{finding.subject}\0{now:.3f}"
    return f"{finding.kind}-{sha256(about.encode()).hexdigest()[:8]}"


def _body(alert: Alert) -> object:
    few = alert.finding.evidence[:_KEPT_EVIDENCE]
    body: object = encode(replace(alert, finding=replace(alert.finding, evidence=few)))
    return body
