"""`presage doctor`: what of a cluster is there, for each way to use it. Changes nothing, but for
the job that `--try` submits."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from presage.cli._output import print_json
from presage.cli._tables import Column, show_table
from presage.executors.findings import Finding
from presage.model.errors import UserError

__all__ = ["doctor"]

_COLUMNS = (Column("FOR"), Column("THERE"), Column("WHAT"), Column("NOTE", spare=1))


def doctor(
    kubernetes: Annotated[
        bool, typer.Option("--kubernetes", help="Look at a Kubernetes cluster.")
    ] = False,
    context: Annotated[
        str | None,
        typer.Option(help="With --kubernetes: its context.", show_default="the current one"),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            help="With --kubernetes: where jobs would run.",
            show_default="that of the context, else default",
        ),
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(help="With --kubernetes: the file.", show_default="$KUBECONFIG"),
    ] = None,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="Look at the Slurm of this machine.")
    ] = False,
    partition: Annotated[
        str | None,
        typer.Option(help="With --slurm: the partition.", show_default="the default one"),
    ] = None,
    attempt: Annotated[
        bool, typer.Option("--try", help="With --slurm: submit a job of a minute that looks.")
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            help="With --try: the data directory that nodes must see.",
            show_default="~/.local/share/presage/server",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Say which permissions and features of a cluster are there, and what to do about the rest.

    Ends with 1 when something is missing that one of the ways to use the cluster needs.
    """
    if kubernetes == slurm:
        raise UserError("which cluster? write presage doctor --kubernetes or --slurm")
    if kubernetes:
        from presage.executors.kubernetes.api import connect
        from presage.executors.kubernetes.doctor import examine

        findings = examine(connect(context, kubeconfig=kubeconfig, namespace=namespace))
    else:
        from presage.control.site.settings import default_data
        from presage.executors.slurm.commands import SlurmCommands
        from presage.executors.slurm.doctor import examine as examine_slurm

        place = (data or default_data()).expanduser().absolute() if attempt else None
        findings = examine_slurm(SlurmCommands(), partition, place)
    _show(findings, json=json)


def _show(findings: list[Finding], *, json: bool) -> None:
    missing = [one for one in findings if one.needed and not one.good]
    if json:
        print_json({"findings": [asdict(one) for one in findings], "good": not missing})
    else:
        show_table(_COLUMNS, [[one.group, _word(one), one.what, one.text] for one in findings])
    if missing:
        raise typer.Exit(1)


def _word(one: Finding) -> Text:
    if one.good:
        return Text("yes", style="green")
    return Text("no", style="red" if one.needed else "yellow")
