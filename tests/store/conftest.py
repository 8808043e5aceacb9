"""Databases for the tests of stores: a new SQLite file, or a new database of one PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from presage.store import open_store
from presage.store.sql import SqlStore
from presage.testing.stores import PostgresCluster


@pytest.fixture(scope="session")
def postgres(program: Callable[..., str]) -> Iterator[PostgresCluster]:
    """A PostgreSQL server for this run."""
    programs = PostgresCluster.programs() or Path(program("pg_ctl")).parent
    cluster = PostgresCluster(programs)
    yield cluster
    cluster.remove()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.engine)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'presage.db'}"
    cluster: PostgresCluster = request.getfixturevalue("postgres")
    return cluster.new_database()


@pytest.fixture
def store(database_url: str) -> Iterator[SqlStore]:
    """An empty store on it."""
    opened = open_store(database_url)
    yield opened
    opened.close()
