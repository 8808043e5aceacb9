"""`presage usage`: what users, teams and queues asked for, held, used and lost."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta
from typing import Annotated

import typer

from presage.cli._output import print_json, say
from presage.model.errors import UserError
from presage.model.server_answers import UsageReport, UsageSums

__all__ = ["usage"]

_BY = ("user", "team", "queue")


def usage(
    by: Annotated[str, typer.Option(help=f"{', '.join(_BY)}.")] = "user",
    since: Annotated[
        str, typer.Option(help="How far back: 30d, 12w, or a day such as 2026-11-01.")
    ] = "30d",
    until: Annotated[
        str | None, typer.Option(help="The last day, in UTC.", show_default="today")
    ] = None,
    daily: Annotated[bool, typer.Option("--daily", help="A line for each day.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV, a line for each day.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Show what was used: GPU hours asked, held, used, idle and lost, CPU hours, and money."""
    from presage.client import Client

    if by not in _BY:
        raise UserError(f"--by {by}: there are {', '.join(_BY)}")
    last = _day(until, "--until") if until else datetime.now(UTC).date()
    query = {"by": by, "since": _first(since, last).isoformat(), "until": last.isoformat()}
    with Client() as client:
        if csv:
            typer.echo(client.usage_csv(**query), nl=False)
            return
        report = client.usage(**query)
    if json:
        print_json(asdict(report))
    else:
        _show(report, daily=daily)


def _show(report: UsageReport, *, daily: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    rows = report.days if daily else report.sums
    if not rows:
        say(f"nothing ran from {report.since} to {report.until}")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    if daily:
        table.add_column("DAY", no_wrap=True)
    table.add_column(report.by.upper(), overflow="ellipsis", no_wrap=True)
    for name in ("ASKED", "HELD", "USED", "IDLE", "LOST", "CPU H", "USD"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in (*rows, report.total) if len(rows) > 1 else rows:
        key = "total" if row is report.total else row.key or "(none)"
        start = [row.day or ""] if daily else []
        table.add_row(*start, key, *_amounts(row))
    Console().print(table)
    say(f"GPU hours from {report.since} to {report.until} (UTC); {report.prices}")
    if report.total.unpriced_gpu_h:
        say(f"{report.total.unpriced_gpu_h:,.1f} GPU hours are of GPUs without a price")


def _amounts(row: UsageSums) -> list[str]:
    measured = row.measured_gpu_h > 0
    hours = [f"{row.asked_gpu_h:,.1f}", f"{row.held_gpu_h:,.1f}"]
    hours += [f"{row.used_gpu_h:,.1f}", f"{row.idle_gpu_h:,.1f}"] if measured else ["-", "-"]
    return [*hours, f"{row.lost_gpu_h:,.1f}", f"{row.cpu_h:,.1f}", f"{row.cost_usd:,.2f}"]


def _first(text: str, last: date) -> date:
    match = re.fullmatch(r"(\d{1,5})([dw])", text)
    if match is None:
        return _day(text, "--since")
    days = int(match[1]) * (7 if match[2] == "w" else 1)
    return last - timedelta(days=min(3659, max(1, days) - 1))


def _day(text: str, option: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise UserError(f"{option} {text}: write 30d, 12w, or a day such as 2026-11-01") from None
