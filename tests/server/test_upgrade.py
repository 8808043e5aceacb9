"""A database that a release left behind: this version finds everything in it, and goes on."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from presage.foresee.champions import Champions
from presage.layout import Layout
from presage.store import open_store
from tests.server.kit import Server, eventually

RELEASES = sorted((Path(__file__).parents[1] / "store").glob("release_*.sql"))
"""Made by tools/release_database.py with the code of each release."""
TOKEN = "presage_" + "0123456789abcdef" * 2


def left_behind(release: Path, layout: Layout) -> None:
    """A data directory with the database of a release."""
    layout.prepare()
    database = sqlite3.connect(layout.database)
    database.executescript(release.read_text(encoding="utf-8"))
    database.close()


def test_there_is_a_release() -> None:
    assert RELEASES


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.stem)
def test_nothing_is_lost(release: Path, tmp_path: Path) -> None:
    layout = Layout(tmp_path / "data")
    left_behind(release, layout)
    store = open_store(f"sqlite:///{layout.database}")
    jobs = {row.name: row for row in store.jobs.list(limit=100)}
    assert {name: row.status for name, row in jobs.items()} == {
        "train": "COMPLETED",
        "fails": "FAILED",
        "halted": "HALTED",
        "runs-a": "PROCESSING",
        "runs-b": "PROCESSING",
        "waits": "QUEUED",
    }
    assert jobs["fails"].exit_code == 3
    assert {(user.name, user.role, user.team) for user in store.users.all()} == {
        ("admin", "admin", ""),
        ("ada", "user", "vision"),
    }
    assert len(Champions(store.knowledge).runs("memory")) == 2
    assert len(list(store.read())) == store.position() > 30
    store.close()


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.stem)
def test_it_goes_on_scheduling(
    release: Path, serve: Callable[..., Server], tmp_path: Path
) -> None:
    left_behind(release, Layout(tmp_path / "data"))
    server = serve("--policy", "backfill", nodes="2x4", token=TOKEN).start()
    assert server.leads()
    jobs = {job["name"]: job["id"] for job in server.http.get("/api/v1/jobs").json()["jobs"]}
    for name in ("runs-a", "runs-b"):  # nothing of the runs is left on this machine
        again = server.wait(jobs[name], "PROCESSING")
        assert again["attempt"] >= 1
        server.tell(jobs[name], "stop")
    assert server.wait(jobs["waits"])["status"] == "COMPLETED"
    server.tell(jobs["halted"], "resume")
    server.wait(jobs["halted"], "PROCESSING")
    new = server.submit(resources={"gpus": 1}, model={"ref": "zoo:mlp", "batch": 8, "steps": 20})
    assert server.wait(new)["status"] == "COMPLETED"
    estimates = server.job(new)["estimates"]
    assert estimates is not None

    def counted() -> bool:
        days = {"since": "2026-11-01", "until": "2030-01-01"}
        sums = server.http.get("/api/v1/usage", params=days).json()["sums"]
        return any(row["key"] == "admin" and row["runs"] >= 6 for row in sums)

    eventually(counted)  # from the journal of before, too
    server.stop_everything()
