"""Run times that were foreseen from the history of a cluster, and own runs that correct them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from presage.control.advisors.learning import Learner
from presage.control.advisors.needs import NeedsEstimator
from presage.control.ends import StoredEnds
from presage.control.measured import StoredTelemetry
from presage.foresee.champions import Champions
from presage.layout import Layout
from presage.manifest import Manifest, parse_manifest, to_spec
from presage.model.cluster import Node
from presage.model.codec import encode
from presage.model.estimate import Estimate
from presage.model.job import JobSpec
from presage.store.memory import MemoryKnowledge
from tests.control.test_learning import Rows


class Cluster:
    """Jobs of two programs, foreseen alike, of which one takes longer than the other."""

    def __init__(self, home: Path) -> None:
        self.rows = Rows()
        self.champions = Champions(MemoryKnowledge())
        self.estimator = NeedsEstimator(self.champions, lambda: (Node("n", ()),), Path, _history)
        store = SimpleNamespace(jobs=self.rows)
        ends = StoredEnds(store)  # type: ignore[arg-type]
        self.teacher = Learner(ends, self.champions, self.estimator)
        self._telemetry = StoredTelemetry(Layout(home))

    def run(self, times: int, took: dict[str, float], **row: object) -> None:
        """Each program so many times, by turns; its estimate is made as it is submitted."""
        for _ in range(times):
            for name, seconds in took.items():
                asked = program(name)
                said = self.estimator.of(to_spec(asked, "j", "me"), None)
                assert said is not None
                at = float(len(self.rows.rows) + 1)
                about = {"started_at": at - seconds, "estimates": encode(said), "attempt": 1}
                self.rows.add(asked, **{**about, **row})
        self.teacher.catch_up(float(len(self.rows.rows)), self._telemetry)

    def foreseen(self, name: str) -> Estimate:
        """What the next job of a program is told."""
        said = self.estimator.of(to_spec(program(name), "j", "me"), None)
        assert said is not None
        assert said.runtime_s is not None
        return said.runtime_s


def program(name: str) -> Manifest:
    return parse_manifest(f"name: t\ncommand: python {name}.py\nresources: {{cpus: 1}}\n")


def _history(spec: JobSpec) -> Estimate:
    return Estimate(50.0, 100.0, 200.0, "s", "history of 40 runs")


def test_a_challenger_that_corrects_the_history_answers_when_it_is_better(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.run(4, {"short": 60.0, "long": 180.0})
    assert cluster.foreseen("long").source == "history of 40 runs"  # too few to learn from
    cluster.run(4, {"short": 60.0, "long": 180.0})
    (version,) = cluster.champions.standing("runtime").versions
    assert version.accepted
    assert version.error is not None
    assert version.champion_error is not None
    assert version.error < version.champion_error
    for name, seconds in (("short", 60.0), ("long", 180.0)):
        said = cluster.foreseen(name)
        assert said.p50 == pytest.approx(seconds, rel=0.2)
        assert said.source.startswith("own runs")

    # what is kept of later runs is what the history said, not what it was corrected to
    cluster.run(4, {"short": 60.0, "long": 180.0})
    assert {round(run.foreseen or 0.0, 6) for run in cluster.champions.runs("runtime")} == {100.0}


def test_one_that_is_not_better_does_not_answer(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.run(8, {"short": 100.0, "long": 100.0})
    (version,) = cluster.champions.standing("runtime").versions
    assert not version.accepted
    assert cluster.foreseen("long").source == "history of 40 runs"
    drift = cluster.champions.drift("runtime")
    assert drift is not None
    assert drift.error == pytest.approx(0.0)


def test_runs_that_went_otherwise_than_asked_teach_no_run_time(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    for row in ({"attempt": 2}, {"status": "FAILED"}, {"estimates": None}, {"started_at": None}):
        cluster.run(1, {"short": 60.0}, **row)
    assert cluster.champions.runs("runtime") == []
    cluster.run(6, {"short": 1e5, "long": 1e-5})  # wild, and nobody need look at that
    assert cluster.teacher.alerts() == {}
