"""Runs a command, watches what it uses, and makes a `Profile` of it.

The command keeps its input, output and exit code; it gets a session of its own, so that a signal
to us reaches all of it and nothing of it stays behind. It may report on itself: the file named by
`$PRESAGE_PROFILE_FILE` takes JSON lines such as {"step_ms": 41.5, "batch": 32,
"graph_signature": "…"}, each key when there is something to say.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from presage import __version__
from presage.model.errors import UserError
from presage.model.profile import Distribution, Profile
from presage.telemetry.bursts.counters import copied_bytes_s
from presage.telemetry.bursts.sampler import LOWEST_HZ, BurstSampler, TaskBursts, bursts_of
from presage.telemetry.nvml import GpuProbe, open_gpus
from presage.telemetry.sampler import Sampler
from presage.telemetry.series import rate

__all__ = ["HIGHEST_HZ", "REPORT_VARIABLE", "ProfiledRun", "command_signature", "profile_command"]

Columns = dict[str, npt.NDArray[np.float64]]

HIGHEST_HZ = 100.0
REPORT_VARIABLE = "PRESAGE_PROFILE_FILE"

_WINDOW_S = 0.25
"""CPU time is counted in ticks of 10 ms; a rate over a shorter time would be mostly rounding."""
_OTHERS_SHARE = 0.05
"""A run is alone when the rest of the machine keeps less than this share of its cores busy."""
_GRACE_S = 2.0
_SCRIPTS = (".py", ".sh", ".bash", ".r", ".jl", ".pl")
_PYTHON = re.compile(r"python[0-9.]*")
_GRAPH_SIGNATURE = re.compile(r"[\w.:-]{1,200}")
_REPORT_LIMIT = 64 << 20
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class ProfiledRun:
    """A profile, what it was made of, and what the reader should know about it."""

    profile: Profile
    samples: Columns
    """By column: `t_s`, and the quantities of the profile at that time."""
    notes: tuple[str, ...]
    sampler_cpu_s: float
    """CPU time that sampling took."""
    bursts: list[TaskBursts] | None = None
    """How each of its workers pulsed, if that was asked for."""


def profile_command(
    command: Sequence[str],
    *,
    hz: float = 20.0,
    signature: str | None = None,
    stdout: int | None = None,
    bursts: bool = False,
) -> ProfiledRun:
    """Run a command to its end and profile it. `signature` replaces the one that is made of the
    command; `stdout` is a file descriptor for its output instead of ours; `bursts` asks how its
    workers pulse, too."""
    if not command:
        raise UserError("there is no command to profile")
    if not 0.1 <= hz <= HIGHEST_HZ:
        raise UserError(f"the rate must be 0.1 to {HIGHEST_HZ:g} samples a second, not {hz:g}")
    probe, gpu_note = open_gpus()
    try:
        with tempfile.TemporaryDirectory(prefix="presage-profile-") as folder:
            report_file = Path(folder) / "report.jsonl"
            run = _run(command, hz, probe, stdout, report_file, bursts)
            report = _read_report(report_file)
        return _profiled(command, signature, run, report, probe, gpu_note)
    finally:
        if probe is not None:
            probe.close()


def command_signature(command: Sequence[str], graph_signature: str | None = None) -> str:
    """What identifies a workload: the program's name, the content of the script it runs, the other
    words, and the graph that the job says it runs. Where things are kept does not matter."""
    program = Path(command[0]).name
    words = ["python" if _PYTHON.fullmatch(program) else program, *command[1:]]
    for index, word in enumerate(command):
        if Path(word).suffix.lower() in _SCRIPTS and Path(word).is_file():
            with suppress(OSError):
                words[index] = f"sha256:{hashlib.sha256(Path(word).read_bytes()).hexdigest()}"
                break
    text = json.dumps([words, graph_signature])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class _Measurement:
    """How a run went, before anything is made of it."""

    started_s: float
    duration_s: float
    exit_code: int
    cpu_s: float
    peak_mib: float
    """The largest any of its processes was, if the system's figure can be believed; else 0."""
    other_cores: float
    columns: Columns
    sampler_cpu_s: float
    left_behind: int
    bursts: list[TaskBursts] | None
    notes: tuple[str, ...]


@dataclass(slots=True)
class _JobReport:
    """What the job said about itself."""

    step_ms: list[float] = field(default_factory=list)
    batch: int | None = None
    graph_signature: str | None = None
    notes: list[str] = field(default_factory=list)


def _run(
    command: Sequence[str],
    hz: float,
    probe: GpuProbe | None,
    stdout: int | None,
    report: Path,
    bursts: bool,
) -> _Measurement:
    # Measured before the command starts: on a busy machine it takes as long as a short command.
    copied_s = copied_bytes_s() if bursts and probe is None else None
    with _forwarding_signals() as child:
        started_s, start = time.time(), time.monotonic()
        others_before = _others_cpu_s()
        try:
            process = subprocess.Popen(
                list(command),
                stdout=stdout,
                env=os.environ | {REPORT_VARIABLE: str(report)},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise UserError(f"cannot run {command[0]!r}: {_why(error)}") from None
        child.started(process.pid)
        # Linux counts the memory of the process that forked towards the peak of the new one.
        inherited = _own_peak_kib()
        sampler = Sampler(process.pid, hz, probe)
        sampler.start()
        often = max(hz, 2 * LOWEST_HZ)
        pulses = _Pulses(process.pid, often, probe, copied_s) if bursts else None
        try:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            duration_s = time.monotonic() - start
            others_s = _others_cpu_s() - others_before - usage.ru_utime - usage.ru_stime
        finally:
            columns = sampler.stop()
            pulsed = pulses.stop() if pulses else None
            left_behind = _end_group(process.pid)
    code = process.returncode
    return _Measurement(
        started_s=started_s,
        duration_s=duration_s,
        exit_code=code if code >= 0 else 128 - code,
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_mib=usage.ru_maxrss / 1024 if usage.ru_maxrss > inherited else 0.0,
        other_cores=max(0.0, others_s / duration_s) if duration_s > _WINDOW_S else 0.0,
        columns=columns,
        sampler_cpu_s=sampler.cpu_s,
        left_behind=left_behind,
        bursts=pulsed,
        notes=pulses.notes if pulses else (),
    )


class _Pulses:
    """How the workers of a command pulse, from now until it is stopped."""

    def __init__(
        self, pid: int, hz: float, probe: GpuProbe | None, copied_s: float | None
    ) -> None:
        self.notes: tuple[str, ...] = ()
        self._sampler: BurstSampler | None = None
        try:
            self._sampler = BurstSampler(pid, hz, gpus=probe, peak_bytes_s=copied_s)
            self._sampler.start()
        except UserError as error:  # it ended at once
            self.notes = (f"bursts: {error}",)

    def stop(self) -> list[TaskBursts]:
        if self._sampler is None:
            return []
        rows = self._sampler.stop()
        names = {row.worker for row in rows}
        cores = (os.cpu_count() or 1) / max(1, len(names))
        notes = [f"bursts: memory utilization is made of {self._sampler.memory_counter}"]
        if len(names) > 1 and self._sampler.shared_network:
            notes.append("bursts: the workers share a network, so each shows what all sent")
        tasks = bursts_of(rows, cores=cores)
        if len(tasks) < max(len(names), 1):
            notes.append("bursts: too few samples of a worker to tell them; let it run for longer")
        self.notes = tuple(notes)
        return tasks


def _own_peak_kib() -> int:
    """The largest size this program had. `getrusage` says what the program before it in this
    process had, if that was more."""
    words = Path("/proc/self/status").read_text(encoding="utf-8").split()
    return int(words[words.index("VmHWM:") + 1])


class _Child:
    """The group that signals are passed on to, once it is there."""

    def __init__(self) -> None:
        self._group: int | None = None
        self._early: list[int] = []

    def started(self, group: int) -> None:
        self._group = group
        for number in self._early:
            self.forward(number, None)

    def forward(self, number: int, frame: FrameType | None) -> None:
        if self._group is None:
            self._early.append(number)
        else:
            with suppress(ProcessLookupError):
                os.killpg(self._group, number)


@contextmanager
def _forwarding_signals() -> Iterator[_Child]:
    """Pass signals on to the child; it decides what they mean, and its end is ours."""
    child = _Child()
    if threading.current_thread() is not threading.main_thread():
        yield child  # Python lets the main thread alone handle signals
        return
    # What is ignored stays so, also for the child: that is what `nohup` relies on.
    heard = [number for number in _FORWARDED if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, child.forward) for number in heard}
    try:
        yield child
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_group(group: int) -> int:
    """End what the command left running in its session; returns how many there were."""
    left = [process for process in psutil.process_iter() if _in_group(process.pid, group)]
    left = [process for process in left if _runs(process)]
    for process in left:
        with suppress(psutil.Error):
            process.terminate()
    end = time.monotonic() + _GRACE_S
    while any(map(_runs, left)) and time.monotonic() < end:
        time.sleep(0.02)
    for process in filter(_runs, left):
        with suppress(psutil.Error):
            process.kill()
    return len(left)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _in_group(pid: int, group: int) -> bool:
    try:
        return os.getpgid(pid) == group
    except OSError:
        return False


def _why(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such program; give its path, or put it on PATH"
    return getattr(error, "strerror", None) or str(error)


def _read_report(path: Path) -> _JobReport:
    """The lines the job wrote. One that makes no sense is left out, and a note says so."""
    report = _JobReport()
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            lines = file.read(_REPORT_LIMIT).splitlines()
    except FileNotFoundError:
        return report
    wrong = []
    for number, line in enumerate(lines, 1):
        try:
            _add_line(report, json.loads(line))
        except (ValueError, RecursionError) as error:
            wrong.append(f"line {number}: {error}")
    if wrong:
        report.notes.append(
            f"{len(wrong)} of {len(lines)} lines of ${REPORT_VARIABLE} are left out; {wrong[0]}"
        )
    return report


def _add_line(report: _JobReport, data: Any) -> None:
    if not isinstance(data, Mapping):
        raise ValueError("write a JSON object")
    for key, value in data.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if key == "step_ms" and number and math.isfinite(value) and value > 0:
            report.step_ms.append(float(value))
        elif key == "batch" and type(value) is int and value > 0:
            report.batch = value
        elif key == "graph_signature" and _GRAPH_SIGNATURE.fullmatch(str(value)):
            report.graph_signature = str(value)
        else:
            raise ValueError(
                f"{str(key)[:40]!r} cannot be {str(value)[:40]!r}; there are step_ms and batch,"
                " which are positive, and graph_signature, a word"
            )


def _profiled(
    command: Sequence[str],
    signature: str | None,
    run: _Measurement,
    report: _JobReport,
    probe: GpuProbe | None,
    gpu_note: str,
) -> ProfiledRun:
    samples = _samples(run.columns)
    on_gpu = probe is not None and bool(probe.used)
    shared = bool((run.columns["gpu_shared"] > 0).any())
    cpu_s = max(run.cpu_s, *run.columns["cpu_s"][-1:], 0.0)
    notes = [gpu_note] if gpu_note else []
    if not len(samples["t_s"]):
        notes.append("the command ended before the first sample")
    if run.left_behind:
        notes.append(f"processes that the command left behind were ended: {run.left_behind}")
    profile = Profile(
        signature=signature or command_signature(command, report.graph_signature),
        command=tuple(command),
        started_s=run.started_s,
        duration_s=run.duration_s,
        exit_code=run.exit_code,
        samples=len(samples["t_s"]),
        hz=_achieved_hz(samples["t_s"]),
        cpu_cores=_spread(samples["cpu_cores"], mean=cpu_s / max(run.duration_s, 1e-3)),
        rss_mib=_spread(samples["rss_mib"], at_least=run.peak_mib),
        read_bytes_s=_spread(samples["read_bytes_s"]),
        write_bytes_s=_spread(samples["write_bytes_s"]),
        net_sent_bytes_s=_spread(samples["net_sent_bytes_s"]),
        net_received_bytes_s=_spread(samples["net_received_bytes_s"]),
        device=probe.name if probe is not None and on_gpu else "cpu",
        gpus=len(probe.used) if probe is not None else 0,
        gpu_util_pct=_spread(samples["gpu_util_pct"]) if on_gpu else None,
        gpu_memory_mib=_spread(samples["gpu_memory_mib"]) if on_gpu else None,
        step_ms=Distribution.of(report.step_ms) if report.step_ms else None,
        batch=report.batch,
        graph_signature=report.graph_signature,
        other_cores=run.other_cores,
        alone=run.other_cores < max(0.1, _OTHERS_SHARE * (os.cpu_count() or 1)) and not shared,
        versions=_versions(probe),
    )
    notes += [*report.notes, *run.notes]
    return ProfiledRun(profile, samples, tuple(notes), run.sampler_cpu_s, run.bursts)


def _samples(columns: Columns) -> Columns:
    """The samples as they are kept: counters as rates."""
    at = columns["at"]

    def per_second(name: str) -> npt.NDArray[np.float64]:
        return rate(at, columns[name], _WINDOW_S)

    return {
        "t_s": at,
        "cpu_cores": per_second("cpu_s"),
        "rss_mib": columns["rss_mib"],
        "processes": columns["processes"],
        "threads": columns["threads"],
        "read_bytes_s": per_second("read_bytes"),
        "write_bytes_s": per_second("write_bytes"),
        "net_sent_bytes_s": per_second("net_sent_bytes"),
        "net_received_bytes_s": per_second("net_received_bytes"),
        "gpu_util_pct": columns["gpu_util_pct"],
        "gpu_memory_mib": columns["gpu_total_mib"],
    }


def _spread(
    values: npt.NDArray[np.float64], *, mean: float | None = None, at_least: float = 0.0
) -> Distribution:
    """Of the samples that are numbers. `mean` is known better than the samples tell, and so is
    the maximum when the system kept `at_least`; both stand for samples when there are none."""
    known = values[np.isfinite(values)]
    if not known.size:
        value = max(mean or 0.0, at_least)
        return Distribution(value, value, value, value)
    p50, p95 = (float(value) for value in np.quantile(known, [0.5, 0.95]))
    highest = max(float(known.max()), p95, at_least)
    return Distribution(float(known.mean()) if mean is None else mean, min(p50, p95), p95, highest)


def _others_cpu_s() -> float:
    """Time that the cores of the machine were busy, without us."""
    times = psutil.cpu_times()
    busy = times.user + times.nice + times.system + times.irq + times.softirq
    return float(busy - time.process_time())


def _achieved_hz(t: npt.NDArray[np.float64]) -> float:
    return float((len(t) - 1) / (t[-1] - t[0])) if len(t) > 1 else 0.0


def _versions(probe: GpuProbe | None) -> dict[str, str]:
    versions = {"presage": __version__, "system": f"{platform.system()} {platform.release()}"}
    if probe is not None:
        versions["nvidia_driver"] = probe.driver
    return versions
