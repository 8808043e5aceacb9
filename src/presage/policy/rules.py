"""The parts of a pipeline: what a configuration chooses, and whoever composes one in Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from presage.model.job import Job, Placement
from presage.policy.elastic import ByGain
from presage.policy.order import Order
from presage.policy.placer import Placer
from presage.policy.queues import Queues
from presage.policy.reclaim import Reclaim
from presage.policy.sharing import SharingRules

if TYPE_CHECKING:
    from presage.policy.start import Starter
    from presage.policy.walks import Walk
    from presage.policy.walks.shared import Shared

__all__ = ["Rules"]


@dataclass(frozen=True, slots=True)
class Rules:
    """The parts of a pipeline."""

    order: Order
    placer: Placer
    """For jobs that do not ask for a placement of their own."""
    placers: Mapping[Placement, Placer]
    """For jobs that do."""
    queues: Queues
    reclaim: Reclaim | None = None
    greedy: bool = False
    """Go on behind a job that does not fit; else it blocks those behind it."""
    backfill: int = 0
    """How many jobs behind a blocked head may be tried (EASY backfill); 0 is off."""
    ranked: bool = False
    """Preempt by rank (`walks.ranked`) instead of walking the queue."""
    gang: bool = True
    elastic: bool = False
    """Shrink elastic jobs for waiting ones and grow them into idle room."""
    shrink_after_s: float = 0.0
    """How long a job waits before others of its priority are shrunk for it; infinite where that
    is not the starter's to do."""
    grow_after_s: float = 0.0
    """How long an elastic job keeps its size before it grows."""
    gain: ByGain | None = None
    """Elastic jobs get and give workers by what each brings, instead of by their number."""
    sharing: SharingRules | None = None
    """Jobs share GPUs as far as predictions allow (`walks.shared`)."""
    shared_walk: Callable[[Rules, SharingRules], Shared] | None = None
    """Makes another walk for jobs that share than that one."""
    prefers_estimates: bool = False
    """The order is made for estimated durations, even where true ones are known."""

    walk: Callable[[Starter], Walk] | None = None
    """Makes a way through the queue of one's own, instead of those that `walks` has."""
    needs_history: bool = False
    """It goes by what was foreseen of jobs at their submission, also where the truth is known."""

    def placer_of(self, job: Job) -> Placer:
        """Where the workers of a job go."""
        asked = job.spec.placement
        return self.placer if asked is None else self.placers[asked]
