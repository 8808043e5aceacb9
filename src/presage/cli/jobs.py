"""Commands about jobs: submit, ps, status, wait, logs, explain, stop, halt, resume."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from presage.cli import sweep
from presage.cli._output import print_json, print_table, say
from presage.client import Client, JobHandle, to_json
from presage.manifest import Submission, advice, read_submission
from presage.model.answers import ArraySummary, Eta, JobSummary
from presage.model.errors import PresageError, UserError

__all__ = [
    "explain",
    "halt",
    "logs",
    "ps",
    "resume",
    "span_words",
    "starts_in",
    "status",
    "stop",
    "styled_status",
    "submit",
    "wait",
]

Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
JobId = Annotated[str, typer.Argument(metavar="ID", help="A job.")]

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


def submit(
    manifest: Annotated[Path, typer.Argument(help="A manifest; `presage init` writes one.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say where and when it would start; submit nothing.")
    ] = False,
    set: sweep.Changes = None,
    after: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Start after this job or array ended well; repeatable."),
    ] = None,
    json: Json = False,
) -> None:
    """Submit MANIFEST, with a copy of the folder it is in; with a sweep, an array of jobs."""
    asked = read_submission(manifest, sweep.changes_of(manifest, set, after))
    checked = asked.first
    if dry_run:
        _dry_run(asked, manifest, advice(checked, manifest.absolute().parent), json)
        return
    eta = None
    with Client() as client:
        sent = client.submit_read(asked, manifest)
        if sent.jobs is not None:
            sweep.print_submitted(sent, json)
            return
        job = JobHandle(client, sent)
        status = job.status
        with suppress(PresageError):  # the job is on disk; when it starts is only worth a look
            eta = job.refresh(wait_eta_s=_ETA_S).info.eta_s
    if json:
        print_json({"id": job.id, "status": status, "eta_s": eta and to_json(eta)})
        return
    typer.echo(job.id)
    say(f"{checked.name} is {status}; follow it with: presage logs -f {job.id}")
    if eta:
        say(f"it {starts_in(eta)}")


_ETA_S = 2.0
"""How long a submission waits to be told when the job starts."""


def _dry_run(asked: Submission, manifest: Path, notes: list[str], json: bool) -> None:
    with Client() as client:
        preview = client.dry_run(dumps(asked.data))  # JSON is YAML, too
    if json:
        print_json({"manifest": str(manifest), "valid": True, **to_json(preview), "notes": notes})
        return
    where = f" on {', '.join(preview.nodes)}" if preview.nodes else ""
    when = "starts now" if preview.starts_now else starts_in(preview.eta_s, age=False)
    typer.echo(f"{preview.name} {when}{where}, if it is submitted to queue {preview.queue}")
    for note in notes:
        say(f"note: {note}")


def ps(
    id: Annotated[
        str | None, typer.Argument(metavar="ARRAY", help="Show the jobs of this array.")
    ] = None,
    all: Annotated[bool, typer.Option("--all", "-a", help="Also jobs that are over.")] = False,
    status: Annotated[
        list[str] | None, typer.Option(help="Only jobs with this status; may be repeated.")
    ] = None,
    queue: Annotated[str | None, typer.Option(help="Only jobs of this queue.")] = None,
    owner: Annotated[str | None, typer.Option(help="Only jobs of this user.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 200,
    json: Json = False,
) -> None:
    """List jobs, newest first: those that are not over, or all."""
    wanted = list(status or ())
    if not wanted and not (all or json):
        wanted = ["QUEUED", "DOWNLOADING", "PROCESSING", "STORING", "HALTED"]
    with Client() as client:
        if id is not None:
            sweep.show_members(client, id, json)
            return
        handles = client.jobs(status=wanted, queue=queue, owner=owner, array="", limit=limit)
        jobs = [job.summary for job in handles]
        arrays = list(client.arrays(queue=queue, owner=owner, limit=limit))
    if wanted:
        arrays = [one for one in arrays if any(one.counts.get(name) for name in wanted)]
    if json:
        print_json(
            {"jobs": [to_json(job) for job in jobs], "arrays": [to_json(one) for one in arrays]}
        )
        return
    if not jobs and not arrays:
        say("no jobs" if all or status else "no jobs that are not over; --all shows the others")
        return
    listed: list[JobSummary | ArraySummary] = [*jobs, *arrays]
    rows: list[Sequence[Any]] = []
    for one in sorted(listed, key=lambda one: -one.submitted_at)[:limit]:
        age = _span(time.time() - one.submitted_at)
        if isinstance(one, ArraySummary):
            rows.append(sweep.array_cells(one, age))
            continue
        workers, starts = str(one.workers or ""), span_words(one.eta_s)
        why = one.reason.text or _done(one)
        rows.append((one.id, styled_status(one), workers, age, starts, why))
    print_table(("ID", "STATUS", "WORKERS", "AGE", "STARTS IN", "WHY"), rows)


def status(id: JobId, json: Json = False) -> None:
    """Say everything about a job."""
    with Client() as client:
        job = client.job(id).info
    if json:
        print_json(to_json(job))
        return
    grid = Table.grid(padding=(0, 2))
    grid.add_row("job", job.id)
    grid.add_row("status", styled_status(job))
    if job.reason.text:
        grid.add_row("because", job.reason.text)
    if job.status == "QUEUED":
        grid.add_row("", starts_in(job.eta_s))
    if job.estimates:
        grid.add_row("foreseen", job.estimates.text)
    grid.add_row("owner", f"{job.owner}, queue {job.queue}")
    if job.workers:
        grid.add_row("workers", f"{job.workers} on {', '.join(job.nodes)}")
    if job.attempt > 1:
        grid.add_row("attempt", str(job.attempt))
    if job.exit_code is not None:
        grid.add_row("exit code", str(job.exit_code))
    if job.progress:
        grid.add_row("progress", _done(job))
    for item in job.history:
        text = item.reason.text
        line = Text(f"+{_span(item.at - job.submitted_at)} ", style="dim")
        line.append(item.status, style=_STYLE.get(item.status, ""))
        grid.add_row("", line.append(f"  {text}" if text else "", style="dim"))
    Console().print(grid)


def wait(
    id: JobId,
    timeout: Annotated[float | None, typer.Option(min=0, help="Seconds to wait at most.")] = None,
    json: Json = False,
) -> None:
    """Wait until a job is over; exit 0 when it is COMPLETED, 1 otherwise."""
    with Client() as client:
        if client.is_array(id):
            sweep.wait_for_array(client, id, timeout, json)
            return
        job = client.job(id).wait(timeout).info
    if json:
        print_json(to_json(job))
    else:
        why = job.reason.text
        typer.echo(f"{job.id} {job.status}" + (f": {why}" if why else ""))
    if job.status != "COMPLETED":
        raise typer.Exit(1)


def logs(
    id: JobId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job is over.")
    ] = False,
    worker: Annotated[str, typer.Option(help="A rank, or a role and a number: ps-0.")] = "0",
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Which run of the job.", show_default="the latest")
    ] = None,
) -> None:
    """Print what a worker of a job wrote."""
    with Client() as client:
        if client.is_array(id):
            sweep.print_logs(client, id, follow, worker)
            return
        for chunk in client.logs(id, worker, follow=follow, attempt=attempt):
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()


def explain(id: JobId, json: Json = False) -> None:
    """Say why a job is where it is: what it waits for, who is ahead, when it starts, and what
    would help."""
    with Client() as client:
        if client.is_array(id):
            sweep.explain_array(client, id, json)
            return
        about = client.explain(id)
    if json:
        print_json(to_json(about))
        return
    typer.echo(f"{about.id} is {about.status}: {about.reason.text or 'all is well'}")
    if about.estimates:
        typer.echo(f"foreseen: {about.estimates.text}")
    if about.status != "QUEUED":
        return
    if about.ahead:
        named = about.ahead_jobs
        more = "" if len(named) == about.ahead else ", …" if named else ""
        who = f": {', '.join(named)}{more}" if named else ""
        jobs = "1 job is" if about.ahead == 1 else f"{about.ahead} jobs are"
        typer.echo(f"ahead in its queue {jobs} waiting{who}")
    for one in about.after:
        ends = f", expected to end {starts_in(one.ends_s)[7:]}" if one.ends_s else ""
        typer.echo(f"after {one.id} ({one.on}): {one.status}{ends}")
    typer.echo(f"it {starts_in(about.eta_s)}")
    for option in about.helps or ():
        typer.echo(f"{option.change} it {starts_in(option.eta_s, age=False)}")
    if about.helps is None:
        say("what would help was not worked out in time; ask again")
    elif not about.helps:
        typer.echo("nothing that was tried lets it start notably earlier")


def stop(id: JobId, json: Json = False) -> None:
    """End a job, after a checkpoint where it can take one."""
    _tell(id, "stop", json)


def halt(id: JobId, json: Json = False) -> None:
    """Stop a job with a checkpoint; `presage resume` has it go on."""
    _tell(id, "halt", json)


def resume(id: JobId, json: Json = False) -> None:
    """Have a halted job go on from its checkpoint."""
    _tell(id, "resume", json)


def _tell(job_id: str, what: str, json: bool) -> None:
    if not job_id:
        raise UserError("name a job; `presage ps` lists them")
    with Client() as client:
        if client.is_array(job_id):
            sweep.tell_array(client, job_id, what, json)
            return
        told = client.tell(job_id, what)
    if json:
        print_json(to_json(told))
    else:
        typer.echo(f"{told.id} {told.status}")


def starts_in(eta: Eta | None, *, age: bool = True) -> str:
    """When a job starts, in words: 'starts in 4–12 min (most likely 7), estimated 3 s ago'."""
    if eta is None:
        return "starts at a time that is not known yet"
    ago = f", estimated {eta.age_s:.0f} s ago" if age else ""
    low, middle, high = eta.p10, eta.p50, eta.p90
    if low is None:
        return f"starts later than can be foreseen{ago}"
    if high is not None and high < 1:
        return f"starts in a moment{ago}"
    size, unit = _unit(high or middle or low)
    upto = f"–{_number(high / size)} {unit}" if high is not None else f" {unit} or much more"
    likely = f" (most likely {_number(middle / size)})" if middle is not None else ""
    return f"starts in {_number(low / size)}{upto}{likely}{ago}"


def span_words(eta: Eta | None) -> str:
    """The interval alone, for a table: '4–12 min'."""
    if eta is None or eta.p10 is None:
        return ""
    high = eta.p90
    size, unit = _unit(high if high is not None else eta.p10)
    upto = f"–{_number(high / size)} {unit}" if high is not None else f" {unit} …"
    return f"{_number(eta.p10 / size)}{upto}"


def _unit(seconds: float) -> tuple[float, str]:
    for size, unit in ((86_400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 1.5 * size:
            return size, unit
    return 1.0, "s"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}".removesuffix(".0")


def styled_status(job: JobSummary) -> Text:
    """The status of a job in its colour."""
    text = job.status + (f" ({job.stage})" if job.stage else "")
    return Text(text, style=_STYLE.get(job.status, ""))


def _done(job: JobSummary) -> str:
    progress = job.progress or {}
    if "done" not in progress:
        return ""
    rest = ", ".join(
        f"{name} {value:g}" for name, value in progress.items() if name not in ("done", "at")
    )
    return f"{100 * progress['done']:.0f} %" + (f" ({rest})" if rest else "")


def _span(seconds: float) -> str:
    seconds = max(0.0, seconds)
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.1f}{unit}"
    return f"{seconds:.0f}s"
