"""Commands about the cluster: nodes, drain, undrain, queues, users."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from presage.cli._asking import Yes, ask_before_loss
from presage.cli._input import NodeName
from presage.cli._output import print_json, say
from presage.cli._tables import Cell, Column, show_table
from presage.client import Client, to_json
from presage.model.answers import NodeStatus

__all__ = ["NODE_COLUMNS", "drain", "node_row", "nodes", "queues", "undrain", "users"]

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


users = typer.Typer(help="Who may use the server.", invoke_without_command=True)


@users.callback()
def list_users(context: typer.Context, json: Json = False) -> None:
    """Who may use the server: a list, or `add` and `remove`."""
    if context.invoked_subcommand is not None:
        return
    with Client() as client:
        known = client.users()
    if json:
        print_json({"users": [to_json(user) for user in known]})
        return
    if not known:
        say("no users: whoever reaches the loopback address may do everything")
        return
    heads = [Column("USER"), Column("ROLE"), Column("TEAM")]
    show_table(heads, [[user.name, user.role, user.team] for user in known])


@users.command()
def add(
    name: Annotated[str, typer.Argument(help="Lower case letters, digits, dots and dashes.")],
    role: Annotated[str, typer.Option(help="viewer, user, operator or admin.")] = "user",
    team: Annotated[str, typer.Option(help="Users see the jobs of their team.")] = "",
    json: Json = False,
) -> None:
    """Let somebody in, or give a new token; it is printed this once."""
    with Client() as client:
        made = client.add_user(name, role, team)
    if json:
        print_json(to_json(made))
        return
    typer.echo(made.token)
    say(f"{name} is a {role}; this token is not shown again (PRESAGE_TOKEN)")


@users.command()
def remove(name: Annotated[str, typer.Argument(help="A user.")], json: Json = False) -> None:
    """Take somebody's access away; the jobs stay."""
    with Client() as client:
        gone = client.remove_user(name)
    if json:
        print_json(to_json(gone))
    else:
        typer.echo(f"{gone.name} removed")
