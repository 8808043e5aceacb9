"""What one server learned and the next one knows: history, forecasts, files of before."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest

from presage.control.advisors.starts import Experience
from presage.control.charts import chart_lines
from presage.control.history import FIELDS, ClusterHistory
from presage.control.phases import StoredPhases
from presage.control.site.files import take_over_files
from presage.core.state import State
from presage.foresee.champions import Champions
from presage.layout import Layout
from presage.model import event as ev
from presage.model.job import JobSpec, Role
from presage.sim.ahead import Start, StartForecast
from presage.store import open_store
from presage.store.memory import MemoryKnowledge
from presage.store.records import JobChange, JobRow
from presage.store.sql import SqlStore


def test_a_history_survives_and_thins() -> None:
    now, knowledge = 100 * 86_400.0, MemoryKnowledge()
    history = ClusterHistory(knowledge)
    old = now - 10 * 86_400 + np.arange(60) * 10
    later = now - 3590 + np.arange(360) * 10  # after so many, old ones become means
    for k, at in enumerate([*old, *later]):
        history.add({name: float(k) for name in FIELDS} | {"at": float(at)})
    for again in (history, ClusterHistory(knowledge)):
        found = again.since(0.0, 1000)
        assert found["at"][2:] == later.tolist()
        assert found["gpus"][:2] == [14.5, 44.5]  # two means of five minutes
        assert len(again.since(now - 15, 1000)["at"]) == 2
        assert len(again.since(0.0, 5)["at"]) <= 6
    assert len(knowledge.tail("cluster/fine", 1000)) == 360
    assert len(knowledge.tail("cluster/coarse", 1000)) == 2


def waiting(*numbers: int) -> State:
    state = State()
    for number in numbers:
        state.apply(0.0, ev.JobSubmitted(JobSpec(f"j{number}", (Role(),))))
    return state


def test_forecasts_and_their_outcomes_are_known_to_the_next_server(tmp_path: Path) -> None:
    """Also those of jobs that still wait."""
    store = open_store(f"sqlite:///{tmp_path / 'presage.db'}")
    rows = [
        JobRow(id=f"j{number}", name="n", owner="ann", submitted_at=0.0, manifest={})
        for number in range(70)
    ]
    store.append(0.0, [], [], jobs=rows)
    first = Experience(store, store.knowledge, lambda: None)
    prior = first.calibration(400.0)
    first.catch_up()
    starts = {f"j{k}": Start(10.0, 100.0 + k / 3, 1000.0, ()) for k in range(70)}
    first.foreseen(StartForecast(1.0, 9, 5000.0, starts), waiting(*range(70)))
    for number in range(60):
        at = 51.0 + number / 7
        change = JobChange(job=f"j{number}", at=at, status="DOWNLOADING", attempt=1)
        store.append(at, [], [], changes=[change])
    assert first.catch_up() == 60
    second = Experience(store, store.knowledge, lambda: None)
    assert second.calibration(400.0) == prior
    second.catch_up()
    later = {"j65": Start(1.0, 2.0, 3.0, ())}  # the first forecast of a job counts
    second.foreseen(StartForecast(300.0, 9, 5000.0, later), waiting(*range(60, 70)))
    assert second.calibration(400.0) == first.calibration(400.0) != prior
    assert len(second._log.open) == 10
    store.close()


def test_what_former_versions_kept_in_files_is_taken_over_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The archive is a data directory that the version before wrote, its database included."""
    with tarfile.open(Path(__file__).parent / "files_of_revision_3.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    layout = Layout(tmp_path)
    store = open_store(f"sqlite:///{layout.database}")
    with caplog.at_level("INFO"):
        take_over_files(layout, store.knowledge)
    (said,) = caplog.messages
    assert said == f"took over 13 records from files in {tmp_path}, now *.imported"
    taken_over(store)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("*")}
    kept = {
        f"{name}.imported" for name in ("forecasts.jsonl", "history.jsonl", "models", "phases")
    }
    assert left == kept | {
        "folders",
        "jobs",
        "presage.db",
        "presage.db-shm",
        "presage.db-wal",
        "runs",
        "secrets",
    }
    assert {path.name for path in layout.job("j3").iterdir()} == {
        "limits.imported",
        "progress.jsonl.imported",
    }
    Champions(store.knowledge).pin("memory", 0)
    for path in tmp_path.glob("*.imported"):  # a crash before the files were put away
        path.rename(path.with_suffix(""))
    take_over_files(layout, store.knowledge)
    assert Champions(store.knowledge).standing("memory").pinned
    Champions(store.knowledge).unpin("memory")
    Champions(store.knowledge).rollback("memory")
    taken_over(store)
    store.close()


def taken_over(store: SqlStore) -> None:
    """Whether a server knows what was in the archive."""
    knowledge = store.knowledge
    champions = Champions(knowledge)
    assert champions.standing("memory").champion == 1
    assert champions.model("memory").factors["cpu"].runs == 24
    assert len(champions.runs("memory")) == 24
    drift = champions.drift("memory")
    assert drift is not None
    assert (drift.judged, drift.drifted) == (6, True)
    assert champions.not_enough("w7") == 512.0
    assert champions.learned_until() == 62
    found = ClusterHistory(knowledge).since(0.0, 100)
    assert found["gpus"] == [14.5, 44.5, 60.0, 61.0]
    assert len(knowledge.tail("cluster/coarse", 9)) == 2
    lessons = Experience(store, knowledge, lambda: None)
    lessons.catch_up()
    assert len(lessons._log) == 60
    reports = chart_lines(knowledge, "j3", "progress")
    assert [line["progress"]["loss"] for line in reports[1:]] == [0.9, 0.8]
    held = chart_lines(knowledge, "j3", "limits")
    assert [(line["attempt"], line["cpu_milli"]) for line in held] == [(1, 2000), (2, 500)]
    phases = StoredPhases(knowledge)
    model = phases.model("w")
    assert model is not None
    assert len(model.centres) == 2
    assert phases.model("other") is None
    assert len(knowledge.tail("phases/w/runs", 9)) == 2
