"""Every store against the suite that ships for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from presage.core.ports import Knowledge
from presage.store import open_store
from presage.store.memory import MemoryKnowledge, MemoryStore
from presage.store.sql import SqlStore
from presage.testing.stores import (
    DurableStoreSuite,
    KnowledgeSuite,
    Opener,
    PostgresCluster,
    StoreSuite,
)


class TestMemory(StoreSuite):
    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore()


class TestSqlite(DurableStoreSuite):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        url = f"sqlite:///{tmp_path / 'presage.db'}"
        return lambda: open_store(url)


@pytest.mark.engine
class TestPostgres(DurableStoreSuite):
    @pytest.fixture
    def opener(self, postgres: PostgresCluster) -> Opener:
        url = postgres.new_database()
        return lambda: open_store(url)


class TestMemoryKnowledge(KnowledgeSuite):
    @pytest.fixture
    def knowledge(self) -> Knowledge:
        return MemoryKnowledge()


class TestSqlKnowledge(KnowledgeSuite):
    """In SQLite and in PostgreSQL."""

    @pytest.fixture
    def knowledge(self, store: SqlStore) -> Knowledge:
        return store.knowledge
