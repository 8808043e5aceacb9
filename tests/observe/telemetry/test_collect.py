"""Collectors on real processes, a fake driver, files of a group; and the loop that records."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from pathlib import Path
from threading import Event, Timer
from types import SimpleNamespace
from typing import Any

import pytest

from presage.nvml import GpuProbe
from presage.observe.telemetry.archive import Archive
from presage.observe.telemetry.cgroups import Cgroup
from presage.observe.telemetry.collect import (
    CgroupCollector,
    Collector,
    GpuCollector,
    ProcessCollector,
    Row,
    record,
)
from presage.observe.telemetry.series import TelemetryError

BURN = """
import sys, time
big = bytearray(32 << 20)
end = time.process_time() + 0.3
while time.process_time() < end: pass
print("burnt", flush=True)
sys.stdin.read()
"""


def test_a_process_tree() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        collector = ProcessCollector("train", process.pid, worker="0")
        (first,) = collector.sample(100.0)
        process.stdout.readline()
        (second,) = collector.sample(101.0)
        assert collector.pids == {process.pid}
        process.stdin.close()
        process.wait()
        assert collector.sample(102.0) == []
    assert (first.pod, first.time) == ("train/0", 100.0)
    assert math.isnan(first.values["cpu_cores"])
    assert 0.2 < second.values["cpu_cores"] < 1.5
    assert second.values["memory_bytes"] > 32 << 20
    assert second.values["processes"] == 1
    assert second.values["write_bytes_s"] >= 0


def test_a_control_group(tmp_path: Path) -> None:
    def write(cpu_us: int, throttled_us: int) -> None:
        (tmp_path / "cpu.stat").write_text(f"usage_usec {cpu_us}\nthrottled_usec {throttled_us}\n")

    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.stat").write_text("inactive_file 300\n")
    collector = CgroupCollector("train", Cgroup(tmp_path, tmp_path, tmp_path))
    write(0, 0)
    collector.sample(0.0)
    write(30_000_000, 5_000_000)
    (row,) = collector.sample(10.0)
    assert row.pod == "train"
    assert (row.values["cpu_cores"], row.values["throttled_share"]) == (3.0, 0.5)
    assert (row.values["memory_bytes"], row.values["memory_charged_bytes"]) == (600, 900)
    write(1_000_000, 0)  # the counters began anew
    (row,) = collector.sample(20.0)
    assert math.isnan(row.values["cpu_cores"])
    for file in list(tmp_path.iterdir()):
        file.unlink()
    assert collector.sample(30.0) == []


def test_the_group_of_a_process_by_its_id() -> None:
    try:
        rows = CgroupCollector("me", os.getpid()).sample(0.0)
    except TelemetryError as error:
        pytest.skip(str(error))
    assert [row.pod for row in rows] in ([], ["me"])


class Driver:
    """NVML with one GPU that process 7 is on."""

    class NVMLError(Exception):
        pass

    def __getattr__(self, name: str) -> Any:
        answers = {
            "nvmlDeviceGetComputeRunningProcesses": [
                SimpleNamespace(pid=7, usedGpuMemory=3 << 20)
            ],
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=3 << 20),
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=40),
        }
        return lambda handle: answers[name]


def test_gpus() -> None:
    device: Any = SimpleNamespace(index=0, handle=0, name="", used_before=0, others_before=False)
    probe = GpuProbe(Driver(), [device])
    (row,) = GpuCollector("train", probe, lambda: {7}, worker="1").sample(5.0)
    assert row == Row(
        "train", "1", 5.0, {"gpu_util_pct": 40.0, "gpu_memory_bytes": float(3 << 20)}
    )
    assert GpuCollector("train", probe, lambda: ()).sample(5.0) == []


class Script:
    """Answers with what it was given, a sample after the other; an error is raised."""

    def __init__(self, *answers: dict[str, float] | TelemetryError | None) -> None:
        self._answers = list(answers)

    def sample(self, now: float) -> list[Row]:
        answer = self._answers.pop(0) if self._answers else None
        if isinstance(answer, TelemetryError):
            raise answer
        return [] if answer is None else [Row("job", "w", now, answer)]


def test_recording_ends_with_the_job_and_outlives_a_source(tmp_path: Path) -> None:
    sources: list[Collector] = [
        Script({"cpu_cores": 1.0}, {"cpu_cores": 2.0}, None, None),
        Script({"gpu_util_pct": 9.0}, TelemetryError("no answer"), TelemetryError("gone"), None),
    ]
    with Archive(tmp_path) as archive:
        done = record(sources, archive, every=0.01)
        (pod,) = archive.read()
    assert (done.samples, done.failures, done.last_failure) == (2, 2, "gone")
    assert done.pods == {"job/w"}
    assert pod.column("cpu").tolist() == [1.0, 2.0]
    assert pod.column("gpu")[0] == 9.0
    assert math.isnan(pod.column("gpu")[1])
    assert abs(pod.times[-1] - time.time()) < 60


def test_recording_ends_when_it_is_told_to(tmp_path: Path) -> None:
    endless = [{"cpu_cores": 1.0}] * 10_000
    with Archive(tmp_path) as archive:
        done = record([Script(*endless)], archive, every=0.01, seconds=0.055)
        assert 2 <= done.samples <= 6
        stop = Event()
        Timer(0.05, stop.set).start()
        record([Script(*endless)], archive, every=0.01, stop=stop)
        with pytest.raises(TelemetryError, match="above 0"):
            record([], archive, every=0.0)
