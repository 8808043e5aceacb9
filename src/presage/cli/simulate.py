"""`presage simulate`: run a trace on a cluster under one or more policies and compare them.

Everything that can be wrong is looked at before the first job is simulated, and files appear only
when all policies are done. The command composes; it decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Annotated

import polars as pl
import typer
from rich.console import Console

from presage._api.simulation import Study
from presage.cli._input import listed
from presage.cli._output import check_directory, check_file, print_json, progress, say
from presage.model.errors import UserError
from presage.policy import registry
from presage.sim.report import table, to_json, write_all
from presage.sim.result import SimResult
from presage.sim.traces import FORMATS

__all__ = ["simulate"]

_REJECTED_SHOWN = 3


TraceFile = Annotated[Path, typer.Argument(help="A trace: Parquet, CSV or JSON lines.")]
Cluster = Annotated[
    str, typer.Option(help="30x8, 100x4:32c:128g, a YAML node list, or a table of machines.")
]
Policies = Annotated[
    str | None,
    typer.Option(
        help="Policies to compare, with commas between; also file.py:name, learned:FILE, A@B.",
        show_default="fifo",
    ),
]
PlacementName = Annotated[
    str | None, typer.Option(help="Another placement for all of them, such as spread.")
]
FormatName = Annotated[str, typer.Option(help=f"auto, {', '.join(FORMATS)}.")]
Estimates = Annotated[
    str | None,
    typer.Option(help="A column of the trace; policies see it instead of true durations."),
]
ConfigPath = Annotated[
    Path | None, typer.Option(help="A YAML file of policies; all run unless --policy chooses.")
]
RestartCost = Annotated[
    float | None,
    typer.Option(min=0, help="Seconds of work lost when a job is preempted.", show_default="0"),
]
Seed = Annotated[int, typer.Option(min=0, help="Seeds everything that is random.")]
JobsOut = Annotated[
    Path | None, typer.Option(help="A directory for <policy>.parquet, a row for each job.")
]
TelemetryFile = Annotated[
    Path | None,
    typer.Option(help="What jobs used over time; a pod is called by the id of its job."),
]
Advisors = Annotated[
    str | None,
    typer.Option(help="Advisors that look at telemetry: sizing, learning.", show_default="none"),
]
ReportPath = Annotated[Path | None, typer.Option(help="Write an HTML page.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


def simulate(
    trace: TraceFile,
    cluster: Cluster,
    policy: Policies = None,
    placement: PlacementName = None,
    format: FormatName = "auto",
    estimates: Estimates = None,
    config: ConfigPath = None,
    restart_cost: RestartCost = None,
    seed: Seed = 0,
    telemetry: TelemetryFile = None,
    advise: Advisors = None,
    jobs_out: JobsOut = None,
    report: ReportPath = None,
    json: AsJson = False,
) -> None:
    """Simulate TRACE on a cluster under one or more policies, and compare them."""
    if report is not None:
        check_file(report, "--report")
    if jobs_out is not None:
        check_directory(jobs_out, "--jobs-out")
    if restart_cost is not None and not isfinite(restart_cost):
        raise UserError("--restart-cost must be a finite number of seconds")
    study = Study.of(
        trace,
        cluster,
        None if policy is None else _names(policy),
        config=config,
        placement=placement,
        format=format,
        estimates=estimates,
        restart_cost_s=restart_cost,
        seed=seed,
        telemetry=telemetry,
        advise=[] if advise is None else listed(advise, "--advise"),
    )
    for note in study.trace.notes:
        say(f"note: {note}")
    results = [_run(study, name) for name in study.policies]
    write_all(results, study.trace, study.cluster, jobs_out=jobs_out, report=report)
    if json:
        print_json(to_json(results))
    else:
        Console().print(table(results))
        for result in results:
            for line in result.advice.lines() if result.advice else ():
                typer.echo(f"{result.policy}: {line}")
    _explain_rejected(results)


def _names(policy: str) -> list[str]:
    names = [name.strip() for name in policy.split(",") if name.strip()]
    if not names:
        raise UserError(f"--policy is empty; there are: {', '.join(registry.names())}")
    return list(dict.fromkeys(names))


def _run(study: Study, name: str) -> SimResult:
    """One policy, with a bar while it runs and a line when it is done."""
    with progress(name) as shown:
        result = study.run(name, shown)
    say(f"{name}: {len(study.trace):,} jobs simulated in {result.cpu_s:.2f} s of CPU time")
    for note in result.notes:
        say(f"note: {name}: {note}")
    return result


def _explain_rejected(results: Sequence[SimResult]) -> None:
    """Why jobs did not run, a few of them for each policy; once when it is the same for all."""
    stories = [_rejected(result) for result in results]
    if len(stories) > 1 and all(story == stories[0] for story in stories):
        _print_story("every policy", stories[0])
        return
    for result, story in zip(results, stories, strict=True):
        _print_story(result.policy, story)


def _rejected(result: SimResult) -> list[tuple[str, str]]:
    refused = result.jobs.filter(pl.col("status") == "rejected")
    return [(job, reason or "") for job, reason in refused.select("job_id", "reason").iter_rows()]


def _print_story(who: str, story: list[tuple[str, str]]) -> None:
    for job, reason in story[:_REJECTED_SHOWN]:
        say(f"{who} rejected job {job}: {reason}")
    if len(story) > _REJECTED_SHOWN:
        say(f"{who} rejected {len(story) - _REJECTED_SHOWN:,} more jobs")
