"""How fast a job works on what it was given, relative to the run its duration was measured on.

Four factors: the slowest device it got, the number of workers against the number it was measured
with, its neighbours on shared devices, and whether all workers it needs are there. Pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import ClassVar

from presage.model.cluster import Node, Worker

__all__ = ["MeasuredSpeed", "SpeedModel", "StepTime", "slowest_device"]

StepTime = Callable[[int, int], float]
"""Seconds a job needs for the same piece of work with so many workers on so many nodes."""


@dataclass(frozen=True, slots=True)
class SpeedModel:
    """The parameters that a run of the world is given."""

    by_place: ClassVar[bool] = False
    """Whether the nodes of its workers matter to a job, not only their number."""

    sync_share: float = 0.05
    """Time for one step's synchronisation with each further worker, in units of one worker's
    step."""
    sharing_cost: float = 0.05
    """Extra slowdown for each neighbour on a device, on top of the device's time being shared."""

    def of(self, job: str, workers: Sequence[Worker], measured: int) -> float:
        """Speed of a job on these workers, 1 for the run that its duration was measured on."""
        return self.scale(len(workers), measured)

    def scale(self, workers: int, measured: int) -> float:
        """Speed with this many workers, 1 for as many as the duration was measured with."""
        if workers == measured:
            return 1.0
        return self._throughput(workers) / self._throughput(measured)

    def share(self, mine: float, others: Sequence[float]) -> float:
        """Speed on a device whose jobs keep it busy for these shares of the time when alone.

        A device hands out its time: nobody slows down before it is full, and then in proportion.
        """
        if not others:
            return 1.0
        crowding = max(1.0, mine + sum(others))
        return 1.0 / (crowding * (1.0 + self.sharing_cost * len(others)))

    def _throughput(self, workers: int) -> float:
        return workers / (1.0 + self.sync_share * (workers - 1))


@dataclass(frozen=True, slots=True)
class MeasuredSpeed(SpeedModel):
    """Speeds from step times of each job; a duration is one on as few nodes as possible."""

    by_place: ClassVar[bool] = True

    steps: Mapping[str, StepTime] = field(default_factory=dict)
    """By job; one without step times is as in `SpeedModel`."""
    node_gpus: int = 8
    _known: dict[tuple[str, int, int], float] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def of(self, job: str, workers: Sequence[Worker], measured: int) -> float:
        """Its measured step time over the one it has now."""
        key = (job, len(workers), len({worker.node for worker in workers}))
        speed = self._known.get(key)
        if speed is None:
            step = self.steps.get(job)
            if step is None:
                speed = self.scale(len(workers), measured)
            else:
                speed = step(measured, ceil(measured / self.node_gpus)) / step(*key[1:])
            self._known[key] = speed
        return speed


def slowest_device(nodes: Mapping[str, Node], workers: Sequence[Worker]) -> float:
    """The speed of the slowest device that these workers have: all wait for it."""
    return min((nodes[w.node].devices[d].speed for w in workers for d in w.devices), default=1.0)
