"""The profiler with real commands: what it measures, forwards, refuses, and leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from presage.model.errors import UserError
from presage.telemetry import nvml as nvml_module
from presage.telemetry import profiler
from presage.telemetry.nvml import GpuProbe, GpuReading, open_gpus
from presage.telemetry.profiler import (
    ProfiledRun,
    command_signature,
    profile_command,
)
from presage.telemetry.sampler import COLUMNS

MIB = 1 << 20
BURN = "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass\n"


def python(code: str, **options: Any) -> ProfiledRun:
    return profile_command([sys.executable, "-c", code], **options)


def test_cpu_and_memory_are_measured(tmp_path: Path) -> None:
    own = tmp_path / "own"
    say = f"open({str(own)!r}, 'w').write(str(time.process_time()))"
    run = python(f"x = bytearray(200 << 20)\n{BURN}{say}", hz=50)
    used = run.profile
    assert used.exit_code == 0
    took = float(own.read_text())  # with the start of Python, but not with its end
    assert used.cpu_cores.mean * used.duration_s == pytest.approx(took, rel=0.4)
    assert 200 < used.rss_mib.max < 260
    assert used.samples == len(run.samples["t_s"]) > 1
    assert (used.device, used.gpus, used.gpu_util_pct) == ("cpu", 0, None)
    assert set(used.versions) == {"presage", "system"}
    assert 0 < run.sampler_cpu_s < used.duration_s


def test_children_are_measured_too() -> None:
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN!r}])"
    used = python(code).profile
    assert used.cpu_cores.mean * used.duration_s > 0.45


@pytest.mark.parametrize("before_mib", [0, 500])
def test_a_peak_between_two_samples_is_not_missed(before_mib: int) -> None:
    """Measured by a process that is small: Linux counts the size of the one that forked. What
    that process was before, such as a large shell, does not matter."""
    code = """
import sys
from presage.telemetry.profiler import profile_command
big = "x = bytearray(300 << 20); del x"
print(profile_command([sys.executable, "-c", big], hz=0.5).profile.rss_mib.max)
"""
    first = f"import os, sys; x = bytearray({before_mib} << 20); "
    first += "os.execv(sys.executable, [sys.executable, '-c', sys.argv[1]])"
    done = subprocess.run(
        [sys.executable, "-c", first, code], capture_output=True, text=True, check=True
    )
    assert 300 < float(done.stdout) < 400


def test_a_small_program_is_not_charged_for_our_own_size() -> None:
    ours = psutil.Process().memory_info().rss / MIB
    assert profile_command(["sleep", "0.2"]).profile.rss_mib.max < min(20, ours)


def test_rates_come_from_counters() -> None:
    t = np.arange(0, 2, 0.05)
    zeros = np.zeros_like(t)
    columns = dict.fromkeys(COLUMNS, zeros)
    busy = np.minimum(t, 1.0)  # one core for a second, then none
    columns |= {"at": t, "cpu_s": np.floor(busy * 100) / 100, "net_sent_bytes": 1000 * t}
    rates = profiler._samples(columns)
    assert rates["cpu_cores"][(t < 0.95)] == pytest.approx(1.0, abs=0.25)
    assert rates["cpu_cores"][(t > 1.3)] == pytest.approx(0.0)
    assert rates["net_sent_bytes_s"] == pytest.approx(1000)


def test_output_input_and_exit_code_are_the_commands_own(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(7)"
    assert python(code).profile.exit_code == 7
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("out\n", "err\n")
    assert python("print('other')", stdout=2).profile.exit_code == 0
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "other\n")


def test_an_end_by_a_signal_is_told_as_a_shell_does() -> None:
    code = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
    assert python(code).profile.exit_code == 128 + signal.SIGKILL


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (["no-such-program"], r"^cannot run 'no-such-program': there is no such program"),
        (["/"], r"^cannot run '/': Permission denied"),
        (["a\0b"], "cannot run"),
        ([], "no command"),
    ],
)
def test_a_command_that_cannot_run_is_one_clear_line(command: list[str], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        profile_command(command)


@pytest.mark.parametrize("hz", [0, -1, 1000, float("nan")])
def test_a_rate_that_makes_no_sense_is_refused(hz: float) -> None:
    with pytest.raises(UserError, match="the rate must be"):
        profile_command(["true"], hz=hz)


def test_what_the_job_reports_is_read(tmp_path: Path) -> None:
    code = (
        "import json, os\n"
        "with open(os.environ['PRESAGE_PROFILE_FILE'], 'w') as file:\n"
        "    for step in (10, 20, 30):\n"
        "        print(json.dumps({'step_ms': step, 'batch': 32}), file=file)\n"
        "    print(json.dumps({'graph_signature': 'g:1'}), file=file)\n"
    )
    run = python(code)
    assert run.profile.step_ms is not None
    assert (run.profile.step_ms.mean, run.profile.step_ms.max) == (20, 30)
    assert (run.profile.batch, run.profile.graph_signature) == (32, "g:1")
    assert run.profile.signature == command_signature(run.profile.command, "g:1")
    assert run.profile.signature != command_signature(run.profile.command)
    assert not [note for note in run.notes if "GPU" not in note]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "Expecting property name"),
        ("[1]", "write a JSON object"),
        ('{"step_ms": -1}', "'step_ms' cannot be '-1'"),
        ('{"step_ms": NaN}', "'step_ms' cannot be 'nan'"),
        ('{"step_ms": true}', "'step_ms' cannot be 'True'"),
        ('{"batch": 1.5}', "'batch' cannot be '1.5'"),
        ('{"graph_signature": "a b"}', "'graph_signature' cannot be 'a b'"),
        ('{"loss": 1}', "'loss' cannot be '1'"),
        ("[" * 100_000, "left out"),
    ],
)
def test_a_wrong_report_is_left_out_with_a_note(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "report"
    path.write_text(f'{{"batch": 8}}\n{line}\n{{"step_ms": 5}}\n')
    report = profiler._read_report(path)
    assert (report.batch, report.step_ms, report.graph_signature) == (8, [5.0], None)
    (note,) = report.notes
    assert problem in note
    assert "1 of 3 lines of $PRESAGE_PROFILE_FILE are left out; line 2" in note


def test_the_signature_is_that_of_the_work(tmp_path: Path) -> None:
    one, two = tmp_path / "one" / "train.py", tmp_path / "two" / "train.py"
    for path in (one, two):
        path.parent.mkdir()
        path.write_text("print(1)")
    of = command_signature
    base = of(["python3.11", "-u", str(one), "--lr", "1"])
    assert base == of(["/usr/bin/python", "-u", str(two), "--lr", "1"])  # wherever it is kept
    assert base != of(["python", "-u", str(one), "--lr", "2"])
    assert base != of(["python", "-u", str(one), "--lr", "1"], "graph")
    assert base != of(["torchrun", "-u", str(one), "--lr", "1"])
    assert of(["a", "b c"]) != of(["a", "b", "c"])
    two.write_text("print(2)")
    assert base != of(["python", "-u", str(two), "--lr", "1"])


def test_a_signature_can_be_given() -> None:
    assert profile_command(["true"], signature="mine-1").profile.signature == "mine-1"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_reach_the_command_and_its_children(number: signal.Signals) -> None:
    """The command decides: here it ends well, and takes its child with it."""
    name = number.name
    code = (
        "import os, signal, subprocess, sys\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        "def stop(number, frame):\n"
        "    print('got', signal.Signals(number).name, child.wait(), flush=True)\n"
        "    os._exit(5)\n"
        f"signal.signal(signal.{name}, stop)\n"
        "print('ready', flush=True)\n"
        "signal.pause()\n"
    )
    outer = (
        "import sys\n"
        "from presage.telemetry.profiler import profile_command\n"
        "run = profile_command([sys.executable, '-c', sys.argv[1]])\n"
        "print('exit', run.profile.exit_code)\n"
    )
    words = [sys.executable, "-c", outer, code]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        rest = process.stdout.read()
    assert rest == f"got {name} {-number}\nexit 5\n"


def test_handlers_are_as_they_were() -> None:
    before = signal.getsignal(signal.SIGINT)
    profile_command(["true"])
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    """As under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        code = "import signal, sys\nsys.exit(signal.getsignal(signal.SIGHUP) != signal.SIG_IGN)"
        assert python(code).profile.exit_code == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_it_works_outside_the_main_thread() -> None:
    codes = []
    thread = threading.Thread(
        target=lambda: codes.append(profile_command(["true"]).profile.exit_code)
    )
    thread.start()
    thread.join()
    assert codes == [0]


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    threads = threading.active_count()
    note = tmp_path / "pid"
    run = profile_command(["sh", "-c", f"sleep 600 & echo $! > {note}; sleep 0.2"])
    assert "processes that the command left behind were ended: 1" in run.notes
    assert not psutil.pid_exists(int(note.read_text())) or (
        psutil.Process(int(note.read_text())).status() == psutil.STATUS_ZOMBIE
    )
    assert list(tmp_path.iterdir()) == [note]
    assert threading.active_count() == threads


def test_without_nvml_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    run = profile_command(["true"])
    assert "GPUs are not read: pip install 'presage[gpu]'" in run.notes


class FakeNvml:
    """A driver with two GPUs; `jobs` are (device, pid, bytes)."""

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        self.jobs: list[tuple[int, int, int | None]] = []
        self.used = [100 * MIB, 0]
        self.broken = self.closed = False

    def nvmlInit(self) -> None:
        if self.broken:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlShutdown(self) -> None:
        self.closed = True

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, device: int) -> str:
        return "NVIDIA A100-SXM4-40GB"

    def nvmlDeviceGetUUID(self, device: int) -> str:
        return f"GPU-{device}f"

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"550.1"

    def nvmlEventSetCreate(self) -> None:
        raise self.NVMLError("Not Supported")

    NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 0

    def nvmlDeviceGetTotalEccErrors(self, device: int, kind: int, counter: int) -> int:
        raise self.NVMLError("Not Supported")

    def nvmlDeviceGetMemoryInfo(self, device: int) -> SimpleNamespace:
        return SimpleNamespace(used=self.used[device])

    def nvmlDeviceGetUtilizationRates(self, device: int) -> SimpleNamespace:
        if self.broken:
            raise self.NVMLError("Unknown Error")
        return SimpleNamespace(gpu=(80, 40)[device], memory=(30, 10)[device])

    def nvmlDeviceGetComputeRunningProcesses(self, device: int) -> list[SimpleNamespace]:
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=size)
            for index, pid, size in self.jobs
            if index == device
        ]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


def read(probe: GpuProbe) -> GpuReading:
    found = probe.read({os.getpid()})
    assert found is not None
    return found


def test_a_driver_that_takes_too_long_is_not_asked_again(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe, _ = open_gpus()
    assert probe is not None
    read(probe)
    monkeypatch.setattr(nvml_module, "_PATIENCE_S", -1.0)
    read(probe)
    assert probe.read({os.getpid()}) is None


def test_gpus_are_those_that_the_job_is_on(nvml: FakeNvml) -> None:
    probe, note = open_gpus()
    assert probe is not None
    assert note == ""
    me, other = os.getpid(), 1
    assert read(probe).memory_mib == 0
    nvml.jobs = [(0, me, 30 * MIB), (1, me, 10 * MIB)]
    reading = read(probe)
    assert (reading.memory_mib, reading.util_pct, reading.shared) == (40, 60, False)
    nvml.jobs = [(0, other, 90 * MIB), (1, me, 10 * MIB)]
    reading = read(probe)
    assert (reading.memory_mib, reading.util_pct, reading.shared) == (10, 40, False)
    nvml.jobs.append((1, other, 5 * MIB))
    assert read(probe).shared
    nvml.jobs, nvml.used = [(0, me, None)], [150 * MIB, 0]  # the driver hides sizes
    assert read(probe).memory_mib == 50
    assert (probe.used, probe.name, probe.driver) == ({0, 1}, "NVIDIA A100-SXM4-40GB", "550.1")
    nvml.broken = True
    assert probe.read({me}) is None
    probe.close()
    assert nvml.closed


def test_in_a_container_memory_tells_which_gpu(nvml: FakeNvml) -> None:
    probe, _ = open_gpus()
    assert probe is not None
    unknown = 2**22 + 1  # an id from outside
    nvml.jobs, nvml.used = [(1, unknown, 70 * MIB)], [100 * MIB, 70 * MIB]
    assert read(probe).memory_mib == 70
    assert probe.used == {1}


@pytest.mark.parametrize(
    ("visible", "devices"), [("1", {1}), ("GPU-0", {0}), ("0,1", {0, 1}), ("GPU-1f", {1})]
)
def test_only_visible_gpus_count(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, visible: str, devices: set[int]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    probe, _ = open_gpus()
    assert probe is not None
    nvml.jobs = [(0, os.getpid(), MIB), (1, os.getpid(), MIB)]
    probe.read({os.getpid()})
    assert probe.used == devices


@pytest.mark.parametrize(("visible", "order"), [("0,1", [0, 1]), ("GPU-1f, 0", [1, 0])])
def test_gpus_come_in_the_order_of_the_variable(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, visible: str, order: list[int]
) -> None:
    monkeypatch.setattr(nvml, "nvmlDeviceGetName", lambda device: f"GPU {device}")
    total = SimpleNamespace(used=0, total=MIB)
    monkeypatch.setattr(nvml, "nvmlDeviceGetMemoryInfo", lambda device: total)
    probe, _ = open_gpus(visible)
    assert probe is not None
    assert probe.devices() == [(f"GPU {number}", 1) for number in order]


@pytest.mark.parametrize("visible", ["", "-1"])
def test_no_visible_gpu_is_said(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, visible: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert open_gpus() == (None, "GPUs are not read: none is visible")
    nvml.broken = True
    assert open_gpus() == (None, "GPUs are not read: Driver Not Loaded")


def test_a_profile_names_its_gpu(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake driver sees every process of the job on device 1."""

    def running(device: int) -> list[SimpleNamespace]:
        pids = [child.pid for child in psutil.Process().children(recursive=True)]
        return [SimpleNamespace(pid=pid, usedGpuMemory=7 * MIB) for pid in pids if device == 1]

    monkeypatch.setattr(nvml, "nvmlDeviceGetComputeRunningProcesses", running)
    used = profile_command(["sleep", "0.3"], hz=50).profile
    assert (used.device, used.gpus) == ("NVIDIA A100-SXM4-40GB", 1)
    assert used.gpu_util_pct is not None
    assert used.gpu_memory_mib is not None
    assert (used.gpu_util_pct.max, used.gpu_memory_mib.max) == (40, 7)
    assert used.versions["nvidia_driver"] == "550.1"
    assert nvml.closed
