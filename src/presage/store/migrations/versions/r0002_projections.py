"""What users see (jobs, transitions), who they are (users, tokens, audit), and webhooks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """From a journal alone."""
    _jobs()
    _access()
    op.create_table(
        "outbox",
        _serial("id"),
        _required("job", sa.Text),
        _required("url", sa.Text),
        _required("body", sa.Text),
        _required("attempts", sa.Integer),
        sa.Column("next_at", sa.Double),
        sa.Column("delivered_at", sa.Double),
    )
    op.create_index("outbox_by_next_at", "outbox", ["next_at"])


def _jobs() -> None:
    op.create_table(
        "jobs",
        _serial("seq", autoincrement=False),
        _required("id", sa.Text, unique=True),
        *(_required(name, sa.Text) for name in ("name", "owner", "team", "queue", "status")),
        *(_required(name, sa.Text) for name in ("stage", "reason_code", "reason_text")),
        _required("attempt", sa.Integer),
        _required("workers", sa.Integer),
        _required("nodes", sa.Text),
        _required("submitted_at", sa.Double),
        sa.Column("started_at", sa.Double),
        sa.Column("ended_at", sa.Double),
        sa.Column("exit_code", sa.Integer),
        sa.Column("progress", sa.Text),
        _required("manifest", sa.Text),
        sa.Column("folder", sa.Text),
    )
    for name in ("owner", "team", "queue", "status"):
        op.create_index(f"jobs_by_{name}", "jobs", [name, "seq"])
    op.create_table(
        "transitions",
        _serial("number"),
        _required("job", sa.Text, sa.ForeignKey("jobs.id")),
        _required("at", sa.Double),
        *(_required(name, sa.Text) for name in ("status", "reason_code", "reason_text")),
    )
    op.create_index("transitions_by_job", "transitions", ["job", "number"])


def _access() -> None:
    op.create_table(
        "users",
        sa.Column("name", sa.Text, primary_key=True),
        _required("role", sa.Text),
        _required("team", sa.Text),
        _required("created_at", sa.Double),
    )
    op.create_table(
        "tokens",
        sa.Column("digest", sa.Text, primary_key=True),
        _required("user", sa.Text, sa.ForeignKey("users.name", ondelete="CASCADE")),
        _required("created_at", sa.Double),
        sa.Column("revoked_at", sa.Double),
    )
    op.create_index("tokens_by_user", "tokens", ["user"])
    op.create_table(
        "audit",
        _serial("number"),
        _required("at", sa.Double),
        *(_required(name, sa.Text) for name in ("who", "what", "job", "detail")),
    )
    op.create_index("audit_by_job", "audit", ["job", "number"])


def _serial(name: str, autoincrement: bool = True) -> sa.Column[int]:
    kind = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    return sa.Column(name, kind, primary_key=True, autoincrement=autoincrement)


def _required(name: str, kind: type, *more: sa.ForeignKey, unique: bool = False) -> sa.Column:  # type: ignore[type-arg]
    return sa.Column(name, kind, *more, nullable=False, unique=unique)
