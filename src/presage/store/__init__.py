"""Journal and queries: where facts and decisions are kept. Decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from presage.model.errors import MissingExtra

if TYPE_CHECKING:
    from presage.store.sql import SqlStore

__all__ = ["open_store"]


def open_store(url: str) -> SqlStore:
    """The store in a database, `sqlite:///PATH` or `postgresql://…`; its tables are made or
    brought up to date."""
    try:
        from presage.store.sql import SqlStore
    except ModuleNotFoundError as missing:
        if missing.name not in ("alembic", "sqlalchemy"):
            raise
        raise MissingExtra("server", "a journal in a database") from None
    return SqlStore(url)
