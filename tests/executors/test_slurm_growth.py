"""Pilots that follow demand: how many nodes jobs need, when they are added and given back, and all
of it on real Slurms."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from presage.core.engine import Engine
from presage.core.loop import step
from presage.executors.slurm.demand import nodes_wanted
from presage.executors.slurm.executor import SlurmPilotExecutor
from presage.executors.slurm.growth import PilotGrowth
from presage.model import event as ev
from presage.model.cluster import WHOLE_GPU, Device, Node, Resources, Worker
from presage.model.job import Job, JobSpec, JobState, Role
from presage.policy import registry
from presage.store.memory import MemoryStore
from presage.testing.machine import StablePredictor
from tests.executors.slurm_kit import SlurmKit, SlurmWorld, need_slurm
from tests.waiting import eventually


def _node(name: str, kind: str = "v100") -> Node:
    return Node(name, (Device(kind),) * 4, 16_000, 64_000)


_HELD = {"n1": _node("n1")}
_FURTHER = [_node(f"n{number}") for number in range(2, 6)]


def _job(seq: int, workers: int = 1, gpus: float = 1.0, *on: Worker, **role: Any) -> Job:
    asked = Resources(gpu_milli=round(gpus * WHOLE_GPU), cpu_milli=1000, memory_mib=100)
    spec = JobSpec(f"job-{seq}", (Role("worker", asked, workers, workers, **role),))
    state = JobState.RUNNING if on else JobState.PENDING
    return Job(spec, seq, 0.0, 0.0, state, allocation=on)


@pytest.mark.parametrize(
    ("jobs", "wanted"),
    [
        ([], 0),
        ([_job(1)], 1),
        ([_job(1, 4), _job(2, 2)], 2),
        ([_job(1, 2, 4)], 2),
        ([_job(n, 1, 0.5) for n in range(8)], 1),
        ([_job(n, 1, 0.5) for n in range(9)], 2),
        ([_job(1, 1, 1, Worker(0, 0, "n1", (0,))), _job(2, 1, 4)], 2),
        ([_job(1, 1, 1, Worker(0, 0, "n1", (0,))), _job(2, 3)], 1),
        ([_job(1, 1, 8)], 0),  # fits no node
        ([_job(1, 99)], 0),  # nor all of them together
        ([_job(1, 99), _job(2, 5)], 2),
        ([_job(n, 4) for n in range(20)], 5),
        ([_job(1, 1, 1, gpu_types=("h100",))], 0),
    ],
)
def test_what_jobs_need(jobs: list[Job], wanted: int) -> None:
    assert nodes_wanted(jobs, _HELD, _FURTHER, 5) == wanted


def test_no_more_are_wanted_than_may_be() -> None:
    jobs = [_job(number, 4) for number in range(20)]
    assert nodes_wanted(jobs, _HELD, _FURTHER, 3) == 3


class TestGrowth:
    """When pilots are added and given back."""

    def test_it_follows_what_is_wanted_within_its_bounds(self) -> None:
        growth = PilotGrowth(1, 4, idle_s=60, pause_s=30)
        assert growth.missing(0, 0, limited=False) == 1
        assert growth.missing(10, 1, limited=False) == 0  # nobody has said what is needed
        growth.want(9)
        assert growth.missing(20, 1, limited=False) == 3
        assert growth.missing(21, 3, limited=False) == 0  # the pause
        assert growth.missing(50, 3, limited=False) == 1
        growth.want(0)
        assert growth.surplus(100, 4) == 0
        assert growth.surplus(159, 4) == 0
        assert growth.surplus(160, 4) == 3

    def test_jobs_that_come_in_between_keep_it(self) -> None:
        growth = PilotGrowth(0, 4, idle_s=60, pause_s=30)
        growth.want(1)
        assert growth.surplus(0, 2) == 0
        growth.want(2)
        assert growth.surplus(50, 2) == 0
        growth.want(1)
        assert growth.surplus(70, 2) == 0
        assert growth.surplus(130, 2) == 1

    def test_slurm_that_refuses_is_asked_ever_more_rarely(self) -> None:
        growth, asked, now = PilotGrowth(1, 1, idle_s=60, pause_s=30), list[float](), 0.0
        while now < 3600:
            if growth.missing(now, 0, limited=False):
                asked.append(now)
                growth.refused(now)
            now += 1.0
        gaps = [int(after - before) for before, after in pairwise(asked)]
        assert gaps[:7] == [10, 20, 40, 80, 160, 320, 600]
        growth.taken()
        growth.refused(now)
        assert growth.missing(now + 10, 0, limited=False) == 1

    def test_pilots_that_nobody_used_make_the_pause_longer(self) -> None:
        growth = PilotGrowth(0, 2, idle_s=10, pause_s=30)
        growth.want(1)
        assert growth.missing(0, 0, limited=False) == 1
        growth.given_back(was_used=False)
        assert growth.missing(30, 0, limited=False) == 1
        assert growth.missing(60, 0, limited=False) == 0
        assert growth.missing(90, 0, limited=False) == 1
        growth.given_back(was_used=True)
        assert growth.missing(150, 0, limited=False) == 1
        assert growth.missing(180, 0, limited=False) == 1

    def test_a_limit_of_slurm_stops_it(self) -> None:
        growth = PilotGrowth(1, 4, idle_s=60, pause_s=30)
        growth.want(4)
        assert growth.missing(0, 2, limited=True) == 0
        assert growth.missing(0, 2, limited=False) == 2


class _Loop:
    """The real deciding loop on pilots that follow its jobs."""

    def __init__(self, world: SlurmWorld) -> None:
        self.kit, self._store = SlurmKit(world), MemoryStore()
        self.world = world
        self.engine = Engine(registry.build("fifo"), StablePredictor(), check_every=1)
        self._executor = SlurmPilotExecutor(
            world.data, world.link, jobs=lambda: self.engine.state.jobs
        )
        self.step([ev.NodeUp(node) for node in self._executor.nodes()])

    def submit(self, name: str, workers: int, gpus: int, command: str = "true") -> None:
        """A gang; it would be refused if it never fitted."""
        asked = {"gpus": gpus, "cpus": 1}
        self.kit.write_job(name, command=command, workers=workers, resources=asked)
        resources = Resources(gpu_milli=gpus * WHOLE_GPU, cpu_milli=1000)
        fact = ev.JobSubmitted(JobSpec(name, (Role("worker", resources, workers, workers),)))
        assert self.engine.refusal(fact) is None
        self.step([fact])

    def until(self, happened: Callable[[], object]) -> None:
        """Decide until something has happened."""

        def look() -> object:
            self._executor.wait(0.05)
            self.step([])
            return happened()

        eventually(look)

    def step(self, facts: list[ev.Fact]) -> None:
        """One turn."""
        step(self.engine, self._executor, self._store, time.time(), facts)

    def told(self, kind: type) -> list[Any]:
        """Facts of a kind."""
        facts = [fact for _, facts, _ in self._store.steps() for fact in facts]
        return [fact for fact in facts if isinstance(fact, kind)]

    def ended(self, job: str) -> bool:
        """Whether it ended well."""
        return any(
            end.job == job and end.outcome is ev.Outcome.SUCCEEDED
            for end in self.told(ev.JobExited)
        )

    def pilots(self) -> int:
        """Slurm jobs of pilots."""
        jobs = self.world.commands.jobs()
        return sum(".pilot." in job.name and not job.over for job in jobs)

    def open(self) -> int:
        """Nodes that take work."""
        state = self.engine.state
        return len(state.capacity.index.keys() - state.down - state.draining)

    def close(self) -> None:
        """Let go."""
        self._executor.close()
        self.kit.close()


@pytest.fixture(params=["26.05", pytest.param("22.05", marks=pytest.mark.soak)])
def loop(request: pytest.FixtureRequest) -> Iterator[_Loop]:
    """Up to three pilots, on each version; none while there is nothing to do."""
    need_slurm(request.param)
    pilots = {"pilot_nodes": 0, "pilot_most": 3, "pilot_idle_s": 2.0, "pilot_pause_s": 0.5}
    world = SlurmWorld(request.param, "pilot", pilots=pilots)
    made = _Loop(world)
    yield made
    made.close()
    world.close()


@pytest.mark.engine
@pytest.mark.slow
def test_pilots_come_with_jobs_and_go_without(loop: _Loop) -> None:
    assert (loop.pilots(), loop.open()) == (0, 0)
    loop.submit("one", 1, 2)
    loop.until(lambda: loop.ended("one"))
    assert loop.pilots() == 1
    loop.submit("gang", 2, 4, "sleep 1")  # more than a node has
    loop.until(lambda: loop.ended("gang"))
    assert len({up.node.name for up in loop.told(ev.NodeUp)}) == 3  # all that could be, and were
    loop.until(lambda: loop.pilots() == 0)
    loop.until(lambda: loop.open() == 0)
    drained = [fact.node for fact in loop.told(ev.NodeDraining)]
    assert len(drained) == len(set(drained)) == 2
    assert not any(end.outcome is not ev.Outcome.SUCCEEDED for end in loop.told(ev.JobExited))


@pytest.mark.engine
@pytest.mark.soak
def test_a_partition_that_takes_nothing_is_asked_again(loop: _Loop) -> None:
    loop.world.slurm.run("scontrol", "update", "PartitionName=main", "State=INACTIVE")
    loop.submit("one", 1, 2)
    log = loop.world.data / "slurm-driver.log"
    loop.until(lambda: "no pilot: sbatch" in log.read_text())
    loop.world.slurm.run("scontrol", "update", "PartitionName=main", "State=UP")
    loop.until(lambda: loop.ended("one"))
    assert log.read_text().count("no pilot: sbatch") < 4
