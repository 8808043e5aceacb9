"""Jobs whose files were removed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Of jobs of before, everything is kept."""
    op.add_column("jobs", sa.Column("removed_at", sa.Double))
