"""Live right-sizing: what the server tells the deciding loop from what guardians wrote."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from presage.core.engine import Engine
from presage.manifest import parse_manifest
from presage.model import event as ev
from presage.model.cluster import Node, Resources
from presage.model.job import JobSpec, Role
from presage.policy import registry
from presage.server.foresight import Declared
from presage.server.sizing import Sizing
from presage.store.records import JobRow

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

    def ask(self, question: Any) -> Any:
        return question(self.engine)

    def submit(self, ticket: Any, fact: ev.Fact, row: None, audit: None) -> None:
        assert not ticket.done()
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


def made(loop: Loop, home: Path, *rows: JobRow) -> Sizing:
    store = SimpleNamespace(jobs=SimpleNamespace(get={one.id: one for one in rows}.get))
    return Sizing(loop, store, home)  # type: ignore[arg-type]


def test_a_run_is_held_to_what_it_used_of_late(tmp_path: Path) -> None:
    loop = Loop()
    start(loop, "a")
    sizing = made(loop, tmp_path, row("a"))
    sizing.look()
    write(tmp_path, "a", [(float(t), 0.5, 100.0) for t in range(5)])
    sizing.look()
    limits = loop.engine.state.jobs["a"].limits
    assert limits is not None
    assert limits.cpu_milli == pytest.approx(575, abs=2)
    assert limits.memory_mib == pytest.approx(115, abs=2)
    lines = (tmp_path / "jobs" / "a" / "limits" / "1.jsonl").read_text().splitlines()
    assert [json.loads(line)["why"] for line in lines] == [
        "right-sizing begins",
        "what it used of late",
    ]
    write(tmp_path, "a", [(9.0, 1.9, 900.0)])
    sizing.look()
    limits = loop.engine.state.jobs["a"].limits
    assert limits is not None
    assert limits.memory_mib >= 900


def test_a_job_may_keep_out_of_it(tmp_path: Path) -> None:
    loop = Loop()
    start(loop, "a")
    sizing = made(loop, tmp_path, row("a", "rightsize: false\n"))
    write(tmp_path, "a", [(float(t), 0.5, 100.0) for t in range(9)])
    sizing.look()
    assert loop.facts == []


@pytest.mark.slow
def test_phases_of_earlier_runs_are_used_for_the_next(tmp_path: Path) -> None:
    loop = Loop()
    sizing = made(loop, tmp_path, row("a"), row("b"))
    story = [(0.2, 100.0)] * 20 + [(1.5, 600.0)] * 20
    start(loop, "a")
    sizing.look()
    write(tmp_path, "a", [(float(t), *story[t % 40]) for t in range(160)])
    sizing.look()
    loop.handle(ev.JobExited("a", 1, ev.Outcome.SUCCEEDED))
    sizing.look()
    until = time.monotonic() + 60
    while not list(tmp_path.glob("phases/*/phases.npz")):
        assert time.monotonic() < until, "no phases were learned"
        time.sleep(0.1)
    while None in sizing._models.values():
        time.sleep(0.05)
    start(loop, "b")
    loop.facts.clear()
    sizing.look()
    write(tmp_path, "b", [(float(t), *story[t % 40]) for t in range(35)])
    sizing.look()
    phases = [fact.phase for fact in loop.facts if isinstance(fact, ev.PhaseChanged)]
    assert phases
    advised = [fact for fact in loop.facts if isinstance(fact, ev.LimitsAdvised)]
    assert any("phase" in fact.reason.text for fact in advised)
