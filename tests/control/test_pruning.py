"""Early stopping of the worst members of an array, judged by Optuna, the same after a restart."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from presage.control.advisors.pruning import Pruning
from presage.core.loop import fold
from presage.core.state import State
from presage.model import event as ev
from presage.model.cluster import Resources
from presage.model.job import JobSpec, ReasonCode, Role
from presage.store.memory import MemoryKnowledge
from presage.store.records import ArrayRow, JobRow


def array(prune: dict[str, Any] | None, mode: str = "min") -> ArrayRow:
    sweep: dict[str, Any] = {"grid": {"lr": [1, 2]}}
    if prune is not None:
        sweep["prune"] = prune
    return ArrayRow(
        id="arr",
        name="arr",
        owner="ada",
        team="",
        queue="default",
        submitted_at=0.0,
        size=8,
        at_once=0,
        metric="loss",
        mode=mode,
        manifest={"sweep": sweep},
        folder=None,
    )


class Fleet:
    """Eight members that run and report."""

    def __init__(self, of: ArrayRow) -> None:
        self.array = of
        self.knowledge = MemoryKnowledge()
        self.rows = {f"arr-{k}": self._row(f"arr-{k}", "PROCESSING", None) for k in range(8)}
        roles = (Role("worker", Resources(gpu_milli=1000)),)
        submitted = [ev.JobSubmitted(JobSpec(job, roles, array="arr")) for job in self.rows]
        self.state: State = fold([(0.0, fact) for fact in submitted])
        self.start()

    def start(self) -> None:
        self.advisor = Pruning(lambda _: self.array, self._members, self.knowledge)

    def _members(self, array_id: str) -> list[JobRow]:
        return list(self.rows.values())

    def _row(self, job: str, status: str, progress: dict[str, Any] | None) -> JobRow:
        return JobRow(
            id=job,
            name="arr",
            owner="ada",
            submitted_at=0.0,
            manifest=None,
            status=status,
            progress=progress,
        )

    def report(
        self, step: int, status: str = "PROCESSING", jobs: Iterable[int] = range(8)
    ) -> None:
        """Member k has a loss of k."""
        for k in jobs:
            job = f"arr-{k}"
            self.rows[job] = self._row(job, status, {"done": 0.1, "step": step, "loss": float(k)})

    def look(self) -> dict[str, str]:
        """Who is to end, and why."""
        facts = list(self.advisor.look(0.0, lambda question: question(self.state), None))  # type: ignore[arg-type]
        found = {}
        for fact in facts:
            assert isinstance(fact, ev.CancelRequested)
            assert fact.reason is not None
            assert fact.reason.code is ReasonCode.STOPPED_EARLY
            found[fact.job] = fact.reason.text
        return found


def test_halving_stops_the_worse_half_at_a_rung() -> None:
    fleet = Fleet(array({"by": "halving", "min_steps": 2, "reduction": 2}))
    fleet.report(1)
    assert fleet.look() == {}
    fleet.report(2)
    losers = fleet.look()
    assert set(losers) <= {f"arr-{k}" for k in range(1, 8)}
    assert {"arr-4", "arr-5", "arr-6", "arr-7"} <= set(losers)
    assert losers["arr-7"] == "stopped early: loss 7 at step 2, in the worse half"
    assert fleet.look() == {}  # each is told once


def test_of_a_metric_that_should_be_high_the_low_ones_end() -> None:
    fleet = Fleet(array({"by": "halving", "min_steps": 1, "reduction": 2}, mode="max"))
    fleet.rows = dict(reversed(fleet.rows.items()))  # the best reports first
    fleet.report(1)
    losers = fleet.look()
    assert {"arr-0", "arr-1", "arr-2", "arr-3"} <= losers.keys()
    assert "arr-7" not in losers


def test_the_median_waits_until_enough_have_ended() -> None:
    fleet = Fleet(array({"by": "median", "startup": 4}))
    fleet.report(1, jobs=range(8))
    assert fleet.look() == {}
    fleet.report(1, "COMPLETED", jobs=range(4))
    assert fleet.look() == {}
    fleet.report(2, jobs=range(4, 8))
    assert fleet.look() == {}  # nobody else was ever at step 2
    fleet = Fleet(array({"by": "median", "startup": 4}))
    fleet.report(1, "COMPLETED", jobs=range(4))
    fleet.report(1, jobs=[7])
    assert fleet.look() == {"arr-7": "stopped early: loss 7 at step 1, worse than the median"}


def test_a_server_that_starts_anew_judges_as_the_one_before() -> None:
    prune = {"by": "halving", "min_steps": 2, "reduction": 2}
    one, other = Fleet(array(prune)), Fleet(array(prune))
    for step in (2, 4, 8):
        for fleet in (one, other):
            fleet.report(step)
        other.start()
        assert one.look() == other.look()
    assert one.knowledge.tail("sweeps/arr/reports", 999) == other.knowledge.tail(
        "sweeps/arr/reports", 999
    )


def test_an_array_without_pruning_is_left_alone() -> None:
    fleet = Fleet(array(None))
    fleet.report(5)
    assert fleet.look() == {}
    assert fleet.knowledge.tail("sweeps/arr/reports", 9) == []
