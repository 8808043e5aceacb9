"""Why a job waits, in words its owner understands. Reads the plan, decides nothing."""

from __future__ import annotations

from presage.core.capacity import Capacity, bits
from presage.core.plan import Plan
from presage.core.workers import ask_of
from presage.model.cluster import UNLIMITED, WHOLE_GPU, Resources, gpu_count
from presage.model.job import Job, Placement, Reason, ReasonCode
from presage.policy.placer import Placer
from presage.policy.request import nodes_for
from presage.policy.score import Topology, free_gpus

__all__ = ["describe", "why_no_room"]


def describe(job: Job) -> str:
    """What a job needs: '4 workers × 2 V100 GPUs + 1 ps × 8 cores'."""
    parts = []
    for r, role in enumerate(job.spec.roles):
        each = _each(ask_of(job, r), " or ".join(role.gpu_types))
        if role.min == 1 and len(job.spec.roles) == 1:
            parts.append(f"{each} on one node")
        else:
            name = role.name if role.name != "worker" or role.min == 1 else "workers"
            parts.append(f"{role.min} {name} × {each}")
    return " + ".join(parts)


def why_no_room(job: Job, plan: Plan, ahead: int, placer: Placer) -> Reason:
    """What a job needs beside what there is, and how many go before it."""
    capacity = plan.state.capacity
    text = f"needs {describe(job)}"
    level = _level(job, placer, capacity)
    if level:
        nodes = _nodes(job, capacity)
        best = max(
            (free_gpus(capacity, mask & nodes) for mask in capacity.labels[level].values()),
            default=0,
        )
        text += f", best on one {level}; the best {level} has {best} free"
    else:
        text += f"; {_room(job, capacity)}"
    if ahead:
        text += f"; {ahead} job{'s' if ahead != 1 else ''} ahead"
    return Reason(ReasonCode.NO_ROOM, text)


def _room(job: Job, capacity: Capacity) -> str:
    roles = job.spec.roles
    types = _types(job)
    nodes = _nodes(job, capacity)
    kind = f" {' or '.join(types)}" if types else ""
    if not nodes:
        if any(capacity.accepts(role.gpu_types) for role in roles) or capacity.tainted:
            return "no open node has the labels it asks for and only taints that it tolerates"
        return f"no node with{kind or ' room'} is open"
    total = free_gpus(capacity, nodes)
    largest = max(ask_of(job, r).gpu_milli for r in range(len(roles)))
    best = max(capacity.whole[i] for i in bits(nodes))
    if 0 < largest < WHOLE_GPU:
        best_share = max((max(capacity.free_gpu[i], default=0) for i in bits(nodes)), default=0)
        return f"the freest{kind} GPU has {gpu_count(max(0, best_share))} free"
    if not largest:
        return f"the freest node has {_rest(capacity, nodes)} free"
    each = max(1, largest // WHOLE_GPU)
    places = sum(capacity.whole[i] // each for i in bits(nodes))
    wanted = sum(role.min for r, role in enumerate(roles) if ask_of(job, r).gpu_milli)
    if places >= wanted and not capacity.plain:
        enough = sum(1 << i for i in bits(nodes) if capacity.whole[i] >= each)
        rest = _rest(capacity, enough)
        return f"the nodes with enough free{kind} GPUs lack CPU or memory (the freest has {rest})"
    if wanted > 1 and best >= each:
        workers = "worker" if places == 1 else "workers"
        return f"{total}{kind} GPUs are free, room for {places} such {workers}"
    return f"the best node has {best}{kind} GPUs free, {total} free in all"


def _rest(capacity: Capacity, nodes: int) -> str:
    """CPU and memory of the node that has most CPU left."""
    best = max(bits(nodes), key=lambda i: (capacity.free_cpu[i], capacity.free_memory[i]))
    cpu, memory = capacity.free_cpu[best], capacity.free_memory[best]
    parts = [_cores(cpu)] if cpu < UNLIMITED // 2 else []
    parts += [f"{memory / 1024:.3g} GiB"] if memory < UNLIMITED // 2 else []
    return ", ".join(parts) or "any CPU and memory"


def _cores(milli: int) -> str:
    return f"{milli / 1000:g} core{'' if milli == 1000 else 's'}"


def _nodes(job: Job, capacity: Capacity) -> int:
    """Mask of the open nodes that some role may be on."""
    mask = 0
    for role in job.spec.roles:
        mask |= nodes_for(role, capacity)
    return mask


def _types(job: Job) -> tuple[str, ...]:
    return tuple(sorted({name for role in job.spec.roles for name in role.gpu_types}))


def _level(job: Job, placer: Placer, capacity: Capacity) -> str | None:
    scores = [score for score in placer.scores if isinstance(score, Topology)]
    levels = scores[0].levels if scores else Topology().levels
    if not scores and job.spec.placement is not Placement.TOPOLOGY:
        return None
    return next((level for level in levels if level in capacity.labels), None)


def _each(ask: Resources, types: str) -> str:
    parts = []
    if ask.gpu_milli:
        count = gpu_count(ask.gpu_milli)
        kind = f"{types} GPU" if types else "GPU"
        parts.append(f"{count} {kind}{'' if count == '1' else 's'}")
    if ask.gpu_memory_mib:
        parts.append(f"{ask.gpu_memory_mib / 1024:g} GiB of GPU memory")
    if ask.cpu_milli:
        parts.append(_cores(ask.cpu_milli))
    if ask.memory_mib:
        parts.append(f"{ask.memory_mib / 1024:g} GiB")
    return ", ".join(parts) or "nothing"
