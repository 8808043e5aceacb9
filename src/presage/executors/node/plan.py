"""From what a job asks for to what its guardian does: the plan of a run."""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from presage.executors.node.containers import find_engine, in_container
from presage.executors.node.messages import Identity, RunPlan, UnixUser, WorkerPlan
from presage.executors.node.runspec import RoleSpec, RunSpec
from presage.executors.node.secrets import SecretFiles
from presage.layout import Layout
from presage.model.cluster import Worker
from presage.model.errors import RunSpecError
from presage.model.event import Launch
from presage.telemetry.nvml import binding_here

__all__ = [
    "LOG_CAP",
    "bare_plan",
    "identity",
    "inherited_environment",
    "make_plan",
    "pick_cores",
    "plan_workers",
    "secret_path",
    "share_name",
    "worker_environment",
]

LOG_CAP = 256 << 20
"""Bytes that the log of a worker may have."""
_MIB = 1 << 20
_PRIVATE = re.compile(
    r"^(PRESAGE_|PG)|TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY|DATABASE_URL",
    re.IGNORECASE,
)
"""Variables of the server that are none of a job's business."""
_PASSWORD = re.compile(r"://[^/\s@]*:[^/\s@]+@")
_PUBLIC = re.compile(
    r"^(PATH|LANG|LANGUAGE|LC_\w+|TZ|TERM|LD_LIBRARY_PATH|(CUDA|NVIDIA|NCCL|OMP|MKL)_\w+"
    r"|(HTTPS?|NO|ALL)_PROXY|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE)$",
    re.IGNORECASE,
)
"""All that a run as another Unix user gets of it."""


def inherited_environment(
    spec: RunSpec, python: str, run: Path, user: UnixUser | None = None
) -> dict[str, str]:
    """What workers get of the server's environment, with the job's environment first on PATH,
    else the one that Presage runs in: all but what looks like a credential; as another user, no
    more than what says how this machine is set up."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not _PRIVATE.search(name)
        and not _PASSWORD.search(value)
        and (user is None or _PUBLIC.match(name))
    }
    if user is not None:
        home = user.home or str(run / "work")
        kept |= {"HOME": home, "USER": user.name, "LOGNAME": user.name, "SHELL": "/bin/sh"}
    path = [str(Path(python).parent), kept.get("PATH", os.defpath)]
    if spec.environment:
        prefix = Path(spec.environment).expanduser()
        path.insert(0, str(prefix / "bin"))
        kept["VIRTUAL_ENV"] = str(prefix)
    kept["PATH"] = os.pathsep.join(path)
    kept["PRESAGE_RUN"] = str(run)  # by this mark the executor finds what a guardian left behind
    return kept


def make_plan(
    layout: Layout,
    spec: RunSpec,
    launch: Launch,
    *,
    cores: Mapping[Worker, Sequence[int]],
    cgroup: Path | None,
    log_cap: int = LOG_CAP,
    gpus: Sequence[str] = (),
    checkpoints: Path | None = None,
    user: UnixUser | None = None,
    isolated: bool = False,
    mounts: Sequence[str] = (),
    shares: Path | None = None,
    share_env: Mapping[str, dict[str, str]] | None = None,
) -> RunPlan:
    """All that a guardian needs; raises RunSpecError for what cannot be run here. `gpus` has what
    CUDA calls the devices, where that is not their number; `checkpoints` is where they are kept if
    not beside the job; `user` is as whom it runs; where `isolated`, a container sees local data
    below `mounts` alone; `shares` is the directory of the daemon that enforces shares of GPUs, and
    `share_env` what the workers that have one need in their environment."""
    _check_environment(spec)
    wanted = spec.checkpoint_dir or ""
    outside = wanted.startswith(("/", "~"))
    kept = checkpoints or layout.checkpoints(launch.job)
    plan = bare_plan(layout, spec, launch.job, launch.attempt).but(
        checkpoint_dir=Path(wanted).expanduser() if outside else kept,
        checkpoint_link="" if outside else wanted,
        log_cap=log_cap,
        gpus=tuple(gpus),
        nvml=binding_here() if any(worker.devices for worker in launch.workers) else None,
        secrets={name: secret_path(layout, spec, ref) for name, ref in spec.secrets.items()},
        torchrun=spec.launcher == "torchrun" and not spec.has_agents,
        agents=spec.has_agents,
        live=spec.has_agents and not spec.resume,
        engine=_engine(spec.image) if spec.image else None,
        cgroup=cgroup,
        user=user,
        mounts=tuple(mounts),
        isolated=isolated,
        shares=shares,
        share_env=dict(share_env or {}),
    )
    return plan.but(workers=plan_workers(plan, spec, launch.workers, cores))


def bare_plan(layout: Layout, spec: RunSpec, job: str, attempt: int) -> RunPlan:
    """What follows from a job's file and the paths alone: no workers yet, nothing of a machine."""
    run = layout.run(job, attempt)
    return RunPlan(
        job=job,
        attempt=attempt,
        run=run,
        wake=layout.wake,
        work=run / "work",
        folder=layout.folder(spec.folder) if spec.folder else None,
        data=dict(spec.data),
        data_dir=run / "data",
        progress_dir=run / "progress",
        results=spec.results,
        git=spec.git,
        keep=spec.keep,
        ignore=spec.ignore,
        most_results=spec.most_results,
        result_dir=layout.results(job),
        checkpoint_dir=layout.checkpoints(job),
        checkpoint_link="",
        log_dir=layout.logs(job, attempt),
        log_cap=0,
        telemetry=layout.telemetry(job, attempt),
        gpus=(),
        nvml=None,
        secrets={},
        env=dict(spec.env),
        time_limit_s=spec.time_limit_s,
        grace_s=spec.grace_s,
        torchrun=spec.launcher == "torchrun",
        agents=False,
        live=False,
        engine=None,
        image=spec.image,
        cgroup=None,
        workers=(),
        ports=spec.ports,
    )


def plan_workers(
    plan: RunPlan,
    spec: RunSpec,
    workers: Sequence[Worker],
    cores: Mapping[Worker, Sequence[int]],
) -> tuple[WorkerPlan, ...]:
    """The part of a plan that a resize changes: its workers, in the order of their ranks."""
    ranked = sorted(workers, key=lambda worker: (worker.role, worker.index))
    return tuple(
        _worker(plan, spec, worker, rank, len(ranked), cores.get(worker, ()))
        for rank, worker in enumerate(ranked)
    )


def identity(worker: Worker) -> Identity:
    """A worker and where it is, for a message."""
    return worker.role, worker.index, worker.node, worker.devices


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
    plan: RunPlan, spec: RunSpec, worker: Worker, rank: int, count: int, cores: Sequence[int]
) -> WorkerPlan:
    role = _role(spec, worker)
    name = f"{role.name}-{worker.index}"
    progress = plan.progress_dir / f"{name}.json"
    devices = ",".join(_cuda_name(plan.gpus, device) for device in worker.devices)
    env = worker_environment(plan, spec, role.name, rank, count)
    env |= {"PRESAGE_PROGRESS": str(progress), "CUDA_VISIBLE_DEVICES": devices}
    if role.share is not None:
        env |= _share(plan, name)
    container = f"presage-{plan.job}-{plan.attempt}-{name}" if plan.engine else None

    def started(argv: Sequence[str]) -> tuple[str, ...]:
        command = _agent(plan, role, name, argv) if plan.agents else tuple(argv)
        if container is None:
            return command
        names = [*env, *plan.secrets]
        return in_container(plan, role, container, names, command, devices, spec.console)

    return WorkerPlan(
        name=name,
        identity=identity(worker),
        argv=started(role.argv),
        resume=started(spec.resume) if spec.resume else None,
        agent=plan.agents,
        env=env,
        cpus=tuple(cores),
        memory=role.memory_mib * _MIB,
        serves=role.name == "ps",
        log=plan.log_dir / f"{name}.log",
        progress=progress,
        container=container,
        cgroup="presage-" + sha256(f"{plan.run}/{name}".encode()).hexdigest()[:24],
        console=spec.console,
    )


def share_name(job: str, attempt: int, worker: str) -> str:
    """What the share of a worker is called."""
    return f"{job}.{attempt}.{worker}"


def _share(plan: RunPlan, worker: str) -> dict[str, str]:
    if plan.share_env is None or worker not in plan.share_env:
        raise RunSpecError(
            "the manifest asks for gpu: with a limit, which only `--executor local` enforces; "
            "ask for gpus: instead"
        )
    return plan.share_env[worker]


def worker_environment(
    plan: RunPlan, spec: RunSpec, role: str, rank: int, count: int
) -> dict[str, str]:
    """What Presage promises to every worker."""
    env = {
        "PYTHONUNBUFFERED": "1",  # what is printed is in the log at once
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # as the driver numbers them, and so do we
        **spec.env,
        "PRESAGE_JOB_ID": plan.job,
        "PRESAGE_ATTEMPT": str(plan.attempt),
        "PRESAGE_RANK": str(rank),
        "PRESAGE_WORKERS": str(count),
        "PRESAGE_ROLE": role,
        "PRESAGE_CHECKPOINT_DIR": str(plan.checkpoint_dir),
        "PRESAGE_DATA_DIR": str(plan.data_dir),
        "PRESAGE_RESULT_DIR": str(plan.result_dir),
        **param_variables(spec.params),
    }
    if spec.checkpoint_every_s is not None:
        env["PRESAGE_CHECKPOINT_EVERY"] = f"{spec.checkpoint_every_s:g}"
    if spec.ports:
        env["PRESAGE_PORT_TOKEN"] = ""  # the guardian makes one for each run
    if plan.torchrun:
        env |= {"MASTER_ADDR": "127.0.0.1", "RANK": str(rank), "WORLD_SIZE": str(count)}
        env |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}  # each worker sees its devices alone
    if plan.agents:
        # Without it, workers of a new size meet what those before left in the agents' store.
        env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    return env


def param_variables(params: Mapping[str, Any]) -> dict[str, str]:
    """The parameters of a job: all as JSON, and each as text."""
    if not params:
        return {}
    texts = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in params.items()
    }
    each = {f"PRESAGE_PARAM_{name.upper()}": text for name, text in texts.items()}
    return {"PRESAGE_PARAMS": json.dumps(params), **each}


def _cuda_name(gpus: Sequence[str], device: int) -> str:
    return gpus[device] if device < len(gpus) else str(device)


def _agent(plan: RunPlan, role: RoleSpec, name: str, argv: Sequence[str]) -> tuple[str, ...]:
    """The command of a torchrun agent that runs a worker; see `torchrun_agent.py`."""
    python = argv[0] if re.fullmatch(r"python[\d.]*", Path(argv[0]).name) else "python"
    place = plan.progress_dir
    return (
        python,
        f"{place}/torchrun_agent.py",
        f"--nnodes={role.min}:{role.max}",
        "--nproc-per-node=1",
        "--max-restarts=0",
        "--monitor-interval=0.1",
        "--rdzv-backend=presage",
        f"--rdzv-endpoint={place}",
        f"--rdzv-id={plan.job}-{plan.attempt}",
        f"--rdzv-conf=member={name}",
        "--local-addr=127.0.0.1",
        f"--log-dir={place}",
        "--no-python",
        *argv,
    )


def _engine(image: str) -> str:
    engine = find_engine()
    if engine is None:
        raise RunSpecError(
            f"the manifest names image {image}, but this machine has neither podman nor docker; "
            "install one, or name an environment instead of an image"
        )
    return engine


def _check_environment(spec: RunSpec) -> None:
    """Refuse an environment that is not there: what comes after it on PATH would run instead."""
    if not spec.environment:
        return
    programs = Path(spec.environment).expanduser() / "bin"
    if not programs.is_dir():
        raise RunSpecError(
            f"environment {spec.environment} is not there: this machine has no {programs}; name "
            "the prefix of a virtual or Conda environment that is on every node"
        )
    for role in spec.roles:
        program = role.argv[0]
        if re.fullmatch(r"python[\d.]*", program) and not os.access(programs / program, os.X_OK):
            raise RunSpecError(f"environment {spec.environment} has no {program} in {programs}")


def secret_path(layout: Layout, spec: RunSpec, name: str) -> Path:
    """Where the content of a secret is, or would have to be; raises RunSpecError for what cannot
    be the name of one."""
    path = SecretFiles(layout).find(name, spec.owner, spec.team)
    return path or layout.secret(name)
