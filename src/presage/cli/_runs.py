"""Tables of runs that people have: CSV or Parquet, in any order of columns.

Reads and checks that it is a table with rows; knows nothing of what is in it.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from presage.model.errors import UserError

__all__ = ["read_runs"]


def read_runs(path: Path, *, empty: bool = False) -> pl.DataFrame:
    """The table in a file, or an error that says what is wrong with it; `empty` if it may have no
    rows."""
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    try:
        if path.suffix.lower() == ".parquet":
            table = pl.read_parquet(path)
        else:
            table = pl.read_csv(path, infer_schema_length=None, null_values=["", "NA", "-"])
    except (pl.exceptions.PolarsError, OSError, ValueError) as error:
        line = str(error).splitlines()[0][:120]
        raise UserError(f"{path} cannot be read as a table: {line}") from None
    if not table.height and not empty:
        raise UserError(f"{path} has no rows")
    return table
