"""The journal in memory, with JSON lines to keep it in a file, and what was learned: for tests,
replays and reports.

A file holds one step of the deciding loop a line, `{"now": 1.5, "facts": […], "decisions": […]}`,
in the order in which they happened. It is data: reading one creates events and nothing else.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any

from presage.core.ports import Entry
from presage.model.errors import StaleLease, UserError
from presage.model.event import (
    DECISIONS,
    FACTS,
    Decision,
    Event,
    Fact,
    event_from_json,
    event_to_json,
)

__all__ = ["MemoryKnowledge", "MemoryStore", "Step"]

Step = tuple[float, tuple[Fact, ...], tuple[Decision, ...]]
"""One append: when, the facts, and the decisions that followed from them together."""


class MemoryStore:
    """A `Store` that lives as long as its process. Positions count events from 0."""

    def __init__(self) -> None:
        self._steps: list[Step] = []
        self._lease = 0
        """The highest fencing token seen: a writer with a lower one is no longer the leader."""

    def append(
        self, now: float, facts: Sequence[Fact], decisions: Sequence[Decision], *, lease: int = 0
    ) -> None:
        """Add facts and the decisions that followed from them at the end."""
        if lease < self._lease:
            raise StaleLease(f"lease {lease} is over: lease {self._lease} writes the journal now")
        self._lease = lease
        self._steps.append((now, tuple(facts), tuple(decisions)))

    def read(self, since: int = 0) -> Iterable[tuple[float, Event]]:
        """Events from position `since` on, oldest first."""
        return islice(self._events(), since, None)

    def steps(self) -> Iterator[Step]:
        """The appends as they came: what a replay needs, since it decides once for each."""
        return iter(self._steps)

    def dump(self, path: Path) -> None:
        """Write the journal to a file, whole or not at all."""
        draft = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            with draft.open("w", encoding="utf-8") as file:
                for now, facts, decisions in self._steps:
                    line = {
                        "now": now,
                        "facts": [event_to_json(fact) for fact in facts],
                        "decisions": [event_to_json(decision) for decision in decisions],
                    }
                    file.write(json.dumps(line, allow_nan=False) + "\n")
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: Path) -> MemoryStore:
        """The journal in a file that `dump` wrote; leases are not kept."""
        store = cls()
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                try:
                    store._steps.append(_step(json.loads(line)))
                except (ValueError, TypeError, KeyError, AttributeError) as error:
                    raise UserError(f"{path} line {number} is no journal entry: {error}") from None
        return store

    def _events(self) -> Iterator[tuple[float, Event]]:
        for now, facts, decisions in self._steps:
            for fact in facts:
                yield now, fact
            for decision in decisions:
                yield now, decision


class MemoryKnowledge:
    """A `Knowledge` that lives as long as its process."""

    epoch = 0

    def __init__(self) -> None:
        self._entries: dict[str, list[bytes]] = {}
        self._lock = Lock()

    def get(self, name: str) -> bytes | None:
        """The newest entry of a name."""
        return next(iter(self.tail(name, 1)), None)

    def tail(self, name: str, most: int) -> list[bytes]:
        """The newest entries of a name, oldest first."""
        with self._lock:
            return self._entries.get(name, [])[-most:]

    def write(self, *entries: Entry) -> None:
        """Add these."""
        with self._lock:
            for entry in entries:
                there = self._entries.setdefault(entry.name, [])
                there.append(entry.body)
                del there[: -entry.keep]


def _step(data: dict[str, Any]) -> Step:
    facts = [_event(item, FACTS) for item in data["facts"]]
    decisions = [_event(item, DECISIONS) for item in data["decisions"]]
    return float(data["now"]), tuple(facts), tuple(decisions)


def _event(data: dict[str, Any], kinds: tuple[type[Any], ...]) -> Any:
    event = event_from_json(data)
    if not isinstance(event, kinds):
        raise ValueError(f"{type(event).__name__} in the wrong place")
    return event
