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

from presage.cli._output import check_directory, check_file, print_json, progress, say
from presage.edge import read_yaml
from presage.model.cluster import Node
from presage.model.errors import ConfigError, UserError
from presage.policy import registry
from presage.policy.config import ConfigFile, PolicyConfig
from presage.sim.behaviour import WorldConfig, world_rules
from presage.sim.clusters import read_cluster
from presage.sim.report import table, to_json, write_all
from presage.sim.result import SimResult
from presage.sim.run import simulate as run
from presage.sim.traces import FORMATS, Trace, read_trace
from presage.sim.world import WorldRules

__all__ = ["simulate"]

_REJECTED_SHOWN = 3


class SimulationFile(ConfigFile):
    """What `--config` reads: policies and queues, and how the simulated world behaves."""

    world: WorldConfig = WorldConfig()


TraceFile = Annotated[Path, typer.Argument(help="A trace: Parquet, CSV or JSON lines.")]
Cluster = Annotated[
    str, typer.Option(help="30x8, 100x4:32c:128g, a YAML node list, or a table of machines.")
]
Policies = Annotated[
    str | None, typer.Option(help="Policies to compare, separated by commas.", show_default="fifo")
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
    file = read_yaml(config, SimulationFile, ConfigError) if config else SimulationFile()
    rules = world_rules(file.world, restart_cost_s=restart_cost, seed=seed)
    chosen = _choose(policy, file, placement)
    nodes = read_cluster(cluster)
    jobs = read_trace(trace, format, estimates)
    for note in jobs.notes:
        say(f"note: {note}")
    results = [
        _run(jobs, nodes, name, pipeline, rules, seed, estimates is not None)
        for name, pipeline in chosen.items()
    ]
    write_all(results, jobs, nodes, jobs_out=jobs_out, report=report)
    if json:
        print_json(to_json(results))
    else:
        Console().print(table(results))
    _explain_rejected(results)


def _run(
    jobs: Trace,
    nodes: Sequence[Node],
    name: str,
    pipeline: PolicyConfig,
    rules: WorldRules,
    seed: int,
    use_estimates: bool,
) -> SimResult:
    """One policy, with a bar while it runs and a line when it is done."""
    policy = registry.build(pipeline)
    with progress(name) as shown:
        result = run(
            jobs,
            nodes,
            policy,
            name=name,
            rules=rules,
            seed=seed,
            use_estimates=use_estimates,
            progress=shown,
        )
    say(f"{name}: {jobs.jobs.height:,} jobs simulated in {result.cpu_s:.2f} s of CPU time")
    return result


def _choose(
    policy: str | None, file: ConfigFile, placement: str | None
) -> dict[str, PolicyConfig]:
    """The pipelines to run, by name: those asked for, else all of the file's, else fifo."""
    configs = registry.pipelines(file)
    if policy is None:
        names = list(file.policies) or ["fifo"]
    else:
        names = [name.strip() for name in policy.split(",") if name.strip()]
    if not names:
        raise UserError(f"--policy is empty; there are: {', '.join(registry.names())}")
    return {name: registry.policy_config(name, configs, placement) for name in names}


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
