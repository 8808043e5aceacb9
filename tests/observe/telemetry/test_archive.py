"""The archive: what it gives back, what survives a crash, and what retention does."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from presage.observe.telemetry.archive import ARCHIVE_FILE, Archive
from presage.observe.telemetry.series import TelemetryError

NAN = float("nan")

WRITER = """
import sys
from pathlib import Path
from presage.observe.telemetry.archive import Archive

archive = Archive(Path(sys.argv[1]))
tick = 0
while True:
    archive.append((f"pod-{pod}", tick, {"cpu_cores": pod, "tick": tick}) for pod in range(20))
    print(tick, flush=True)
    tick += 1
"""


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    with Archive(tmp_path / "new" / "directory") as archive:
        archive.append([("b", 15.0, {"cpu_cores": 2.0, "memory_bytes": NAN})])
        archive.append(
            [("b", 0.0, {"cpu_cores": 1.0, "memory_bytes": 5.0}), ("a", 0.0, {"gpu_util_pct": 7})]
        )
        archive.append([])
        archive.append([("b", 15.0, {"cpu_cores": 3.0})])  # said again
        assert archive.pods() == ["a", "b"]
        a, b = archive.read()
    assert (a.pod, a.features, a.units) == ("a", ("gpu_util_pct",), ("%",))
    assert (b.pod, b.features) == ("b", ("cpu_cores", "memory_bytes"))
    assert b.times.tolist() == [0, 15]
    np.testing.assert_array_equal(b.values, [[1, 5], [3, NAN]])
    assert b.resources == {"cpu": ("cpu_cores",), "memory": ("memory_bytes",)}
    assert b.rows is None


def test_a_part_of_it(tmp_path: Path) -> None:
    with Archive(tmp_path) as archive:
        archive.append((pod, float(t), {"x": t}) for pod in "abc" for t in range(5))
        found = archive.read(["c", "a", "none"], since=1, until=4)
        assert [(pod.pod, pod.times.tolist()) for pod in found] == [
            ("a", [1, 2, 3]),
            ("c", [1, 2, 3]),
        ]
        assert archive.read([]) == []
        assert archive.read(since=99) == []


def test_two_at_the_same_time(tmp_path: Path) -> None:
    with Archive(tmp_path) as one, Archive(tmp_path) as two:
        for t in range(10):
            one.append([("a", t, {"x": t})])
            two.append([("b", t, {"x": t})])
        assert [len(pod) for pod in one.read()] == [10, 10]


def test_a_writer_that_is_killed(tmp_path: Path) -> None:
    """What was acknowledged is there, and no append is there in part."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        for line in writer.stdout:
            if line == "30\n":
                writer.send_signal(signal.SIGKILL)
                break
        last = 30 + len(writer.stdout.readlines())
    assert writer.returncode == -signal.SIGKILL
    with Archive(tmp_path) as archive:
        pods = archive.read()
        ticks = [pod.column("tick").tolist() for pod in pods]
        archive.append([("pod-0", 1e6, {"cpu_cores": 1.0})])  # and it goes on
    assert len(pods) == 20
    assert len(ticks[0]) >= last  # the last line may be torn, its append is not
    assert all(column == list(range(len(ticks[0]))) for column in ticks)


def test_a_torn_tail_is_left_out(tmp_path: Path) -> None:
    """The files as they are when the power goes, the log cut anywhere."""
    copies = tmp_path / "copies"
    with Archive(tmp_path / "live") as archive:
        for t in range(20):
            archive.append([("a", t, {"x": t, "y": t})])
        log = tmp_path / "live" / f"{ARCHIVE_FILE}-wal"
        size = log.stat().st_size
        for lost in (1, 4000, 20_000):
            shutil.copytree(tmp_path / "live", copies / str(lost))
            with (copies / str(lost) / log.name).open("r+b") as file:
                file.truncate(size - lost)
    lengths = []
    for lost in (1, 4000, 20_000):
        with Archive(copies / str(lost)) as archive:
            (pod,) = archive.read()
        lengths.append(len(pod))
        expected = np.arange(len(pod), dtype=float)
        np.testing.assert_array_equal(pod.values, np.column_stack([expected, expected]))
    assert 20 > lengths[0] >= lengths[1] > lengths[2] > 0


def test_what_is_too_old_is_deleted(tmp_path: Path) -> None:
    with Archive(tmp_path, keep=timedelta(seconds=100)) as archive:
        archive.append([("old", 0.0, {"x": 1}), ("new", 0.0, {"x": 1}), ("new", 150.0, {"x": 2})])
        assert len(archive.read()) == 2  # appending deletes nothing
        archive.tidy(now=200.0)
        (pod,) = archive.read()
        assert (pod.pod, pod.times.tolist()) == ("new", [150])
        assert archive.pods() == ["new"]


def test_deleted_room_is_given_back(tmp_path: Path) -> None:
    with Archive(tmp_path, keep=timedelta(seconds=10)) as archive:
        archive.append(("p", float(t), {"x": t, "y": t}) for t in range(20_000))
    full = archive.path.stat().st_size
    with Archive(tmp_path, keep=timedelta(seconds=10)) as archive:
        archive.tidy(now=20_000.0)
    assert archive.path.stat().st_size < full / 5


def test_what_is_old_is_averaged_once(tmp_path: Path) -> None:
    keep, fine, coarse = timedelta(days=1), timedelta(seconds=100), timedelta(seconds=60)
    with Archive(tmp_path, keep=keep, fine=fine, coarse=coarse) as archive:
        archive.append(("p", float(t), {"x": t}) for t in range(0, 400, 10))
        for now in (300.0, 300.0, 310.0):
            archive.tidy(now)
        (pod,) = archive.read()
        coarse_part = pod.times < 180
        assert pod.times[coarse_part].tolist() == [30, 90, 150]
        assert pod.values[coarse_part, 0].tolist() == [25, 85, 145]
        assert pod.times[~coarse_part].tolist() == [float(t) for t in range(180, 400, 10)]


def test_bad_archives_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TelemetryError, match=r"cannot be kept in .*file"):
        Archive(tmp_path / "file")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / ARCHIVE_FILE).write_bytes(b"this is no database" * 100)
    with pytest.raises(TelemetryError, match="cannot be used: file is not a database"):
        Archive(broken)
    with Archive(tmp_path / "later"):
        pass
    db = sqlite3.connect(tmp_path / "later" / ARCHIVE_FILE)
    db.execute("pragma user_version = 9")
    db.close()
    with pytest.raises(TelemetryError, match="version 9; this Presage reads version 1"):
        Archive(tmp_path / "later")
    with pytest.raises(TelemetryError, match="above 0"):
        Archive(tmp_path, keep=timedelta(0))
    with Archive(tmp_path / "ok") as archive, pytest.raises(TelemetryError, match="finite"):
        archive.append([("p", NAN, {"x": 1.0})])
