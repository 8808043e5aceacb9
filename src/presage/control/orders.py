"""What people have done: jobs stopped, halted, resumed, scaled and removed, nodes drained, another
policy chosen, secrets kept. Each order checks who asks and what is possible now, goes to those who
carry it out, and leaves a line in the audit log. No scheduling is decided here.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

from presage.control.deciding import Decider
from presage.control.people.accounts import UserRole, may_change, require
from presage.control.people.secrets import check_secret
from presage.control.site.service import Service
from presage.control.views.cluster import find_node, node_view
from presage.control.views.policy import RESET_POLICY, SET_POLICY
from presage.control.views.removal import named, removal_view
from presage.core.engine import Engine
from presage.edge import parse_yaml
from presage.executors.node.secrets import SecretName
from presage.executors.node.shares.methods import Guarantee
from presage.manifest import LIMITS, Manifest, to_spec
from presage.model import event as ev
from presage.model.cluster import WHOLE_GPU, Resources
from presage.model.errors import BadRequest, ConfigError, Conflict, NoSpace, NotFound, UserError
from presage.model.job import JobState, Reason, ReasonCode, Role
from presage.policy.config import ConfigFile
from presage.store.records import AuditEntry, JobRow, User

__all__ = [
    "choose_policy",
    "drop_secret",
    "keep_secret",
    "limit_shares",
    "order_job",
    "order_node",
    "remove_jobs",
    "scale_job",
]

_OF_JOBS = {
    "stop": ev.CancelRequested,
    "halt": ev.HaltRequested,
    "resume": ev.ResumeRequested,
}


async def order_job(service: Service, me: User, job_id: str, what: str) -> dict[str, Any]:
    """Stop, halt or resume a job; its id and status after that."""
    row = await asyncio.to_thread(service.changeable, job_id, me)
    if what == "resume" and row.status != "HALTED":
        raise Conflict(f"job {row.id} is not halted: {row.status}")
    await service.requests.request(_OF_JOBS[what](row.id), me, what, row.id)
    return await _now(service, row)


async def scale_job(
    service: Service, me: User, job_id: str, workers: int, role_name: str | None = None
) -> dict[str, Any]:
    """Give an elastic job so many workers of a role, its first one unless it is named, after a
    checkpoint."""
    row = await asyncio.to_thread(service.changeable, job_id, me)
    roles = _roles(row)
    names = [role.name for role in roles]
    if role_name not in (None, *names):
        raise BadRequest(f"job {row.id} has no role {role_name!r}; it has {', '.join(names)}")
    place = names.index(role_name) if role_name is not None else 0
    role = roles[place]
    if role.min == role.max:
        raise Conflict(
            f"job {row.id} has a fixed number of workers, {role.min}; submit it with a range such "
            f"as workers: {role.min}..{max(role.min + 1, workers)}"
        )
    if not role.min <= workers <= role.max:
        raise BadRequest(f"job {row.id} has {role.min} to {role.max} workers, not {workers}")
    fact = ev.ScaleRequested(row.id, workers, place)
    await service.requests.request(fact, me, "scale", row.id, workers=workers, role=role.name)
    return {**await _now(service, row), "workers": workers}


async def limit_shares(
    service: Service, me: User, job_id: str, gpu_limit: float | None, memory_mib: int
) -> dict[str, Any]:
    """Hold the shares of GPUs of a running job to other limits; 0 MiB leaves its memory alone."""
    row = await asyncio.to_thread(service.changeable, job_id, me)
    role = _roles(row)[0]
    share = next(iter(Manifest.from_json(row.manifest).all_roles.values())).resources.gpu
    if share is None:
        raise Conflict(
            f"job {row.id} has no enforced share of a GPU; submit it with gpu: {{request: 0.3}}"
        )
    if Guarantee.LIVE not in service.settings.shares.gives:
        by = service.settings.shares.method
        raise Conflict(f"shares by {by} cannot change while a job runs; submit it again")
    milli = round((gpu_limit or 0.0) * WHOLE_GPU)
    if milli and milli < role.resources.gpu_milli:
        least = role.resources.gpu_milli / WHOLE_GPU
        raise BadRequest(f"job {row.id} requests {least:g} of a GPU; its limit cannot be below")
    if memory_mib > role.resources.gpu_memory_mib > 0:
        most = role.resources.gpu_memory_mib
        raise BadRequest(f"job {row.id} asked for {most} MiB of a GPU; it cannot have more")

    def question(engine: Engine) -> tuple[int, int, Resources] | None:
        job = engine.state.active.get(row.id)
        if job is None or job.state is not JobState.RUNNING:
            return None
        return job.attempt, len(job.allocation), job.limits or job.spec.roles[0].resources

    running: tuple[int, int, Resources] | None = await service.ask(question)
    if running is None:
        raise Conflict(f"job {row.id} does not run; its shares can change while it does")
    attempt, workers, now = running
    limits = replace(now, gpu_milli=milli, gpu_memory_mib=memory_mib)
    reason = Reason(ReasonCode.REQUESTED, f"its shares of GPUs changed by {me.name}")
    fact = ev.LimitsAdvised(row.id, attempt, limits, reason)
    detail = {"gpu_limit": gpu_limit, "gpu_memory_mib": memory_mib or None}
    await service.requests.request(fact, me, "scale", row.id, **detail)
    return {**await _now(service, row), "workers": workers}


def _roles(row: JobRow) -> tuple[Role, ...]:
    return to_spec(Manifest.from_json(row.manifest), row.id, row.owner).roles


async def _now(service: Service, row: JobRow) -> dict[str, Any]:
    after = await asyncio.to_thread(service.store.jobs.get, row.id)
    return {"id": row.id, "status": (after or row).status}


def remove_jobs(
    service: Service, me: User, names: list[str], older_than_s: float | None, *, dry_run: bool
) -> dict[str, Any]:
    """Remove what is kept of jobs that are over: those that are named, or all that have been over
    for so long and that `me` may change."""
    require(me, UserRole.USER)
    if bool(names) == (older_than_s is not None):
        raise UserError("name jobs, or give older_than_s; one of them")
    now, retention = time.time(), service.retention
    if older_than_s is not None:
        rows = retention.older(older_than_s, now, lambda row: may_change(me, row))
    else:
        rows = named(service, names, me)
    removed = retention.measure(rows) if dry_run else retention.remove(rows, me.name, now)
    return {**removal_view(removed), "dry_run": dry_run}


async def order_node(service: Service, me: User, name: str, what: str) -> dict[str, Any]:
    """Drain a node, or let it take work again."""
    require(me, UserRole.OPERATOR)
    node, where, free = await find_node(service, name)
    if where == "down":
        raise Conflict(f"node {node.name} is down")
    drains = what == "drain"
    fact = ev.NodeDraining(node.name) if drains else ev.NodeUp(node)
    await service.requests.request(fact, me, what, node=node.name)
    status = "draining" if drains else "up"
    return node_view(node, status, free, hidden=False, held=service.memory_limits)


async def choose_policy(service: Service, me: User, name: str | None, config: str | None) -> None:
    """Have another policy decide from now on; None: the one that the server was started with.
    `config` has policies as YAML."""
    require(me, UserRole.ADMIN)

    def wanted() -> Decider:
        if name is None:
            return service.deciders.started
        file = None
        if config is not None:
            file = parse_yaml(config, ConfigFile, ConfigError, "config", LIMITS)
        return service.deciders.choice(name, file)

    decider = await asyncio.to_thread(wanted)
    detail = {"policy": decider.name, "before": service.deciders.now.name}
    what = SET_POLICY if decider.chosen else RESET_POLICY
    audit = AuditEntry(time.time(), me.name, what, "", detail)
    await service.requests.decide([decider.rules()], audit=audit)


def keep_secret(service: Service, me: User, secret: SecretName, content: bytes) -> None:
    """Keep a secret; one of the same name is replaced."""
    check_secret(content)
    try:
        service.secret_files.put(secret, content)
    except OSError as error:
        raise NoSpace(f"the secret could not be kept: {error.strerror or error}") from None
    _note_secret(service, me, "set secret", secret)


def drop_secret(service: Service, me: User, secret: SecretName) -> None:
    """Take a secret away; jobs that name it are not started any more."""
    if not service.secret_files.remove(secret):
        of = f"team {secret.team}" if secret.team else me.name
        raise NotFound(f"there is no secret {secret.name} of {of}")
    _note_secret(service, me, "remove secret", secret)


def _note_secret(service: Service, me: User, what: str, secret: SecretName) -> None:
    detail = {"secret": secret.name, "team": secret.team}
    service.store.audit.add(AuditEntry(time.time(), me.name, what, detail=detail))
