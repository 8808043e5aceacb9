"""The executor `slurm` against real Slurms: the conformance suite, both versions and modes.

The whole suite runs on 26.05 with pilots, the port's on the others; `make soak` runs all on all.
"""

from __future__ import annotations

import hashlib
import stat
import time
from collections.abc import Callable, Iterator

import pytest

from presage.core.engine import Engine
from presage.core.loop import step
from presage.executors.node.secrets import SecretFiles, SecretName
from presage.layout import Layout
from presage.model import event as ev
from presage.model.cluster import WHOLE_GPU, Resources, Worker
from presage.model.event import Outcome
from presage.model.job import JobSpec, JobState, Role
from presage.policy import registry
from presage.store.memory import MemoryStore
from presage.testing.executors import ExecutorKit, ExecutorSuite, PortSuite, RoleWork, Watcher
from presage.testing.machine import StablePredictor
from presage.testing.runs import dedented
from tests.executors.slurm_kit import SlurmKit, SlurmWorld, Wiretap, need_slurm
from tests.waiting import eventually

pytestmark = [pytest.mark.engine, pytest.mark.slow]

_SLEEP = ("--output=/dev/null", "--wrap", "exec sleep 600")


class _Loop:
    """The real deciding loop on an executor."""

    def __init__(self, kit: SlurmKit) -> None:
        self.workers: dict[str, tuple[Worker, ...]] = {}
        self._kit, self._store = kit, MemoryStore()
        self._executor = kit.executor()
        self._engine = Engine(registry.build("fifo"), StablePredictor(), check_every=1)
        self._step([ev.NodeUp(node) for node in self._executor.nodes()])

    def submit(self, name: str, *, gpus: int) -> None:
        """A job of one worker that is over at once."""
        self._kit.write_job(name, command="true", resources={"gpus": gpus, "cpus": 1})
        role = Role("worker", Resources(gpu_milli=gpus * WHOLE_GPU, cpu_milli=1000), 1, 1)
        self._step([ev.JobSubmitted(JobSpec(name, (role,)))])

    def until(self, happened: Callable[[], bool]) -> None:
        """Decide until something has happened."""

        def look() -> bool:
            self._executor.wait(0.05)
            self._step([])
            return happened()

        eventually(look)

    def free(self) -> dict[str, int]:
        """Whole GPUs that are free, by node that takes jobs."""
        state = self._engine.state
        closed = state.down | state.draining
        index = state.capacity.index.items()
        return {name: state.capacity.whole[i] for name, i in index if name not in closed}

    @property
    def ended(self) -> set[str]:
        """Jobs that ended well."""
        told = [fact for _, facts, _ in self._store.steps() for fact in facts]
        ends = [fact for fact in told if isinstance(fact, ev.JobExited)]
        return {end.job for end in ends if end.outcome is Outcome.SUCCEEDED}

    def state(self, job: str) -> JobState:
        """Of a job that is not over."""
        return self._engine.state.jobs[job].state

    def _step(self, facts: list[ev.Fact]) -> None:
        for decision in step(self._engine, self._executor, self._store, time.time(), facts):
            if isinstance(decision, ev.Launch):
                self.workers[decision.job] = decision.workers


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

    @pytest.mark.soak  # Slurm looks at time limits twice a minute
    def test_a_time_limit_is_warned_of_and_named(self, world: SlurmWorld, kit: SlurmKit) -> None:
        """One run ends when it is warned, after a checkpoint; one goes on until Slurm ends it."""
        script = """
            import os, pathlib, signal, sys, time
            def save(*_):
                (pathlib.Path(os.environ["PRESAGE_CHECKPOINT_DIR"]) / "state").write_text("saved")
                print("saved")
                if "LEAVES" in os.environ: sys.exit(143)
            signal.signal(signal.SIGTERM, save)
            print("up")
            while True: time.sleep(0.1)
        """
        watch, work = Watcher(kit), RoleWork(dedented(script))
        watch.run("leaves", work, env={"LEAVES": "1"})
        watch.run("stays", work, grace_s=600.0)
        names = {job: f"presage.{kit.owner}.{job}." for job in ("leaves", "stays")}
        for job in names:
            watch.until_log(job, "up")
        ids = {
            job: found.id
            for found in world.commands.jobs()
            for job, prefix in names.items()
            if found.name.startswith(prefix)
        }
        for id in ids.values():
            world.commands.update(id, EndTime="now+40seconds")
        left = watch.end("leaves")
        assert left.outcome is Outcome.LOST
        assert left.reason is not None
        assert f"the time limit of Slurm job {ids['leaves']} is near" in left.reason.text
        watch.until_log("stays", "saved")
        ended = watch.end("stays")
        assert ended.outcome is Outcome.LOST
        assert ended.reason is not None
        words = f"Slurm ended job {ids['stays']}: its time limit passed"
        assert ended.reason.text == f"{words}; the job goes on from its last checkpoint"
        for job in names:
            assert (Layout(world.data).checkpoints(job) / "state").read_text() == "saved"

    def test_room_that_others_hold_is_left_to_them(self, world: SlurmWorld, kit: SlurmKit) -> None:
        """Another user's job has 3 of the 4 GPUs of each node but one, which is drained."""
        loop = _Loop(kit)
        others = [
            world.slurm.run("sbatch", "-w", node, "--gres=gpu:3", *_SLEEP) for node in ("n1", "n2")
        ]
        world.slurm.run("scontrol", "update", "NodeName=n3", "State=DRAIN", "Reason=test")
        try:
            loop.until(lambda: loop.free() == {"n1": 1, "n2": 1})
            loop.submit("one", gpus=1)
            loop.until(lambda: "one" in loop.ended)
            assert loop.free() == {"n1": 1, "n2": 1}
            loop.submit("two", gpus=2)
            assert loop.state("two") is JobState.PENDING
            world.slurm.run("scancel", others[1].split()[-1])
            loop.until(lambda: "two" in loop.ended)
            assert [worker.node for worker in loop.workers["two"]] == ["n2"]
        finally:
            world.slurm.run("scancel", *(other.split()[-1] for other in others))
            world.slurm.run("scontrol", "update", "NodeName=n3", "State=RESUME")
        loop.until(lambda: loop.free() == {"n1": 4, "n2": 4, "n3": 4})


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
