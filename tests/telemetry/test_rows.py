"""Rows of telemetry: written, torn, bounded, followed, and refused when they make no sense."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.telemetry.rows import (
    Row,
    append,
    follow,
    latest,
    line_of,
    objects,
    parse,
    rows,
    spread,
    tail,
)

OLD = (
    b'{"at": 1722500000.123, "worker": "worker-0", "cpu_s": 12.5, "cpu_cores": 0.987, "rss_mib":'
    b' 100.5, "processes": 2, "threads": 9, "read_bytes": 4096, "write_bytes": 0, "gpu_util_pct":'
    b' 75.0, "gpu_memory_mib": 5000.0, "gpu_shared": true}\n'
)
"""As guardians wrote it before there was `Row`."""


def written(path: Path, count: int, workers: int = 1) -> Path:
    for k in range(count):
        append(path, *(Row(float(k), f"w-{w}", cpu_s=k / 7) for w in range(workers)))
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    one = Row(1.5, "worker-0", 12.25, 0.5, 100.0, 2, 9, 4096, 0)
    two = one._replace(at=2.5, gpu_util_pct=75.0, gpu_memory_mib=10.0, gpu_shared=True)
    path = tmp_path / "telemetry" / "1.jsonl"
    append(path, one)
    append(path, two, Row(3.5, "worker-1"))
    assert list(rows(spread(path))) == [one, two, Row(3.5, "worker-1")]
    assert path.read_bytes().splitlines()[2] == b'{"at": 3.5, "worker": "worker-1"}'
    assert path.stat().st_mode & 0o777 == 0o600


_AMOUNTS = len(Row._fields) - 3
"""Fields beside the time, the worker and whether GPUs are shared."""


@given(
    at=st.floats(0, 1e10),
    worker=st.text(),
    measured=st.lists(
        st.none() | st.integers(0, 1 << 60) | st.floats(0, 1e18),
        min_size=_AMOUNTS,
        max_size=_AMOUNTS,
    ),
    shared=st.booleans(),
)
def test_any_row_survives(
    at: float, worker: str, measured: list[float | None], shared: bool
) -> None:
    row = Row._make([at, worker, *measured, shared])
    again = parse(line_of(row))
    assert again == tuple(round(v, 3) if isinstance(v, float) else v for v in row)


def test_files_of_before_are_read() -> None:
    row = parse(OLD)
    first = Row(1722500000.123, "worker-0", 12.5, 0.987, 100.5, 2, 9, 4096, 0)
    assert row == first._replace(gpu_util_pct=75.0, gpu_memory_mib=5000.0, gpu_shared=True)
    assert json.loads(line_of(row)) == json.loads(OLD)


def test_what_a_newer_version_adds_is_left_out() -> None:
    row = parse(b'{"at": 1, "worker": "w", "cpu_s": null, "power_w": 300, "node": {"a": "b"}}')
    assert row == Row(1, "w")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (OLD[:90], "Unterminated|Expecting|delimiter"),
        (OLD[:40] + OLD, "Expecting|delimiter|Unterminated"),
        (b"", "Expecting value"),
        (b"\n", "Expecting value"),
        (b"[1]\n", "it is no JSON object"),
        (OLD[:-1] + OLD, "it is no JSON object"),
        (b"\xff\xfe{}", "decode"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"at": 1}', "needs the time `at` and a `worker`"),
        (b'{"worker": "w"}', "needs the time `at` and a `worker`"),
        (b'{"at": 1, "worker": 7}', "needs the time `at` and a `worker`"),
        (b'{"at": null, "worker": "w"}', "at cannot be null"),
        (b'{"at": NaN, "worker": "w"}', "at cannot be NaN"),
        (b'{"at": 1, "worker": "w", "cpu_s": "much"}', 'cpu_s cannot be "much"'),
        (b'{"at": 1, "worker": "w", "rss_mib": -1}', "rss_mib cannot be -1"),
        (b'{"at": 1, "worker": "w", "rss_mib": Infinity}', "rss_mib cannot be Infinity"),
        (b'{"at": 1, "worker": "w", "rss_mib": true}', "rss_mib cannot be true"),
        (b'{"at": 1, "worker": "w", "threads": [1]}', r"threads cannot be \[1\]"),
        (b'{"at": 1, "worker": "w", "cpu_s": 1' + b"0" * 400 + b"}", "cpu_s cannot be 1"),
        (b'{"at": 1, "worker": "w", "cpu_s": 1' + b"0" * 9000 + b"}", "digits"),
    ],
)
def test_what_is_no_row_is_refused(line: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse(line)
    assert list(rows([b'{"at": 1, "worker": "w"}', line, OLD])) == [Row(1, "w"), parse(OLD)]


def test_a_full_disk_tears_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "1.jsonl", 1)
    room = [10]
    write = os.write

    def short(file: int, data: bytes) -> int:
        return write(file, data[: room.pop()] if room else data)

    monkeypatch.setattr("presage.telemetry.rows.os.write", short)
    append(path, Row(5.0, "lost"))
    append(path, Row(6.0, "kept"))
    assert [row.at for row in rows(spread(path))] == [0.0, 6.0]
    assert path.read_bytes().count(b"\n") == 2
    append(tmp_path / "1.jsonl" / "no" / "directory", Row(1.0, "w"))  # nobody is told


def test_a_long_file_is_read_in_pieces(tmp_path: Path) -> None:
    path = written(tmp_path / "long.jsonl", 20_000)
    at = [row.at for row in rows(spread(path, most=1 << 14, pieces=64))]
    assert at == sorted(at)
    assert 64 <= len(at) < 1000
    assert (at[0], at[-1]) == (0.0, 19_999.0)
    whole = [row.at for row in rows(spread(path, most=1 << 30))]
    assert whole == [float(k) for k in range(20_000)]
    assert list(spread(tmp_path / "none")) == []
    assert next(objects(spread(path))) == {"at": 0.0, "worker": "w-0", "cpu_s": 0.0}


def test_a_tail_is_bounded(tmp_path: Path) -> None:
    path = written(tmp_path / "1.jsonl", 1000)
    at = [row.at for row in rows(tail(path, 200))]
    assert at == [float(k) for k in range(1000 - len(at), 1000)]
    assert 2 <= len(at) < 10
    assert tail(tmp_path / "none", 100) == []


def test_the_latest_row_of_each_worker(tmp_path: Path) -> None:
    path = written(tmp_path / "1.jsonl", 100, workers=5)
    append(path, Row(200.0, "w-3"))
    found = {row.worker: row.at for row in latest(path, 5, since=99.0)}
    assert found == {"w-0": 99.0, "w-1": 99.0, "w-2": 99.0, "w-3": 200.0, "w-4": 99.0}
    assert [row.worker for row in latest(path, 5, since=150.0)] == ["w-3"]


def test_a_file_is_followed_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "1.jsonl"
    assert follow(path, 0) == ([], 0)
    lines = [line_of(Row(float(k), "w")) for k in range(3)]
    path.write_bytes(lines[0] + lines[1][:10])
    found, offset = follow(path, 0)
    assert ([row.at for row in found], offset) == ([0.0], len(lines[0]))
    assert follow(path, offset) == ([], offset)  # still being written
    path.write_bytes(b"".join(lines))
    found, offset = follow(path, offset)
    assert [row.at for row in found] == [1.0, 2.0]
    assert follow(path, offset) == ([], offset)


def test_following_gets_past_what_has_no_lines(tmp_path: Path) -> None:
    path = tmp_path / "1.jsonl"
    path.write_bytes(b"x" * 250 + b"\n" + OLD)
    found, offset = [], 0
    for _ in range(10):
        new, offset = follow(path, offset, most=max(100, len(OLD)))
        found += new
    assert found == [parse(OLD)]
    assert offset == path.stat().st_size


def test_a_guardian_imports_the_standard_library_alone(root: Path) -> None:
    """And not `dataclasses`, which would take half as long again."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); before = set(sys.modules)\n"
        "import presage.telemetry.rows, presage.telemetry.processes\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new - sys.stdlib_module_names), 'dataclasses' in new)"
    )
    words = [sys.executable, "-I", "-S", "-c", code, str(root / "src")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == "['presage'] False\n"
