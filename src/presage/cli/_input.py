"""What people write after a command and its options: jobs, nodes, times and lists of names."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import typer

from presage.manifest.quantities import duration_s
from presage.model.errors import UserError

__all__ = ["JobId", "NodeName", "listed", "seconds"]

_OFFERED = 200


def _jobs(incomplete: str) -> list[str]:
    """Names and ids of jobs that go on like this, for the completion of a shell."""
    from presage.client import Client

    with suppress(Exception), Client(patience_s=0.0) as client:
        jobs = list(client.jobs(limit=_OFFERED))
        known = [job.summary.name for job in jobs] + [job.id for job in jobs]
        return [name for name in dict.fromkeys(known) if name.startswith(incomplete)]
    return []


def _nodes(incomplete: str) -> list[str]:
    from presage.client import Client

    with suppress(Exception), Client(patience_s=0.0) as client:
        return [node.name for node in client.nodes() if node.name.startswith(incomplete)]
    return []


JobId = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="A job: its id, the beginning of it, or its name.",
        autocompletion=_jobs,
    ),
]
NodeName = Annotated[
    str,
    typer.Argument(
        metavar="NODE", help="A node, or the beginning of its name.", autocompletion=_nodes
    ),
]


def seconds(text: str, option: str) -> float:
    """A time above zero: `15s`, `10m`, `1h30m`, or a number of seconds."""
    try:
        plain = text.strip().replace(".", "", 1).isdecimal()
        length_s = duration_s(float(text) if plain else text)
    except ValueError as wrong:
        raise UserError(f"{option}: {wrong}") from None
    if length_s <= 0:
        raise UserError(f"{option}: give a time above 0, such as 15s or 10m, not {text!r}")
    return length_s


def listed(text: str, option: str) -> list[str]:
    """Names with commas between, each once."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise UserError(f"{option} names nothing; give names with commas between")
    return names
