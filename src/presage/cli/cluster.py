"""Commands about the cluster: nodes, drain, undrain, queues."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.text import Text

from presage.cli._asking import Yes, ask_before_loss
from presage.cli._input import NodeName
from presage.cli._output import print_json, say
from presage.cli._tables import Cell, Column, show_table
from presage.client import Client, to_json
from presage.model.server_answers import NodeStatus

__all__ = ["NODE_COLUMNS", "drain", "node_row", "nodes", "queues", "undrain"]

Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]

NODE_COLUMNS = (
    Column("NODE"),
    Column("STATE"),
    Column("FREE-GPUS"),
    Column("TYPE", spare=3),
    Column("FREE-CPUS"),
    Column("FREE-MEMORY", spare=2),
    Column("JOBS"),
)
"""Of a list of nodes; what no node has is not shown on a terminal."""


def nodes(json: Json = False) -> None:
    """List nodes, what is free on them, and who is there."""
    with Client() as client:
        listed = client.nodes()
    if json:
        print_json({"nodes": [to_json(node) for node in listed]})
        return
    if not listed:
        say("no nodes")
        return
    show_table(NODE_COLUMNS, [node_row(node) for node in listed])
    watched = any(node.memory_limits == "watched" for node in listed)
    if watched and sys.stdout.isatty():
        say(
            "memory limits are watched, not held by the kernel: a job can pass its limit for a "
            "moment"
        )


def node_row(node: NodeStatus) -> list[Cell]:
    """A node in a list: what is free of what there is."""
    gpus = f"{node.free_gpus:g}/{node.gpus}" if node.gpus else ""
    cpus = f"{node.free_cpus:g}/{node.cpus:g}" if node.cpus and node.free_cpus is not None else ""
    memory = ""
    if node.memory_mib and node.free_memory_mib is not None:
        memory = f"{node.free_memory_mib / 1024:.3g}/{node.memory_mib / 1024:.3g}GiB"
    state = Text(node.state, style="" if node.state == "up" else "red")
    types = ",".join(node.gpu_types)
    return [node.name, state, gpus, types, cpus, memory, ", ".join(node.jobs)]


def drain(node: NodeName, yes: Yes = False, json: Json = False) -> None:
    """Give a node no new work, and move what runs there.

    If work of a job there would be lost, you are asked first.
    """
    with Client() as client:
        begun = [each for each in client.nodes() if each.name.startswith(node)] if node else []
        meant = [each for each in begun if each.name == node] or begun
        if len(meant) == 1 and meant[0].state == "up":
            ask_before_loss(client, meant[0].jobs, f"drain {meant[0].name}", yes)
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
    heads = ("WAIT", "RUN", "WEIGHT", "GPUS", "QUOTA", "LIMIT")
    rows = []
    for queue in listed:
        bounds = [queue.quota_gpus, queue.limit_gpus]
        held = f"{queue.used_gpus:g}" if queue.used_gpus or any(bounds) else ""
        counts = [str(queue.pending), str(queue.running), f"{queue.weight:g}", held]
        limits = ["" if bound is None else f"{bound:g}" for bound in bounds]
        rows.append([queue.name, *counts, *limits])
    show_table([Column("QUEUE"), *(Column(head, right=True) for head in heads)], rows)
