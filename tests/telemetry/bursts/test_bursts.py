"""Bursts: labels by hand, counters and the sampler on real processes."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.model.errors import TelemetryError, UserError
from presage.telemetry.bursts import TARGETS, BurstSampler, Pattern, bursts_of, label
from presage.telemetry.bursts.counters import PAGE_FAULTS, EventCounter
from presage.telemetry.bursts.labels import two_means
from presage.telemetry.processes import descendants
from presage.telemetry.profiler import profile_command
from presage.telemetry.rows import Row, rows
from tests.waiting import eventually

BUSY = """
import os, socket, sys, threading
def spin():
    while True: pass
print('on', flush=True)
spin()
"""


@contextmanager
def running(script: str, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | env,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


def test_labels_by_hand() -> None:
    """At 10 Hz: two samples idle, three in a burst, one idle, one in a burst, one idle."""
    found = label([0, 2, 80, 90, 100, 1, 90, 0], 10.0)
    assert found.pattern is Pattern.ALTERNATING
    assert found.burst == pytest.approx((80 + 90 + 100 + 90) / 4)
    assert found.burst_ms == pytest.approx(1000 * (3 + 1) / 2 / 10)
    assert found.idle_ms == pytest.approx(1000 * (2 + 1 + 1) / 3 / 10)
    assert found.count == 2
    assert found.numbers == (found.burst, found.burst_ms, found.idle_ms)


@pytest.mark.parametrize(
    ("values", "unit", "pattern", "burst", "burst_ms", "idle_ms"),
    [
        ([50.0] * 20, "pct", Pattern.BURST, 50.0, 2000.0, 0.0),
        ([97.0, 99.0, 98.0, 98.0], "pct", Pattern.BURST, 98.0, 400.0, 0.0),
        ([0.0] * 5, "pct", Pattern.IDLE, 0.0, 0.0, 500.0),
        ([0.2, 0.9, 0.1, 0.0], "pct", Pattern.IDLE, 0.0, 0.0, 400.0),
        ([0.0, 0.5, 0.0, 0.5], "mib_s", Pattern.ALTERNATING, 0.5, 100.0, 100.0),
        ([7.0], "pct", Pattern.BURST, 7.0, 100.0, 0.0),
    ],
)
def test_a_constant_series_has_no_bursts_and_idle_times(
    values: list[float], unit: str, pattern: Pattern, burst: float, burst_ms: float, idle_ms: float
) -> None:
    found = label(values, 10.0, unit)
    assert found.pattern is pattern
    assert found.numbers == pytest.approx((burst, burst_ms, idle_ms))


@given(st.lists(st.floats(0, 100).map(lambda x: round(x, 3)), min_size=2, max_size=40))
def test_the_two_means_are_the_best_there_are(values: list[float]) -> None:
    series = np.array(values)
    low, high, busy = two_means(series)

    def cost(mask: np.ndarray) -> float:
        parts = [part for part in (series[mask], series[~mask]) if part.size]
        return float(sum(((part - part.mean()) ** 2).sum() for part in parts))

    best = min(cost(series > cut) for cut in series)
    assert cost(busy) <= best + 1e-6 * (1 + best)
    if busy.any():
        assert low == pytest.approx(series[~busy].mean())
        assert high == pytest.approx(series[busy].mean())
        assert low < high


def test_what_is_no_series_is_refused() -> None:
    for values, hz in (([], 10.0), ([1.0, float("nan")], 10.0), ([1.0], 0.0)):
        with pytest.raises(TelemetryError, match="finite samples"):
            label(values, hz)


def test_twelve_names() -> None:
    assert len(TARGETS) == len(set(TARGETS)) == 12
    assert TARGETS[:3] == ("util_burst_pct", "util_burst_ms", "util_idle_ms")
    assert TARGETS[9] == "received_burst_mib_s"


def test_an_event_is_counted() -> None:
    counter = EventCounter.open(0, PAGE_FAULTS)
    if counter is None:
        pytest.skip("this kernel lets nobody count")
    before = counter.read()
    fresh = mmap.mmap(-1, 1000 * mmap.PAGESIZE)
    fresh.madvise(mmap.MADV_NOHUGEPAGE)
    for page in range(1000):
        fresh[page * mmap.PAGESIZE] = 1
    assert counter.read() - before >= 1000
    counter.close()
    assert EventCounter.open(0, (1, 12345)) is None


def test_a_busy_process_is_seen(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    with running(BUSY) as process:
        sampler = BurstSampler({"worker-0": process.pid}, 50.0, out=out, peak_bytes_s=1e10)
        sampler.start()
        eventually(lambda: len(sampler._rows) >= 20)
        found = sampler.stop()
    (task,) = bursts_of(found)
    assert task.task == "worker-0"
    assert task.by_resource["util"].burst > 1.0  # however busy the machine is
    assert found[-1].cpu_s is not None
    assert found[0].cpu_s is not None
    assert found[-1].cpu_s > found[0].cpu_s
    assert len(list(rows(out.read_bytes().splitlines()))) == len(found)
    assert sampler.cpu_s > 0


def test_a_process_that_sleeps_is_idle() -> None:
    with running("import time; print('on', flush=True); time.sleep(600)") as process:
        sampler = BurstSampler({"ps-1": process.pid}, 50.0, peak_bytes_s=1e10)
        sampler.start()
        eventually(lambda: len(sampler._rows) >= 10)
        (task,) = bursts_of(sampler.stop())
    assert task.by_resource["util"].pattern is Pattern.IDLE
    assert task.numbers[0] == 0.0


def test_threads_that_communicate_are_no_compute() -> None:
    named = "open(f'/proc/self/task/{threading.get_native_id()}/comm', 'w').write('gloo_loop')"
    script = BUSY.replace("print(", f"{named}\nprint(")
    with running(script) as process:
        sampler = BurstSampler({"worker-0": process.pid}, 50.0, peak_bytes_s=1e10)
        sampler.start()
        eventually(lambda: len(sampler._rows) >= 10)
        found = sampler.stop()
    assert found[-1].cpu_s == 0.0


def test_rates_and_counters_become_series() -> None:
    def row(at: float, cores: float, sent: float) -> Row:
        return Row(at, "w", 1.0, cores, net_sent_bytes=sent, net_received_bytes=0.0)

    mib = 1 << 20
    made = [row(0.1 * at, at % 2, 0.2 * mib * (at // 2)) for at in range(21)]
    (task,) = bursts_of(made, cores=2.0)
    assert task.hz == pytest.approx(10.0)
    assert task.by_resource["util"].burst == pytest.approx(50.0)
    assert task.by_resource["sent"].burst == pytest.approx(2.0)
    assert task.by_resource["sent"].burst_ms == pytest.approx(100.0)
    assert task.by_resource["received"].pattern is Pattern.IDLE


def test_workers_of_a_command_are_found_by_their_ranks() -> None:
    start = "import os, subprocess, sys; run = lambda r, role: subprocess.Popen(['sleep', '100'], "
    start += "env=os.environ | {'RANK': r, 'PRESAGE_ROLE': role}); "
    start += "run('0', 'worker'); run('1', 'ps'); print('on', flush=True); sys.stdin.read()"
    with running(start) as process:
        sampler = BurstSampler(process.pid, 50.0, peak_bytes_s=1e10)
        children = descendants(process.pid)
        try:
            sampler.start()
            eventually(lambda: sum(row.worker == "ps-1" for row in sampler._rows) > 5)
            found = bursts_of(sampler.stop())
        finally:
            for pid in children:
                os.kill(pid, signal.SIGKILL)
    assert {task.task for task in found} == {"worker-0", "ps-1"}
    assert sampler.shared_network


def test_a_profile_tells_the_bursts_of_a_command_without_ranks() -> None:
    run = profile_command(["sleep", "2"], bursts=True)
    assert run.bursts is not None
    assert {task.task for task in run.bursts} <= {"worker"}
    assert any("memory utilization is made of" in note for note in run.notes)
    assert profile_command(["true"]).bursts is None
    short = profile_command(["true"], bursts=True)
    assert short.bursts == []
    assert any("let it run for longer" in note for note in short.notes)


def test_too_slow_is_refused() -> None:
    with pytest.raises(UserError, match="20 to 100"):
        BurstSampler({"w": os.getpid()}, 5.0, peak_bytes_s=1.0)
    with pytest.raises(UserError, match="no process"):
        BurstSampler({"w": 2**22 + 1}, 20.0, peak_bytes_s=1.0)
