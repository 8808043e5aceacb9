"""What was learned."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Nothing is in it; a server that starts takes over what files of before hold."""
    op.create_table(
        "knowledge",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column(
            "number",
            sa.BigInteger().with_variant(sa.Integer, "sqlite"),
            primary_key=True,
            autoincrement=False,
        ),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
