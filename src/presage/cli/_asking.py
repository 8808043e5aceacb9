"""Asking before work is lost. What would be lost, the server says."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from presage.cli._output import say
from presage.client import Client
from presage.model.errors import UserError

__all__ = ["Yes", "ask_before_loss"]

Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask, also where work would be lost.")
]


def ask_before_loss(client: Client, jobs: Sequence[str], what: str, yes: bool) -> None:
    """Go on if nothing of these jobs would be lost, or somebody agrees; in a pipe nobody can."""
    if yes:
        return
    infos = [client.job(job).info for job in jobs]
    risky = [info for info in infos if info.at_risk is not None and info.at_risk.ask]
    if not risky:
        return
    lost = [f"{info.id}: {info.at_risk.text}" for info in risky if info.at_risk is not None]
    if not sys.stdin.isatty():
        more = f" (and {len(lost) - 1} more jobs)" if len(lost) > 1 else ""
        raise UserError(f"{lost[0]}{more}; give --yes to {what} all the same")
    for line in lost:
        say(line)
    if not typer.confirm(f"{what[0].upper()}{what[1:]} all the same?", err=True):
        raise typer.Exit(1)
