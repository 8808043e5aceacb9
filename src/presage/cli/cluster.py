"""Commands about the cluster: nodes, drain, undrain, queues."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from presage.cli._output import print_json, say
from presage.client import Client, to_json

__all__ = ["drain", "nodes", "queues", "undrain"]

Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
NodeName = Annotated[str, typer.Argument(metavar="NODE", help="A node.")]


def nodes(json: Json = False) -> None:
    """List nodes, what is free on them, and who is there."""
    with Client() as client:
        listed = client.nodes()
    if json:
        print_json({"nodes": [to_json(node) for node in listed]})
        return
    table = Table(box=None, pad_edge=False)
    for name in ("NODE", "STATE", "GPUS FREE", "TYPE", "JOBS"):
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    for node in listed:
        free = f"{node.free_gpus:g} of {node.gpus}"
        jobs = ", ".join(node.jobs)
        table.add_row(node.name, node.state, free, ", ".join(node.gpu_types), jobs)
    Console().print(table)
    if any(node.memory_limits == "watched" for node in listed):
        say(
            "memory limits are watched, not held by the kernel: a job can pass its limit for a "
            "moment (docs: keep users apart)"
        )


def drain(node: NodeName, json: Json = False) -> None:
    """Give a node no new work, and move what runs there."""
    _turn(node, False, json)


def undrain(node: NodeName, json: Json = False) -> None:
    """Let a node take work again."""
    _turn(node, True, json)


def _turn(node: str, back: bool, json: bool) -> None:
    with Client() as client:
        changed = client.drain(node, back=back)
    if json:
        print_json(to_json(changed))
    else:
        typer.echo(f"{changed.name} {changed.state}")


def queues(json: Json = False) -> None:
    """List queues: what each may have, and what it has."""
    with Client() as client:
        listed = client.queues()
    if json:
        print_json({"queues": [to_json(queue) for queue in listed]})
        return
    table = Table(box=None, pad_edge=False)
    for name in ("QUEUE", "GPUS", "QUOTA", "LIMIT", "WEIGHT", "WAIT", "RUN"):
        table.add_column(name)
    for queue in listed:
        bounds = [queue.quota_gpus, queue.limit_gpus, queue.weight]
        table.add_row(
            queue.name,
            f"{queue.used_gpus:g}",
            *("" if bound is None else f"{bound:g}" for bound in bounds),
            str(queue.pending),
            str(queue.running),
        )
    Console().print(table)
