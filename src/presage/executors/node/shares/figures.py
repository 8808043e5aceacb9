"""What the workers of a run asked and got of their shares of GPUs, for their rows of telemetry.

The daemon of the node counts; here it is asked. Standard library only: guardians do so. It must
not change anything, and a daemon that does not answer holds nobody up.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from presage.executors.node.shares.terms import call, read_terms, shares_of
from presage.telemetry.rows import Row

__all__ = ["ShareFigures", "ShareProbe"]

_MIB = 1 << 20
_PATIENCE_S = 0.2
_ONE_MOMENT_S = 0.5


class ShareFigures(NamedTuple):
    """One share, over all GPUs it is used on; None for what is not known."""

    request: float
    limit: float
    memory_limit_mib: float | None
    got: float | None = None
    waited: float | None = None
    memory_mib: float | None = None

    def add_to(self, row: Row) -> Row:
        """A row of telemetry with these figures. What the driver says of memory goes first: it
        counts contexts, too."""
        made = row._replace(
            gpu_request=self.request,
            gpu_limit=self.limit,
            gpu_got=self.got,
            gpu_waited=self.waited,
            gpu_memory_limit_mib=self.memory_limit_mib,
        )
        if made.gpu_memory_mib is None:
            made = made._replace(gpu_memory_mib=self.memory_mib, gpu_total_mib=self.memory_mib)
        return made


class ShareProbe:
    """Looks at all shares whose names begin alike, those of a run."""

    def __init__(self, home: Path, prefix: str) -> None:
        self._home, self._prefix = home, prefix
        self._before: dict[str, tuple[float, float, float]] = {}
        """When a share was looked at, and the seconds it had used and waited by then."""
        self._seen: Mapping[str, ShareFigures] = {}
        self._looked = -inf

    def add_to(self, row: Row, share: str) -> Row:
        """A row of telemetry with the figures of a share; rows of one moment share one look."""
        now = time.monotonic()
        if now - self._looked > _ONE_MOMENT_S:
            self._seen, self._looked = self.look(), now
        figures = self._seen.get(share)
        return row if figures is None else figures.add_to(row)

    def look(self) -> Mapping[str, ShareFigures]:
        """The shares by name, with what they had since the last look."""
        answer = call(self._home, {"ask": "status", "of": self._prefix}, _PATIENCE_S) or {}
        now, counted = time.monotonic(), dict[str, list[Any]]()
        for line in answer.get("shares", ()):
            counted.setdefault(line["share"], []).append(line)
        figures = {}
        for name in shares_of(self._home, self._prefix):
            terms = read_terms(self._home, name)
            if terms is None:
                continue
            memory = terms.memory / _MIB if terms.memory else None
            asked = ShareFigures(terms.request, terms.limit, memory)
            figures[name] = self._measured(name, asked, counted.get(name, ()), now)
        return figures

    def _measured(
        self, name: str, asked: ShareFigures, lines: list[Any] | tuple[()], now: float
    ) -> ShareFigures:
        """With what was counted. A daemon that is new may have counted less than the one before:
        then nothing is said once."""
        if not lines:
            return asked
        used, waited = (sum(one[key] for one in lines) for key in ("used_s", "waited_s"))
        asked = asked._replace(memory_mib=sum(one["memory_bytes"] for one in lines) / _MIB)
        then, used_before, waited_before = self._before.get(name, (now, used, waited))
        self._before[name] = now, used, waited
        passed = now - then
        if passed <= 0 or used < used_before or waited < waited_before:
            return asked
        return asked._replace(
            got=(used - used_before) / passed, waited=(waited - waited_before) / passed
        )
