"""What was foreseen of a job."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Jobs of before have none."""
    op.add_column("jobs", sa.Column("estimates", sa.Text))
