"""The executor `slurm` against real Slurms: the conformance suite, both versions and modes.

The whole suite runs on 26.05 with pilots, the port's on the others; `make soak` runs all on all.
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Iterator

import pytest

from presage.executors.node.secrets import SecretFiles, SecretName
from presage.layout import Layout
from presage.model.event import Outcome
from presage.testing.executors import ExecutorKit, ExecutorSuite, PortSuite, RoleWork, Watcher
from tests.executors.slurm_kit import SlurmKit, SlurmWorld, Wiretap, need_slurm

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

    def test_no_secret_is_on_the_wire(self, world: SlurmWorld, kit: SlurmKit) -> None:
        secret, layout = "opensesame-0f8d", Layout(world.data)
        SecretFiles(layout).put(SecretName("hub"), secret.encode())
        code = "import os, hashlib; print(hashlib.sha256(os.environ['HUB'].encode()).hexdigest())"
        taps = [Wiretap(note) for note in layout.slurm.glob("*/n1/agent.json")]
        try:
            watch = Watcher(kit)
            workers = watch.run("keeper", RoleWork(code), secrets={"HUB": "hub"})
            assert {worker.node for worker in workers} == {"n1"}
            assert watch.end("keeper").outcome is Outcome.SUCCEEDED
        finally:
            for tap in taps:
                tap.close()
        heard = b"".join(bytes(tap.heard) for tap in taps)
        assert hashlib.sha256(secret.encode()).hexdigest() in kit.log("keeper", 1, "worker-0")
        assert b'["start", ' in heard
        assert secret.encode() not in heard
        assert stat.S_IMODE(layout.slurm_secrets.stat().st_mode) == 0o700
        assert list(layout.slurm_secrets.iterdir()) == []


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
