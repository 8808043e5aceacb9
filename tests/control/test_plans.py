"""Plans of manifests become requests when the epochs are reached, each once."""

from __future__ import annotations

from dataclasses import replace

from presage.control.plans import ElasticPlans
from presage.model import event as ev
from presage.store.records import JobRow

PLAN = [{"epoch": 30, "workers": 1}, {"epoch": 10, "workers": 4}]
ROW = JobRow(
    id="a",
    name="a",
    owner="ada",
    team="",
    queue="default",
    submitted_at=0.0,
    manifest={"elastic": PLAN},
    folder=None,
)


def at(epoch: float, attempt: int = 1) -> ev.Progress:
    return ev.Progress("a", attempt, 0.5, {"epoch": epoch})


def workers(found: list[ev.Fact]) -> list[int]:
    return [fact.workers for fact in found if isinstance(fact, ev.ScaleRequested)]


def test_each_step_is_asked_for_when_its_epoch_comes() -> None:
    plans = ElasticPlans({"a": ROW}.get)
    asked = [workers(plans.requests([at(epoch)])) for epoch in (1, 9, 10, 11, 29, 31, 32)]
    assert asked == [[], [], [4], [], [], [1], []]


def test_of_several_at_once_the_last_counts() -> None:
    assert workers(ElasticPlans({"a": ROW}.get).requests([at(40)])) == [1]


def test_what_was_reached_before_a_restart_is_not_asked_for_again() -> None:
    row = replace(ROW, progress={"done": 0.5, "epoch": 12})
    plans = ElasticPlans({"a": row}.get)
    assert workers(plans.requests([at(13)])) == []
    assert workers(plans.requests([at(30)])) == [1]


def test_an_epoch_that_is_done_again_counts_again() -> None:
    plans = ElasticPlans({"a": ROW}.get)
    plans.requests([at(12)])
    assert workers(plans.requests([at(8), at(10)])) == [4]


def test_a_job_without_a_plan_or_without_epochs_asks_for_nothing() -> None:
    plain = replace(ROW, manifest={"elastic": []})
    plans = ElasticPlans({"a": plain}.get)
    assert plans.requests([at(40), ev.Progress("a", 1, 0.5), ev.Progress("b", 1, 0.1)]) == []
    assert ElasticPlans(lambda _: None).requests([at(40)]) == []
