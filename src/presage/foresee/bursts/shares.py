"""For how much of a step a distributed training loads its links.

It is the time that the bytes of a step take on the narrowest link, over the time of the step: what
links of nodes are asked about. Talking that computing does not hide is something else: copies and
starts of messages are in it, which load no link, and what hides is not, which does. On measured
trainings it is three times as far off. Nothing here knows a job.
"""

from __future__ import annotations

from collections.abc import Iterable

from presage.foresee.answer import Quantiles
from presage.foresee.bursts.settings import NETWORKS, Setting
from presage.foresee.bursts.steps import DistributedSteps, wire_ms

__all__ = ["MOST_SHARE", "foreseen_share", "is_measured", "within_reach"]

MOST_SHARE = 0.99
_MORE_TASKS = 2.0
_FASTER = 10.0
"""How much farther than the nearest measured setting may be: no farther than settings were that
were left out to see how wide intervals have to be."""


def foreseen_share(
    model: DistributedSteps, compute: Quantiles, slopes: float, setting: Setting
) -> Quantiles | None:
    """The share of a step, 0 to 0.99, for which the link that carries most is loaded, alone on it.
    As wide as steps are where nobody measured the setting; `None` where it is farther from those
    measured than errors are known, or the network has no limit."""
    if NETWORKS[setting.network] is None or not within_reach(model, setting):
        return None
    wire = wire_ms(slopes, setting)
    timed = model.foresee((compute.p10, compute.p50, compute.p90), slopes, setting)
    return Quantiles(*(min(wire / step, MOST_SHARE) for step in reversed(timed.step_ms)))


def is_measured(model: DistributedSteps, setting: Setting) -> bool:
    """Whether somebody measured this very setting."""
    return setting in _measured(model)


def within_reach(model: DistributedSteps, setting: Setting) -> bool:
    """Whether a setting of its kind was measured that is not too far from it."""
    return any(_near(setting, known) for known in _measured(model))


def _measured(model: DistributedSteps) -> Iterable[Setting]:
    return map(Setting.parse, (model.card or {}).get("settings", ()))


def _near(one: Setting, known: Setting) -> bool:
    if (one.servers > 0, one.asynchronous) != (known.servers > 0, known.asynchronous):
        return False
    asked, measured = NETWORKS[one.network], NETWORKS[known.network]
    if asked is None or measured is None:
        return asked == measured
    return (
        max(asked, measured) <= _FASTER * min(asked, measured)
        and one.workers <= _MORE_TASKS * known.workers
        and one.servers <= _MORE_TASKS * known.servers
    )
