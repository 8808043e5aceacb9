"""Runs the revisions on the connection that `presage.store.database` hands over, in its
transaction: a database is at one revision or at the other, never between."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
