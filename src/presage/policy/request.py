"""What a placement is asked: one worker of one job, and what is known of the job's other workers.

The vocabulary between `placer`, which walks over a job's workers, and the scores, which choose a
node for one of them. Holds no choice of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from presage.core.capacity import Bools, Capacity
from presage.core.plan import Plan
from presage.model.cluster import WHOLE_GPU, Resources
from presage.model.job import Job, Role

__all__ = [
    "ByRoom",
    "CanDomains",
    "CanPick",
    "CanPickDevices",
    "Request",
    "Score",
    "feasible",
    "nodes_for",
    "slots",
]

Floats = NDArray[np.float64]


@dataclass(slots=True, eq=False)
class Request:
    """A worker to be placed."""

    job: Job
    plan: Plan
    capacity: Capacity
    ask: Resources
    """What this worker needs."""
    types: tuple[str, ...]
    """GPU types it accepts; empty means any."""
    most: int | None
    """How many jobs may share a device."""
    workers: int
    """How many workers are placed together, this one included."""
    whole_ask: Resources
    """What all of them need together."""
    placed: Sequence[int] = ()
    """Node of each worker of this job placed so far, in order."""


class Score(Protocol):
    """How good each node is for a worker, 0 to 1: one number per node, higher is better.

    Called for all nodes at once; values of nodes where the worker does not fit are ignored, and
    ties go to the node that joined first.
    """

    def __call__(self, request: Request) -> Floats:
        """Scores of all nodes."""
        ...


@runtime_checkable
class CanPick(Protocol):
    """A score that can find its best node by lookup. Used when it is the only one."""

    def pick(self, request: Request, nodes: int) -> int | None:
        """The best node of a mask where the worker fits."""
        ...


@runtime_checkable
class CanPickDevices(Protocol):
    """A score with its own mind about which devices of the chosen node to take."""

    def devices(self, request: Request, node: int) -> tuple[int, ...]:
        """Devices for a worker that fits there."""
        ...


@runtime_checkable
class CanDomains(Protocol):
    """A score that wants all workers of a job inside one part of the cluster, if possible."""

    def domains(self, request: Request, nodes: int) -> list[int]:
        """Masks to try in turn; the last one should be `nodes` itself."""
        ...


@runtime_checkable
class ByRoom(Protocol):
    """A score that says whether it looks at nothing but free room and what is asked for."""

    by_room: bool


def nodes_for(role: Role, capacity: Capacity) -> int:
    """Mask of the open nodes that workers of a role may be on, with room or not."""
    return capacity.accepts(role.gpu_types, role.where)


def feasible(request: Request, nodes: int) -> Bools:
    """Where the worker fits: the same answer as `Capacity.fits` for each node of the mask."""
    capacity, ask = request.capacity, request.ask
    arrays = capacity.arrays()
    good = capacity.mask_array(nodes)
    good &= (arrays.cpu >= ask.cpu_milli) & (arrays.memory >= ask.memory_mib)
    if ask.gpu_milli and not ask.shared and not ask.gpu_memory_mib:
        good &= arrays.whole >= ask.gpu_milli // WHOLE_GPU
    elif ask.gpu_milli:
        need = min(ask.gpu_milli, WHOLE_GPU)
        usable = (arrays.gpu >= need) & (arrays.gpu_memory >= ask.gpu_memory_mib)
        if request.most is not None:
            usable &= arrays.sharers < request.most
        good &= usable.sum(axis=1) >= ask.devices
    return good


def slots(capacity: Capacity, ask: Resources, nodes: int, enough: int) -> int:
    """How many workers that ask for this would find a place on the nodes of a mask, together.

    An upper bound where devices are shared; counting stops at `enough` where that is cheaper.
    """
    each = ask.gpu_milli // WHOLE_GPU
    if capacity.plain and each and not ask.gpu_memory_mib:
        count = 0
        for free in range(each, len(capacity.by_whole)):
            count += free // each * (capacity.by_whole[free] & nodes).bit_count()
            if count >= enough:
                break
        return count
    arrays = capacity.arrays()
    room = np.full(len(capacity.nodes), enough, dtype=np.int64)
    if ask.cpu_milli:
        np.minimum(room, arrays.cpu // ask.cpu_milli, out=room)
    if ask.memory_mib:
        np.minimum(room, arrays.memory // ask.memory_mib, out=room)
    if each:
        np.minimum(room, arrays.whole // each, out=room)
    elif ask.gpu_milli:
        free_gpu = np.maximum(arrays.gpu, 0)
        np.minimum(room, (free_gpu // ask.gpu_milli).sum(axis=1), out=room)
    return int(np.maximum(room, 0)[capacity.mask_array(nodes)].sum())
