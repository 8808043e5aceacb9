"""Every table of a database in a file, and back: from SQLite or PostgreSQL to either.

A dump is of one moment, however long it takes and whoever writes meanwhile. It holds tables as
they are, not as this version would have them: a dump of an older version is loaded as such and
then brought up to date. Nothing here knows what the rows say.
"""

from __future__ import annotations

import gzip
import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Integer, MetaData, Table, func, inspect, select, text, update

from presage.model.errors import UserError
from presage.store.database import Database
from presage.store.tables import head

__all__ = ["dump_database", "is_empty", "loading"]

_ROWS = 500
"""Rows of a line."""
_REVISIONS = "alembic_version"


def dump_database(url: str, path: Path) -> tuple[str, dict[str, int]]:
    """Write all tables to a compressed file of JSON lines; their revision, and how many rows each
    has. The database may be in use."""
    with closing(Database(url, migrate=False)) as database, database.read_whole() as connection:
        revision = database.revision(connection)
        if revision is None:
            raise UserError("there is no Presage server's database at that address")
        counts: dict[str, int] = {}
        with gzip.open(path, "wt", compresslevel=1, encoding="utf-8") as file:
            for table in _tables(connection):
                names = [column.name for column in table.columns]
                file.write(json.dumps({"table": table.name, "columns": names}) + "\n")
                counts[table.name] = 0
                rows = iter(connection.execute(select(table).order_by(*table.primary_key)))
                while batch := [list(map(_plain, row)) for row in islice(rows, _ROWS)]:
                    file.write(json.dumps(batch, separators=(",", ":")) + "\n")
                    counts[table.name] += len(batch)
        return revision, counts


@contextmanager
def loading(url: str, path: Path, revision: str) -> Iterator[dict[str, int]]:
    """Fill an empty database with a dump of some revision, and bring it up to date: all of it is
    there when the block ends, or nothing if that raises. Gives how many rows each table got."""
    with closing(Database(url, migrate=False)) as database, database.write() as connection:
        if inspect(connection).get_table_names():
            raise UserError("the database is not empty; give one that is")
        database.upgrade(connection, revision)
        tables = {table.name: table for table in _tables(connection)}
        counts: dict[str, int] = {}
        for table in reversed(tables.values()):
            connection.execute(table.delete())  # a revision may begin with rows
        for name, columns, rows in _batches(path):
            values = [dict(zip(columns, map(_value, row), strict=True)) for row in rows]
            if name not in tables:
                raise UserError(f"the backup has a table {name} that its revision does not know")
            counts[name] = counts.get(name, 0) + len(values)
            if values:
                connection.execute(tables[name].insert(), values)
        if not database.is_sqlite:
            for table in tables.values():
                _count_on(connection, table)
        database.upgrade(connection)
        # Whoever led the old one does not lead this one.
        connection.execute(update(head).values(holder="", url="", expires_at=0.0))
        yield counts


def is_empty(url: str) -> bool:
    """Whether a database has no tables yet."""
    with closing(Database(url, migrate=False)) as database, database.read() as connection:
        return not inspect(connection).get_table_names()


def _tables(connection: Connection) -> list[Table]:
    """As they are in the database, those that others point to first."""
    metadata = MetaData()
    metadata.reflect(connection)
    return [table for table in metadata.sorted_tables if table.name != _REVISIONS]


def _batches(path: Path) -> Iterator[tuple[str, list[str], list[list[Any]]]]:
    name, columns = "", list[str]()
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            read = json.loads(line)
            if isinstance(read, dict):
                name, columns = read["table"], read["columns"]
                yield name, columns, []
            else:
                yield name, columns, read


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | memoryview):
        return {"b64": b64encode(value).decode("ascii")}
    return value


def _value(value: Any) -> Any:
    return b64decode(value["b64"]) if isinstance(value, dict) else value


def _count_on(connection: Connection, table: Table) -> None:
    """PostgreSQL numbers new rows by itself: behind those that are there."""
    for column in table.primary_key:
        if not isinstance(column.type, Integer):
            continue
        names = {"table": table.name, "column": column.name}
        sequence = connection.scalar(text("SELECT pg_get_serial_sequence(:table, :column)"), names)
        latest = connection.scalar(select(func.max(column)))
        if sequence is not None and latest is not None:
            connection.execute(text("SELECT setval(:s, :n)"), {"s": sequence, "n": latest})
