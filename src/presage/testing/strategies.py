"""Hypothesis strategies for nodes, clusters, jobs and policy configurations.

Values come from short tables: sizes that interact (a job that just fits, one that just does not)
are what finds mistakes, and a small choice shrinks to a readable example. Nothing here decides
whether a job is feasible: some are not, and a scheduler must say so.
"""

from __future__ import annotations

from typing import Any

from hypothesis import reject
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from pydantic import ValidationError

from presage.model.cluster import UNLIMITED, Device, Node, Resources
from presage.model.job import JobSpec, OomRetry, Placement, Role
from presage.policy.budget import Period
from presage.policy.config import PolicyConfig, QueueConfig

__all__ = [
    "GPU_TYPES",
    "QUEUES",
    "clusters",
    "job_specs",
    "nodes",
    "policy_configs",
    "queue_configs",
    "resources",
    "roles",
]

GIB = 1024
GPU_TYPES = {"a100": 1.0, "v100": 0.5}
"""Names of GPU types and their speeds."""
QUEUES = ("default", "prod", "research")

_RACKS: tuple[dict[str, str], ...] = (
    {},
    {"rack": "r0", "area": "a0"},
    {"rack": "r1", "area": "a0"},
    {"rack": "r2"},
)


@st.composite
def nodes(draw: DrawFn, name: str = "n0") -> Node:
    """One machine with GPUs of one kind, or without any."""
    kind = draw(st.sampled_from(sorted(GPU_TYPES)))
    memory = draw(st.sampled_from((UNLIMITED, UNLIMITED, 16 * GIB, 40 * GIB)))
    count = draw(st.sampled_from((4, 4, 2, 8, 8, 1, 0)))
    cpu, ram = draw(st.sampled_from(((UNLIMITED, UNLIMITED), (8_000, 32 * GIB), (4_000, 8 * GIB))))
    labels = draw(st.sampled_from(_RACKS))
    return Node(name, (Device(kind, memory, GPU_TYPES[kind]),) * count, cpu, ram, labels)


@st.composite
def clusters(draw: DrawFn, max_nodes: int = 5) -> tuple[Node, ...]:
    """A few machines, alike or not."""
    count = draw(st.integers(1, max_nodes))
    if draw(st.booleans()):
        one = draw(nodes())
        return tuple(
            Node(f"n{i}", one.devices, one.cpu_milli, one.memory_mib, one.labels)
            for i in range(count)
        )
    return tuple(draw(nodes(f"n{i}")) for i in range(count))


@st.composite
def resources(draw: DrawFn) -> Resources:
    """What one worker asks for: shares, whole GPUs, or none."""
    gpu = draw(st.sampled_from((1000, 1000, 1000, 2000, 500, 300, 0, 4000)))
    gpu_memory = draw(st.sampled_from((0, 0, 0, 8 * GIB, 20 * GIB))) if gpu else 0
    cpu, ram = draw(st.sampled_from(((0, 0), (0, 0), (1_000, GIB), (4_000, 6 * GIB))))
    return Resources(cpu, ram, gpu, gpu_memory)


@st.composite
def roles(draw: DrawFn, name: str = "worker") -> Role:
    """A kind of worker, rigid or elastic."""
    ask = draw(resources())
    least = draw(st.sampled_from((1, 1, 1, 2, 2, 3, 4)))
    most = least + draw(st.sampled_from((0, 0, 1, 3)))
    kinds: tuple[tuple[str, ...], ...] = ((), (), (), ("a100",), ("a100", "v100"))
    types = draw(st.sampled_from(kinds)) if ask.gpu_milli else ()
    return Role(name, ask, least, most, types)


@st.composite
def job_specs(draw: DrawFn, name: str = "j0") -> JobSpec:
    """A job of one or two roles."""
    parts = [draw(roles())]
    if draw(st.sampled_from((False, False, False, True))):
        parts.append(draw(roles("ps")))
    whims = draw(st.integers(0, 63))
    """One draw for what is rare: five switches, each on in a quarter of the cases or less."""
    return JobSpec(
        name,
        tuple(parts),
        queue=draw(st.sampled_from(QUEUES)),
        priority=draw(st.integers(0, 2)),
        placement=draw(st.sampled_from((None, None, *Placement))),
        preemptible=whims % 5 != 1,
        checkpointable=whims % 4 != 2,
        shareable=whims % 7 != 3,
        max_retries=whims % 3,
        max_lost=1 if whims % 9 == 4 else 100,
        oom=OomRetry(2, 1.5, 0) if whims % 8 == 5 else None,
    )


def queue_configs() -> SearchStrategy[QueueConfig]:
    """Quotas, borrowing, limits and weights."""
    gpus = st.sampled_from((None, 2.0, 4.0, 0.5))
    return st.builds(
        QueueConfig,
        quota_gpus=gpus,
        borrow=st.booleans(),
        limit_gpus=st.sampled_from((None, None, 6.0)),
        weight=st.sampled_from((1.0, 2.0)),
        quota_cpus=st.sampled_from((None, None, 4.0)),
        limit_cpus=st.sampled_from((None, None, 6.0)),
        gpu_hours=st.sampled_from((None, None, 0.01, 1.0)),
        user_gpu_hours=st.sampled_from((None, None, 0.005)),
        period=st.sampled_from(Period),
    )


@st.composite
def policy_configs(draw: DrawFn) -> PolicyConfig:
    """Any pipeline that the configuration accepts."""
    settings: dict[str, Any] = {
        "order": draw(
            st.sampled_from(("fifo", "sjf", "srtf", "qssf", "tiresias", "priority", "fair_share"))
        ),
        "preempt": draw(st.sampled_from(("none", "order", "priority", "quota", "rank"))),
        "mode": draw(st.sampled_from(("strict", "greedy"))),
        "placement": draw(_placements()),
        "max_jobs_per_gpu": draw(st.sampled_from((None, None, 1, 2))),
    }
    if settings["order"] == "tiresias":
        settings |= draw(_rounds())
    if settings["preempt"] != "rank":
        settings["gang"] = draw(st.sampled_from((True, True, True, False)))
        settings["elastic"] = draw(st.booleans())
        settings["backfill"] = draw(st.booleans())
    if settings.get("elastic"):
        settings |= draw(_elastic())
    if draw(st.sampled_from((False, False, False, True))):
        settings = {key: settings[key] for key in ("mode", "placement")} | draw(_colocate())
    if draw(st.booleans()):
        settings["queues"] = draw(
            st.dictionaries(st.sampled_from(QUEUES), queue_configs(), max_size=3)
        )
    try:
        return PolicyConfig(**settings)
    except ValidationError:
        reject()


@st.composite
def _colocate(draw: DrawFn) -> dict[str, Any]:
    profile: tuple[dict[str, Any], ...] = (
        *({}, {}),
        {"profile_s": 10.0},
        {"profile_s": 10.0, "profile_gpus": 1},
    )
    return {
        "colocate": True,
        "order": draw(st.sampled_from(("fifo", "sjf", "srtf", "qssf", "priority", "utilization"))),
        "max_jobs_per_gpu": draw(st.sampled_from((None, 1, 2, 3))),
        "move_gain_s": draw(st.sampled_from((0.0, 5.0, 60.0))),
        **draw(st.sampled_from(profile)),
    }


def _placements() -> SearchStrategy[Any]:
    alone = ("pack", "spread", "topology", "best_fit", "dot_product", "gpu_clustering")
    mixed: tuple[dict[str, float], ...] = (
        {"pack": 1.0, "fgd": 2.0},
        {"spread": 1.0, "topology": 1.0},
        {"pack": 1.0, "links": 2.0},
    )
    return st.sampled_from((*alone, "gpu_packing", "fgd", "random", "links", *mixed))


def _elastic() -> SearchStrategy[dict[str, Any]]:
    return st.sampled_from(
        (
            {},
            {"resize_cost_s": 1.0},
            {"resize_cost_s": 7.0, "shrink_after_s": 5.0},
            {"grow_by": "fewest"},
            {"grow_by": "fewest", "shrink_after_s": 30.0, "grow_after_s": 60.0},
        )
    )


def _rounds() -> SearchStrategy[dict[str, float]]:
    return st.sampled_from(
        (
            {"threshold_gpu_s": 30.0, "round_s": 10.0},
            {"threshold_gpu_s": 50.0, "round_s": 0.7},
            {},
        )
    )
