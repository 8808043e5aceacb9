"""The executor `slurm` against real Slurms: the conformance suite, both versions and modes.

The whole suite runs on 26.05 with pilots, the port's on the others; `make soak` runs all on all.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from presage.testing.executors import ExecutorKit, ExecutorSuite, PortSuite
from tests.executors.slurm_kit import SlurmKit, SlurmWorld, need_slurm

pytestmark = [pytest.mark.engine, pytest.mark.slow]


class _Slurm:
    """A Slurm of one version in one mode, for all tests of a class."""

    version = "26.05"
    mode = "pilot"

    @pytest.fixture(scope="class")
    @classmethod
    def world(cls) -> Iterator[SlurmWorld]:
        """The Slurm."""
        need_slurm(cls.version)
        world = SlurmWorld(cls.version, cls.mode)
        yield world
        world.close()

    @pytest.fixture
    def kit(self, world: SlurmWorld) -> Iterator[ExecutorKit]:
        """The kit of the executor under test."""
        kit = SlurmKit(world, log_cap=ExecutorSuite.log_cap)
        yield kit
        kit.close()


class TestPilotOnNew(_Slurm, ExecutorSuite):
    """All of it."""


class TestJobsOnNew(_Slurm, PortSuite):
    """What the loop relies on."""

    mode = "jobs"


class TestPilotOnOld(_Slurm, PortSuite):
    """What the loop relies on."""

    version = "22.05"


class TestJobsOnOld(_Slurm, PortSuite):
    """What the loop relies on."""

    version = "22.05"
    mode = "jobs"


@pytest.mark.soak
class TestAllJobsOnNew(_Slurm, ExecutorSuite):
    """All of it."""

    mode = "jobs"


@pytest.mark.soak
class TestAllPilotOnOld(_Slurm, ExecutorSuite):
    """All of it."""

    version = "22.05"


@pytest.mark.soak
class TestAllJobsOnOld(_Slurm, ExecutorSuite):
    """All of it."""

    version = "22.05"
    mode = "jobs"
