"""A watcher with a store: what it keeps, foresees and scores, and what it refuses."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from presage.control.watch import refuse_watched
from presage.control.watch.answers import WatchedCluster, held_gpus
from presage.control.watch.busy import Busy
from presage.control.watch.outlook import ahead_of, present
from presage.control.watch.scores import Forecast, Scored, read_scores, report
from presage.control.watch.watcher import ClusterWatcher, latest
from presage.core.loop import fold
from presage.model.cluster import Device, LabelRule, Node, Resources, Where
from presage.model.errors import NotFound, UserError, WatchError
from presage.model.event import JobSubmitted, Outcome
from presage.model.job import Dependency, JobSpec, Role
from presage.model.watched import SeenCluster, SeenEnd, SeenJob, SeenNode, SeenRun, SeenWorker
from presage.server.watching import create_watch_app
from presage.store import open_store
from presage.store.sql import SqlStore
from tests.waiting import run_apart

GPU = Resources(cpu_milli=1000, gpu_milli=1000)
LONG = Node("long", (Device(),) * 2, 8000, 8192, {"part/long": "yes"})
SHORT = Node("short", (Device(),) * 2, 8000, 8192, {"part/short": "yes"})
NODES = (SeenNode(LONG), SeenNode(SHORT))


def job(
    number: int, at: float, gpus: int = 1, *, on: str = "", limit_s: float = 3600.0
) -> SeenJob:
    where = Where(((LabelRule(f"part/{on}"),),)) if on else Where()
    role = Role(resources=replace(GPU, gpu_milli=1000 * gpus), where=where)
    return SeenJob(str(number), f"job-{number % 3}", "ann", on, at, role, time_limit_s=limit_s)


def started(seen: SeenJob, at: float, node: str, end: SeenEnd | None = None) -> SeenJob:
    worker = SeenWorker(node, seen.role.resources)
    return replace(seen, runs=(SeenRun(1, at, (worker,), end),))


class MadeSource:
    """A cluster that is told what to show."""

    kind = "slurm"
    name = "made"

    def __init__(self) -> None:
        self.sight = SeenCluster(1000.0, (), NODES)
        self.since: list[float] = []
        self.down = False
        self.notes: dict[str, str] = {}

    def show(self, now: float, *jobs: SeenJob) -> None:
        self.sight = SeenCluster(now, jobs, NODES, ("much is hidden",))

    def look(self, since: float, alive: Collection[str]) -> SeenCluster:
        if self.down:
            raise WatchError("nobody answers")
        self.since.append(since)
        return self.sight

    def annotate(self, job: str, text: str) -> None:
        self.notes[job] = text

    def close(self) -> None:
        pass


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    opened = open_store(f"sqlite:///{tmp_path}/w.db")
    yield opened
    opened.close()


@pytest.fixture
def source() -> MadeSource:
    return MadeSource()


def run_two(store: SqlStore, source: MadeSource) -> ClusterWatcher:
    """Two GPUs of `long` are held, one job waits for one of them."""
    watcher = ClusterWatcher(store, source, "me", clock=lambda: 1000.0)
    first = [started(job(n, 900.0, on="long"), 950.0, "long") for n in (1, 2)]
    source.show(1000.0, *first, job(3, 990.0, on="long"), job(4, 995.0, 2, on="long"))
    watcher.turn()
    return watcher


def test_what_was_seen_is_an_ordinary_journal(store: SqlStore, source: MadeSource) -> None:
    watcher = run_two(store, source)
    assert fold(store.read()).snapshot() == watcher.state.snapshot()
    assert source.since == [1000.0 - 30 * 86_400.0]
    row = store.jobs.get("1")
    assert row is not None
    assert (row.name, row.status, row.started_at) == ("job-1", "PROCESSING", 950.0)
    sight, starts = latest(store)
    assert [seen.id for seen in sight.jobs] == ["1", "2", "3", "4"]
    assert set(starts) == {"3", "4"}


def test_it_goes_on_after_a_kill_and_scores_what_happened_meanwhile(
    store: SqlStore, source: MadeSource
) -> None:
    run_two(store, source)  # and never closed
    third = started(job(3, 990.0, on="long"), 1500.0, "long", SeenEnd(1600.0, Outcome.SUCCEEDED))
    over = SeenEnd(1500.0, Outcome.SUCCEEDED)
    first = [started(job(n, 900.0, on="long"), 950.0, "long", over) for n in (1, 2)]
    source.show(2000.0, *first, third, job(4, 995.0, 2, on="long"))
    ClusterWatcher(store, source, "me", clock=lambda: 2000.0).turn()
    scored = read_scores(store.knowledge)
    assert [(one.job, one.started_at, one.forecast.made_at) for one in scored] == [
        ("3", 1500.0, 1000.0)
    ]
    ended = store.jobs.get("3")
    assert ended is not None
    assert (ended.status, ended.started_at, ended.ended_at) == ("COMPLETED", 1500.0, 1600.0)


def test_run_times_are_learned_from_what_ended(store: SqlStore, source: MadeSource) -> None:
    watcher = ClusterWatcher(store, source, "me", clock=lambda: 50_000.0)
    past = [
        started(job(n, 10.0 * n), 10.0 * n, "long", SeenEnd(10.0 * n + 600, Outcome.SUCCEEDED))
        for n in range(1, 60)
    ]
    source.show(50_000.0, *past)
    watcher.turn()
    again = ClusterWatcher(store, source, "me")
    for known in (watcher, again):
        usual = known.learner.history.estimate(JobSpec("x", (Role(resources=GPU),)), 0.0, 50_000.0)
        assert usual.p50 == pytest.approx(600.0, rel=0.2)


def test_one_directory_is_one_watched_cluster(store: SqlStore, source: MadeSource) -> None:
    run_two(store, source)
    with pytest.raises(WatchError, match="another process watches"):
        ClusterWatcher(store, source, "somebody else")
    other = MadeSource()
    other.name = "other"
    with pytest.raises(WatchError, match="watches the slurm cluster made, not slurm other"):
        ClusterWatcher(store, other, "me")


def test_the_directory_of_a_server_is_left_alone(store: SqlStore, source: MadeSource) -> None:
    store.append(1.0, [JobSubmitted(JobSpec("a", (Role(),)))], [])
    with pytest.raises(WatchError, match="the journal of a server"):
        ClusterWatcher(store, source, "me")
    with pytest.raises(WatchError, match="the journal of a server"):
        WatchedCluster(store)


def test_no_server_decides_in_a_watched_directory(store: SqlStore, source: MadeSource) -> None:
    refuse_watched(store.knowledge)
    run_two(store, source)
    with pytest.raises(UserError, match="what `presage watch` saw"):
        refuse_watched(store.knowledge)


def test_a_cluster_that_does_not_answer_changes_nothing(
    store: SqlStore, source: MadeSource
) -> None:
    watcher = run_two(store, source)
    before = store.position()
    source.down = True
    with pytest.raises(WatchError):
        watcher.turn()
    source.down = False
    watcher.turn()
    assert store.position() == before


def test_notes_are_written_only_where_somebody_asked_for_it(
    store: SqlStore, source: MadeSource
) -> None:
    run_two(store, source)
    assert source.notes == {}
    watcher = ClusterWatcher(store, source, "me", clock=lambda: 1000.0, note=source.annotate)
    source.show(1020.0, *source.sight.jobs)
    watcher.turn()
    assert set(source.notes) == {"3", "4"}
    assert source.notes["3"].startswith("presage: starts 1970-01-01T00:")


# -- looking ahead --------------------------------------------------------------------------------


def test_who_waits_is_in_the_order_of_the_scheduler_there() -> None:
    running = started(job(1, 900.0, 2), 950.0, "long")
    held, blocked = replace(job(2, 960.0), held="its owner holds it"), job(5, 970.0)
    blocked = replace(blocked, after=(Dependency("1"),))
    sight = SeenCluster(1000.0, (running, held, job(4, 990.0), job(3, 980.0), blocked), NODES)
    state = present(sight)
    assert list(state.pending) == ["4", "3"]
    assert list(state.gates.blocked) == ["5"]
    assert state.jobs["1"].ran(1000.0) == 50.0
    assert ahead_of(sight, "3") == ["4"]


def test_a_job_waits_for_its_own_partition_alone(store: SqlStore, source: MadeSource) -> None:
    watcher = run_two(store, source)
    free = job(7, 999.0, 2, on="short")
    source.show(1010.0, *source.sight.jobs, free)
    starts = watcher.turn().starts
    assert starts["7"].p90_s == 0.0
    assert starts["7"].nodes == ("short",)
    assert (starts["3"].p50_s or 0.0) > 0.0


def test_what_is_known_is_told(store: SqlStore, source: MadeSource) -> None:
    run_two(store, source)
    known = WatchedCluster(store)
    about = known.explain("4", 1005.0)
    assert (about["status"], about["ahead_jobs"], about["age_s"]) == ("QUEUED", ["3"], 5.0)
    assert about["eta_s"]["p10"] <= about["eta_s"]["p50"] <= about["eta_s"]["p90"]
    changes = [option["change"] for option in about["helps"]]
    assert "if it might run on any node" in changes
    assert known.explain("1", 1005.0)["status"] == "PROCESSING"
    with pytest.raises(WatchError, match="stands for several jobs: 1, 4"):
        known.explain("job-1", 1005.0)
    with pytest.raises(NotFound, match="made has no job 99"):
        known.explain("99", 1005.0)
    body = known.overview(1005.0)
    assert body["gpus"] == {"total": 4, "held": 2, "idle": None}
    assert body["queues"] == {"long": {"running": 2, "waiting": 2}}
    assert body["notes"] == ["much is hidden"]


def test_gpus_that_are_held_and_idle() -> None:
    busy = replace(started(job(1, 900.0), 950.0, "long"), id="1")
    lazy = started(job(2, 900.0), 950.0, "long")
    with_devices = [
        replace(one, runs=(replace(one.runs[0], workers=(SeenWorker("long", GPU, (k,)),)),))
        for k, one in enumerate((busy, lazy))
    ]
    sight = SeenCluster(1000.0, tuple(with_devices), NODES)
    held = held_gpus(sight, Busy({("long", 0): 0.9, ("long", 1): 0.01}))
    assert [(one.job, one.idle) for one in held] == [("2", True), ("1", False)]
    pods = held_gpus(sight, Busy(pods={"2": 0.5}))
    assert {one.job: one.busy for one in pods} == {"1": None, "2": 0.5}


def test_what_another_policy_would_have_done(store: SqlStore, source: MadeSource) -> None:
    watcher = ClusterWatcher(store, source, "me", clock=lambda: 5000.0)
    over = [SeenEnd(1000.0, Outcome.SUCCEEDED), SeenEnd(1100.0, Outcome.SUCCEEDED)]
    jobs = [started(job(k, 100.0, 2), 200.0 + 800 * k, "long", end) for k, end in enumerate(over)]
    source.show(5000.0, *jobs)
    watcher.turn()
    answer = WatchedCluster(store).what_if(["fifo"], None, None)
    assert answer["recorded"]["avg_wait_s"] == 500.0
    assert answer["policies"]["fifo"]["avg_wait_s"] == 0.0


def test_the_page_and_its_json(store: SqlStore, source: MadeSource) -> None:
    run_two(store, source)
    transport = httpx.ASGITransport(create_watch_app(WatchedCluster(store)))

    async def look() -> None:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            assert (await client.get("/api/v1/watch")).json()["cluster"] == "made"
            about = await client.get("/api/v1/watch/explain", params={"job": "3"})
            assert about.json()["ahead"] == 0
            unknown = await client.get("/api/v1/watch/explain", params={"job": "99"})
            assert unknown.status_code == 404
            page = (await client.get("/")).text
            assert "slurm made" in page
            assert "2 of 4 held" in page
            assert (await client.post("/api/v1/watch")).status_code == 405
            stranger = await client.get("/", headers={"host": "evil.example"})
            assert stranger.status_code == 403

    run_apart(look())


# -- scores ---------------------------------------------------------------------------------------


def test_a_report_counts_what_was_told_and_what_came_of_it() -> None:
    def scored(wait: float, theirs: float | None = None) -> Scored:
        made = Forecast(100.0, (0.0, 1.0, 2.0), (10.0, 20.0, 40.0))
        if theirs is not None:
            made = replace(made, compared_at=110.0, theirs_at=theirs, ours_at=120.0)
        return Scored("j", made, 100.0 + wait)

    body = report([scored(20.0), scored(50.0, 155.0), scored(30.0, 400.0)])
    assert body["foreseen"] == body["waited"] == 3
    assert body["coverage"] == pytest.approx(2 / 3)
    assert body["median_error_s"] == 10.0
    assert (body["compared"], body["compared_error_s"], body["their_error_s"]) == (2, 20.0, 137.5)
    assert body["closer"] == 0.5
    assert report([])["coverage"] is None
