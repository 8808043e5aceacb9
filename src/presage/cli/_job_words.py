"""How commands speak of jobs: a row of a table, when a job starts, how far it is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from rich.text import Text

from presage.cli._tables import Cell, Column
from presage.client import Client
from presage.model.answers import Eta, JobSummary
from presage.model.words import duration, interval, share, short_duration

__all__ = [
    "JOB_COLUMNS",
    "done_words",
    "job_row",
    "span_words",
    "starts_in",
    "styled_status",
    "why_words",
    "with_reasons",
]

_STYLE = {
    "QUEUED": "yellow",
    "DOWNLOADING": "cyan",
    "PROCESSING": "green",
    "STORING": "cyan",
    "COMPLETED": "bold green",
    "FAILED": "bold red",
    "HALTED": "magenta",
    "CANCELLED": "dim",
}
_ASKED_AT_ONCE = 100

JOB_COLUMNS = (
    Column("ID"),
    Column("STATUS"),
    Column("OWNER", spare=4),
    Column("QUEUE", spare=5),
    Column("WORKERS", right=True, spare=2),
    Column("AGE", right=True, spare=1),
    Column("STARTS", spare=3),
    Column("WHY"),
)
"""Of a list of jobs."""


def job_row(job: JobSummary, now: float | None = None) -> list[Cell]:
    """A job in a list."""
    now = time.time() if now is None else now
    return [
        job.id,
        styled_status(job),
        job.owner,
        job.queue,
        str(job.workers or ""),
        short_duration(now - job.submitted_at),
        span_words(job.eta_s),
        why_words(job),
    ]


def with_reasons(client: Client, jobs: Sequence[JobSummary]) -> list[JobSummary]:
    """The same jobs; of those that wait, with what they wait for at this moment."""
    queued = [job.id for job in jobs if job.status == "QUEUED"]
    reasons = {}
    for start in range(0, len(queued), _ASKED_AT_ONCE):
        waiting = client.waiting(queued[start : start + _ASKED_AT_ONCE])
        reasons.update({item.id: item.reason for item in waiting})
    return [replace(job, reason=reasons[job.id]) if job.id in reasons else job for job in jobs]


def why_words(job: JobSummary) -> str:
    """Why a job is where it is, or how far it is and where."""
    if job.reason.text:
        words = [job.stage, job.reason.text]
    else:
        where = f"on {', '.join(job.nodes)}" if job.nodes else ""
        words = [job.stage, done_words(job), where]
    if job.status == "QUEUED" and not job.reason.text:
        words.append(starts_in(job.eta_s, age=False))
    return "; ".join(word for word in words if word)


def done_words(job: JobSummary) -> str:
    """How far a job is, as it said: '40 % (loss 0.31)'."""
    progress = job.progress or {}
    if "done" not in progress:
        return ""
    rest = ", ".join(
        f"{name} {value:g}"
        for name, value in progress.items()
        if name not in ("done", "at") and isinstance(value, int | float)
    )
    return share(progress["done"]) + (f" ({rest})" if rest else "")


def styled_status(job: JobSummary) -> Text:
    """The status of a job in its colour."""
    return Text(job.status, style=_STYLE.get(job.status, ""))


def starts_in(eta: Eta | None, *, age: bool = True) -> str:
    """When a job starts, in words: 'starts in 4–12 min (most likely 7 min), estimated 3 s
    ago'."""
    if eta is None:
        return "starts at a time that is not known yet"
    ago = f", estimated {eta.age_s:.0f} s ago" if age else ""
    low, middle, high = eta.p10, eta.p50, eta.p90
    if low is None:
        return f"starts later than can be foreseen{ago}"
    if high is not None and high < 1:
        return f"starts in a moment{ago}"
    span = interval(low, high) if high is not None else f"{duration(low)} or much more"
    likely = f" (most likely {duration(middle)})" if middle is not None else ""
    return f"starts in {span}{likely}{ago}"


def span_words(eta: Eta | None) -> str:
    """The interval as one word, for a table: '4m–12m'."""
    if eta is None or eta.p10 is None:
        return ""
    low = short_duration(eta.p10)
    if eta.p90 is None:
        return f"{low}–…"
    high = short_duration(eta.p90)
    return high if low == high else f"{low}–{high}"
