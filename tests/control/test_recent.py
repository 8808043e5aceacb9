"""Jobs in memory: always what the database says, and nothing of another lease."""

from __future__ import annotations

from dataclasses import replace

from presage.control.recent import Recent, RecentJob
from presage.store.records import JobRow


def row(name: str, owner: str = "ann") -> JobRow:
    return JobRow(id=name, name=name, owner=owner, submitted_at=1.0, manifest={"name": name})


def everything(_: JobRow) -> bool:
    return True


def test_a_new_job_is_there_without_its_manifest() -> None:
    recent = Recent()
    recent.wrote(7, [row("a"), row("b")], 12, [])
    known = recent.job(7, "b")
    assert known is not None
    assert known.row == replace(row("b"), manifest=None, seq=12)
    assert [(move.at, move.status) for move in known.history] == [(1.0, "QUEUED")]


def test_what_another_lease_wrote_is_not_served() -> None:
    recent = Recent()
    recent.wrote(7, [row("a")], 1, [])
    assert recent.job(8, "a") is None
    assert recent.job(None, "a") is None
    assert recent.page(None, everything, 1, None) is None
    recent.wrote(8, [row("b")], 2, [])
    assert recent.job(8, "a") is None
    assert recent.job(7, "a") is None
    assert recent.job(8, "b") is not None


def test_nothing_is_kept_while_this_server_does_not_decide() -> None:
    recent = Recent()
    found = RecentJob(row("a"), ())
    assert recent.read(None, "a", lambda: found) is found
    assert recent.job(None, "a") is None


def test_a_job_that_changed_is_read_again() -> None:
    recent = Recent()
    recent.wrote(7, [row("a")], 1, [])
    recent.wrote(7, [], 1, ["a"])
    assert recent.job(7, "a") is None
    now = RecentJob(replace(row("a"), manifest=None, status="PROCESSING", seq=1), ())
    assert recent.read(7, "a", lambda: now) is now
    assert recent.job(7, "a") is now


def test_what_changes_while_it_is_read_is_not_kept() -> None:
    recent = Recent()
    recent.wrote(7, [row("a")], 1, ["a"])
    old = RecentJob(replace(row("a"), seq=1), ())

    def slowly() -> RecentJob:
        recent.wrote(7, [], 1, ["a"])  # committed after the old row was read
        return old

    assert recent.read(7, "a", slowly) is old
    assert recent.job(7, "a") is None


def test_a_job_that_is_not_there_is_not_remembered() -> None:
    recent = Recent()
    recent.wrote(7, [], 0, [])
    assert recent.read(7, "a", lambda: None) is None
    recent.wrote(7, [row("a")], 1, [])
    assert recent.job(7, "a") is not None


def test_a_page_holds_the_newest_or_is_left_to_the_database() -> None:
    recent = Recent()
    recent.wrote(7, [row(f"job{i}", "ann" if i % 2 else "bob") for i in range(1, 11)], 10, [])

    def names(limit: int, after: int | None = None, owner: str | None = None) -> list[str] | None:
        page = recent.page(7, lambda r: owner in (None, r.owner), limit, after)
        return None if page is None else [r.id for r in page]

    assert names(3) == ["job10", "job9", "job8"]
    assert names(2, after=9) == ["job8", "job7"]
    assert names(2, owner="bob") == ["job10", "job8"]
    assert names(11) is None  # older ones may be in the database
    assert names(6, owner="bob") is None
    recent.wrote(7, [], 10, ["job9"])
    assert names(3) is None
    assert names(1) == ["job10"]


def test_only_so_many_are_kept() -> None:
    recent = Recent()
    recent.wrote(7, [row("old")], 1, [])
    for i in range(10):
        rows = [row(f"job{i}-{k}") for k in range(1000)]
        recent.wrote(7, rows, 1 + 1000 * (i + 1), [])
    assert recent.job(7, "old") is None
    page = recent.page(7, everything, 1000, None)
    assert page is not None
    assert page[-1].id == "job9-0"
    assert recent.page(7, everything, 5000, None) is None
