"""What the commands of `presage health` share: their telemetry, their options, their tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import polars as pl
import typer

from presage.cli._input import listed
from presage.cli._output import check_file, say
from presage.model.errors import UserError
from presage.telemetry.readers import InputRows, read_rows

__all__ = ["AsJson", "Id", "Ignore", "Telemetry", "Time", "check_table", "read", "write_table"]

LABELS = ("label", "labels", "anomaly", "is_anomaly", "attack", "ground_truth", "truth")
"""Columns that say what is to be found are never metrics."""

Telemetry = Annotated[Path, typer.Argument(help="A .csv or .parquet file, long or wide.")]
Id = Annotated[
    str | None,
    typer.Option("--id", help="The column that names the series.", show_default="by its name"),
]
Time = Annotated[
    str | None, typer.Option("--time", help="The column of times.", show_default="by its name")
]
Ignore = Annotated[
    str | None,
    typer.Option(help="Columns that are no metrics, with commas between.", show_default="labels"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


def read(telemetry: Path, id: str | None, time: str | None, ignore: str | None) -> InputRows:
    """The series of a file, without columns that say what is to be found."""
    out = [] if ignore is None else listed(ignore, "--ignore")
    rows = read_rows(telemetry, id, time, out, LABELS)
    if named := [name for name in rows.left_out if name not in out]:
        say(f"left out, for it says what is to be found: {', '.join(named)}")
    if rows.no_numbers:
        say(f"not looked at, for it holds no numbers: {', '.join(rows.no_numbers)}")
    return rows


def check_table(out: Path) -> None:
    """Refuse a table that cannot be written, before there is work in it."""
    check_file(out, "--out")
    if out.suffix.lower() not in (".csv", ".parquet"):
        raise UserError(f"--out {out}: the name must end in .csv or .parquet")


def write_table(table: pl.DataFrame, out: Path) -> None:
    """As its name says, CSV or Parquet."""
    try:
        if out.suffix.lower() == ".parquet":
            table.write_parquet(out)
        else:
            table.write_csv(out)
    except OSError as error:
        raise UserError(f"--out {out} cannot be written: {error.strerror or error}") from None
