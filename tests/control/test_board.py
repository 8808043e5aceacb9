"""What users see of a run, from the facts and decisions of a step."""

from __future__ import annotations

from presage.control.board import changes_of
from presage.model import event as ev
from presage.store.records import JobChange
from tests.scenario import Scenario, job, nodes


def told(s: Scenario, *facts: ev.Fact) -> list[JobChange]:
    decisions = s.engine.handle(s.now, facts)
    return changes_of(s.now, s.engine.state, facts, decisions)


def running() -> Scenario:
    s = Scenario(nodes(1))
    s.submit(job("a", max_retries=1))
    return s


def test_a_run_shows_the_phase_it_is_in() -> None:
    s = running()
    (change,) = told(s, ev.PhaseChanged("a", 1, 2))
    assert (change.job, change.stage, change.status) == ("a", "phase 2", None)
    assert told(s, ev.PhaseChanged("a", 7, 3)) == []  # another run
    assert told(s, ev.PhaseChanged("b", 1, 3)) == []


def test_a_phase_hides_nothing_that_matters_more() -> None:
    s = running()
    told(s, ev.StageChanged("a", 1, "storing"))
    assert told(s, ev.PhaseChanged("a", 1, 2)) == []
    s = running()
    assert [change.stage for change in told(s, ev.HaltRequested("a"))] == ["stopping"]
    assert told(s, ev.PhaseChanged("a", 1, 2)) == []


def test_moves_of_a_step_are_told_once() -> None:
    s = running()
    (ended, launched) = told(s, ev.JobExited("a", 1, ev.Outcome.FAILED, None, 3))
    assert (ended.status, ended.exit_code) == ("QUEUED", 3)
    assert (launched.status, launched.attempt) == ("DOWNLOADING", 2)
    (started,) = told(s, ev.JobStarted("a", 2))
    assert (started.status, started.started_at) == ("PROCESSING", s.now)
    assert told(s, ev.Woke()) == []
