"""Commands about jobs: submit, ps, status, wait, logs, explain, stop, halt, resume."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from presage.cli._output import print_json, say
from presage.client import Client
from presage.manifest import read_manifest
from presage.model.errors import UserError

__all__ = ["explain", "halt", "logs", "ps", "resume", "status", "stop", "submit", "wait"]

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
    json: Json = False,
) -> None:
    """Submit MANIFEST, with a copy of the folder it is in."""
    checked = read_manifest(manifest)
    with Client() as client:
        body = client.submit(manifest)
    if json:
        print_json(body)
        return
    typer.echo(body["id"])
    say(f"{checked.name} is {body['status']}; follow it with: presage logs -f {body['id']}")


def ps(
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
        jobs = list(client.jobs(status=wanted, queue=queue, owner=owner, limit=limit))
    if json:
        print_json({"jobs": jobs})
        return
    if not jobs:
        say("no jobs" if all or status else "no jobs that are not over; --all shows the others")
        return
    table = Table(box=None, pad_edge=False)
    for name in ("ID", "STATUS", "WORKERS", "AGE", "WHY"):
        last = name == "WHY"
        table.add_column(name, no_wrap=True, overflow="ellipsis" if last else "fold")
    for job in jobs:
        table.add_row(
            job["id"],
            _status(job),
            str(job["workers"] or ""),
            _span(time.time() - job["submitted_at"]),
            job["reason"]["text"] or _done(job),
        )
    Console().print(table)


def status(id: JobId, json: Json = False) -> None:
    """Say everything about a job."""
    with Client() as client:
        job = client.job(id)
    if json:
        print_json(job)
        return
    grid = Table.grid(padding=(0, 2))
    grid.add_row("job", job["id"])
    grid.add_row("status", _status(job))
    if job["reason"]["text"]:
        grid.add_row("because", job["reason"]["text"])
    grid.add_row("owner", f"{job['owner']}, queue {job['queue']}")
    if job["workers"]:
        grid.add_row("workers", f"{job['workers']} on {', '.join(job['nodes'])}")
    if job["attempt"] > 1:
        grid.add_row("attempt", str(job["attempt"]))
    if job["exit_code"] is not None:
        grid.add_row("exit code", str(job["exit_code"]))
    if job["progress"]:
        grid.add_row("progress", _done(job))
    began = job["submitted_at"]
    for item in job["history"]:
        text = item["reason"]["text"]
        line = Text(f"+{_span(item['at'] - began)} ", style="dim")
        line.append(item["status"], style=_STYLE.get(item["status"], ""))
        grid.add_row("", line.append(f"  {text}" if text else "", style="dim"))
    Console().print(grid)


def wait(
    id: JobId,
    timeout: Annotated[float | None, typer.Option(min=0, help="Seconds to wait at most.")] = None,
    json: Json = False,
) -> None:
    """Wait until a job is over; exit 0 when it is COMPLETED, 1 otherwise."""
    with Client() as client:
        job = client.wait(id, timeout)
    if json:
        print_json(job)
    else:
        why = job["reason"]["text"]
        typer.echo(f"{job['id']} {job['status']}" + (f": {why}" if why else ""))
    if job["status"] != "COMPLETED":
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
        for chunk in client.logs(id, worker, follow=follow, attempt=attempt):
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()


def explain(id: JobId, json: Json = False) -> None:
    """Say why a job is where it is."""
    with Client() as client:
        body = client.explain(id)
    if json:
        print_json(body)
        return
    typer.echo(f"{body['id']} is {body['status']}: {body['reason']['text'] or 'all is well'}")
    if body["ahead"]:
        typer.echo(f"{body['ahead']} jobs of its queue are ahead of it")


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
        body = client.tell(job_id, what)
    if json:
        print_json(body)
    else:
        typer.echo(f"{body['id']} {body['status']}")


def _status(job: dict[str, Any]) -> Text:
    text = job["status"] + (f" ({job['stage']})" if job["stage"] else "")
    return Text(text, style=_STYLE.get(job["status"], ""))


def _done(job: dict[str, Any]) -> str:
    progress = job["progress"] or {}
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
