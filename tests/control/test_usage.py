"""Accounting: what runs hold becomes rows by day, counted once whatever happens in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from presage.control.records.usage import Accountant, Ledger, price_of_type
from presage.core.state import State
from presage.model import event as ev
from presage.model.cluster import Device, Node, Resources, Worker
from presage.model.errors import StaleLease
from presage.model.job import JobSpec, Reason, ReasonCode, Role
from presage.store import open_store
from presage.store.records import JobRow
from presage.store.sql import SqlStore
from presage.store.usage import DayUsage, UsageKey
from presage.telemetry.rows import Row

T = TypeVar("T")
HOUR = 3600.0
NODE = Node("n0", (Device("A100-SXM4-40GB"),) * 4, 64_000, 99_000)
WHY = Reason(ReasonCode.ERROR, "exit code 3")


class Quiet:
    """Telemetry: what each job was, as (seconds, GPU use in percent, cores)."""

    def __init__(self, **jobs: Sequence[tuple[float, float, float]]) -> None:
        self._jobs = jobs

    def new(self, job: str, attempt: int, mark: int = 0) -> tuple[Sequence[Row], int]:
        told = self._jobs.get(job, ())
        rows = [Row(at, "worker-0", cpu_cores=c, gpu_util_pct=u) for at, u, c in told]
        return rows[mark:], len(rows)

    def of(self, job: str) -> Iterator[Row]:
        return iter(self.new(job, 1)[0])

    def latest(self, job: str, attempt: int, workers: int, since: float) -> Sequence[Row]:
        return ()


def spec(name: str, gpus: float = 1.0, most: int = 1, **more: object) -> JobSpec:
    ask = Resources(cpu_milli=2000, gpu_milli=round(gpus * 1000))
    values = {"owner": "ada", "team": "vision", "queue": "q", **more}
    return JobSpec(name, (Role("worker", ask, 1, most),), **values)  # type: ignore[arg-type]


def on(*devices: int) -> tuple[Worker, ...]:
    """A worker on each of these devices."""
    return tuple(Worker(0, k, "n0", (d,)) for k, d in enumerate(devices))


class Server:
    """A store and an accountant beside a state, as the deciding loop would drive them."""

    def __init__(self, store: SqlStore) -> None:
        self.store, self.state, self.position = store, State(), 0
        self.telemetry = Quiet()
        self.start()

    def start(self) -> None:
        """Another server, which knows what is on disk."""
        self.accountant = Accountant(self.store, lambda: 0, measure_s=0.0)

    def turn(self, now: float, *events: ev.Event, heard: bool = True) -> None:
        facts = [event for event in events if isinstance(event, ev.FACTS)]
        decisions = [event for event in events if isinstance(event, ev.DECISIONS)]
        rows = [
            JobRow(
                id=fact.spec.id,
                name=fact.spec.id,
                owner=fact.spec.owner,
                team=fact.spec.team,
                queue=fact.spec.queue,
                submitted_at=now,
                manifest={
                    "name": fact.spec.id,
                    "command": "true",
                    "queue": fact.spec.queue,
                    "resources": {"gpus": 1, "cpus": 2},
                },
            )
            for fact in facts
            if isinstance(fact, ev.JobSubmitted)
        ]
        self.state.apply_all(now, events)
        self.store.append(now, facts, decisions, jobs=rows)
        if heard:
            self.accountant.heard(self.position, now, events, len(events), self.state)
        self.position += len(events)

    def look(self, now: float) -> None:
        assert list(self.accountant.look(now, self._ask, self.telemetry)) == []

    def _ask(self, question: Callable[[State], T]) -> T:
        return question(self.state)

    def rows(self) -> dict[UsageKey, DayUsage]:
        return dict(self.store.usage.read(0, 10_000))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    store = open_store(f"sqlite:///{tmp_path / 'presage.db'}")
    made = Server(store)
    made.turn(0.0, ev.NodeUp(NODE))
    yield made
    store.close()


def key(day: int, owner: str = "ada", team: str = "vision") -> UsageKey:
    return UsageKey(day, owner, team, "q")


def test_a_run_over_midnight(server: Server) -> None:
    price = price_of_type("A100-SXM4-40GB")
    assert price is not None
    server.turn(20 * HOUR, ev.JobSubmitted(spec("a", 2)))
    server.turn(20 * HOUR, ev.Launch("a", 1, (Worker(0, 0, "n0", (0, 1)),)))
    server.turn(20 * HOUR, ev.JobStarted("a", 1))
    server.look(22 * HOUR)
    assert server.rows()[key(0)].held_gpu_s == pytest.approx(2 * (2 * HOUR - 10))  # it goes on
    server.turn(26 * HOUR, ev.JobExited("a", 1, ev.Outcome.SUCCEEDED))
    server.telemetry = Quiet(a=[(21 * HOUR, 50.0, 1.0), (26 * HOUR, 100.0, 0.5)])
    server.look(27 * HOUR)
    first, second = server.rows()[key(0)], server.rows()[key(1)]
    assert (first.held_gpu_s, second.held_gpu_s) == pytest.approx((8 * HOUR, 4 * HOUR))
    assert (first.asked_gpu_s, first.held_cpu_s) == pytest.approx((8 * HOUR, 8 * HOUR))
    assert first.cost_usd == pytest.approx(8 * price)
    assert (first.runs, second.runs, first.lost_gpu_s, first.unpriced_gpu_s) == (1, 0, 0.0, 0.0)
    assert second.measured_gpu_s == pytest.approx(12 * HOUR)  # all of it was measured
    assert second.used_gpu_s == pytest.approx(0.75 * 12 * HOUR)
    assert second.used_cpu_s == pytest.approx(0.75 * 6 * HOUR)
    server.look(28 * HOUR)
    assert server.rows()[key(1)] == second  # it is over


@pytest.mark.parametrize(
    ("outcome", "checkpoints", "progress", "lost"),
    [
        (ev.Outcome.SUCCEEDED, True, False, 0.0),
        (ev.Outcome.FAILED, True, False, 4.0),
        (ev.Outcome.FAILED, True, True, 1.0),
        (ev.Outcome.LOST, True, True, 1.0),
        (ev.Outcome.OUT_OF_MEMORY, True, False, 4.0),
        (ev.Outcome.STOPPED, True, False, 0.0),
        (ev.Outcome.STOPPED, False, False, 4.0),
    ],
)
def test_what_is_lost(
    server: Server, outcome: ev.Outcome, checkpoints: bool, progress: bool, lost: float
) -> None:
    server.turn(0.0, ev.JobSubmitted(spec("a", checkpointable=checkpoints)))
    server.turn(0.0, ev.Launch("a", 1, on(0)))
    if progress:
        server.turn(3 * HOUR, ev.Progress("a", 1, 0.5))
    server.turn(4 * HOUR, ev.JobExited("a", 1, outcome))
    server.look(5 * HOUR)
    assert server.rows()[key(0)].lost_gpu_s == pytest.approx(lost * HOUR)
    assert server.rows()[key(0)].held_gpu_s == pytest.approx(4 * HOUR)


def test_elastic_and_shared_jobs(server: Server) -> None:
    server.turn(
        0.0, ev.JobSubmitted(spec("a", most=4)), ev.JobSubmitted(spec("b", 0.5, max_retries=1))
    )
    server.turn(0.0, ev.Launch("a", 1, on(0)), ev.Launch("b", 1, (Worker(0, 0, "n0", (3,)),)))
    server.turn(1 * HOUR, ev.Resize("a", 1, on(0, 1)))
    server.turn(2 * HOUR, ev.JobResized("a", 1))
    server.turn(4 * HOUR, ev.JobExited("a", 1, ev.Outcome.SUCCEEDED))
    server.look(4 * HOUR)
    of_day = server.rows()[key(0)]
    assert of_day.held_gpu_s == pytest.approx((2 + 2 * 2) * HOUR + 0.5 * (4 * HOUR - 10))
    server.turn(4 * HOUR, ev.JobExited("b", 1, ev.Outcome.OUT_OF_MEMORY))
    server.turn(4 * HOUR, ev.Launch("b", 2, (Worker(0, 0, "n0", (3,)),)))
    server.turn(5 * HOUR, ev.JobExited("b", 2, ev.Outcome.SUCCEEDED))
    server.look(5 * HOUR)
    of_day = server.rows()[key(0)]
    assert of_day.held_gpu_s == pytest.approx((6 + 0.5 * 4 + 1) * HOUR)  # a whole one now
    assert of_day.runs == 3
    assert of_day.asked_gpu_s == pytest.approx((4 + 0.5 * 5) * HOUR)


def lives(server: Server, crash_after: int | None) -> dict[UsageKey, DayUsage]:
    """Some jobs; after so many turns another server goes on from what is on disk."""
    turns: list[tuple[float, tuple[ev.Event, ...]]] = [
        (0.0, (ev.JobSubmitted(spec("a")), ev.JobSubmitted(spec("b", owner="bob", team="")))),
        (HOUR, (ev.Launch("a", 1, on(0)), ev.Launch("b", 1, (Worker(0, 0, "n0", (1,)),)))),
        (2 * HOUR, (ev.Progress("a", 1, 0.3), ev.JobStarted("b", 1))),
        (3 * HOUR, (ev.JobExited("a", 1, ev.Outcome.FAILED, WHY),)),
        (25 * HOUR, (ev.JobExited("b", 1, ev.Outcome.SUCCEEDED),)),
        (26 * HOUR, (ev.Woke(),)),
    ]
    for count, (now, events) in enumerate(turns):
        server.turn(now, *events)
        if count == crash_after:
            server.start()  # what was heard and not written is gone
        elif count % 2:
            server.look(now + 60.0)
    server.look(27 * HOUR)
    server.look(27 * HOUR)
    return server.rows()


@pytest.mark.parametrize("crash_after", range(6))
def test_a_crash_anywhere_counts_everything_once(
    server: Server, tmp_path: Path, crash_after: int
) -> None:
    rows = lives(server, crash_after)
    store = open_store(f"sqlite:///{tmp_path / 'other.db'}")
    other = Server(store)
    other.turn(0.0, ev.NodeUp(NODE))
    expected = lives(other, None)
    store.close()
    assert rows.keys() == expected.keys()
    for name, row in rows.items():
        assert row.held_gpu_s == pytest.approx(expected[name].held_gpu_s), name
        assert row.lost_gpu_s == pytest.approx(expected[name].lost_gpu_s)
        assert row.runs == expected[name].runs
    assert rows[key(0)].held_gpu_s == pytest.approx(2 * HOUR)
    assert rows[key(0)].lost_gpu_s == pytest.approx(HOUR)
    assert rows[key(1, "bob", "")].held_gpu_s == pytest.approx(HOUR)


def test_the_journal_of_before_is_counted_from_its_beginning(server: Server) -> None:
    """An old server wrote it, and nobody listened."""
    server.turn(0.0, ev.JobSubmitted(spec("a", team="")), heard=False)
    server.turn(HOUR, ev.Launch("a", 1, on(0)), heard=False)
    server.turn(3 * HOUR, ev.JobExited("a", 1, ev.Outcome.SUCCEEDED), heard=False)
    server.start()
    server.look(4 * HOUR)
    assert server.rows()[key(0, team="")].held_gpu_s == pytest.approx(2 * HOUR)
    assert server.store.usage.known()[0] == server.position


def test_two_that_count_the_same_are_told(server: Server) -> None:
    server.turn(0.0, ev.JobSubmitted(spec("a")))
    server.look(1.0)
    one, _ = server.store.usage.known()
    server.store.usage.write(one, one + 5, {}, {key(0): DayUsage(held_gpu_s=1.0)})
    with pytest.raises(StaleLease, match="somebody else"):
        server.store.usage.write(one, one + 5, {}, {key(0): DayUsage(held_gpu_s=1.0)})
    assert server.rows()[key(0)].held_gpu_s == 1.0
    with pytest.raises(StaleLease, match="lease 7 is over"):
        server.store.usage.write(one + 5, one + 6, {}, {}, lease=7)


def test_what_a_ledger_keeps_is_json_and_comes_back() -> None:
    ledger = Ledger()
    ledger.take(
        5.0,
        [ev.Launch("a", 1, on(0)), ev.Resize("a", 1, on(0, 1))],
        lambda _: (spec("a", most=2), False),
        {"n0": ("A100-SXM4-40GB",) * 4},
    )
    again = Ledger(ledger.body())
    assert again.body() == ledger.body()
    assert again.runs["a"].next_size == on(0, 1)
