"""From a manifest to what the scheduler knows of a job."""

from __future__ import annotations

from presage.manifest.quantities import memory_mib, worker_span
from presage.manifest.schema import After, Manifest, RoleManifest, WorkerResources
from presage.model.cluster import WHOLE_GPU, Resources
from presage.model.errors import ManifestError
from presage.model.job import Dependency, DependsOn, JobSpec, OomRetry, Placement, Role
from presage.model.links import LINK_SHARE
from presage.model.parts import ENFORCED

__all__ = ["argv", "to_spec"]

MEMORY_SHARE_MILLI = 100
"""The part of a GPU for a worker that names only the GPU memory it needs: at most ten of them on
one device, fewer where their memory does not fit."""


def to_spec(manifest: Manifest, job_id: str, owner: str) -> JobSpec:
    """The job as the scheduler sees it. Environment, data and secrets stay in the manifest."""
    roles = manifest.all_roles
    oom = manifest.retry.oom
    return JobSpec(
        id=job_id,
        roles=tuple(_role(name, role) for name, role in roles.items()),
        owner=owner,
        queue=manifest.queue,
        priority=manifest.priority,
        placement=Placement(manifest.placement) if manifest.placement else None,
        preemptible=manifest.preemptible,
        checkpointable=manifest.checkpoint is not None,
        shareable=manifest.share,
        max_retries=manifest.retry.failures,
        relaunch=False,
        oom=OomRetry(oom.times, oom.factor, memory_mib(oom.ceiling)) if oom else None,
        time_limit_s=manifest.time_limit,
        model=manifest.model.ref if manifest.model else None,
        labels={**manifest.labels, **_marks(manifest)},
        entrypoint=argv(next(iter(roles.values())).command or ""),
        after=_after(manifest.after) if manifest.after else (),
    )


def _after(after: After) -> tuple[Dependency, ...]:
    asked = {DependsOn.OK: after.ok, DependsOn.ANY: after.any, DependsOn.FAILED: after.failed}
    every = (Dependency(job, on) for on, jobs in asked.items() for job in jobs)
    return tuple(dict.fromkeys(every))


def _marks(manifest: Manifest) -> dict[str, str]:
    """Labels that no manifest can have: what looks after people at work goes by them."""
    marks = {"presage/interactive": "yes"} if manifest.ports or manifest.console else {}
    if manifest.heartbeat is not None:
        marks["presage/heartbeat"] = f"{manifest.heartbeat:g}"
    if manifest.link_share is not None:
        marks[LINK_SHARE] = f"{manifest.link_share:g}"
    shares = [role.resources.gpu for role in manifest.all_roles.values()]
    if len(shares) == 1 and shares[0] is not None:
        limit = shares[0].limit
        marks[ENFORCED] = f"{1.0 if limit is None else limit:g}"
    return marks


def argv(command: str | list[str]) -> tuple[str, ...]:
    """The words of a command; a line is for the shell."""
    return ("sh", "-c", command) if isinstance(command, str) else tuple(command)


def _role(name: str, role: RoleManifest) -> Role:
    least, most = worker_span(role.workers)
    types = tuple(role.resources.gpu_type or ())
    return Role(name, _resources(role.resources), least, most, types)


def _resources(asked: WorkerResources) -> Resources:
    if asked.gpu is not None and asked.gpus is None:
        raise ManifestError("gpu: request is missing, such as gpu: {request: 0.3}")
    if isinstance(asked.gpus, str):
        gpu_milli = WHOLE_GPU  # auto, and nobody has foreseen it
    elif asked.gpus is not None:
        gpu_milli = round(asked.gpus * WHOLE_GPU)
    else:
        gpu_milli = MEMORY_SHARE_MILLI if asked.gpu_memory else 0
    return Resources(
        cpu_milli=round((asked.cpus or 0) * 1000),
        memory_mib=memory_mib(asked.memory),
        gpu_milli=gpu_milli,
        gpu_memory_mib=memory_mib(asked.gpu_memory),
    )
