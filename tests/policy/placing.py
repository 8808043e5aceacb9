"""Clusters and requests for tests of placements."""

from __future__ import annotations

from presage.core.plan import Plan
from presage.core.state import State
from presage.model.cluster import UNLIMITED, WHOLE_GPU, Device, Node, Resources
from presage.model.event import JobSubmitted, NodeUp
from presage.model.job import Job, JobSpec, Role
from presage.policy.placer import Placer
from presage.policy.request import Request, Score

CORE = 1000


def machine(name: str, gpus: int, cores: int = 96, kind: str = "gpu") -> Node:
    """A node."""
    return Node(name, (Device(kind),) * gpus, cores * CORE, UNLIMITED)


def cluster(*nodes: Node, seed: int = 0) -> State:
    """A state with these nodes."""
    state = State(seed)
    for node in nodes:
        state.apply(0.0, NodeUp(node))
    return state


def submit(state: State, *roles: Role) -> Job:
    """Submit a job."""
    name = f"job-{state.submitted}"
    state.apply(0.0, JobSubmitted(JobSpec(name, roles)))
    return state.jobs[name]


def put(state: State, node: int, ask: Resources, *devices: int) -> None:
    """Let something of nobody's take a place."""
    state.capacity.take(node, ask, devices)


def share(milli: int, cores: int = 1) -> Resources:
    """A part of a GPU."""
    return Resources(cores * CORE, 0, milli)


def whole(gpus: int, cores: int = 1) -> Resources:
    """Whole GPUs."""
    return Resources(cores * CORE, 0, gpus * WHOLE_GPU)


def choose(
    state: State,
    score: Score,
    ask: Resources,
    types: tuple[str, ...] = (),
    most: int | None = None,
) -> tuple[str, tuple[int, ...]] | None:
    """Where one worker goes."""
    job = submit(state, Role(resources=ask, gpu_types=types))
    found = Placer({score: 1.0}, most).find(job, Plan(state), [(0, 0)])
    return (found[0].node, found[0].devices) if found else None


def request(state: State, ask: Resources, most: int | None = None) -> Request:
    """What a score is asked for one worker."""
    job = submit(state, Role(resources=ask))
    return Request(job, Plan(state), state.capacity, ask, (), most, 1, ask)
