"""One distributed training in namespaces, measured: forked from a process that has PyTorch.

A run lasts until its slowest worker has made enough steps, and is then killed. Labels are the
means over the workers; those of each task are kept beside them.
"""

from __future__ import annotations

import ctypes
import importlib.util
import mmap
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks._links import Links
from presage.foresee.bursts.settings import NETWORKS, Setting
from presage.telemetry.bursts import RESOURCES, TARGETS, BurstSampler, TaskBursts, bursts_of

__all__ = ["Lab", "Limits", "RunFailed", "training_job"]

_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG

EXAMPLE = Path(__file__).parent.parent / "examples" / "distributed" / "train.py"


class RunFailed(Exception):
    """A run gave no labels; the text says why."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a run may take."""

    start_s: float = 90.0
    """Until every worker has made its first steps."""
    warm_steps: int = 1
    steps: int = 4
    """That the slowest worker makes while it is measured."""
    least_s: float = 1.6
    most_s: float = 3.5
    """If two steps were made; else twice as long."""
    hz: float = 40.0


def training_job() -> ModuleType:
    """The job in examples/."""
    spec = importlib.util.spec_from_file_location("distributed_train", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Lab:
    """Networks with room for so many tasks, made when a setting first needs them, and runs on
    them; a context manager. The process must never have used PyTorch's thread pools: it forks."""

    def __init__(self, tasks: int, limits: Limits, peak_bytes_s: float) -> None:
        self.tasks, self.limits, self.peak_bytes_s = tasks, limits, peak_bytes_s
        self.job = training_job()
        self._networks: dict[str, Links] = {}
        self._port = 20_000

    def __enter__(self) -> Lab:
        Links.check()
        Links.sweep()
        # What a first optimizer and a first gang import: once, not in every child (1.2 s each).
        import torch._dynamo
        import torch.distributed.tensor  # noqa: F401

        return self

    def __exit__(self, *_: object) -> None:
        for links in self._networks.values():
            links.__exit__()

    def links(self, setting: Setting) -> Links:
        """A network of that speed."""
        if setting.network not in self._networks:
            made = Links(self.tasks, NETWORKS[setting.network])
            self._networks[setting.network] = made.__enter__()
        return self._networks[setting.network]

    def run(self, workload: dict[str, Any], setting: Setting, log: Path) -> dict[str, Any]:
        """Measure a workload once; what was found, ready for JSON."""
        roles = setting.roles
        links = self.links(setting)
        shared = mmap.mmap(-1, 16 * len(roles))
        steps, ended = np.frombuffer(shared, np.float64).reshape(2, -1)
        self._port = 20_000 + (self._port + 1) % 20_000
        began = time.monotonic()
        names = [f"{role}-{rank}" for rank, role in enumerate(roles)]
        children: dict[str, int] = {}
        try:
            for rank, name in enumerate(names):
                children[name] = self._fork(rank, setting, workload, links, (steps, ended), log)
            own = slice(setting.workers)
            return self._measured(children, steps[own], ended[own], began, log)
        finally:
            for pid in children.values():
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def together(
        self, workloads: Sequence[dict[str, Any]], setting: Setting, seconds: float, log: Path
    ) -> list[float]:
        """Steps a second of each of some trainings that run at the same time, the first tasks of
        all on one link, the second on another, and so on."""
        roles, links = setting.roles, self.links(setting)
        shared = mmap.mmap(-1, 16 * len(roles) * len(workloads))
        told = np.frombuffer(shared, np.float64).reshape(len(workloads), 2, len(roles))
        children: dict[str, int] = {}
        try:
            for at, (workload, own) in enumerate(zip(workloads, told, strict=True)):
                self._port = 20_000 + (self._port + 1) % 20_000
                for rank in range(len(roles)):
                    children[f"{at}-{rank}"] = self._fork(rank, setting, workload, links, own, log)
            began = time.monotonic()
            steps, ended = told[:, 0, : setting.workers], told[:, 1, : setting.workers]
            while steps.min() < self.limits.warm_steps:
                self._check(children, log)
                if time.monotonic() - began > self.limits.start_s:
                    raise RunFailed(f"no step in {self.limits.start_s:g} s")
                time.sleep(0.01)
            first, since = steps.copy(), ended.copy()
            start = time.monotonic()
            while time.monotonic() - start < seconds or (steps - first).min() < 2:
                self._check(children, log)
                if time.monotonic() - start > 4 * seconds:
                    raise RunFailed(f"not two steps in {4 * seconds:g} s")
                time.sleep(0.01)
            speeds: list[float] = ((steps - first) / (ended - since)).mean(1).tolist()
            return speeds
        finally:
            for pid in children.values():
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def _fork(
        self,
        rank: int,
        setting: Setting,
        workload: dict[str, Any],
        links: Links,
        told: Any,
        log: Path,
    ) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)
            with log.open("w" if rank == 0 else "a") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            links.enter(rank)
            self._train(rank, setting, workload, links.address(0), *told)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(1)

    def _train(
        self,
        rank: int,
        setting: Setting,
        workload: dict[str, Any],
        first: str,
        steps: Any,
        ended: Any,
    ) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
        roles = setting.roles
        training = self.job.Training(self.job.Workload(**workload))

        def done() -> None:
            ended[rank] = time.monotonic()
            steps[rank] += 1

        dist.init_process_group(
            "gloo",
            init_method=f"tcp://{first}:{self._port}",
            rank=rank,
            world_size=len(roles),
            timeout=self.job.PATIENCE,
        )
        self.job.run_task(
            self.job.Workload(**workload),
            rank,
            roles,
            asynchronous=setting.asynchronous,
            done=done,
            training=training,
        )

    def _measured(
        self, children: dict[str, int], steps: Any, ended: Any, began: float, log: Path
    ) -> dict[str, Any]:
        limits = self.limits
        while steps.min() < limits.warm_steps:
            self._check(children, log)
            if time.monotonic() - began > limits.start_s:
                raise RunFailed(f"no {limits.warm_steps} steps in {limits.start_s:g} s")
            time.sleep(0.01)
        sampler = BurstSampler(children, limits.hz, peak_bytes_s=self.peak_bytes_s)
        busy_before, start = _busy_s(), time.monotonic()
        first, since = steps.copy(), ended.copy()
        sampler.start()
        while not self._enough(time.monotonic() - start, (steps - first).min()):
            self._check(children, log)
            time.sleep(0.01)
        made, spent = steps - first, time.monotonic() - start
        took = ended - since  # whole steps, however long after its last one a window ended
        rows = sampler.stop()
        own = sum(row.cpu_s or 0.0 for row in rows[-len(children) :])
        tasks = bursts_of(rows)
        workers = [task for task in tasks if task.task.startswith("worker")]
        if not workers or made.min() < 2:
            raise RunFailed(f"{made.min():.0f} steps in {spent:.1f} s are too few for labels")
        return {
            "labels": dict(zip(TARGETS, _means(workers), strict=True)),
            "tasks": {task.task: _told(task) for task in tasks},
            "step_ms": round(1e3 * float(np.mean(took / made)), 2),
            "steps": int(made.min()),
            "window_s": round(spent, 3),
            "took_s": round(time.monotonic() - began, 3),
            "hz": round(float(np.mean([task.hz for task in tasks])), 2),
            "memory_counter": sampler.memory_counter,
            "sampler_cpu_pct": round(100 * sampler.cpu_s / spent, 2),
            "machine_busy_cores": round((_busy_s() - busy_before) / spent, 2),
            "tasks_cpu_s": round(own, 2),
        }

    def _enough(self, spent_s: float, made: float) -> bool:
        limits = self.limits
        if made < 2:
            return spent_s >= 2 * limits.most_s
        return spent_s >= limits.most_s or (spent_s >= limits.least_s and made >= limits.steps)

    def _check(self, children: dict[str, int], log: Path) -> None:
        for name, pid in children.items():
            # WNOWAIT leaves the child to be reaped where all are
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            if os.waitid(os.P_PID, pid, flags) is not None:
                said = log.read_text(errors="replace").strip().splitlines() or ["nothing"]
                raise RunFailed(f"{name} ended: {said[-1][:200]}")


def _means(workers: list[TaskBursts]) -> list[float]:
    return [round(float(v), 4) for v in np.mean([task.numbers for task in workers], axis=0)]


def _told(task: TaskBursts) -> dict[str, Any]:
    """Labels of a task, short."""
    out: dict[str, Any] = {}
    for name in RESOURCES:
        found = asdict(task.by_resource[name])
        out[name] = [
            str(found["pattern"]),
            *(round(found[key], 3) for key in ("burst", "burst_ms", "idle_ms")),
            found["count"],
        ]
    return out


def _busy_s() -> float:
    """Seconds that the cores of this machine were busy since boot."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _, _, irq, softirq = map(int, words[:7])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
