"""The tables as the newest revision has them; `migrations/` says how a database gets there.

docs/reference/store.md describes every table and column. Nothing here opens a connection.
"""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    insert,
    text,
)
from sqlalchemy.types import TypeDecorator

__all__ = [
    "NEWEST",
    "arrays",
    "audit",
    "head",
    "jobs",
    "journal",
    "knowledge",
    "make_tables",
    "metadata",
    "outbox",
    "snapshots",
    "to_json",
    "tokens",
    "transitions",
    "usage",
    "usage_head",
    "users",
]

NEWEST = "0008"
"""The revision that these tables are."""


class Words(TypeDecorator[str]):
    """Text from anywhere, a program's last words included: what no database takes is replaced."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """The text without NUL and without halves of a surrogate pair."""
        if value is None or (value.isascii() and "\0" not in value):
            return value
        return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


class Json(TypeDecorator[Any]):
    """JSON as text: both databases keep it as it is, and neither is asked about what is inside."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """The text; a loss that is not a number becomes null, as JSON has no word for it."""
        if value is None:
            return None
        try:
            return to_json(value)
        except ValueError:
            return to_json(_finite(value))

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        """What the text says."""
        return None if value is None else json.loads(value)


_encoder = json.JSONEncoder(allow_nan=False, separators=(",", ":"), default=dict)


def to_json(value: Any) -> str:
    """JSON in one line; raises ValueError for a number that JSON does not know."""
    return _encoder.encode(value)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


metadata = MetaData()


def make_tables(connection: Connection) -> None:
    """Make the tables in an empty database: what all revisions together lead to, without them."""
    metadata.create_all(connection, checkfirst=False)
    connection.execute(insert(head), {**_START, "holder": "", "url": ""})
    # As alembic makes it, which brings this database to later revisions.
    connection.execute(
        text(
            "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, "
            "CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
        )
    )
    connection.execute(text("INSERT INTO alembic_version VALUES (:newest)"), {"newest": NEWEST})


_START = {"id": 1, "appends": 0, "position": 0, "jobs": 0, "lease": 0, "expires_at": 0.0}
_Serial = BigInteger().with_variant(Integer, "sqlite")  # SQLite counts up INTEGER keys only


def _required(name: str, kind: Any, *more: Any) -> Column[Any]:
    return Column(name, kind, *more, nullable=False)


# -- revision 1: the journal ----------------------------------------------------------------------

head = Table(
    "head",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    _required("appends", BigInteger),
    _required("position", BigInteger),
    _required("jobs", BigInteger),
    _required("lease", BigInteger),
    _required("holder", Text),
    _required("url", Text),
    _required("expires_at", Double),
)
journal = Table(
    "journal",
    metadata,
    Column("position", _Serial, primary_key=True, autoincrement=False),
    _required("now", Double),
    _required("lease", BigInteger),
    _required("facts", Text),
    _required("decisions", Text),
)
snapshots = Table(
    "snapshots",
    metadata,
    Column("position", _Serial, primary_key=True, autoincrement=False),
    _required("now", Double),
    _required("body", Text),
)

# -- revision 2: what users see, and who they are -------------------------------------------------

jobs = Table(
    "jobs",
    metadata,
    Column("seq", _Serial, primary_key=True, autoincrement=False),
    Column("id", Text, nullable=False, unique=True),
    _required("name", Words),
    _required("owner", Text),
    _required("team", Text),
    _required("queue", Text),
    _required("status", Text),
    _required("stage", Words),
    _required("reason_code", Text),
    _required("reason_text", Words),
    _required("attempt", Integer),
    _required("workers", Integer),
    _required("nodes", Json),
    _required("submitted_at", Double),
    Column("started_at", Double),
    Column("ended_at", Double),
    Column("exit_code", Integer),
    Column("progress", Json),
    _required("manifest", Json),
    Column("folder", Text),
    Column("estimates", Json),  # revision 3
    Column("removed_at", Double),  # revision 8
    Column("array", Text),  # revision 7
    Column("params", Json),
    Column("metric", Double),
    Index("jobs_by_owner", "owner", "seq"),
    Index("jobs_by_team", "team", "seq"),
    Index("jobs_by_queue", "queue", "seq"),
    Index("jobs_by_status", "status", "seq"),
    Index("jobs_by_array", "array", "seq"),
)
transitions = Table(
    "transitions",
    metadata,
    Column("number", _Serial, primary_key=True),
    _required("job", Text, ForeignKey("jobs.id")),
    _required("at", Double),
    _required("status", Text),
    _required("reason_code", Text),
    _required("reason_text", Words),
    Index("transitions_by_job", "job", "number"),
)
outbox = Table(
    "outbox",
    metadata,
    Column("id", _Serial, primary_key=True),
    _required("job", Text),
    _required("url", Text),
    _required("body", Json),
    _required("attempts", Integer),
    Column("next_at", Double),
    Column("delivered_at", Double),
    Index("outbox_by_next_at", "next_at"),
)
users = Table(
    "users",
    metadata,
    Column("name", Text, primary_key=True),
    _required("role", Text),
    _required("team", Text),
    _required("created_at", Double),
    Column("subject", Text),  # since revision 5
    Index("users_by_subject", "subject", unique=True),
)
tokens = Table(
    "tokens",
    metadata,
    Column("digest", Text, primary_key=True),
    _required("user", Text, ForeignKey("users.name", ondelete="CASCADE")),
    _required("created_at", Double),
    Column("revoked_at", Double),
    Column("expires_at", Double),  # since revision 5
    Index("tokens_by_user", "user"),
)
audit = Table(
    "audit",
    metadata,
    Column("number", _Serial, primary_key=True),
    _required("at", Double),
    _required("who", Words),
    _required("what", Text),
    _required("job", Text),
    _required("detail", Json),
    Index("audit_by_job", "job", "number"),
)

# -- revision 4: what was learned -----------------------------------------------------------------

knowledge = Table(
    "knowledge",
    metadata,
    Column("name", Text, primary_key=True),
    Column("number", _Serial, primary_key=True, autoincrement=False),
    _required("body", LargeBinary),
)

# -- revision 6: what was used, by day ------------------------------------------------------------

usage = Table(
    "usage",
    metadata,
    Column("day", Integer, primary_key=True, autoincrement=False),
    Column("owner", Text, primary_key=True),
    Column("team", Text, primary_key=True),
    Column("queue", Text, primary_key=True),
    _required("asked_gpu_s", Double),
    _required("held_gpu_s", Double),
    _required("measured_gpu_s", Double),
    _required("used_gpu_s", Double),
    _required("lost_gpu_s", Double),
    _required("held_cpu_s", Double),
    _required("used_cpu_s", Double),
    _required("cost_usd", Double),
    _required("unpriced_gpu_s", Double),
    _required("runs", BigInteger),
)
usage_head = Table(
    "usage_head",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    _required("position", BigInteger),
    _required("body", Json),
)

# -- revision 7: jobs that were submitted as one --------------------------------------------------

arrays = Table(
    "arrays",
    metadata,
    Column("seq", _Serial, primary_key=True, autoincrement=False),
    Column("id", Text, nullable=False, unique=True),
    _required("name", Words),
    _required("owner", Text),
    _required("team", Text),
    _required("queue", Text),
    _required("submitted_at", Double),
    _required("size", Integer),
    _required("at_once", Integer),
    _required("metric", Words),
    _required("mode", Text),
    _required("manifest", Json),
    Column("folder", Text),
)
