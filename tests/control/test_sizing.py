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
from presage.layout import Layout
from presage.manifest import parse_manifest
from presage.model import event as ev
from presage.model.cluster import Node, Resources
from presage.model.job import JobSpec, Role
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
        self.handle(ev.NodeUp(Node("n", cpu_milli=8000, memory_mib=8192)))

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


def made(knowledge: MemoryKnowledge, *rows: JobRow) -> Sizing:
    store = SimpleNamespace(jobs=SimpleNamespace(get={one.id: one for one in rows}.get))
    workload = partial(sized_workload, store)  # type: ignore[arg-type]
    return Sizing(StoredPhases(knowledge), workload, record=knowledge)


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
