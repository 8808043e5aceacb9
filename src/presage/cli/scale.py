"""`presage scale`: how many workers an elastic job is to have."""

from __future__ import annotations

from typing import Annotated

import typer

from presage.cli._asking import Yes, ask_before_loss
from presage.cli._input import JobId
from presage.cli._output import print_json
from presage.client import Client, to_json

__all__ = ["scale"]


def scale(
    id: JobId,
    workers: Annotated[int, typer.Argument(metavar="N", help="Workers of its first role.")],
    yes: Yes = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Give an elastic job N workers, within the range of its manifest.

    It takes a checkpoint where it can; if work would be lost, you are asked first.
    """
    with Client() as client:
        ask_before_loss(client, [id], f"scale it to {workers}", yes)
        told = client.scale(id, workers)
    if json:
        print_json(to_json(told))
    else:
        typer.echo(f"{told.id} {told.status}: {told.workers} workers as there is room")
