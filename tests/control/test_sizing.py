"""Live right-sizing: what the server tells the deciding loop from what guardians wrote."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from presage.control.advisors.sizing import Sizing
from presage.control.advisors.starts import Declared
from presage.control.charts import chart_lines
from presage.control.measured import StoredTelemetry
from presage.control.phases import StoredPhases, sized_workload
from presage.core.engine import Engine
from presage.core.state import State
from presage.layout import Layout
from presage.manifest import parse_manifest
from presage.model import event as ev
from presage.model.cluster import Device, Node, Resources
from presage.model.job import JobSpec, Reason, ReasonCode, Role
from presage.model.parts import ENFORCED
from presage.policy import registry
from presage.store.memory import MemoryKnowledge
from presage.store.records import JobRow
from tests.waiting import eventually

ASK = Resources(cpu_milli=2000, memory_mib=1024)


class Loop:
    """The deciding loop as sizing sees it: an engine, and facts that are handled at once."""

    def __init__(self) -> None:
        self.engine = Engine(registry.build("fifo"), Declared())
        self.facts: list[ev.Fact] = []
        self.now = 0.0
        self.handle(ev.NodeUp(Node("n", (Device(),), cpu_milli=8000, memory_mib=8192)))

    def handle(self, *facts: ev.Fact) -> None:
        self.now += 1.0
        self.engine.handle(self.now, facts)

    def look(self, sizing: Sizing, home: Path) -> None:
        """As a runner does: have the loop take in what is advised."""
        measured = StoredTelemetry(Layout(home))
        for fact in sizing.look(self.now, lambda question: question(self.engine.state), measured):
            self.facts.append(fact)
            self.handle(fact)


def start(loop: Loop, job: str) -> None:
    loop.handle(ev.JobSubmitted(JobSpec(job, (Role("worker", ASK),))))
    loop.handle(ev.JobStarted(job, 1))


def row(job: str, more: str = "") -> JobRow:
    text = f"name: t\ncommand: python t.py\nresources: {{cpus: 2, memory: 1Gi}}\n{more}"
    manifest = parse_manifest(text).to_json()
    return JobRow(id=job, name="t", owner="me", submitted_at=0.0, manifest=manifest)


def write(home: Path, job: str, samples: list[tuple[float, float, float]]) -> None:
    file = home / "jobs" / job / "telemetry" / "1.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as out:
        for at, cores, mib in samples:
            sample = {"at": at, "worker": "worker-0", "cpu_cores": cores, "rss_mib": mib}
            out.write(json.dumps(sample) + "\n")


def made(knowledge: MemoryKnowledge, *rows: JobRow, shares: bool = False) -> Sizing:
    store = SimpleNamespace(jobs=SimpleNamespace(get={one.id: one for one in rows}.get))
    workload = partial(sized_workload, store)  # type: ignore[arg-type]
    return Sizing(StoredPhases(knowledge), workload, record=knowledge, shares=shares)


def test_a_run_is_held_to_what_it_used_of_late(tmp_path: Path) -> None:
    loop = Loop()
    start(loop, "a")
    knowledge = MemoryKnowledge()
    sizing = made(knowledge, row("a"))
    loop.look(sizing, tmp_path)
    write(tmp_path, "a", [(float(t), 0.5, 100.0) for t in range(5)])
    loop.look(sizing, tmp_path)
    limits = loop.engine.state.jobs["a"].limits
    assert limits is not None
    assert limits.cpu_milli == pytest.approx(575, abs=2)
    assert limits.memory_mib == 1024  # nobody knows yet what it will hold later
    kept = chart_lines(knowledge, "a", "limits")
    assert [line["why"] for line in kept] == ["right-sizing begins", "what it used of late"]
    assert kept[-1]["cpu_milli"] == limits.cpu_milli
    write(tmp_path, "a", [(9.0, 1.9, 900.0)])
    loop.look(sizing, tmp_path)
    limits = loop.engine.state.jobs["a"].limits
    assert limits is not None
    assert limits.memory_mib >= 900


def test_a_job_may_keep_out_of_it(tmp_path: Path) -> None:
    loop = Loop()
    start(loop, "a")
    sizing = made(MemoryKnowledge(), row("a", "rightsize: false\n"))
    write(tmp_path, "a", [(float(t), 0.5, 100.0) for t in range(9)])
    loop.look(sizing, tmp_path)
    assert loop.facts == []


class Shared:
    """A run whose worker has an enforced share: 0.2 to 0.8 of a GPU, and 1 GiB of its memory."""

    def __init__(self, home: Path, *, live: bool = True) -> None:
        self.home, self.loop, self.at = home, Loop(), 0
        ask = Resources(gpu_milli=200, gpu_memory_mib=1024)
        spec = JobSpec("a", (Role("worker", ask),), labels={ENFORCED: "0.8"})
        self.loop.handle(ev.JobSubmitted(spec))
        self.loop.handle(ev.JobStarted("a", 1))
        self.sizing = made(MemoryKnowledge(), row("a"), shares=live)
        self.loop.look(self.sizing, home)

    @property
    def limit(self) -> int:
        limits = self.loop.engine.state.jobs["a"].limits
        return limits.gpu_milli if limits is not None else 0

    def uses(self, got: float, times: int, waited: float = 0.0) -> int:
        """The limit in milli-GPUs after it had this part of a GPU so many times."""
        file = self.home / "jobs" / "a" / "telemetry" / "1.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        held = (self.limit or 800) / 1000
        with file.open("a") as out:
            for _ in range(times):
                self.at += 1
                sample = {"at": self.at, "worker": "worker-0", "gpu_got": got, "gpu_limit": held}
                out.write(json.dumps(sample | {"gpu_waited": waited}) + "\n")
        self.loop.look(self.sizing, self.home)
        return self.limit


def test_a_share_of_a_gpu_is_held_to_what_it_uses(tmp_path: Path) -> None:
    run = Shared(tmp_path)
    assert run.uses(0.35, 40, waited=0.3) == 0
    assert run.uses(0.35, 29) == 0
    assert run.uses(0.35, 30) == 450
    fact = run.loop.facts[-1]
    assert isinstance(fact, ev.LimitsAdvised)
    assert fact.reason.text == "it used at most 0.35 of a GPU and did not wait: limit 0.45"
    limits = run.loop.engine.state.jobs["a"].limits
    assert limits == Resources(gpu_milli=450)  # nothing is said of its memory
    assert run.uses(0.44, 1) == 800


def test_a_share_that_somebody_set_is_left_alone_for_this_run(tmp_path: Path) -> None:
    run = Shared(tmp_path)
    assert run.uses(0.35, 30) == 450
    mine = Reason(ReasonCode.REQUESTED, "its shares of GPUs changed by ann")
    memory = Resources(gpu_memory_mib=512)
    run.loop.handle(ev.LimitsAdvised("a", 1, memory, mine))
    assert run.uses(0.44, 1) == 800  # she said nothing of its time
    run.loop.handle(ev.LimitsAdvised("a", 1, Resources(gpu_milli=500), mine))
    assert run.uses(0.49, 1) == 500
    assert run.uses(0.2, 60) == 500
    late = Reason(ReasonCode.OK, "said before that was known")
    run.loop.handle(ev.LimitsAdvised("a", 1, Resources(gpu_milli=300), late))
    assert run.limit == 500
    run.loop.handle(ev.LimitsAdvised("a", 1, Resources(gpu_milli=600), mine))
    assert run.limit == 600
    state = run.loop.engine.state
    assert State.restore(state.snapshot()).jobs["a"].limit_asked == 1


def test_shares_that_cannot_change_are_left_alone(tmp_path: Path) -> None:
    run = Shared(tmp_path, live=False)
    assert run.uses(0.35, 60) == 0
    assert run.loop.facts == []


@pytest.mark.slow
def test_phases_of_earlier_runs_are_used_for_the_next(tmp_path: Path) -> None:
    loop = Loop()
    knowledge = MemoryKnowledge()
    sizing = made(knowledge, row("a"))
    story = [(0.2, 100.0)] * 20 + [(1.5, 600.0)] * 20
    start(loop, "a")
    loop.look(sizing, tmp_path)
    write(tmp_path, "a", [(float(t), *story[t % 40]) for t in range(160)])
    loop.look(sizing, tmp_path)
    loop.handle(ev.JobExited("a", 1, ev.Outcome.SUCCEEDED))
    loop.look(sizing, tmp_path)
    name = sizing._workload(JobSpec("a", (Role("worker", ASK),)))
    eventually(lambda: knowledge.get(f"phases/{name}/model") is not None)
    sizing = made(knowledge, row("b"))  # the next server
    start(loop, "b")
    loop.facts.clear()
    loop.look(sizing, tmp_path)
    write(tmp_path, "b", [(float(t), *story[t % 40]) for t in range(35)])
    loop.look(sizing, tmp_path)
    phases = [fact.phase for fact in loop.facts if isinstance(fact, ev.PhaseChanged)]
    assert phases
    advised = [fact for fact in loop.facts if isinstance(fact, ev.LimitsAdvised)]
    assert any("phase" in fact.reason.text for fact in advised)
