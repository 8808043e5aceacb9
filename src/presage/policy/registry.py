"""Policies by name: what `fifo`, `sjf` … mean, and how a configuration becomes a policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, get_args

from presage.core.guard import GuardedPolicy, GuardRules
from presage.core.ports import Policy
from presage.model.errors import ConfigError
from presage.model.job import Placement
from presage.policy import openb, order, sharing
from presage.policy.config import (
    ConfigFile,
    GuardConfig,
    GuardSection,
    PlacementName,
    PolicyConfig,
    QueueConfig,
)
from presage.policy.elastic import ByGain
from presage.policy.learned.serve import is_learned, learned_config, with_learned
from presage.policy.links import Links
from presage.policy.order import FairShare, Order, Tiresias
from presage.policy.pipeline import Pipeline, Rules
from presage.policy.placer import Placer
from presage.policy.queues import QueueRule, Queues
from presage.policy.reclaim import ByOrder, ByPriority, ByQuota, Reclaim
from presage.policy.request import Score
from presage.policy.score import Pack, Spread, Topology
from presage.policy.sharing import SharingRules

__all__ = [
    "NAMED",
    "NOT_DECIDED",
    "build",
    "guard_of",
    "guarded",
    "live",
    "names",
    "pipeline",
    "pipelines",
    "placements",
    "policy_config",
]

NAMED: dict[str, PolicyConfig] = {
    "fifo": PolicyConfig(order="fifo"),
    "sjf": PolicyConfig(order="sjf"),
    "srtf": PolicyConfig(order="srtf", preempt="rank"),
    "qssf": PolicyConfig(order="qssf"),
    "tiresias": PolicyConfig(order="tiresias", preempt="rank"),
    "priority": PolicyConfig(order="priority", preempt="priority"),
    "fair_share": PolicyConfig(order="fair_share", preempt="quota"),
    "backfill": PolicyConfig(order="fifo", backfill=True),
    "elastic": PolicyConfig(order="priority", preempt="priority", elastic=True),
    "colocate": PolicyConfig(order="qssf", mode="greedy", colocate=True, move_gain_s=300.0),
}
"""The named pipelines. Anything else is composed in a configuration file."""

_ORDERS: dict[str, Order] = {
    "fifo": order.fifo,
    "sjf": order.sjf,
    "srtf": order.srtf,
    "qssf": order.qssf,
    "priority": order.priority,
    "utilization": sharing.utilization,
}
_SCORES: dict[str, Callable[[], Score]] = {
    "pack": Pack,
    "spread": Spread,
    "best_fit": openb.BestFit,
    "dot_product": openb.DotProduct,
    "gpu_clustering": openb.GpuClustering,
    "gpu_packing": openb.GpuPacking,
    "fgd": openb.Fgd,
    "random": openb.Random,
    "links": Links,
}


def names() -> list[str]:
    """The named pipelines."""
    return list(NAMED)


def placements() -> list[str]:
    """The named placements."""
    return list(get_args(PlacementName))


def pipelines(file: ConfigFile) -> dict[str, PolicyConfig]:
    """The pipelines of a configuration file beside the named ones; its queues go into each."""
    return {
        name: config.model_copy(update={"queues": {**file.queues, **config.queues}})
        for name, config in {**NAMED, **file.policies}.items()
    }


def policy_config(
    name: str,
    known: Mapping[str, PolicyConfig] = NAMED,
    placement: str | None = None,
    section: GuardSection | None = None,
) -> PolicyConfig:
    """A pipeline by name, with another placement if one is given. `mine@sjf` is `mine`, guarded
    by `sjf`, looked at as `section` says; `learned:FILE` reads a bundle of this machine."""
    candidate, guard = guard_of(name, known, section)
    if guard is not None:
        config = policy_config(candidate, known, placement)
        if config.guard is not None:
            raise ConfigError(f"policy {candidate} has a guard already: leave out @{guard.name}")
        if placement is not None:
            fallback = guard.fallback.model_copy(update={"placement": placement})
            guard = guard.model_copy(update={"fallback": fallback})
        return config.model_copy(update={"guard": guard})
    if name not in known and is_learned(name):
        known = {**known, name: learned_config(name)}
    if name not in known:
        raise ConfigError(f"unknown policy '{name}'; there are: {', '.join(known)}")
    if placement is None:
        return known[name]
    if placement not in placements():
        raise ConfigError(f"unknown placement '{placement}'; there are: {', '.join(placements())}")
    return known[name].model_copy(update={"placement": placement})


def guard_of(
    name: str, known: Mapping[str, PolicyConfig], section: GuardSection | None = None
) -> tuple[str, GuardConfig | None]:
    """A policy's name without its guard, and that guard: of `mine@sjf`, `mine` and `sjf`."""
    candidate, at, fallback = name.rpartition("@")
    if name in known or not at or not candidate:
        return name, None
    if fallback not in known:
        raise ConfigError(
            f"{name}: '{fallback}' cannot be a fallback; there are: {', '.join(known)}"
        )
    if known[fallback].guard is not None:
        raise ConfigError(f"{name}: {fallback} has a guard itself, so it is no fallback")
    rules: dict[str, Any] = (section or GuardSection()).model_dump()
    return candidate, GuardConfig(
        candidate=candidate, name=fallback, fallback=known[fallback], **rules
    )


def guarded(
    guard: GuardConfig,
    candidate: Callable[[], Policy],
    queues: Mapping[str, QueueConfig],
) -> GuardedPolicy:
    """A policy that decides while it is trusted, else the fallback of its guard with the same
    queues."""
    fallback = guard.fallback.model_copy(update={"queues": dict(queues)})
    rules = GuardRules(
        every_s=guard.every,
        margin=guard.margin,
        margin_p99=guard.margin_p99,
        harm=guard.harm,
        draws=guard.draws,
        ahead_s=guard.ahead,
    )
    return GuardedPolicy(
        candidate, partial(pipeline, fallback), (guard.candidate, guard.name), rules
    )


def live(name: str, config: PolicyConfig, section: GuardSection | None = None) -> PolicyConfig:
    """As it may decide about real jobs: a learned policy never without a guard, which is fifo
    unless another one was named, or the policy in whose pass it chooses."""
    if config.learned is None or config.guard is not None:
        return config
    rules: dict[str, Any] = (section or GuardSection()).model_dump()
    usual = "elastic" if config.elastic else "colocate" if config.colocate else "fifo"
    guard = GuardConfig(candidate=name, name=usual, fallback=NAMED[usual], **rules)
    return config.model_copy(update={"guard": guard})


NOT_DECIDED = {"max_slowdown", "idle_stop", "remedies", "remedy_precision", "gpu"}
"""Of a queue, what is not for who decides about room."""


def build(config: PolicyConfig | str) -> Policy:
    """The policy that a configuration describes."""
    if isinstance(config, str):
        config = policy_config(config)
    if config.guard is None:
        return pipeline(config)
    alone = config.model_copy(update={"guard": None})
    return guarded(config.guard, partial(pipeline, alone), config.queues)


def pipeline(config: PolicyConfig) -> Pipeline:
    """The same for one without a guard."""
    assert config.guard is None
    rules = _rules(config)
    return Pipeline(rules if config.learned is None else with_learned(config.learned, rules))


def _rules(config: PolicyConfig) -> Rules:
    queues = Queues(
        {
            name: QueueRule(**queue.model_dump(exclude=NOT_DECIDED))
            for name, queue in config.queues.items()
        }
    )
    chosen = _order(config, queues)
    return Rules(
        order=chosen,
        placer=_placer(config, config.placement),
        placers={kind: _placer(config, kind.value) for kind in Placement},
        queues=queues,
        reclaim=_reclaim(config, chosen, queues),
        greedy=config.mode == "greedy",
        backfill=config.backfill_depth if config.backfill else 0,
        ranked=config.preempt == "rank",
        gang=config.gang,
        elastic=config.elastic,
        shrink_after_s=config.shrink_after_s,
        grow_after_s=config.grow_after_s,
        gain=_gain(config),
        sharing=_sharing(config),
        prefers_estimates=config.order == "qssf",
    )


def _gain(config: PolicyConfig) -> ByGain | None:
    by_gain = config.elastic and config.grow_by == "gain"
    return ByGain(config.resize_cost_s, config.grow_after_s) if by_gain else None


def _order(config: PolicyConfig, queues: Queues) -> Order:
    if config.order == "tiresias":
        return Tiresias(config.threshold_gpu_s, config.round_s)
    if config.order == "fair_share":
        return FairShare(queues)
    return _ORDERS[config.order]


def _sharing(config: PolicyConfig) -> SharingRules | None:
    if not config.colocate:
        return None
    bounds = {name: queue.max_slowdown for name, queue in config.queues.items()}
    return SharingRules(
        most=config.max_jobs_per_gpu or SharingRules().most,
        max_slowdown=config.max_slowdown,
        bounds={name: bound for name, bound in bounds.items() if bound is not None},
        idle_worth=config.idle_worth,
        profile_s=config.profile_s,
        profile_gpus=config.profile_gpus,
        move_gain_s=config.move_gain_s,
    )


def _reclaim(config: PolicyConfig, chosen: Order, queues: Queues) -> Reclaim | None:
    if config.preempt == "order":
        return ByOrder(chosen)
    if config.preempt == "priority":
        return ByPriority()
    return ByQuota(queues) if config.preempt == "quota" else None


def _placer(config: PolicyConfig, placement: str | dict[PlacementName, float]) -> Placer:
    weights = {placement: 1.0} if isinstance(placement, str) else placement
    scores: dict[Score, float] = {}
    for name, weight in weights.items():
        made = Topology(config.topology_levels) if name == "topology" else _SCORES[name]()
        scores[made] = weight
    return Placer(scores, config.max_jobs_per_gpu)
