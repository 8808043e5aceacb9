"""Ways through the queue. Each is a `Walk` in a file of its own; a pipeline has one of them.

| walk | who starts |
|---|---|
| `line.Line` | the first job, then the next; the first that does not fit blocks all behind it |
| `turns.Turns` | in order, where some may pass: greedy, limits of queues, queues that take turns |
| `easy.Easy` | as `Turns`, and those behind a blocked job who do not delay it |
| `ranked.Ranked` | the first that the GPUs hold by number, and running jobs behind them give way |
| `shared.Shared` | jobs that join others on a GPU as far as predictions allow |

`last` is what `Ranked` knows of running jobs: who would give way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from presage.core.plan import Plan
from presage.core.ports import Predictor, SortKey
from presage.model.cluster import Worker
from presage.model.job import Job, Reason
from presage.policy.backlog import Group

__all__ = ["Walk"]


class Walk(Protocol):
    """One way through the queue: who waits, in order, and who of them starts in a pass.

    What it keeps between passes is a cache of the state: a fresh one that was given all waiting
    jobs decides the same.
    """

    def reset(self) -> None:
        """Forget who waits: the state is another one, or all of it has to be looked at again."""
        ...

    def push(self, key: SortKey, job: Job, group: Group, plan: Plan) -> None:
        """A job began to wait. It may be there already, if it stopped to wait in between."""
        ...

    def walk(self, plan: Plan, predict: Predictor) -> None:
        """One pass: start who is to start."""
        ...

    def waiting(self, plan: Plan) -> Iterator[tuple[Job, SortKey]]:
        """Jobs that wait and their keys, in any order."""
        ...

    def find(self, job: Job, plan: Plan, predict: Predictor) -> tuple[Worker, ...] | None:
        """Where the fewest workers of a job could start now, whoever else waits."""
        ...

    def why(self, job: Job, plan: Plan, predict: Predictor, ahead: int) -> Reason:
        """Why there is no such place; `ahead` of it are so many jobs."""
        ...
