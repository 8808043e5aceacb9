"""`presage scale`: how many workers an elastic job is to have, and the limits of its shares of
GPUs."""

from __future__ import annotations

from typing import Annotated

import typer

from presage.cli._asking import Yes, ask_before_loss
from presage.cli._input import JobId
from presage.cli._output import print_json
from presage.client import Client, to_json
from presage.model.errors import UserError

__all__ = ["scale"]


def scale(
    id: JobId,
    workers: Annotated[
        int | None, typer.Argument(metavar="[N]", help="Workers, of its first role or --role.")
    ] = None,
    role: Annotated[
        str | None, typer.Option(help="Of which role, such as ps.", show_default=False)
    ] = None,
    limit: Annotated[
        float | None, typer.Option(help="What its enforced shares of GPUs never pass, 0 to 1.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="GPU memory that each of them may hold, such as 4Gi.")
    ] = None,
    yes: Yes = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Give an elastic job N workers, within the range of its manifest.

    It takes a checkpoint where it can; if work would be lost, you are asked first. With --limit or
    --memory, hold its enforced shares of GPUs to that instead; it goes on running.
    """
    shares = limit is not None or memory is not None
    if shares == (workers is not None):
        raise UserError("write either a number of workers, or --limit and --memory of shares")
    if shares and role is not None:
        raise UserError("--role goes with a number of workers")
    with Client() as client:
        if workers is None:
            told = client.limit_shares(id, limit=limit, memory=memory)
        else:
            ask_before_loss(client, [id], f"scale it to {workers}", yes)
            told = client.scale(id, workers, role)
    if json:
        print_json(to_json(told))
    elif workers is None:
        typer.echo(f"{told.id} {told.status}: its shares of GPUs are held to that from now on")
    else:
        typer.echo(f"{told.id} {told.status}: {told.workers} {role or 'workers'} as there is room")
