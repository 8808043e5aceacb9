"""The executor `local` keeps what every executor must."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from presage.testing.executors import ExecutorKit, ExecutorSuite
from tests.executors.kit import LocalKit


class TestLocal(ExecutorSuite):
    @pytest.fixture
    def kit(self, tmp_path: Path) -> Iterator[ExecutorKit]:
        kit = LocalKit(tmp_path / "server", log_cap=self.log_cap)
        yield kit
        kit.close()
