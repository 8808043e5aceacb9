"""Runs that ended, from the rows that users see: what the learning advisor reads on a server."""

from __future__ import annotations

from collections.abc import Sequence

from presage.control.advisors.learning import Ended
from presage.control.board import ENDED
from presage.manifest import Manifest, to_spec
from presage.model.codec import decode
from presage.model.estimate import Estimates
from presage.model.job import ReasonCode
from presage.store.records import JobRow, Transition
from presage.store.sql import SqlStore

__all__ = ["StoredEnds"]


class StoredEnds:
    """The ends of one database; it has what `learning.Ends` asks for."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    def after(self, number: int) -> tuple[Sequence[Ended], int]:
        """Ends after a transition, and the latest transition that was looked at."""
        moves = self._store.jobs.transitions_since(number)
        ends = [self._ended(move) for move in moves]
        latest = moves[-1].number if moves else number
        return [one for one in ends if one is not None], latest

    def _ended(self, move: Transition) -> Ended | None:
        out_of_memory = move.reason_code == ReasonCode.OUT_OF_MEMORY
        gone = move.status in ENDED
        row = self._store.jobs.get(move.job) if gone or out_of_memory else None
        if row is None:
            return None
        manifest = Manifest.from_json(row.manifest)
        step_s = (row.progress or {}).get("step_s")
        return Ended(
            spec=to_spec(manifest, row.id, row.owner),
            at=row.ended_at or move.at,
            completed=move.status == "COMPLETED",
            out_of_memory=out_of_memory,
            gone=gone,
            model=manifest.model,
            folder=row.folder,
            estimates=decode(Estimates, row.estimates) if row.estimates else None,
            step_s=step_s if isinstance(step_s, int | float) and step_s > 0 else None,
            submitted_at=row.submitted_at,
            started_at=row.started_at,
            status=row.status if gone else "",
            ran_s=_ran_s(row),
        )


def _ran_s(row: JobRow) -> float | None:
    """Seconds that a job ran at one go; of one that was started again nothing is told."""
    if row.attempt > 1 or row.started_at is None or row.ended_at is None:
        return None
    return row.ended_at - row.started_at
