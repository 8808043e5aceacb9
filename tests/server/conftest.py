"""Real servers for the tests of the control plane."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from presage.testing.stores import PostgresCluster
from tests.server.kit import Server, Zygote


@pytest.fixture(scope="module")
def server(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that the tests of a module share: none of them may end it."""
    started = Server(zygote, tmp_path_factory.mktemp("server") / "data", nodes="2x4")
    yield started.start()
    started.close()


@pytest.fixture
def serve(zygote: Zygote, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Makes servers of a test's own, not started yet."""
    made: list[Server] = []

    def make(*options: str, data: Path | None = None, **more: Any) -> Server:
        server = Server(zygote, data or tmp_path / "data", *options, **more)
        made.append(server)
        return server

    yield make
    for server in made:
        server.close()


@pytest.fixture(scope="session")
def postgres(program: Callable[..., str]) -> Iterator[PostgresCluster]:
    """A PostgreSQL server for this run."""
    cluster = PostgresCluster(PostgresCluster.programs() or Path(program("pg_ctl")).parent)
    yield cluster
    cluster.remove()
