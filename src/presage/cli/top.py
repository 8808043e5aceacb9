"""`presage top`: the cluster in the terminal, every two seconds anew."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from presage.cli._job_words import span_words, styled_status, with_reasons
from presage.cli._output import print_json
from presage.cli._tables import Cell, Column, plain_lines, table_lines
from presage.cli.cluster import NODE_COLUMNS, node_row
from presage.client import Client, to_json
from presage.model.answers import JobSummary
from presage.model.errors import UserError
from presage.model.server_answers import NodeStatus, ShareStatus

__all__ = ["top"]

_EVERY_S = 2.0
_NODES = 8
_ROWS = 12
_BAR = 20
_RUNS = ["DOWNLOADING", "PROCESSING", "STORING"]


def top(
    once: Annotated[bool, typer.Option("--once", help="Print one picture and end.")] = False,
    json: Annotated[bool, typer.Option("--json", help="With --once: print it as JSON.")] = False,
) -> None:
    """Watch the cluster: nodes, running jobs, and the queue with its estimates; q ends."""
    if json and not once:
        raise UserError("--json prints one picture: give --once too")
    console = Console()
    with Client() as client:
        if once:
            seen = _look(client)
            if json:
                print_json(to_json(seen))
            elif console.is_terminal:
                console.print(_picture(seen, console.width))
            else:
                _print_plain(seen)
            return
        with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(_picture(_look(client), console.width), refresh=True)
                if pressed(_EVERY_S):
                    return


@dataclass(frozen=True, slots=True)
class _Seen:
    """What there is to show."""

    at: float
    nodes: list[NodeStatus]
    jobs_running: int
    jobs_waiting: int
    running: list[JobSummary]
    waiting: list[JobSummary]
    shares: list[ShareStatus]
    """Enforced shares of GPUs, the one that waits most first."""


def _look(client: Client) -> _Seen:
    nodes = client.nodes()
    running = [job.summary for job in client.jobs(status=_RUNS, limit=100)]
    waiting = [job.summary for job in client.jobs(status=["QUEUED"], limit=1000)][::-1]
    queues = client.queues()
    shares = client.shares()
    return _Seen(
        time.time(),
        nodes,
        sum(queue.running for queue in queues),
        sum(queue.pending for queue in queues),
        running,
        with_reasons(client, waiting[:100]) + waiting[100:],
        sorted(shares, key=lambda one: (-(one.waited or 0.0), one.job, one.worker)),
    )


def _picture(seen: _Seen, width: int) -> Group:
    """One picture for a terminal of this width."""
    parts = [Text(""), *_section(_running(seen), width), Text("")]
    if seen.shares:
        parts += [*_section(_shares(seen), width), Text("")]
    return Group(_head(seen), *_bars(seen.nodes), *parts, *_section(_waiting(seen), width))


def _print_plain(seen: _Seen) -> None:
    """The same for a pipe: tables, an empty line between."""
    typer.echo(_head(seen).plain)
    typer.echo("\n".join(plain_lines(NODE_COLUMNS, [node_row(node) for node in seen.nodes])))
    shares = [_shares(seen)] if seen.shares else []
    for columns, rows in (_running(seen), *shares, _waiting(seen)):
        typer.echo()
        typer.echo("\n".join(plain_lines(columns, rows)))


def _head(seen: _Seen) -> Text:
    nodes = seen.nodes
    up = sum(node.state == "up" for node in nodes)
    parts = [
        f" · {held:g} of {all_:g} {name} held ({held / all_:.0%})"
        for name, held, all_ in _totals(nodes)
        if all_
    ]
    return Text.assemble(
        (time.strftime("%H:%M:%S ", time.localtime(seen.at)), "dim"),
        (f"{up} of {len(nodes)} node{'s' if len(nodes) != 1 else ''} up", "bold"),
        *parts[:1],
        f" · {seen.jobs_running} run · {seen.jobs_waiting} wait",
    )


def _totals(nodes: list[NodeStatus]) -> list[tuple[str, float, float]]:
    """What is held and what there is: GPUs, then cores where they are counted."""
    gpus = float(sum(node.gpus for node in nodes))
    cpus = [(node.cpus, node.free_cpus or 0.0) for node in nodes if node.cpus]
    return [
        ("GPUs", gpus - sum(node.free_gpus for node in nodes), gpus),
        ("cores", sum(all_ - free for all_, free in cpus), sum(all_ for all_, _ in cpus)),
    ]


def _bars(nodes: list[NodeStatus]) -> list[Text]:
    """The fullest nodes, each with a bar: of its GPUs, or of its cores if it has none."""
    measured = []
    for node in nodes:
        ((_, gpus, all_gpus), (_, cores, all_cores)) = _totals([node])
        held, all_, unit = (gpus, all_gpus, "GPUs") if all_gpus else (cores, all_cores, "cores")
        measured.append((held / all_ if all_ else 0.0, held, all_, unit, node))
    measured.sort(key=lambda item: (-item[0], item[4].name))
    width = max((len(node.name) for *_, node in measured[:_NODES]), default=0)
    lines = []
    for part, held, all_, unit, node in measured[:_NODES]:
        full = round(_BAR * part)
        line = Text(f"{node.name:<{width}}  ").append("█" * full, style="green")
        line.append("░" * (_BAR - full), style="dim")
        line.append(f"  {held:g} of {all_:g} {unit}" if all_ else "  nothing is counted")
        lines.append(line.append("" if node.state == "up" else f"  {node.state}", style="red"))
    if len(nodes) > _NODES:
        lines.append(Text(f"and {len(nodes) - _NODES} more", style="dim"))
    return lines


_Rows = tuple[list[Column], list[list[Cell]]]


def _running(seen: _Seen) -> _Rows:
    columns = [
        Column("RUNNING"),
        Column("STATUS"),
        Column("WORKERS", right=True, spare=2),
        Column("DONE", right=True, spare=1),
        Column("WHERE"),
    ]
    rows: list[list[Cell]] = []
    for job in seen.running:
        done = (job.progress or {}).get("done")
        where = ", ".join(job.nodes)
        share_done = "" if done is None else f"{done:.0%}"
        rows.append([job.id, styled_status(job), str(job.workers or ""), share_done, where])
    return columns, rows


def _shares(seen: _Seen) -> _Rows:
    heads = ("ASKED", "LIMIT", "GOT", "WAITED", "MEMORY", "OF")
    columns = [Column("GPU SHARE OF"), *(Column(head, right=True) for head in heads)]
    return columns, [
        [
            f"{one.job}/{one.worker}",
            *(
                "" if part is None else f"{part:.0%}"
                for part in (one.request, one.limit, one.got, one.waited)
            ),
            *(
                "" if mib is None else f"{mib:.0f}Mi"
                for mib in (one.memory_mib, one.memory_limit_mib)
            ),
        ]
        for one in seen.shares
    ]


def _waiting(seen: _Seen) -> _Rows:
    columns = [Column("WAITING"), Column("STARTS"), Column("WHY")]
    return columns, [[job.id, span_words(job.eta_s), job.reason.text] for job in seen.waiting]


def _section(table: _Rows, width: int) -> list[Text]:
    columns, rows = table
    lines = table_lines(columns, rows[:_ROWS], width)
    if len(rows) > _ROWS:
        lines.append(Text(f"and {len(rows) - _ROWS} more", style="dim"))
    return lines


@contextmanager
def _keys() -> Iterator[Any]:
    """A function that waits so many seconds and says whether q was pressed meanwhile."""
    if not sys.stdin.isatty():
        yield lambda seconds: time.sleep(seconds)
        return
    import termios
    import tty

    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    tty.setcbreak(file)

    def pressed(seconds: float) -> bool:
        ready = select.select([file], [], [], seconds)[0]
        return bool(ready) and sys.stdin.read(1).lower() == "q"

    try:
        yield pressed
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)
