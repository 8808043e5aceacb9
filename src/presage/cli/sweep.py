"""Commands about arrays: `best`, `resubmit`; and what the commands about jobs do with an array."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from presage.cli._asking import ask_before_loss
from presage.cli._job_words import starts_in
from presage.cli._output import print_json, say
from presage.cli._tables import Cell, Column, show_table
from presage.client import Client, to_json
from presage.manifest import read_submission
from presage.model.answers import ArraySummary, Eta, JobSummary, Submitted
from presage.model.errors import UserError
from presage.model.words import short_duration

__all__ = [
    "array_row",
    "best",
    "changes_of",
    "every_member",
    "explain_array",
    "param_words",
    "print_logs",
    "print_submitted",
    "resubmit",
    "show_members",
    "tell_array",
    "wait_for_array",
]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change the manifest: resources.gpus=2; repeatable."
    ),
]

_ORDER = ("PROCESSING", "DOWNLOADING", "STORING", "QUEUED", "HALTED")
_WORDS = {
    "PROCESSING": "run",
    "DOWNLOADING": "start",
    "STORING": "store",
    "QUEUED": "wait",
    "HALTED": "halted",
    "COMPLETED": "done",
    "FAILED": "failed",
    "CANCELLED": "stopped",
}
_PARAMS = 30
"""Characters of parameters in a table."""
_PAST = {"stop": "stopping", "halt": "halting", "resume": "resuming"}


def best(
    id: Annotated[str, typer.Argument(metavar="ARRAY", help="An array; `presage ps` has it.")],
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many.")] = 10,
    json: AsJson = False,
) -> None:
    """Show the best jobs of an array, by the metric of its objective."""
    with Client() as client:
        ranking = client.best(id, limit)
    if json:
        print_json(to_json(ranking))
        return
    if not ranking.best:
        known = f"; they reported {', '.join(ranking.reported)}" if ranking.reported else ""
        say(f"no job of {ranking.id} has reported {ranking.metric} yet{known}")
        return
    names = list(dict.fromkeys(name for one in ranking.best for name in one.params))
    columns = [Column("ID"), Column(ranking.metric.upper(), right=True)]
    columns += [Column(name, right=True) for name in names]
    rows: list[list[Cell]] = [
        [
            one.id,
            f"{one.value:.6g}",
            *(_setting(one.params.get(name, "")) for name in names),
            str(one.status),
        ]
        for one in ranking.best
    ]
    show_table([*columns, Column("STATUS")], rows)


def resubmit(
    id: Annotated[str, typer.Argument(metavar="ID", help="A job or an array.")],
    set: Changes = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="Of an array, only the jobs that failed.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Submit a job or an array again, with the same folder, and with changes."""
    with Client() as client:
        made = client.resubmit(id, list(set or ()), failed=failed)
    if json:
        print_json(to_json(made))
        return
    typer.echo(made.id)
    say(f"{submitted_words(made.jobs)} again, made from {id}")


def changes_of(
    manifest: Path, changes: Sequence[str] | None, after: Sequence[str] | None
) -> list[str]:
    """`--set` and `--after` as changes to a manifest; `--after` adds to what it says."""
    made = list(changes or ())
    if after:
        said = read_submission(manifest, made).first.after
        known = said.model_dump() if said else {"any": [], "failed": []}
        wanted = {**known, "ok": [*known.get("ok", ()), *after]}
        made.append(f"after={dumps(wanted)}")
    return made


def print_submitted(sent: Submitted, json: bool) -> None:
    """What `presage submit` says of an array."""
    if json:
        print_json(to_json(sent))
        return
    typer.echo(sent.id)
    say(f"{submitted_words(sent.jobs)}; see them with: presage ps {sent.id}")


def submitted_words(jobs: int | None) -> str:
    """`submitted`, with the number of jobs where that is not one."""
    return "submitted" if jobs is None else f"{jobs} job{'s' if jobs != 1 else ''} submitted"


# -- what other commands do with an array ---------------------------------------------------------


def array_row(array: ArraySummary, now: float | None = None) -> list[Cell]:
    """An array as a row of the table of jobs (`JOB_COLUMNS`)."""
    now = time.time() if now is None else now
    counts = array.counts
    status = next((name for name in _ORDER if counts.get(name)), _last_status(counts))
    shown = Text(f"{status}×{counts.get(status, 0)}", style="bold")
    age, workers = short_duration(now - array.submitted_at), str(array.workers or "")
    return [array.id, shown, array.owner, array.queue, workers, age, "", array_words(array)]


def array_words(array: ArraySummary) -> str:
    """`37/200 over, best 0.21 (val_loss), 7 failed`: what matters most comes first."""
    counts = array.counts
    over = sum(counts.get(s, 0) for s in ("COMPLETED", "FAILED", "CANCELLED"))
    parts = [f"{over}/{array.size} over"]
    if array.best is not None:
        parts.append(f"best {array.best:.4g} ({array.metric})")
    parts += [f"{counts[s]} {_WORDS[s]}" for s in ("FAILED", "CANCELLED") if counts.get(s)]
    return ", ".join(parts)


def _last_status(counts: Any) -> str:
    for status in ("FAILED", "CANCELLED"):
        if counts.get(status):
            return status
    return "COMPLETED"


def show_members(client: Client, array_id: str, json: bool) -> None:
    """`presage ps ARRAY`: its jobs by status, and each of them."""
    array = client.array(array_id).info
    jobs = client.members(array.id)
    if json:
        print_json({"array": to_json(array), "jobs": [to_json(job) for job in jobs]})
        return
    counts = ", ".join(f"{n} {_WORDS[s]}" for s in _WORDS if (n := array.counts.get(s)))
    limit = f", {array.at_once} at once" if array.at_once else ""
    typer.echo(f"{array.id}: {array.size} jobs{limit}: {counts}")
    if array.best is not None:
        typer.echo(f"best {array.metric} so far: {array.best:.6g}")
    columns = (
        *(Column("JOB"), Column("STATUS"), Column("DONE", right=True, spare=1)),
        Column((array.metric or "metric").upper(), right=True),
        Column("PARAMS"),
        Column("WHY"),
    )
    rows: list[list[Cell]] = []
    for job in jobs:
        value = (job.progress or {}).get(array.metric or "")
        metric = "" if value is None else f"{value:.4g}"
        number = job.id.removeprefix(f"{array.id}-")
        params = _short(param_words(job))
        rows.append([number, str(job.status), _done(job), metric, params, job.reason.text])
    show_table(columns, rows)


def _short(text: str) -> str:
    return text if len(text) <= _PARAMS else f"{text[: _PARAMS - 1]}…"


def _done(job: JobSummary) -> str:
    done = (job.progress or {}).get("done")
    return "" if done is None else f"{100 * done:.0f} %"


def param_words(job: JobSummary) -> str:
    """`lr=0.1 seed=3`."""
    return " ".join(f"{name}={_setting(value)}" for name, value in (job.params or {}).items())


def _setting(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def every_member(client: Client, ids: Sequence[str]) -> list[str]:
    """The same jobs; in place of an array, all its jobs."""
    named: list[str] = []
    for one in ids:
        array = client.array(one).info.id if client.is_array(one) else None
        named += [one] if array is None else [job.id for job in client.members(array)]
    return named


def tell_array(client: Client, array_id: str, what: str, json: bool, yes: bool) -> None:
    """`presage stop ARRAY` and the like; who runs may have work to lose."""
    if not yes:
        runs = client.members(client.array(array_id).info.id, ("PROCESSING", "STORING"))
        ask_before_loss(client, [job.id for job in runs], f"{what} them", yes)
    told = client.tell_array(array_id, what)
    if json:
        print_json(to_json(told))
    else:
        typer.echo(f"{told.id} {_PAST[what]} {told.jobs} job{'s' if told.jobs != 1 else ''}")


def wait_for_array(client: Client, array_id: str, timeout: float | None, json: bool) -> None:
    """Wait until all jobs are over; exit 0 when every one is COMPLETED, 1 otherwise."""
    array = client.array(array_id).wait(timeout).info
    if json:
        print_json(to_json(array))
    else:
        typer.echo(f"{array.id} {array_words(array)}")
    if array.counts.get("COMPLETED", 0) != array.size:
        raise typer.Exit(1)


def print_logs(client: Client, array_id: str, follow: bool, worker: str | None) -> None:
    """What one worker of each job wrote, one job after the other."""
    if follow:
        raise UserError(
            f"{array_id} is an array; follow one of its jobs: see presage ps {array_id}"
        )
    out = sys.stdout.buffer
    for job in client.members(client.array(array_id).info.id):
        if job.attempt:
            out.write(f"==> {job.id} {param_words(job)} <==\n".encode())
            for chunk in client.logs(job.id, worker or "0"):
                out.write(chunk)
            out.flush()


def explain_array(client: Client, array_id: str, json: bool) -> None:
    """Why the jobs of an array are where they are."""
    about = client.explain_array(array_id)
    if json:
        print_json(to_json(about))
        return
    counts = ", ".join(f"{n} {_WORDS[s]}" for s in _WORDS if (n := about.counts.get(s)))
    typer.echo(f"{about.id}: {counts}")
    for one in about.reasons:
        jobs = f"{one.jobs} job{'s' if one.jobs != 1 else ''}"
        typer.echo(f"{jobs}: {one.reason.text or 'next in line'} ({one.example})")
    etas: list[tuple[str, Eta | None]] = [("next", about.next_eta_s), ("last", about.last_eta_s)]
    for which, eta in etas:
        if eta is not None:
            typer.echo(f"the {which} one {starts_in(eta)}")
