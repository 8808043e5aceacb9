"""Runs teach: what is kept of a run, when a version is fitted, and when estimates drift."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from presage.control.advisors.learning import Learner, MeasuredSize, sharing, sized
from presage.control.advisors.needs import NeedsEstimator, workload
from presage.control.advisors.starts import Declared
from presage.control.ends import StoredEnds
from presage.control.measured import StoredTelemetry
from presage.core.engine import Engine
from presage.core.state import State
from presage.foresee.adapter import EstimatePredictor, TimeSharing
from presage.foresee.champions import Champions
from presage.layout import Layout
from presage.manifest import Manifest, parse_manifest, to_spec
from presage.model import event as ev
from presage.model.cluster import Device, Node, Resources, Worker
from presage.model.codec import encode
from presage.model.estimate import Estimate, Estimates
from presage.model.job import JobSpec, Role
from presage.policy import registry
from presage.store.memory import MemoryKnowledge
from presage.store.records import JobRow, Transition


class Rows:
    """Jobs that ended, one after the other."""

    def __init__(self) -> None:
        self.rows: list[JobRow] = []
        self.reasons: list[str] = []

    def add(self, manifest: Manifest, reason: str = "ok", **row: Any) -> JobRow:
        number = len(self.rows) + 1
        made = JobRow(
            id=f"job-{number}",
            name=manifest.name,
            owner="me",
            submitted_at=0.0,
            ended_at=float(number),
            manifest=manifest.to_json(),
            status=row.pop("status", "COMPLETED"),
            **row,
        )
        self.rows.append(made)
        self.reasons.append(reason)
        return made

    def get(self, job: str) -> JobRow:
        return next(row for row in self.rows if row.id == job)

    def transitions_since(self, number: int, limit: int = 1000) -> Sequence[Transition]:
        found = [
            Transition(n, row.id, float(n), row.status, reason, "")
            for n, (row, reason) in enumerate(zip(self.rows, self.reasons, strict=True), 1)
        ]
        return found[number:][:limit]


def learner(
    rows: Rows, *devices: Device, knowledge: MemoryKnowledge | None = None
) -> tuple[Learner, Champions]:
    champions = Champions(knowledge or MemoryKnowledge())
    node = Node("n", devices)
    estimator = NeedsEstimator(champions, lambda: (node,), Path)
    store = SimpleNamespace(jobs=rows)
    made = Learner(StoredEnds(store), champions, estimator)  # type: ignore[arg-type]
    return made, champions


def catch_up(teacher: Learner, home: Path) -> int:
    return teacher.catch_up(0.0, StoredTelemetry(Layout(home)))


def telemetry(home: Path, row: JobRow, mib: float, **more: Any) -> None:
    folder = home / "jobs" / row.id / "telemetry"
    folder.mkdir(parents=True)
    lines = [
        {
            "at": t,
            "worker": "0",
            "cpu_s": 0.5 * t,
            "cpu_cores": 0.5,
            "rss_mib": mib * (t + 1) / 4,
            **{name: value * (t > 0) for name, value in more.items()},
        }
        for t in range(4)
    ]
    torn = "{"
    (folder / "1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + torn)


MANIFEST = parse_manifest(
    "name: t\ncommand: python t.py\nresources: {cpus: 1, memory: 1Gi}\n"
    "model: {ref: zoo:mlp, batch: 8}\n"
)


def test_runs_become_versions_that_answer_for_the_next_job(tmp_path: Path) -> None:
    rows = Rows()
    teacher, champions = learner(rows)
    for k in range(12):
        row = rows.add(MANIFEST, progress={"done": 1.0, "step_s": 0.01 + 0.0001 * k})
        telemetry(tmp_path, row, 200.0)
    assert catch_up(teacher, tmp_path) == 12
    assert catch_up(teacher, tmp_path) == 0  # it knows how far it came, also after a restart
    assert champions.standing("step_time").champion == 1
    (run, *_) = champions.runs("memory")
    assert run.actual == 200.0
    assert champions.runs("utilization")[0].actual == 0.5


def test_the_next_server_learns_when_the_first_would_have(tmp_path: Path) -> None:
    rows, knowledge = Rows(), MemoryKnowledge()
    first, champions = learner(rows, knowledge=knowledge)
    for count, versions in ((9, 0), (4, 1), (7, 1), (3, 2)):
        for _ in range(count):
            row = rows.add(MANIFEST, progress={"done": 1.0, "step_s": 0.01})
            telemetry(tmp_path, row, 200.0)
        teacher, _ = learner(rows, knowledge=knowledge)  # another one each time
        assert teacher.catch_up(float(len(rows.rows)), StoredTelemetry(Layout(tmp_path))) == count
        assert len(champions.standing("memory").versions) == versions
    assert catch_up(first, tmp_path) == 0


def test_runs_on_a_gpu_teach_what_they_used_of_it_and_beside_it(tmp_path: Path) -> None:
    manifest = parse_manifest(
        "name: t\ncommand: python t.py\nresources: {gpus: 1, memory: auto}\n"
        "model: {ref: zoo:resnet50, batch: 8}\n"
    )
    rows = Rows()
    teacher, champions = learner(rows, Device("a100-40g", 40960))
    spec = to_spec(manifest, "next", "me")
    before = teacher._estimator.of(spec, manifest.model, None)
    assert before is not None
    assert before.memory_mib is not None
    assert teacher._estimator.needs(spec, manifest.model, None).memory_mib is None
    for _ in range(12):
        row = rows.add(manifest)
        telemetry(tmp_path, row, 300.0, gpu_memory_mib=9000.0, gpu_util_pct=60.0)
    assert catch_up(teacher, tmp_path) == 12
    assert champions.standing("memory").champion == 1
    after = teacher._estimator.of(spec, manifest.model, None)
    assert after is not None
    assert after.memory_mib is not None
    assert after.memory_mib.p50 == pytest.approx(9000, rel=0.02)
    assert abs(before.memory_mib.p50 - 9000) > 900
    assert after.utilization is not None
    assert after.utilization.p50 == pytest.approx(0.6, rel=0.02)
    beside = teacher._estimator.needs(spec, manifest.model, None).memory_mib
    assert beside is not None
    assert beside == pytest.approx(300)


def test_a_run_that_shared_its_device_teaches_nothing(tmp_path: Path) -> None:
    rows = Rows()
    teacher, champions = learner(rows)
    row = rows.add(MANIFEST, progress={"step_s": 0.01})
    teacher._shared.add(row.id)
    catch_up(teacher, tmp_path)
    assert champions.runs("step_time") == []


def test_estimates_that_are_far_off_are_drift(tmp_path: Path) -> None:
    rows, knowledge = Rows(), MemoryKnowledge()
    teacher, _ = learner(rows, knowledge=knowledge)
    said = encode(Estimates("v", step_s=Estimate(0.009, 0.01, 0.011, "s", "test")))
    for _ in range(6):
        rows.add(MANIFEST, progress={"step_s": 0.0101}, estimates=said)
    catch_up(teacher, tmp_path)
    good = teacher.drift()["step_time"]
    assert not good.drifted
    assert good.inside == 1.0
    for _ in range(30):
        rows.add(MANIFEST, progress={"step_s": 0.05}, estimates=said)
    catch_up(teacher, tmp_path)
    bad = teacher.drift()["step_time"]
    assert bad.drifted
    assert bad.inside == 0.0
    (alert,) = teacher.alerts().values()
    assert alert.startswith("Estimates of step time are off by 400% on average on the latest 30")
    again, _ = learner(rows, knowledge=knowledge)
    assert again.drift() == teacher.drift()  # a server that starts again knows


def test_running_out_of_memory_is_noted_on_the_workload(tmp_path: Path) -> None:
    rows = Rows()
    teacher, champions = learner(rows)
    rows.add(MANIFEST, reason="out_of_memory", status="FAILED")
    catch_up(teacher, tmp_path)
    spec = to_spec(MANIFEST, "next", "me")
    assert champions.not_enough(workload(spec, MANIFEST.model)) == 1024
    assert champions.not_enough("unknown") == 0


def test_jobs_on_one_device_share_it() -> None:
    state = State()
    engine = Engine(registry.build("fifo"), Declared(), state)
    engine.handle(0.0, [ev.NodeUp(Node("n", (Device(), Device()), cpu_milli=2000))])
    half = Role("worker", Resources(gpu_milli=500))
    for name in ("a", "b"):
        state.apply(0.0, ev.JobSubmitted(JobSpec(name, (half,))))
        state.apply(0.0, ev.Launch(name, 1, (Worker(0, 0, "n", (0,)),)))
    state.apply(0.0, ev.JobSubmitted(JobSpec("alone", (half,))))
    state.apply(0.0, ev.Launch("alone", 1, (Worker(0, 0, "n", (1,)),)))
    assert sharing(state) == {"a", "b"}


def test_reports_of_elastic_jobs_become_the_speeds_that_the_policy_sees(tmp_path: Path) -> None:
    teacher, _ = learner(Rows())
    engine = Engine(registry.build("elastic"), EstimatePredictor(TimeSharing(), Declared()))
    spec = JobSpec("a", (Role("worker", Resources(gpu_milli=1000), 1, 2),), entrypoint=("train",))
    engine.handle(0.0, [ev.NodeUp(Node("n", (Device(), Device())))])
    engine.handle(0.0, [ev.JobSubmitted(spec)])
    engine.handle(0.0, [ev.JobStarted("a", 1)])
    job = engine.state.jobs["a"]
    now, done = 0.0, 0.0

    def report(times: int, share: float) -> int:
        """So many reports, a second apart, each of a look; how many points they gave."""
        nonlocal now, done
        found = 0
        for _ in range(times):
            now, done = now + 1.0, done + share
            engine.handle(now, [ev.Progress("a", 1, done)])
            told = teacher.time_sizes(sized(engine.state))
            for fact in told:
                engine.state.apply(now, fact)
            found += len(told)
        return found

    assert sized(engine.state) == []  # it has said nothing yet
    assert report(7, 0.01) == 1
    assert len(job.allocation) == 2
    engine.state.apply(now, ev.Resize("a", 1, job.allocation[:1]))
    assert sized(engine.state) == []
    engine.state.apply(now, ev.JobResized("a", 1))
    assert report(7, 0.01) == 1  # as fast with one worker as with two
    one, two = ((Worker(0, 0, "n"),), (Worker(0, 0, "n"), Worker(0, 1, "n")))
    ratio = engine.predict.runtime(job, two).p50 / engine.predict.runtime(job, one).p50
    assert 0.9 < ratio < 1.1


def test_a_job_beside_another_tells_nothing_of_its_speed(tmp_path: Path) -> None:
    teacher, _ = learner(Rows())
    teacher._shared.add("a")
    for ran_s in (1.0, 11.0):
        assert teacher.time_sizes([MeasuredSize("a", (1, 0.0, 1, 1), ran_s / 100, ran_s)]) == []
