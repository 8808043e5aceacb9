"""`presage top`: the cluster in the terminal, every two seconds anew."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from presage.cli._output import print_json
from presage.cli.jobs import span_words, styled_status
from presage.client import Client, to_json
from presage.model.answers import JobSummary, NodeStatus
from presage.model.errors import UserError

__all__ = ["top"]

_EVERY_S = 2.0
_NODES = 8
_ROWS = 12
_LONGEST_NAME = 40
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
            else:
                console.print(_picture(seen))
            return
        with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(_picture(_look(client)), refresh=True)
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


def _look(client: Client) -> _Seen:
    nodes = client.nodes()
    running = [job.summary for job in client.jobs(status=_RUNS, limit=100)]
    waiting = [job.summary for job in client.jobs(status=["QUEUED"], limit=1000)][::-1]
    queues = client.queues()
    asked = [job.id for job in waiting[:100]]
    reasons = {item.id: item.reason for item in (client.waiting(asked) if asked else ())}
    return _Seen(
        time.time(),
        nodes,
        sum(queue.running for queue in queues),
        sum(queue.pending for queue in queues),
        running,
        [replace(job, reason=reasons.get(job.id, job.reason)) for job in waiting],
    )


def _picture(seen: _Seen) -> Group:
    """One picture, at most 80 columns wide where the terminal is."""
    nodes = seen.nodes
    gpus = sum(node.gpus for node in nodes)
    held = gpus - sum(node.free_gpus for node in nodes)
    up = sum(node.state == "up" for node in nodes)
    head = Text.assemble(
        (time.strftime("%H:%M:%S ", time.localtime(seen.at)), "dim"),
        (f"{up} of {len(nodes)} nodes up", "bold"),
        f" · {held:g} of {gpus} GPUs held",
        f" ({held / gpus:.0%})" if gpus else "",
        f" · {seen.jobs_running} run · {seen.jobs_waiting} wait",
    )
    parts: list[Any] = [head, _node_bars(nodes), Text(""), _running(seen.running)]
    return Group(*parts, Text(""), _waiting(seen.waiting))


def _node_bars(nodes: list[NodeStatus]) -> Table:
    """The fullest nodes, each with a bar."""
    table = Table.grid(padding=(0, 2))
    shown = sorted(nodes, key=lambda node: (node.free_gpus - node.gpus, node.name))
    for node in shown[:_NODES]:
        held = node.gpus - node.free_gpus
        full = round(20 * held / node.gpus) if node.gpus else 0
        bar = Text("█" * full, style="green").append("░" * (20 - full), style="dim")
        state = "" if node.state == "up" else node.state
        table.add_row(node.name, bar, f"{held:g} of {node.gpus}", Text(state, style="red"))
    if len(nodes) > _NODES:
        table.add_row(Text(f"and {len(nodes) - _NODES} more", style="dim"))
    return table


def _running(jobs: list[JobSummary]) -> Table:
    table = _table(jobs, "RUNNING", "STATUS", "WORKERS", "DONE", "WHERE")
    for job in jobs[:_ROWS]:
        done = (job.progress or {}).get("done")
        table.add_row(
            job.id,
            styled_status(job),
            str(job.workers or ""),
            "" if done is None else f"{done:.0%}",
            ", ".join(job.nodes),
        )
    return _and_more(table, len(jobs))


def _waiting(jobs: list[JobSummary]) -> Table:
    table = _table(jobs, "WAITING", "STARTS IN", "WHY")
    for job in jobs[:_ROWS]:
        table.add_row(job.id, span_words(job.eta_s), job.reason.text)
    return _and_more(table, len(jobs))


def _table(jobs: list[JobSummary], *names: str) -> Table:
    """A table whose first column keeps the names of jobs whole; the last one makes room."""
    table = Table(box=None, pad_edge=False)
    longest = max((len(job.id) for job in jobs[:_ROWS]), default=0)
    table.add_column(names[0], no_wrap=True, min_width=min(longest, _LONGEST_NAME))
    for name in names[1:-1]:
        table.add_column(name, no_wrap=True, min_width=len(name))
    table.add_column(names[-1], no_wrap=True, overflow="ellipsis", ratio=1)
    return table


def _and_more(table: Table, count: int) -> Table:
    if count > _ROWS:
        table.add_row(Text(f"and {count - _ROWS} more", style="dim"))
    return table


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
