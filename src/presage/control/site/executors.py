"""The executor that a server decides for: the one its settings name, given what it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from presage.control.kernel import LiveExecutor
from presage.control.plans import ElasticPlans
from presage.executors.kubernetes.adopted import AdoptedPods
from presage.executors.kubernetes.executor import KubernetesExecutor
from presage.executors.kubernetes.together import DropInExecutor
from presage.executors.local.executor import LocalExecutor
from presage.executors.node.messages import JobFile
from presage.executors.node.wire import write
from presage.executors.ray.executor import RayExecutor
from presage.executors.slurm.executor import (
    SlurmExecutor,
    SlurmJobsExecutor,
    SlurmPilotExecutor,
)
from presage.layout import Layout
from presage.model.job import JobSpec
from presage.store.records import JobRow

if TYPE_CHECKING:
    from presage.control.site.service import Service

__all__ = ["make_executor", "write_job_file"]


def make_executor(service: Service) -> LiveExecutor:
    """A new executor, of the kind that the settings name. Before a launch it finds what it needs
    of the job, and plans of manifests are heard."""
    settings, store = service.settings, service.store

    def prepare(job: str) -> None:
        if (row := store.jobs.get(job)) is not None:
            spec = service.live.spec(job)
            write_job_file(
                service.layout,
                row,
                spec,
                settings.most_results,
                soft_shares=service.shares.soft(row.queue),
                share_weight=service.shares.weight(row.queue),
            )

    executor: LocalExecutor | RayExecutor | KubernetesExecutor | SlurmExecutor
    if settings.kubernetes is not None:
        link = settings.kubernetes
        executor = KubernetesExecutor(settings.data, link.api, link.use, log_cap=settings.most_log)
        if link.adopt:
            executor.prepare = prepare
            executor.follow_up = ElasticPlans(store.jobs.get).requests
            adopted = AdoptedPods(
                link.api,
                scheduler_name=link.use.scheduler_name,
                jobs=service.live.jobs,
                was=lambda job: store.jobs.get(job) is not None,
                on_news=executor.wake,
            )
            return DropInExecutor(executor, adopted)
    elif settings.slurm is not None:
        if settings.slurm.setup.mode == "jobs":
            executor = SlurmJobsExecutor(settings.data, settings.slurm, log_cap=settings.most_log)
        else:
            executor = SlurmPilotExecutor(
                settings.data,
                settings.slurm,
                jobs=service.live.jobs,
                log_cap=settings.most_log,
            )
    elif settings.ray is not None:
        executor = RayExecutor(
            settings.data, settings.ray, shared=settings.ray_shared, log_cap=settings.most_log
        )
    else:
        access = settings.access
        executor = LocalExecutor(
            settings.data,
            settings.nodes,
            log_cap=settings.most_log,
            run_as=service.unix_users.of if service.unix_users else lambda owner: None,
            isolated=access.isolated,
            mounts=access.data_roots,
            shares=settings.shares,
        )
    executor.prepare = prepare
    executor.follow_up = ElasticPlans(store.jobs.get).requests
    return executor


def write_job_file(
    layout: Layout,
    row: JobRow,
    spec: JobSpec,
    most_results: int = 0,
    *,
    soft_shares: bool = False,
    share_weight: float = 1.0,
) -> None:
    """What an executor must know of a job. Not as it was submitted: one that ran out of memory
    may use more, and no longer shares its devices."""
    home = layout.job(row.id)
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    job = JobFile(
        manifest={**(row.manifest or {}), "share": spec.shareable},
        folder=row.folder,
        owner=row.owner,
        team=row.team or None,
        memory_mib={role.name: role.resources.memory_mib for role in spec.roles},
        most_results=most_results,
        soft_shares=soft_shares,
        share_weight=share_weight,
    )
    write(home, job)
