"""How fast a job works on what it was given, relative to the run its duration was measured on.

Four factors: the slowest device type it got, the number of workers against the number it was
measured with,
its neighbours on shared devices, and whether all workers it needs are there. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["SpeedModel"]


@dataclass(frozen=True, slots=True)
class SpeedModel:
    """The parameters that a run of the world is given."""

    sync_share: float = 0.05
    """Time for one step's synchronisation with each further worker, in units of one worker's
    step."""
    sharing_cost: float = 0.05
    """Extra slowdown for each neighbour on a device, on top of the device's time being shared."""

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
