"""Commands about jobs: submit, ps, status, wait, explain, stop, halt, resume."""

from __future__ import annotations

import time
from contextlib import suppress
from json import dumps
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from presage.cli import sweep
from presage.cli._asking import Yes, ask_before_loss
from presage.cli._input import JobId
from presage.cli._job_words import (
    JOB_COLUMNS,
    done_words,
    job_row,
    starts_in,
    styled_status,
    with_reasons,
)
from presage.cli._output import print_json, say
from presage.cli._tables import show_facts, show_table
from presage.cli.manifest import Include, sends_json, surveyed
from presage.cli.results import results_line
from presage.client import Client, FolderSurvey, JobHandle, to_json
from presage.manifest import Submission, advice, read_submission
from presage.model.errors import PresageError, UserError
from presage.model.words import short_duration

__all__ = ["explain", "halt", "ps", "resume", "status", "stop", "submit", "wait"]

Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


def submit(
    manifest: Annotated[Path, typer.Argument(help="A manifest; `presage init` writes one.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say where and when it would start; submit nothing.")
    ] = False,
    include: Include = None,
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
    sends = surveyed(checked, manifest, include)
    if sends is not None and sends.warning:
        say(sends.warning)
    if dry_run:
        _dry_run(asked, manifest, advice(checked, manifest.absolute().parent), sends, json)
        return
    eta = None
    with Client() as client:
        sent = client.submit_read(asked, manifest, include=include or ())
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


def _dry_run(
    asked: Submission, manifest: Path, notes: list[str], sends: FolderSurvey | None, json: bool
) -> None:
    with Client() as client:
        preview = client.dry_run(dumps(asked.data))  # JSON is YAML, too
    if json:
        body = {"manifest": str(manifest), "valid": True, **to_json(preview), "notes": notes}
        print_json({**body, "sends": sends_json(sends)})
        return
    where = f" on {', '.join(preview.nodes)}" if preview.nodes else ""
    when = "starts now" if preview.starts_now else starts_in(preview.eta_s, age=False)
    typer.echo(f"{preview.name} {when}{where}, if it is submitted to queue {preview.queue}")
    if sends is not None:
        say(f"it would send {sends.text}")
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
        jobs = with_reasons(client, [job.summary for job in handles])
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
    rows = [(one.submitted_at, job_row(one)) for one in jobs]
    rows += [(one.submitted_at, sweep.array_row(one)) for one in arrays]
    newest = sorted(rows, key=lambda row: -row[0])[:limit]
    show_table(JOB_COLUMNS, [row for _, row in newest])


def status(id: JobId, json: Json = False) -> None:
    """Say everything about a job."""
    with Client() as client:
        job = client.job(id).info
    if json:
        print_json(to_json(job))
        return
    facts: list[tuple[str, str | Text]] = [("job", job.id), ("status", styled_status(job))]
    if job.stage:
        facts.append(("stage", job.stage))
    if job.reason.text:
        facts.append(("because", job.reason.text))
    if job.status == "QUEUED":
        facts.append(("", starts_in(job.eta_s)))
    if job.estimates and job.estimates.text:
        facts.append(("foreseen", job.estimates.text))
    facts.append(("owner", f"{job.owner}, queue {job.queue}"))
    if job.workers:
        facts.append(("workers", f"{job.workers} on {', '.join(job.nodes)}"))
    if job.attempt > 1:
        facts.append(("attempt", str(job.attempt)))
    if job.exit_code is not None:
        facts.append(("exit code", str(job.exit_code)))
    if job.progress:
        facts.append(("progress", done_words(job)))
    if job.at_risk is not None:
        facts.append(("at risk", job.at_risk.text))
    if job.results:
        facts.append(("results", results_line(job.id, job.results)))
    if job.removed_at is not None:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(job.removed_at))
        facts.append(("removed", f"{when}, with all of its files; the journal keeps the facts"))
    for item in job.history:
        after = short_duration(item.at - job.submitted_at)
        text = f"+{after} {item.status}" + (f"  {item.reason.text}" if item.reason.text else "")
        facts.append(("", Text(text, style="dim")))
    show_facts(facts)


def wait(
    id: JobId,
    timeout: Annotated[float | None, typer.Option(min=0, help="Seconds to wait at most.")] = None,
    json: Json = False,
) -> None:
    """Wait until a job is over or halted.

    The exit code is 0 when it is COMPLETED, 4 when it is HALTED, 1 otherwise.
    """
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
        if job.results and job.ended_at is not None:
            say(results_line(job.id, job.results))
    if job.status == "HALTED":
        say(f"it does not go on by itself: presage resume {job.id}")
        raise typer.Exit(_HALTED)
    if job.status != "COMPLETED":
        raise typer.Exit(1)


_HALTED = 4
"""The exit code of `wait` for a job that stands still until somebody resumes it."""


def explain(
    id: JobId,
    watch: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Ask about a job of the cluster watched into DIR."),
    ] = None,
    json: Json = False,
) -> None:
    """Say why a job is where it is.

    What it waits for, who is ahead, when it starts, and what would help.
    """
    if watch is not None:
        from presage.cli.watch import explain_watched

        explain_watched(watch, id, json)
        return
    with Client() as client:
        if client.is_array(id):
            sweep.explain_array(client, id, json)
            return
        about = client.explain(id)
    if json:
        print_json(to_json(about))
        return
    typer.echo(f"{about.id} is {about.status}: {about.reason.text or 'all is well'}")
    for trouble in about.alerts:
        typer.echo(f"trouble: {trouble}; see presage diagnose {about.id}")
    if about.estimates:
        typer.echo(f"foreseen: {about.estimates.text}")
    if about.failure:
        typer.echo(f"may fail: {about.failure}")
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


def stop(id: JobId, yes: Yes = False, json: Json = False) -> None:
    """End a job.

    It takes a checkpoint where it can; if work would be lost, you are asked first.
    """
    _tell(id, "stop", json, yes)


def halt(id: JobId, yes: Yes = False, json: Json = False) -> None:
    """Stop a job, to have it go on later with `presage resume`.

    It takes a checkpoint where it can; if work would be lost, you are asked first.
    """
    _tell(id, "halt", json, yes)


def resume(id: JobId, json: Json = False) -> None:
    """Have a halted job go on from its checkpoint."""
    _tell(id, "resume", json, yes=True)


def _tell(job: str, what: str, json: bool, yes: bool) -> None:
    if not job:
        raise UserError("name a job; `presage ps` lists them")
    with Client() as client:
        if client.is_array(job):
            sweep.tell_array(client, job, what, json, yes)
            return
        ask_before_loss(client, [job], f"{what} it", yes)
        told = client.tell(job, what)
    if json:
        print_json(to_json(told))
    else:
        typer.echo(f"{told.id} {told.status}")
