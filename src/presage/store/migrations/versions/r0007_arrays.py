"""Jobs that were submitted as one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Jobs of before are each alone."""
    for name, kind in (("array", sa.Text), ("params", sa.Text), ("metric", sa.Double)):
        op.add_column("jobs", sa.Column(name, kind))
    op.create_index("jobs_by_array", "jobs", ["array", "seq"])
    number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "arrays",
        sa.Column("seq", number, primary_key=True, autoincrement=False),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        *(
            sa.Column(name, kind, nullable=False)
            for name, kind in (
                ("name", sa.Text),
                ("owner", sa.Text),
                ("team", sa.Text),
                ("queue", sa.Text),
                ("submitted_at", sa.Double),
                ("size", sa.Integer),
                ("at_once", sa.Integer),
                ("metric", sa.Text),
                ("mode", sa.Text),
                ("manifest", sa.Text),
            )
        ),
        sa.Column("folder", sa.Text),
    )
