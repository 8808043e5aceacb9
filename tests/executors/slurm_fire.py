"""Gangs on a Slurm whose controller and nodes are killed again and again: what must hold then.

Real daemons, killed with SIGKILL and started again while gangs start, run and end, through the
real deciding loop. Shared by a short test, a soak test and `benchmarks/slurm_gangs.py`.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from presage.core.engine import Engine
from presage.core.loop import step
from presage.executors.node.processes import all_pids, environment
from presage.model import event as ev
from presage.model.cluster import WHOLE_GPU, Resources
from presage.model.job import JobSpec, Placement, Role
from presage.policy import registry
from presage.store.memory import MemoryStore
from presage.testing.machine import StablePredictor
from tests.executors.slurm_kit import SlurmKit, SlurmWorld
from tests.waiting import PATIENCE_S

__all__ = ["Fire", "gangs_under_fire"]

_WORK = """
import os, time
mark = f"{os.environ['MARKS']}/{os.environ['PRESAGE_ATTEMPT']}-{os.environ['PRESAGE_RANK']}"
open(mark, "x").close()  # a second start of the same worker fails here
time.sleep(1.0)
"""


@dataclass
class Fire:
    """What happened."""

    gangs: int
    kills: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    attempts: int = 0
    half_started: list[str] = field(default_factory=list)
    started_twice: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    """Why gangs did not end well."""
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        """Whether everything held."""
        return not (self.half_started or self.started_twice or self.unfinished or self.left)


def gangs_under_fire(
    world: SlurmWorld, *, gangs: int, kills: int, seed: int, within_s: float
) -> Fire:
    """Run gangs of two or three workers; kill a daemon now and then until `kills` are done."""
    chance, fire = random.Random(seed), Fire(gangs)
    kit = SlurmKit(world)
    specs = [_gang(kit, world, n, 2 + n % 2) for n in range(gangs)]
    executor, store = kit.executor(), MemoryStore()
    engine = Engine(registry.build("fifo"), StablePredictor(), check_every=1)
    facts: list[ev.Fact] = [ev.NodeUp(node) for node in executor.nodes()]
    facts += [ev.JobSubmitted(spec) for spec in specs]
    began, next_kill, down = time.monotonic(), time.monotonic() + 1.0, _Down(world)
    while facts or engine.state.active or engine.state.pending:
        if time.monotonic() - began > within_s:
            break
        step(engine, executor, store, time.time(), facts)
        facts = []
        if sum(fire.kills.values()) < kills and time.monotonic() > next_kill:
            fire.kills.update(down.strike(chance))
            next_kill = time.monotonic() + chance.uniform(0.5, 2.0)
        down.recover()
        executor.wait(0.05)
    down.recover(everything=True)
    fire.seconds = time.monotonic() - began
    executor.poll(time.time())
    _judge(fire, store, specs, world.data, kit)
    kit.close()
    return fire


class _Down:
    """Daemons that were killed, and when they come back."""

    def __init__(self, world: SlurmWorld) -> None:
        self._slurm = world.slurm
        self._back: dict[str, float] = {}

    def strike(self, chance: random.Random) -> list[str]:
        """Kill the controller or a node's daemon, unless it is down; says which kind."""
        node = chance.choice(self._slurm.nodes)
        what = "slurmctld" if chance.random() < 0.5 or node in self._back else node
        if what in self._back:
            return []
        self._back[what] = time.monotonic() + chance.uniform(0.2, 2.0)
        if what == "slurmctld":
            self._slurm.kill_controller()
            return ["slurmctld"]
        self._slurm.kill_node(what)
        return ["slurmd"]

    def recover(self, *, everything: bool = False) -> None:
        """Start again what has been down long enough."""
        for what, when in list(self._back.items()):
            if everything or time.monotonic() >= when:
                del self._back[what]
                if what == "slurmctld":
                    self._slurm.start_controller()
                else:
                    self._slurm.start_node(what)


def _gang(kit: SlurmKit, world: SlurmWorld, number: int, workers: int) -> JobSpec:
    name = f"gang-{number}"
    script = world.place / "gang.py"
    script.write_text(_WORK)
    marks = world.data / "jobs" / name / "marks"
    marks.mkdir(parents=True, exist_ok=True)
    resources = {"gpus": 1, "cpus": 1}
    command = f"python {script}"
    env = {"MARKS": str(marks)}
    kit.write_job(name, command=command, workers=workers, resources=resources, env=env)
    role = Role("worker", Resources(gpu_milli=WHOLE_GPU, cpu_milli=1000), workers, workers)
    return JobSpec(name, (role,), placement=Placement.SPREAD)


def _judge(
    fire: Fire, store: MemoryStore, specs: list[JobSpec], data: Path, kit: SlurmKit
) -> None:
    """Hold what was told against what the workers themselves left."""
    told = [fact for _, facts, _ in store.steps() for fact in facts]
    ends = [fact for fact in told if isinstance(fact, ev.JobExited)]
    fire.outcomes.update(str(end.outcome) for end in ends)
    fire.outcomes.update("refused" for fact in told if isinstance(fact, ev.LaunchFailed))
    fire.attempts = sum(fire.outcomes.values())
    well = {end.job for end in ends if end.outcome is ev.Outcome.SUCCEEDED}
    started = {(fact.job, fact.attempt) for fact in told if isinstance(fact, ev.JobStarted)}
    for spec in specs:
        name, workers = spec.id, spec.roles[0].min
        marks = [path.name.split("-") for path in (data / "jobs" / name / "marks").iterdir()]
        begun = Counter(int(attempt) for attempt, _ in marks)
        if name not in well:
            fire.unfinished.append(name)
            fire.words += [
                f"{name}: {fact.reason.text}"
                for fact in told
                if isinstance(fact, ev.JobExited | ev.LaunchFailed)
                and fact.job == name
                and fact.reason is not None
            ]
        for attempt in (which for job, which in started if job == name):
            if begun[attempt] != workers:
                fire.half_started.append(f"{name} attempt {attempt}: {begun[attempt]}")
        for number, rank in marks:
            if "FileExistsError" in kit.log(name, int(number), f"worker-{rank}"):
                fire.started_twice.append(f"{name} attempt {number} worker {rank}")
    end_s = time.monotonic() + PATIENCE_S
    while (left := _left(kit)) and time.monotonic() < end_s:
        time.sleep(0.5)
    fire.left = left


def _left(kit: SlurmKit) -> list[str]:
    """Slurm jobs of runs, and processes of theirs."""
    prefix = f"presage.{kit.owner}.gang-"
    jobs = [job for job in kit.world.commands.jobs() if job.name.startswith(prefix)]
    left = [f"Slurm job {job.id} {job.state}" for job in jobs if not job.over]
    mark = b"MARKS=" + str(kit.data).encode()
    return left + [f"process {pid}" for pid in all_pids() if mark in environment(pid)]
