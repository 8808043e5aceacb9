"""Says where a waiting job is seen by its owner why it waits and when it is foreseen to start.

For jobs that an executor found in its world and whose owners look there: pods that others made get
an event. Only what changed is said again: another reason, or a start outside of what was said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from presage.control.advisors import StateReader, Telemetry
from presage.core.state import State
from presage.model.event import Fact
from presage.model.job import Reason

__all__ = ["WaitNotes"]

_AT_ONCE = 200
"""Jobs of one look; those after them are looked at the next time."""
_AGAIN_S = 600.0
"""Even if the reason is the same, its words may be said again after so long."""


@dataclass(frozen=True, slots=True)
class _LastNote:
    """What was said of a job."""

    at: float
    code: str
    soonest: float | None
    latest: float | None


class WaitNotes:
    """The advisor. `explain` says why a job waits, `eta` when it will start (seconds from now),
    `note` puts words where its owner sees them; `marked` is the label of such jobs."""

    name = "notes"

    def __init__(
        self,
        marked: str,
        explain: Callable[[str], Reason | None],
        eta: Callable[[str], Mapping[str, float | None] | None],
        note: Callable[[str, str], None],
        every_s: float = 5.0,
    ) -> None:
        self.every_s = every_s
        self._marked, self._explain, self._eta, self._note = marked, explain, eta, note
        self._told: dict[str, _LastNote] = {}
        self._next = 0

    def look(self, now: float, ask: StateReader, telemetry: Telemetry) -> Iterable[Fact]:
        """Tell owners; there are no facts in it."""
        waiting = ask(self._waiting)
        self._told = {job: said for job, said in self._told.items() if job in set(waiting)}
        start = self._next if self._next < len(waiting) else 0
        chosen = waiting[start : start + _AT_ONCE]
        self._next = start + len(chosen)
        for job in chosen:
            self._tell(job, now)
        return ()

    def _waiting(self, state: State) -> list[str]:
        return [j.id for j in state.pending.values() if self._marked in j.spec.labels]

    def _tell(self, job: str, now: float) -> None:
        reason = self._explain(job)
        if reason is None:
            return
        eta = self._eta(job) or {}
        at = {name: now + s for name in ("p10", "p50", "p90") if (s := eta.get(name)) is not None}
        said, likely = self._told.get(job), at.get("p50")
        if said is not None and said.code == reason.code and now - said.at < _AGAIN_S:
            expected = said.soonest is not None and said.latest is not None
            if likely is None or (expected and said.soonest <= likely <= said.latest):  # type: ignore[operator]
                return
        self._told[job] = _LastNote(now, reason.code, at.get("p10"), at.get("p90"))
        self._note(job, f"{reason.text}{_foreseen(at)}")


def _foreseen(at: Mapping[str, float]) -> str:
    if "p50" not in at:
        return ""
    text = f"; foreseen to start at {_clock(at['p50'])}"
    if "p10" in at and "p90" in at:
        text += f" (between {_clock(at['p10'])} and {_clock(at['p90'])})"
    return text


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")
