"""What every test of the executor `local` may ask for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from presage.testing.executors import Watcher
from tests.executors.kit import LocalKit


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[LocalKit]:
    """An executor's kit on an empty data directory."""
    kit = LocalKit(tmp_path / "server")
    yield kit
    kit.close()


@pytest.fixture
def watch(kit: LocalKit) -> Watcher:
    """An executor with nothing to do."""
    return Watcher(kit)
