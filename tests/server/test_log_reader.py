"""Logs read from their files: exact bytes, times, tails, secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from presage.control.log_reader import WorkerLog, check_there, merged, tail_offset
from presage.executors.node.log_times import LogTimes
from presage.layout import Layout
from presage.model.errors import NotFound
from presage.store.records import JobRow

RAW = bytes(range(256)) + "ü–\n".encode() * 3 + b"no newline"


def test_pieces_are_the_bytes_that_were_written(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.log"
    path.write_bytes(RAW)
    times = LogTimes(path)
    times.note(100, 50.0)
    times.note(257, 60.0)  # in the middle of a letter
    log = WorkerLog(path, 1, "worker-0", [])
    pieces = list(log.pieces(whole=True))
    assert b"".join(p["text"].encode("utf-8", "surrogateescape") for p in pieces) == RAW
    assert [p["offset"] for p in pieces] == [0, 100, 257]
    assert [p["at"] for p in pieces[:2]] == [50.0, 60.0]
    assert list(log.pieces(whole=True)) == []
    path.write_bytes(b"cut\n")
    assert [p["text"] for p in log.pieces(whole=True)] == ["cut\n"]


def test_a_log_that_is_cut_while_it_is_followed_is_not_told_again(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.log"
    lines = [f"line {k} of the secret\n" for k in range(2000)]
    path.write_text("".join(lines[:1500]))
    log = WorkerLog(path, 1, "worker-0", [b"secret"])

    def told() -> str:
        return "".join(piece["text"] for piece in log.pieces(whole=False))

    heard = told()
    note = "[presage: the log passed so many bytes; what came before was cut]\n"
    path.write_text(note + "".join(lines[1200:1600]))
    heard += told()
    path.write_text(note + "".join(lines[1300:]))  # longer than what was read of the one before
    heard += told()
    assert heard == "".join(lines).replace("secret", "******")
    path.write_text(note + "later\n")  # what comes next is gone with the rest
    assert told() == note + "later\n"


def test_without_times_nothing_is_made_up(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.log"
    path.write_bytes(b"x\n")
    (piece,) = WorkerLog(path, 1, "worker-0", []).pieces(whole=True)
    assert piece["at"] is None


def test_workers_are_merged_by_time(tmp_path: Path) -> None:
    logs = []
    for k in range(2):
        path = tmp_path / f"worker-{k}.log"
        times = LogTimes(path)
        with path.open("ab") as file:
            for n in range(3):
                file.write(f"{n} of {k}\n".encode())
                file.flush()
                times.note(path.stat().st_size, 100.0 + 10 * n + k)
        logs.append(WorkerLog(path, 1, path.stem, []))
    texts = [piece["text"] for piece in merged(logs, whole=True)]
    assert texts == [f"{n} of {k}\n" for n in range(3) for k in range(2)]


def test_a_secret_is_stars_also_where_a_piece_ends(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.log"
    path.write_bytes(b"a s3cret b s3c")
    log = WorkerLog(path, 1, "worker-0", [b"s3cret"])
    assert [p["text"] for p in log.pieces(whole=False)] == ["a ****** b "]
    with path.open("ab") as file:
        file.write(b"ret\n")
    assert [p["text"] for p in log.pieces(whole=True)] == ["******\n"]


@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize("long", [1, 70_000])
def test_the_last_lines(tmp_path: Path, end: bytes, long: int) -> None:
    path = tmp_path / "worker-0.log"
    lines = [f"{n}".encode() * long for n in range(5)]
    text = b"\n".join(lines) + end
    path.write_bytes(text)
    for count in range(7):
        kept = text[tail_offset(path, count) :]
        assert kept == (b"\n".join(lines[5 - min(5, count) :]) + end if count else b""), count
    assert tail_offset(tmp_path / "none.log", 3) == 0


def row(attempt: int, workers: str = "1..2") -> JobRow:
    manifest = {"name": "x", "command": "true", "workers": workers}
    return JobRow(
        id="x-1", name="x", owner="a", submitted_at=0, manifest=manifest, attempt=attempt
    )


def test_who_is_not_there_is_refused_with_those_who_are(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    check_there(layout, row(0), "worker-1", None, follow=False)
    with pytest.raises(NotFound, match="no worker 2; it may have worker-0 to worker-1"):
        check_there(layout, row(0), "2", None, follow=True)
    layout.logs("x-1", 1).mkdir(parents=True)
    layout.log("x-1", 1, "worker-0").touch()
    check_there(layout, row(1), "0", None, follow=False)
    check_there(layout, row(1), "worker-1", None, follow=True)  # it may come
    with pytest.raises(NotFound, match="no worker worker-1; it has worker-0"):
        check_there(layout, row(1), "worker-1", None, follow=False)
    with pytest.raises(NotFound, match="no attempt 2; it had 1 attempt"):
        check_there(layout, row(1), None, 2, follow=False)
