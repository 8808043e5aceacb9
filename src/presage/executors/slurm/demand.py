"""How many nodes pilots should hold for the jobs that there are. Pure: Slurm is not asked, and
nothing is placed; that is the policy's business.

Jobs that run keep their nodes. Jobs that wait are put, oldest first and each whole or not at all,
into what is free there, then into further nodes like the one that a pilot would bring. Elastic
jobs are counted at their smallest size: nobody asks Slurm for more nodes to make a job faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from presage.model.cluster import WHOLE_GPU, Node, Resources
from presage.model.job import Job, JobState, Role

__all__ = ["nodes_wanted"]

_MOST_WAITING = 500
"""Jobs that wait behind so many others do not count yet."""
_MOST_MISSES = 20
"""When so many in a row find no room, and every node has work, the others are not looked at."""


class _Room:
    """What is free on a node."""

    __slots__ = ("cpu_milli", "devices", "held", "memory_mib", "node")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.cpu_milli, self.memory_mib = node.cpu_milli, node.memory_mib
        self.devices = [WHOLE_GPU] * len(node.devices)
        self.held = 0
        """Workers that have their place here."""

    def hold(self, asked: Resources, each: int, devices: Iterable[int], sign: int = 1) -> None:
        """A worker has its place here; with the sign -1, it gives it back."""
        self.held += sign
        self.cpu_milli -= sign * asked.cpu_milli
        self.memory_mib -= sign * asked.memory_mib
        for device in devices:
            if device < len(self.devices):
                self.devices[device] -= sign * each

    def find(self, role: Role, each: int) -> list[int] | None:
        """The devices that a worker would get here; None if it does not fit."""
        asked, node = role.resources, self.node
        if asked.cpu_milli > self.cpu_milli or asked.memory_mib > self.memory_mib:
            return None
        if not role.where.accepts(node):
            return None
        fit = [
            number
            for number, free in enumerate(self.devices)
            if free >= each and (not role.gpu_types or node.devices[number].type in role.gpu_types)
        ]
        fit.sort(key=self.devices.__getitem__)
        return fit[: asked.devices] if len(fit) >= asked.devices else None


def nodes_wanted(
    jobs: Iterable[Job], held: Mapping[str, Node], further: Iterable[Node], most: int
) -> int:
    """How many nodes the jobs need, at most so many: those of `held` that are in use, and of
    those that are not and `further` ones as many as jobs that wait would fill."""
    there = {name: _Room(node) for name, node in held.items()}
    waiting: list[Job] = []
    for job in jobs:
        if job.state is JobState.PENDING:
            waiting.append(job)
        for worker in {*job.allocation, *(job.resizing or ())}:
            if room := there.get(worker.node):
                role = job.spec.roles[worker.role]
                room.hold(role.resources, _each(job, role), worker.devices)
    rooms = sorted(there.values(), key=lambda room: not room.held)
    rooms += map(_Room, further)
    del rooms[max(most, sum(bool(room.held) for room in rooms)) :]
    misses = 0
    for job in sorted(waiting, key=lambda job: job.seq)[:_MOST_WAITING]:
        misses = 0 if _place(rooms, job) else misses + 1
        if misses > _MOST_MISSES and all(room.held for room in rooms):
            break
    return sum(bool(room.held) for room in rooms)


def _place(rooms: list[_Room], job: Job) -> bool:
    """Put a job into the rooms, the whole of it or nothing."""
    done: list[tuple[_Room, Role, list[int]]] = []
    for role in job.spec.roles:
        each = _each(job, role)
        for _ in range(role.min):
            for room in rooms:
                devices = room.find(role, each)
                if devices is not None:
                    room.hold(role.resources, each, devices)
                    done.append((room, role, devices))
                    break
            else:
                for room, held, devices in done:
                    room.hold(held.resources, _each(job, held), devices, -1)
                return False
    return True


def _each(job: Job, role: Role) -> int:
    """What a worker takes of each of its devices."""
    asked = role.resources
    return asked.gpu_milli if asked.shared and job.spec.shareable else WHOLE_GPU
