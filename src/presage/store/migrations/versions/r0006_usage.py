"""What was used, by day."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Nothing was counted yet: a server that starts reads the journal from its beginning."""
    amounts = (
        *("asked_gpu_s", "held_gpu_s", "measured_gpu_s", "used_gpu_s", "lost_gpu_s"),
        *("held_cpu_s", "used_cpu_s", "cost_usd", "unpriced_gpu_s"),
    )
    op.create_table(
        "usage",
        sa.Column("day", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("owner", sa.Text, primary_key=True),
        sa.Column("team", sa.Text, primary_key=True),
        sa.Column("queue", sa.Text, primary_key=True),
        *(sa.Column(name, sa.Double, nullable=False) for name in amounts),
        sa.Column("runs", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "usage_head",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
