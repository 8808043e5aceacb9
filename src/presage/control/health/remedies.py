"""What may be done about trouble without asking anybody: which remedy helps against what, and how
often it may be used. It answers with facts; the deciding loop journals them and decides.

Nothing is done that the queue of the job has not switched on, below the precision it asks for, for
a second time within minutes, or to more nodes than a cluster can miss.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from presage.control.health.alerts import Alert
from presage.model import event as ev
from presage.model.job import OomRetry, Reason, ReasonCode
from presage.observe.health.trouble import PRECISION, Trouble, TroubleKind
from presage.policy.config import QueueConfig

__all__ = ["Remedies", "RemedyTarget"]

_RESTARTS = frozenset({TroubleKind.STUCK, TroubleKind.SPINNING})
"""Going on from a checkpoint helps."""
_MOVES = frozenset(
    {TroubleKind.STRAGGLER, TroubleKind.NETWORK, TroubleKind.CROWDED, TroubleKind.GPU_ERROR}
)
"""Another node helps, where the finding says so."""
_CORDONS = frozenset({TroubleKind.BAD_NODE, TroubleKind.GPU_ERROR})
_GROWS = frozenset({TroubleKind.LEAK, TroubleKind.GPU_MEMORY})
_SOON_S = 600.0
"""A checkpoint is taken when the limit is that close."""
_AGAIN_S = 600.0
_MOST_OF_A_JOB = 3
_DAY_S = 86_400.0
_MOST_AN_HOUR = 10
_CORDON_SHARE = 0.1
_MORE_MEMORY = OomRetry(times=1)


@dataclass(frozen=True, slots=True)
class RemedyTarget:
    """The run that an alert is about, and the nodes there are."""

    queue: str
    attempt: int
    limited: bool
    """Whether its manifest already says what follows when memory runs out."""
    has_room_elsewhere: bool
    """Whether it could go on without the node."""


class Remedies:
    """Chooses remedies. `queues` says what is switched on."""

    def __init__(self, queues: Mapping[str, QueueConfig]) -> None:
        self._queues = dict(queues)
        self._of_job: dict[str, deque[float]] = {}
        self._lately: deque[float] = deque()
        self._done: set[tuple[str, int, str]] = set()
        """Job or node, attempt, remedy: once is enough."""

    @property
    def any(self) -> bool:
        """Whether anything is switched on."""
        return any(queue.remedies for queue in self._queues.values())

    def for_job(
        self, now: float, alert: Alert, target: RemedyTarget
    ) -> tuple[ev.RemedyAdvised, str] | None:
        """What is done about the run of an alert, and how that is told."""
        finding = alert.finding
        queue = self._queues.get(target.queue, QueueConfig())
        if not queue.remedies or target.attempt != finding.attempt:
            return None
        if finding.probability < max(queue.remedy_precision, PRECISION[finding.kind]):
            return None
        chosen = self._chosen(now, finding, queue.remedies, target)
        if chosen is None:
            return None
        remedy, avoid, words = chosen
        if remedy is not ev.Remedy.MEMORY and not self._may_stop(now, finding.job):
            return None
        if (key := (finding.job, finding.attempt, remedy)) in self._done:
            return None
        self._done.add(key)
        reason = Reason(ReasonCode.TROUBLE, f"{words}: {finding.text}")
        oom = _MORE_MEMORY if remedy is ev.Remedy.MEMORY else None
        return ev.RemedyAdvised(finding.job, finding.attempt, remedy, reason, avoid, oom), words

    def _chosen(
        self, now: float, finding: Trouble, allowed: Sequence[str], target: RemedyTarget
    ) -> tuple[ev.Remedy, tuple[str, ...], str] | None:
        kind = finding.kind
        if kind in _RESTARTS and "restart" in allowed:
            return ev.Remedy.RESTART, (), "started again from its checkpoint"
        moves = kind in _MOVES and finding.avoidable and finding.node
        if moves and "restart" in allowed and target.has_room_elsewhere:
            words = f"started again on other nodes than {finding.node}"
            return ev.Remedy.RESTART, (finding.node,), words
        if kind in _GROWS:
            soon = finding.due_at is not None and finding.due_at - now < _SOON_S
            if "memory" in allowed and not target.limited:
                return ev.Remedy.MEMORY, (), "it gets more memory if it runs out"
            if "checkpoint" in allowed and soon:
                words = "stopped with a checkpoint before its memory ran out, to go on from there"
                return ev.Remedy.CHECKPOINT, (), words
        return None

    def _may_stop(self, now: float, job: str) -> bool:
        while self._lately and self._lately[0] < now - 3600.0:
            self._lately.popleft()
        mine = self._of_job.setdefault(job, deque())
        while mine and mine[0] < now - _DAY_S:
            mine.popleft()
        if len(self._lately) >= _MOST_AN_HOUR or len(mine) >= _MOST_OF_A_JOB:
            return False
        if mine and mine[-1] > now - _AGAIN_S:
            return False
        mine.append(now)
        self._lately.append(now)
        return True

    def for_node(
        self, alert: Alert, queue: str, up: int, draining: int
    ) -> tuple[ev.NodeDraining, str] | None:
        """Whether a node takes no more work; `queue` is that of the job on it, or empty where the
        alert is about no job: then it is enough that one queue has it switched on."""
        finding = alert.finding
        node = finding.node
        names = [queue] if queue else list(self._queues)
        asked = [
            one
            for name in names
            if (one := self._queues.get(name)) is not None and "cordon" in one.remedies
        ]
        if finding.kind not in _CORDONS or not node or not asked:
            return None
        if finding.kind is TroubleKind.GPU_ERROR and not finding.avoidable:
            return None
        least = min(one.remedy_precision for one in asked)
        if finding.probability < max(least, PRECISION[finding.kind]):
            return None
        if up <= 1 or draining + 1 > max(1, int(_CORDON_SHARE * (up + draining))):
            return None
        if (key := (node, 0, "cordon")) in self._done:
            return None
        self._done.add(key)
        return ev.NodeDraining(node), f"{node} was drained: it takes no more work"

    def forget(self, jobs: set[str]) -> None:
        """Only these jobs are left."""
        for gone in self._of_job.keys() - jobs:
            del self._of_job[gone]
        self._done = {key for key in self._done if key[2] == "cordon" or key[0] in jobs}
