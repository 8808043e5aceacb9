"""`presage what-if`: what other policies would have done with the jobs of the server's journal."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from presage.cli._here import LEARNED, beside, decides_there, own_policies
from presage.cli._input import listed, seconds
from presage.cli._output import check_file, print_json, say
from presage.cli._tables import Column, show_table
from presage.client import Client, to_json
from presage.model.errors import ConfigError, UserError
from presage.model.server_answers import ExportedTrace, WhatIf
from presage.model.words import duration
from presage.plugins import is_file

__all__ = ["what_if"]

_COLUMNS = {
    "AVG-WAIT": ("avg_wait_s", duration),
    "P99-WAIT": ("p99_wait_s", duration),
    "AVG-JCT": ("avg_jct_s", duration),
    "P99-JCT": ("p99_jct_s", duration),
    "GPUS-USED": ("gpu_utilization", lambda value: f"{value:.0%}"),
    "FAIRNESS": ("fairness", lambda value: f"{value:.2f}"),
    "STOPS": ("preemptions", lambda value: f"{value:.0f}"),
}


def what_if(
    policy: Annotated[
        str | None,
        typer.Option(
            help="Policies to compare, with commas between; also file.py:name, learned:FILE."
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(help="How far back: 7d, 12h.", show_default="all of the journal"),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A YAML file with policies and queues of your own.")
    ] = None,
    foreseen: Annotated[
        bool,
        typer.Option(
            "--foreseen", help="Let policies know what was foreseen, not true run times."
        ),
    ] = False,
    export: Annotated[
        Path | None,
        typer.Option(help="Write the jobs as a trace (.parquet), and beside it their nodes."),
    ] = None,
    watch: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Take the jobs of the cluster watched into DIR."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Replay the server's journal under other policies, and compare them with what happened."""
    names = [] if policy is None else listed(policy, "--policy")
    if not names and export is None:
        raise UserError("name policies to compare: --policy sjf,backfill; or --export a trace")
    since_s = None if since is None else seconds(since, "--since")
    text = None if config is None else _read(config)
    if watch is not None:
        _watched(watch, names, since_s, text, export, json)
        return
    files = [name for name in names if is_file(name) or name.startswith(LEARNED)]
    mine = own_policies(files)
    report: dict[str, Any] = {}
    with Client() as client:
        if export is not None:
            check_file(export, "--export")
            report["export"] = _export(client.journal_trace(since_s), export)
        answer = None
        if names:
            asked = [name for name in names if name not in files] or decides_there(client)
            answer = client.what_if(asked, since_s, text, foreseen=foreseen)
            if mine:
                answer = beside(answer, client.journal_trace(since_s, whole=True), mine, foreseen)
    if json:
        print_json(report if answer is None else report | to_json(answer))
    elif answer is not None:
        _show(answer)


def _watched(
    data: Path,
    names: list[str],
    since_s: float | None,
    config: str | None,
    export: Path | None,
    json: bool,
) -> None:
    """The same for a cluster that somebody else schedules."""
    from presage.cli.watch import watched

    if export is not None:
        raise UserError("--export goes with a server's journal, not with --watch")
    if not names:
        raise UserError("name policies to compare: --policy sjf,backfill")
    since = None if since_s is None else time.time() - since_s
    with watched(data) as known:
        answer = known.what_if(names, since, config)
    if json:
        print_json(answer)
        return
    _show_figures(answer["recorded"], answer["policies"], ())
    say(f"{answer['recorded']['jobs']:,.0f} jobs in {duration(answer['until'] - answer['since'])}")
    for note in answer["notes"]:
        say(f"note: {note}")


def _read(config: Path) -> str:
    try:
        return config.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {config} cannot be read: {error}") from None


def _export(exported: ExportedTrace, path: Path) -> dict[str, Any]:
    """Write the trace, and the nodes to a YAML file of the same name."""
    import polars as pl
    import yaml

    from presage.sim.traces import COLUMNS

    nodes = path.with_suffix(".yaml")
    pl.DataFrame(exported.jobs, schema=COLUMNS).write_parquet(path)
    listed = {"nodes": list(exported.nodes)}
    nodes.write_text(yaml.safe_dump(listed, sort_keys=False), encoding="utf-8")
    for note in exported.notes:
        say(f"note: {note}")
    jobs = len(exported.jobs["job_id"])
    say(f"wrote {jobs:,} jobs: presage simulate {path} --cluster {nodes} --policy fifo")
    return {"trace": str(path), "cluster": str(nodes), "jobs": jobs}


def _show_figures(
    recorded: Mapping[str, Any], policies: Mapping[str, Any], own_names: Collection[str]
) -> None:
    table: list[list[str]] = []
    own = [f"{name} *" if name in own_names else name for name in policies]
    rows = {"as it happened": recorded}
    rows |= dict(zip(own, policies.values(), strict=True))
    for name, figures in rows.items():
        cells = []
        for key, text in _COLUMNS.values():
            value = figures[key]
            cells.append("" if value is None else text(value))
        table.append([name, *cells])
    show_table([Column("POLICY"), *(Column(name, right=True) for name in _COLUMNS)], table)


def _show(report: WhatIf) -> None:
    _show_figures(report.recorded, report.policies, report.own)
    span = duration(report.until - report.since)
    say(f"{report.recorded['jobs'] or 0:,.0f} jobs in {span}")
    if report.own:
        say("* decides on this server")
    for note in report.notes:
        say(f"note: {note}")
    audit = report.audit
    if audit.same:
        say(f"audit: all {audit.decisions:,} decisions of the journal come out the same again")
    else:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(audit.first_difference_at))
        say(f"audit: {audit.decisions:,} decisions come out the same, at {at} one does not")
