"""Right-sizing of enforced shares of GPUs while jobs run: what workers had of a GPU in, the limit
of their shares out.

A limit goes down to what was used at most of late, and back to what the job asked for as soon as
it is met: nobody knows then how much the job wants. It is never below the request. Of the memory
of GPUs nothing is said: the allocators of frameworks take it in large steps and keep it.

No clock and no I/O: times are arguments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from presage.model.cluster import WHOLE_GPU
from presage.provision.live import SizingRules

__all__ = ["NewShareLimit", "ShareSizer", "ShareUse", "new_limit"]

_STEP_MILLI = 50
_MET = 0.95
"""Who uses this part of a limit meets it."""
_NEAR = 0.8
"""So does who uses this part and waits: for its limit, for all we know."""


class ShareUse(NamedTuple):
    """What a worker had of its share since the sample before."""

    at: float
    got: float
    """The part of a GPU."""
    waited: float
    """Seconds that its threads waited for turns, in each second."""
    limit: int
    """The limit that it was held to, in milli-GPUs; 0 where nothing was measured."""


class NewShareLimit(NamedTuple):
    """A limit that the shares of a job should have from now on."""

    milli: int
    why: str


def new_limit(
    workers: Sequence[Sequence[ShareUse]], given: int, request: int, most: int, rules: SizingRules
) -> NewShareLimit | None:
    """From the latest samples of each worker, what should be their limit instead of `given`,
    between the request and the `most` that the job asked for, all in milli-GPUs; None: as it is.
    Samples under another limit do not count: it is on its way, or somebody changed one share."""
    latest = [recent[-1] for recent in workers]
    if any(one.limit == given and _meets(one, rules) for one in latest):
        text = f"it met its limit of {given / WHOLE_GPU:g} of a GPU and has all it asked for again"
        return NewShareLimit(most, text) if given < most else None
    samples = [one for recent in workers for one in recent]
    if len(samples) < rules.share_patience * len(workers):
        return None
    if any(one.limit != given or one.waited >= rules.notable for one in samples):
        return None
    peak = max(one.got for one in samples)
    wish = _STEP_MILLI * ceil(WHOLE_GPU * peak * (1 + rules.margin) / _STEP_MILLI)
    wish = min(max(wish, request), most)
    if wish > (1 - rules.notable) * given:
        return None
    text = f"it used at most {peak:.2f} of a GPU and did not wait: limit {wish / WHOLE_GPU:g}"
    return NewShareLimit(wish, text)


def _meets(use: ShareUse, rules: SizingRules) -> bool:
    waits = use.waited >= rules.notable
    return WHOLE_GPU * use.got >= (_NEAR if waits else _MET) * use.limit


class ShareSizer:
    """Follows the shares of one run, whose workers all have the same limit."""

    def __init__(self, request: int, most: int, rules: SizingRules) -> None:
        """The request and the limit that the job asked for, in milli-GPUs."""
        self._request, self._most, self._rules = request, most, rules
        self._workers: dict[str, deque[ShareUse]] = {}

    def see(self, worker: str, use: ShareUse, given: int) -> NewShareLimit | None:
        """Take in a sample of a worker, while the run is given this limit."""
        mine = self._workers.setdefault(worker, deque(maxlen=self._rules.share_patience))
        mine.append(use)
        # Workers that are gone have not been heard of since the first of these samples.
        there = [recent for recent in self._workers.values() if recent[-1].at >= mine[0].at]
        change = new_limit(there, given, self._request, self._most, self._rules)
        if change is not None:
            self._workers.clear()
        return change
