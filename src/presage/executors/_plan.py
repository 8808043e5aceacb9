"""From what a job asks for to what its guardian does: the plan of a run, as plain JSON values.

The plan is written into the run directory, so it holds paths of secrets and never their content.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from presage.executors._containers import find_engine, in_container
from presage.executors._runspec import RoleSpec, RunSpec, RunSpecError
from presage.model.cluster import Worker
from presage.model.event import Launch
from presage.nvml import binding_here

__all__ = [
    "LOG_CAP",
    "Places",
    "identity",
    "inherited_environment",
    "make_plan",
    "pick_cores",
    "plan_workers",
]

LOG_CAP = 256 << 20
"""Bytes that the log of a worker may have."""
_MIB = 1 << 20
_PRIVATE = re.compile(
    r"^(PRESAGE_|PG)|TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY|DATABASE_URL",
    re.IGNORECASE,
)
"""Variables of the server that are none of a job's business."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where things are under the server's data directory."""

    data: Path

    @property
    def runs(self) -> Path:
        """The directories of runs that are not over."""
        return self.data / "runs"

    @property
    def wake(self) -> Path:
        """The named pipe on which guardians call."""
        return self.data / "wake"

    def run(self, job: str, attempt: int) -> Path:
        """The directory of one run while it lasts."""
        return self.runs / job / str(attempt)

    def job(self, job: str) -> Path:
        """What is kept of a job."""
        return self.data / "jobs" / job

    def logs(self, job: str, attempt: int) -> Path:
        """The logs of one run; once this exists, the run was started."""
        return self.job(job) / "logs" / str(attempt)


def inherited_environment(spec: RunSpec, python: str, run: Path) -> dict[str, str]:
    """What workers get of the server's environment: all but what looks like a credential, with
    the job's environment first on PATH, else the one that Presage runs in."""
    kept = {name: value for name, value in os.environ.items() if not _PRIVATE.search(name)}
    path = [str(Path(python).parent), kept.get("PATH", os.defpath)]
    if spec.environment:
        prefix = Path(spec.environment).expanduser()
        path.insert(0, str(prefix / "bin"))
        kept["VIRTUAL_ENV"] = str(prefix)
    kept["PATH"] = os.pathsep.join(path)
    kept["PRESAGE_RUN"] = str(run)  # by this mark the executor finds what a guardian left behind
    return kept


def make_plan(
    places: Places,
    spec: RunSpec,
    launch: Launch,
    *,
    cores: Mapping[Worker, Sequence[int]],
    cgroup: Path | None,
    log_cap: int = LOG_CAP,
    gpus: Sequence[str] = (),
) -> dict[str, Any]:
    """All that a guardian needs; raises RunSpecError for what cannot be run here. `gpus` has what
    CUDA calls the devices, where that is not their number."""
    run, job = places.run(launch.job, launch.attempt), places.job(launch.job)
    kept = job / "checkpoints"
    wanted = spec.checkpoint_dir or ""
    outside = wanted.startswith(("/", "~"))
    plan: dict[str, Any] = {
        "job": launch.job,
        "attempt": launch.attempt,
        "run": str(run),
        "wake": str(places.wake),
        "work": str(run / "work"),
        "folder": str(places.data / "folders" / f"{spec.folder}.tar.gz") if spec.folder else None,
        "data": dict(spec.data),
        "data_dir": str(run / "data"),
        "progress_dir": str(run / "progress"),
        "results": spec.results,
        "result_dir": str(job / "results"),
        "checkpoint_dir": str(Path(wanted).expanduser() if outside else kept),
        "checkpoint_link": "" if outside else wanted,
        "log_dir": str(places.logs(launch.job, launch.attempt)),
        "log_cap": log_cap,
        "telemetry": str(job / "telemetry" / f"{launch.attempt}.jsonl"),
        "gpus": list(gpus),
        "nvml": binding_here() if any(worker.devices for worker in launch.workers) else None,
        "secrets": {name: str(_secret(places, ref)) for name, ref in spec.secrets.items()},
        "env": dict(spec.env),
        "time_limit_s": spec.time_limit_s,
        "grace_s": spec.grace_s,
        "torchrun": spec.launcher == "torchrun" and not spec.has_agents,
        "agents": spec.has_agents,
        "live": spec.has_agents and not spec.resume,
        "engine": _engine(spec.image) if spec.image else None,
        "image": spec.image,
        "cgroup": str(cgroup) if cgroup else None,
    }
    plan["workers"] = plan_workers(plan, spec, launch.workers, cores)
    return plan


def plan_workers(
    plan: dict[str, Any],
    spec: RunSpec,
    workers: Sequence[Worker],
    cores: Mapping[Worker, Sequence[int]],
) -> list[dict[str, Any]]:
    """The part of a plan that a resize changes: its workers, in the order of their ranks."""
    ranked = sorted(workers, key=lambda worker: (worker.role, worker.index))
    return [
        _worker(plan, spec, worker, rank, len(ranked), cores.get(worker, ()))
        for rank, worker in enumerate(ranked)
    ]


def identity(worker: Worker) -> list[Any]:
    """A worker and where it is, as JSON values."""
    return [worker.role, worker.index, worker.node, list(worker.devices)]


def pick_cores(cpus: float, load: Counter[int]) -> list[int]:
    """The cores for a worker that asks for so many CPUs, those with the fewest workers first; none
    when it does not ask, or asks for all there are."""
    have = sorted(os.sched_getaffinity(0))
    count = math.ceil(cpus)
    if not 0 < count < len(have):
        return []
    return sorted(sorted(have, key=lambda core: load[core])[:count])


def _role(spec: RunSpec, worker: Worker) -> RoleSpec:
    if worker.role >= len(spec.roles):
        raise RunSpecError(f"the job has {len(spec.roles)} roles; role {worker.role} was launched")
    return spec.roles[worker.role]


def _worker(
    plan: dict[str, Any],
    spec: RunSpec,
    worker: Worker,
    rank: int,
    count: int,
    cores: Sequence[int],
) -> dict[str, Any]:
    role = _role(spec, worker)
    name = f"{role.name}-{worker.index}"
    progress = Path(plan["progress_dir"]) / f"{name}.json"
    devices = ",".join(_cuda_name(plan.get("gpus", ()), device) for device in worker.devices)
    env = {
        "PYTHONUNBUFFERED": "1",  # what is printed is in the log at once
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # as the driver numbers them, and so do we
        **spec.env,
        "PRESAGE_JOB_ID": plan["job"],
        "PRESAGE_ATTEMPT": str(plan["attempt"]),
        "PRESAGE_RANK": str(rank),
        "PRESAGE_WORKERS": str(count),
        "PRESAGE_ROLE": role.name,
        "PRESAGE_CHECKPOINT_DIR": plan["checkpoint_dir"],
        "PRESAGE_DATA_DIR": plan["data_dir"],
        "PRESAGE_RESULT_DIR": plan["result_dir"],
        "PRESAGE_PROGRESS": str(progress),
        "CUDA_VISIBLE_DEVICES": devices,
    }
    if spec.checkpoint_every_s is not None:
        env["PRESAGE_CHECKPOINT_EVERY"] = f"{spec.checkpoint_every_s:g}"
    if plan["torchrun"]:
        env |= {"MASTER_ADDR": "127.0.0.1", "RANK": str(rank), "WORLD_SIZE": str(count)}
        env |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}  # each worker sees its devices alone
    if plan["agents"]:
        # Without it, workers of a new size meet what those before left in the agents' store.
        env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    container = f"presage-{plan['job']}-{plan['attempt']}-{name}" if plan["engine"] else None

    def started(argv: Sequence[str]) -> list[str]:
        command = _agent(plan, role, name, argv) if plan["agents"] else list(argv)
        if container is None:
            return command
        return in_container(plan, role, container, [*env, *plan["secrets"]], command, devices)

    return {
        "name": name,
        "is": identity(worker),
        "argv": started(role.argv),
        "resume": started(spec.resume) if spec.resume else None,
        "agent": plan["agents"],
        "env": env,
        "cpus": list(cores),
        "memory": role.memory_mib * _MIB,
        "serves": role.name == "ps",
        "log": str(Path(plan["log_dir"]) / f"{name}.log"),
        "progress": str(progress),
        "container": container,
        "cgroup": "presage-" + sha256(f"{plan['run']}/{name}".encode()).hexdigest()[:24],
    }


def _cuda_name(gpus: Sequence[str], device: int) -> str:
    return gpus[device] if device < len(gpus) else str(device)


def _agent(plan: dict[str, Any], role: RoleSpec, name: str, argv: Sequence[str]) -> list[str]:
    """The command of a torchrun agent that runs a worker; see `_agent.py`."""
    python = argv[0] if re.fullmatch(r"python[\d.]*", Path(argv[0]).name) else "python"
    place = plan["progress_dir"]
    return [
        python,
        f"{place}/agent.py",
        f"--nnodes={role.min}:{role.max}",
        "--nproc-per-node=1",
        "--max-restarts=0",
        "--monitor-interval=0.1",
        "--rdzv-backend=presage",
        f"--rdzv-endpoint={place}",
        f"--rdzv-id={plan['job']}-{plan['attempt']}",
        f"--rdzv-conf=member={name}",
        "--local-addr=127.0.0.1",
        f"--log-dir={place}",
        "--no-python",
        *argv,
    ]


def _engine(image: str) -> str:
    engine = find_engine()
    if engine is None:
        raise RunSpecError(
            f"the manifest names image {image}, but this machine has neither podman nor docker; "
            "install one, or name an environment instead of an image"
        )
    return engine


def _secret(places: Places, name: str) -> Path:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise RunSpecError(f"{name!r} cannot be the name of a secret")
    return places.data / "secrets" / name
