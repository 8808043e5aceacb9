"""Users that an identity provider knows, and tokens that expire."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Users of before are this server's own; their tokens last until they are revoked."""
    op.add_column("users", sa.Column("subject", sa.Text))
    op.create_index("users_by_subject", "users", ["subject"], unique=True)
    op.add_column("tokens", sa.Column("expires_at", sa.Double))
