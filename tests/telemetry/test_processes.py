"""Trees of real processes and their sampler: what is counted, what is survived, how it ticks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil
import pytest

from presage.telemetry import processes
from presage.telemetry.processes import ProcessTree
from presage.telemetry.rows import Row
from presage.telemetry.sampler import COLUMNS, Sampler
from tests.waiting import eventually

BURN = "import time\nend = time.process_time() + {s}\nwhile time.process_time() < end: pass\n"
WAIT = "import sys; sys.stdin.read()"


@contextmanager
def running(code: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process that says 'ready' and ends when its stdin is closed."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"{code}\nprint('ready', flush=True)\n{WAIT}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == b"ready\n"
        yield process
        process.stdin.close()


def test_a_tree_adds_up_its_processes() -> None:
    code = (
        "import subprocess, sys\n"
        "big = bytearray(64 << 20)\n"
        f"child = subprocess.Popen([sys.executable, '-c', {'x = bytearray(64 << 20)'!r}"
        f" + {f'{chr(10)}print(1, flush=True){chr(10)}{WAIT}'!r}], stdout=subprocess.PIPE)\n"
        "child.stdout.readline()"
    )
    with running(code) as process:
        tree = ProcessTree(process.pid)
        both = tree.row(7.0, "worker-0")
        assert 0 < tree.pss() <= tree.rss() < 240 << 20
    assert (both.at, both.worker, both.processes, both.threads) == (7.0, "worker-0", 2, 2)
    assert both.rss_mib is not None
    assert 128 < both.rss_mib < 240
    assert (both.cpu_cores, both.gpu_util_pct, both.net_sent_bytes) == (None, None, None)


def test_cores_are_those_since_the_row_before() -> None:
    with running(BURN.format(s=0.3)) as process:
        row = ProcessTree(process.pid).row(100.0, before=Row(98.0, "", cpu_s=0.1))
        assert row.cpu_s is not None
        assert row.cpu_cores == pytest.approx((row.cpu_s - 0.1) / 2)
        again = ProcessTree(process.pid).row(101.0, before=row._replace(cpu_s=99.0))
    assert again.cpu_cores == 0.0  # the counter began anew


def test_children_are_found_where_the_kernel_does_not_list_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with running("import os\nif not os.fork(): import time; time.sleep(600)") as process:
        listed = ProcessTree(process.pid).pids
        monkeypatch.setattr(processes, "_KERNEL_LISTS_CHILDREN", False)
        assert ProcessTree(process.pid).pids == listed
        assert len(listed) == 2
        os.kill(listed[1], signal.SIGKILL)


def test_cpu_time_of_children_that_came_and_went_is_counted() -> None:
    burn = BURN.format(s=0.1)
    code = (
        "import subprocess, sys\n"
        f"for _ in range(3): subprocess.run([sys.executable, '-c', {burn!r}])"
    )
    with running(code) as process:
        tree = ProcessTree(process.pid)  # they are all gone by now
        assert _cpu_s(tree) >= 0.3


def test_counters_never_fall_and_orphans_are_kept() -> None:
    """A middle process dies: its child goes on without a parent in the tree."""
    child = f"{BURN.format(s=0.2)}print(1, flush=True); {WAIT}"
    middle = (
        "import subprocess, sys, os\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE)\n"
        "child.stdout.readline(); print(1, flush=True); sys.stdin.readline(); os._exit(0)"
    )
    code = (
        "import subprocess, sys\n"
        f"middle = subprocess.Popen([sys.executable, '-c', {middle!r}], stdin=subprocess.PIPE,"
        " stdout=subprocess.PIPE)\nmiddle.stdout.readline()\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "middle.communicate(b'go\\n')\n"
        f"print('ready', flush=True); sys.stdin.readline()\n{BURN.format(s=0.15)}"
    )
    with running(code) as process:
        tree = ProcessTree(process.pid)
        before, cpu_s = tree.row(0.0).processes, _cpu_s(tree)
        _go_on(process)
        tree.find()
        after = tree.row(0.0)
        assert (before, after.processes) == (3, 2)
        assert after.cpu_s is not None
        assert cpu_s <= after.cpu_s
        for pid in set(tree.pids) - {process.pid}:
            psutil.Process(pid).kill()
        eventually(lambda: tree.row(0.0).processes == 1)
        _go_on(process)
        assert _cpu_s(tree) >= after.cpu_s + 0.1  # what the orphan had used still counts


def test_what_the_first_process_used_still_counts_when_it_is_gone() -> None:
    child = "import signal; print('up', flush=True); signal.pause()"
    code = (
        f"{BURN.format(s=0.2)}import subprocess, sys\n"
        f"subprocess.Popen([sys.executable, '-c', {child!r}])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", f"{code}\nsys.stdin.readline()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        tree = ProcessTree(process.pid)
        used = _cpu_s(tree)
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.wait()
        tree.find()
        (left,) = tree.pids
        assert _cpu_s(tree) >= used >= 0.2
        os.kill(left, signal.SIGKILL)


def test_a_process_that_is_gone_is_an_empty_tree() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    tree = ProcessTree(process.pid)
    tree.find()
    assert tree.row(0.0).processes == 0


def test_another_process_with_the_same_number_is_not_taken_for_it() -> None:
    with running("") as process:
        tree = ProcessTree(process.pid)
        tree._members[process.pid].start -= 1
        tree.find()
        assert tree.pids == []


class Clock:
    """Time that passes only when the sampler waits (a fake clock), and what it waits for."""

    def __init__(self, end_s: float) -> None:
        self.now, self._end_s = 0.0, end_s

    def monotonic(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return time.thread_time()

    def is_set(self) -> bool:
        return self.now >= self._end_s

    def set(self) -> None:
        pass

    def wait(self, seconds: float) -> None:
        self.now += seconds + 0.004  # it wakes up a bit late


def sampled(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, pid: int, hz: float
) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
    """What is sampled from now until the clock's end."""
    monkeypatch.setattr("presage.telemetry.sampler.time", clock)
    sampler = Sampler(pid, hz=hz)
    monkeypatch.setattr(sampler, "_stop", clock)
    sampler.start()
    columns = sampler.stop()
    assert sampler.cpu_s > 0
    return columns


def test_ticks_do_not_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    with running("") as process:
        columns = sampled(monkeypatch, Clock(1.0), process.pid, hz=50)
    t = columns["at"]
    assert set(columns) == set(COLUMNS)
    assert {len(column) for column in columns.values()} == {len(t)}
    expected = np.arange(50) / 50 + 0.004 * (np.arange(50) > 0)
    np.testing.assert_allclose(t, expected, atol=1e-9)  # lateness does not add up


def test_a_late_tick_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(0.6)
    row = ProcessTree.row

    def once_slow(tree: ProcessTree, at: float, **options: Any) -> Row:
        if at == 0.0:
            clock.now += 0.25
        return row(tree, at, **options)

    monkeypatch.setattr(ProcessTree, "row", once_slow)
    with running("") as process:
        t = sampled(monkeypatch, clock, process.pid, hz=10)["at"]
    np.testing.assert_allclose(t, [0.0, 0.304, 0.404, 0.504])  # ticks 1 and 2 had passed


def test_a_swarm_of_short_processes_does_not_crash_it() -> None:
    swarm = (
        "import os\n"
        "for _ in range(300):\n"
        "    if not (pid := os.fork()): os._exit(0)\n"
        "    os.waitpid(pid, 0)"
    )
    process = subprocess.Popen([sys.executable, "-c", swarm])
    sampler = Sampler(process.pid, hz=100)
    sampler.start()
    assert process.wait() == 0
    columns = sampler.stop()
    assert len(columns["at"]) > 0
    assert (np.diff(columns["cpu_s"]) >= 0).all()


def test_sampling_ends_with_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert len(sampled(monkeypatch, Clock(0.1), process.pid, hz=50)["at"]) == 0


def _cpu_s(tree: ProcessTree) -> float:
    return tree.row(0.0).cpu_s or 0.0


def _go_on(process: subprocess.Popen[bytes]) -> None:
    """Let it run to the next place where it is ready."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"ready\n"
