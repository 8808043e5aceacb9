"""Which job somebody means: by its id, by the beginning of an id, or by a name.

The one place that says so, for the API, the client and the command line. It reads, and asks the
caller what the user may see: a job that is hidden is as good as not there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches

from presage.control.board import ENDED
from presage.model.errors import Ambiguous, NotFound
from presage.store.jobs import Jobs
from presage.store.records import JobRow

__all__ = ["resolve", "unknown_job"]

_LOOKED_AT = 1000
_LISTED = 5
_RECENT = 200


def resolve(jobs: Jobs, text: str, visible: Callable[[JobRow], bool]) -> str:
    """The id of the job that `text` stands for, which is no id itself.

    A name stands for the one job of that name that is not over, else for the newest; several that
    are not over are ambiguous. Otherwise it is the beginning of exactly one id.
    """
    if text:
        named = [row for row in jobs.beginning(text, text, limit=_LOOKED_AT) if visible(row)]
        alive = [row for row in named if row.status not in ENDED]
        if len(alive) > 1:
            raise Ambiguous(_several(f"jobs named {text[:80]} are not over", alive))
        if named:
            return (alive or named)[0].id
        begun = [row for row in jobs.beginning(text, limit=_LOOKED_AT) if visible(row)]
        if len(begun) > 1:
            raise Ambiguous(_several(f"jobs begin with {text[:80]}", begun))
        if begun:
            return begun[0].id
    raise unknown_job(jobs, text, visible)


def unknown_job(jobs: Jobs, text: str, visible: Callable[[JobRow], bool]) -> NotFound:
    """That there is no such job, with the nearest there is."""
    rows = [row for row in jobs.list(limit=_RECENT) if visible(row)]
    known = dict.fromkeys([row.name for row in rows] + [row.id for row in rows])
    near = get_close_matches(text[:80], known, n=2, cutoff=0.6)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return NotFound(f"there is no job {text[:80]}{hint}")


def _several(what: str, rows: Sequence[JobRow]) -> str:
    listed = ", ".join(f"{row.id} ({row.status})" for row in rows[:_LISTED])
    more = ", …" if len(rows) > _LISTED else ""
    return f"{len(rows)} {what}: {listed}{more}; give more of the id"
