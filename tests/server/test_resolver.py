"""Jobs are found by id, by its beginning, and by name; nodes by the beginning of theirs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from presage.control.resolver import resolve
from presage.model.errors import Ambiguous, NotFound
from presage.store import open_store
from presage.store.records import JobChange, JobRow
from presage.store.sql import SqlStore
from tests.server.kit import Server


def row(job_id: str, name: str, owner: str = "ada") -> JobRow:
    return JobRow(id=job_id, name=name, owner=owner, submitted_at=1.0, manifest={})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlStore]:
    """Jobs of several names; `net` has one that is not over, `old` none, `twice` two."""
    made = open_store(f"sqlite:///{tmp_path_factory.mktemp('store') / 'x.db'}")
    rows = [
        row("net-aa01", "net"),
        row("net-ab02", "net"),
        row("net-50-cc03", "net-50"),
        row("old-dd04", "old"),
        row("old-ee05", "old"),
        row("twice-ff06", "twice"),
        row("twice-ff07", "twice"),
        row("hidden-0008", "hidden", "eve"),
        row("a%_-0009", "a%_"),
    ]
    lease = made.lease.acquire("me", "http://me", 60.0)
    assert lease is not None
    over = [
        JobChange(job=name, at=2.0, status="COMPLETED", ended_at=2.0)
        for name in ("net-ab02", "old-dd04", "old-ee05")
    ]
    made.append(2.0, [], [], lease=lease, jobs=rows, changes=over)
    yield made
    made.close()


def mine(row: JobRow) -> bool:
    return row.owner == "ada"


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("net", "net-aa01"),
        ("old", "old-ee05"),
        ("net-5", "net-50-cc03"),
        ("net-50", "net-50-cc03"),
        ("old-d", "old-dd04"),
        ("a%_", "a%_-0009"),
        ("twice-ff07", "twice-ff07"),
    ],
)
def test_a_name_or_the_beginning_of_an_id_means_one_job(
    store: SqlStore, text: str, means: str
) -> None:
    assert resolve(store.jobs, text, mine) == means


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("twice", "2 jobs named twice are not over: twice-ff07 (QUEUED), twice-ff06 (QUEUED)"),
        ("old-", "2 jobs begin with old-: old-ee05 (COMPLETED), old-dd04"),
        ("n", "3 jobs begin with n: net-50-cc03 (QUEUED)"),
    ],
)
def test_what_means_several_lists_them(store: SqlStore, text: str, says: str) -> None:
    with pytest.raises(Ambiguous) as told:
        resolve(store.jobs, text, mine)
    assert str(told.value).startswith(says)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nett", "there is no job nett; did you mean net or"),
        ("hidden", "there is no job hidden"),
        ("hidden-0", "there is no job hidden-0"),
        ("%", "there is no job %"),
        ("", "there is no job "),
    ],
)
def test_what_means_nothing_is_told_what_is_near(store: SqlStore, text: str, says: str) -> None:
    with pytest.raises(NotFound) as told:
        resolve(store.jobs, text, mine)
    assert str(told.value).startswith(says)
    assert "hidden-0008" not in str(told.value)


def test_every_route_and_command_knows_them(server: Server, tmp_path: Path) -> None:
    job = server.submit("echo hello", name="findable")
    server.wait(job)
    for text in ("findable", job[:-3]):
        for path in ("", "/manifest", "/explain", "/telemetry", "/progress", "/log-files"):
            answer = server.http.get(f"/api/v1/jobs/{text}{path}")
            assert answer.status_code == 200, (text, path, answer.text)
        assert server.http.get(f"/api/v1/jobs/{text}").json()["id"] == job
        assert server.logs(text) == "hello\n"
        assert server.http.get("/api/v1/events", params={"job": text}).text.count(job) >= 3
        over = server.tell(text, "stop")
        assert (over.status_code, job in over.text) == (409, True)
    again = server.submit("sleep 600", name="findable")
    third = server.submit("sleep 600", name="findable")
    said = server.presage("stop", "findable")
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert again in said.err
    assert third in said.err
    server.tell(third, "stop")
    server.wait(third)
    assert server.presage("stop", "findable", "--yes", "--json").json["id"] == again
    server.wait(again)
    wrong = server.presage("status", "findabel")
    assert (wrong.code, wrong.err) == (
        2,
        "error: there is no job findabel; did you mean findable?\n",
    )


def test_nodes_are_known_by_the_beginning_of_their_names(server: Server) -> None:
    first, second = (node["name"] for node in server.http.get("/api/v1/nodes").json()["nodes"])
    both = server.presage("drain", first[:-1], "--yes")
    assert (both.code, first in both.err, second in both.err) == (2, True, True)
    assert server.http.post("/api/v1/nodes/nod/drain").json()["error"]["code"] == "ambiguous"
    assert "did you mean" in server.presage("undrain", f"{first}0").err
