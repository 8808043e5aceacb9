"""The journal: its head with the lease, its steps, and snapshots of what they add up to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """From an empty database."""
    position = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    head = op.create_table(
        "head",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("appends", sa.BigInteger, nullable=False),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("jobs", sa.BigInteger, nullable=False),
        sa.Column("lease", sa.BigInteger, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
    )
    op.create_table(
        "journal",
        sa.Column("position", position, primary_key=True, autoincrement=False),
        sa.Column("now", sa.Double, nullable=False),
        sa.Column("lease", sa.BigInteger, nullable=False),
        sa.Column("facts", sa.Text, nullable=False),
        sa.Column("decisions", sa.Text, nullable=False),
    )
    op.create_table(
        "snapshots",
        sa.Column("position", position, primary_key=True, autoincrement=False),
        sa.Column("now", sa.Double, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    row = {"id": 1, "appends": 0, "position": 0, "jobs": 0, "lease": 0}
    op.bulk_insert(head, [{**row, "holder": "", "url": "", "expires_at": 0.0}])
