"""The sampler against real processes: what it counts, what it survives, how steadily it ticks."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import psutil
import pytest

from presage.observe.telemetry.sampler import COLUMNS, ProcessTree, Sampler

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
        alone = tree.read()
        tree.find_new()
        both = tree.read()
    assert (alone.processes, both.processes) == (1, 2)
    assert 64 < alone.rss_mib < 120
    assert 128 < both.rss_mib < 240
    assert both.threads == 2


def test_cpu_time_of_children_that_came_and_went_is_counted() -> None:
    burn = BURN.format(s=0.1)
    code = (
        "import subprocess, sys\n"
        f"for _ in range(3): subprocess.run([sys.executable, '-c', {burn!r}])"
    )
    with running(code) as process:
        tree = ProcessTree(process.pid)  # they are all gone by now
        assert tree.read().cpu_s >= 0.3


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
        tree.find_new()
        before = tree.read()
        _go_on(process)
        tree.find_new()
        after = tree.read()
        assert (before.processes, after.processes) == (3, 2)
        assert before.cpu_s <= after.cpu_s < before.cpu_s + 0.2
        for pid in tree.pids - {process.pid}:
            psutil.Process(pid).kill()
        assert _until(lambda: tree.read().processes == 1)
        _go_on(process)
        assert tree.read().cpu_s >= after.cpu_s + 0.1  # what the orphan had used still counts


def test_a_process_that_is_gone_is_an_empty_tree() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    tree = ProcessTree(process.pid)
    tree.find_new()
    assert tree.read().processes == 0


def test_ticks_do_not_drift() -> None:
    with running("") as process:
        sampler = Sampler(process.pid, hz=50)
        sampler.start()
        threading.Event().wait(1.0)
        columns = sampler.stop()
    t = columns["t_s"]
    assert set(columns) == set(COLUMNS)
    assert {len(column) for column in columns.values()} == {len(t)}
    late = t - np.floor(t * 50 + 1e-3) / 50
    assert 25 <= len(t) <= 52  # a busy machine may miss ticks, and never makes up for them
    assert np.median(late) < 0.006  # each tick keeps to its own time, whatever the others did
    assert (np.diff(t) > 0).all()
    assert sampler.cpu_s > 0


def test_a_late_tick_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = threading.Event()
    read = ProcessTree.read

    def once_slow(tree: ProcessTree) -> object:
        if not slow.is_set():
            slow.set()
            time.sleep(0.25)
        return read(tree)

    monkeypatch.setattr(ProcessTree, "read", once_slow)
    with running("") as process:
        sampler = Sampler(process.pid, hz=10)
        sampler.start()
        threading.Event().wait(0.6)
        t = sampler.stop()["t_s"]
    assert t[0] < 0.1
    assert 0.3 <= t[1] < 0.5  # ticks 1 and 2 had passed


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
    assert len(columns["t_s"]) > 0
    assert (np.diff(columns["cpu_s"]) >= 0).all()


def test_sampling_ends_with_the_process() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    sampler = Sampler(process.pid, hz=50)
    sampler.start()
    threading.Event().wait(0.1)
    assert len(sampler.stop()["t_s"]) == 0


def _go_on(process: subprocess.Popen[bytes]) -> None:
    """Let it run to the next place where it is ready."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"ready\n"


def _until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 5
    while time.monotonic() < end:
        if condition():
            return True
    return False
