"""Learned policies by name: `learned:FILE` becomes a configuration that names the bundle, and the
parts of a pipeline that its network decides by.

The configuration has the digest of the bundle, so the journal says exactly what decided, and a
file that was exchanged is refused. A name is read only where the person at this machine gave it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Protocol, TypeVar

from presage.model.errors import BundleError, ConfigError
from presage.policy.config import LearnedConfig, PolicyConfig
from presage.policy.learned.net import Bundle, Decides, Floats, SlotLayout, Task, read_bundle
from presage.policy.learned.order import ORDER_RULES, OrderWalk, order_layout
from presage.policy.learned.scale import SCALE_RULES, ScaleByChoice, scale_layout
from presage.policy.learned.share import SHARE_RULES, ShareWalk, share_layout
from presage.policy.rules import Rules
from presage.policy.sharing import SharingRules
from presage.policy.start import Starter

__all__ = [
    "BASES",
    "LAYOUTS",
    "NUMBERS",
    "PREFIX",
    "Chooses",
    "is_learned",
    "learned_config",
    "learned_parts",
    "learned_rules",
    "refuse_bundles",
    "with_learned",
]

PREFIX = "learned:"


def is_learned(name: str) -> bool:
    """Whether a name stands for a bundle."""
    return name.startswith(PREFIX)


def learned_config(name: str) -> PolicyConfig:
    """The configuration that `learned:FILE` stands for."""
    path = Path(name.removeprefix(PREFIX)).expanduser().absolute()
    if not name.removeprefix(PREFIX):
        raise ConfigError("say which bundle: learned:FILE; `presage gym train` makes one")
    bundle = read_bundle(path)
    about = LearnedConfig(
        bundle=str(path), name=bundle.name, version=bundle.version, digest=bundle.digest
    )
    return BASES[bundle.task].model_copy(update={"learned": about})


BASES: dict[Task, PolicyConfig] = {
    "order": PolicyConfig(),
    "scale": PolicyConfig(order="priority", preempt="priority", elastic=True),
    "share": PolicyConfig(order="qssf", mode="greedy", colocate=True, move_gain_s=300.0),
}
"""What decides the rest, by task: the pass in which it is chosen."""
LAYOUTS: dict[Task, Callable[[int], SlotLayout]] = {
    "order": order_layout,
    "scale": scale_layout,
    "share": share_layout,
}
NUMBERS: dict[Task, Mapping[str, float]] = {
    "order": ORDER_RULES,
    "scale": SCALE_RULES,
    "share": SHARE_RULES,
}
"""What a task goes by beside its network."""


def refuse_bundles(name: str, config: PolicyConfig | None = None) -> None:
    """Refuse a policy that somebody elsewhere named if it would have this machine read a file."""
    inside = [config] if config is not None else []
    inside += [one.guard.fallback for one in inside if one.guard is not None]
    if is_learned(name) or any(one.learned is not None for one in inside):
        raise ConfigError(
            f"{name}: bundles are read only by the server's own command line and configuration: "
            "presage serve --policy learned:FILE"
        )


@lru_cache(maxsize=8)
def _bundle(path: str, digest: str) -> Bundle:
    bundle = read_bundle(Path(path))
    if bundle.digest != digest:
        raise ConfigError(
            f"{path} is another bundle than the one that was chosen: it has the digest "
            f"{bundle.digest[:12]}, not {digest[:12]}"
        )
    return bundle


def with_learned(config: LearnedConfig, rules: Rules) -> Rules:
    """These rules, with what a bundle decides decided by it."""
    return learned_rules(_bundle(config.bundle, config.digest), rules)


def learned_rules(bundle: Bundle, rules: Rules) -> Rules:
    """The same with a bundle at hand."""
    usual, numbers = LAYOUTS[bundle.task](bundle.layout.slots), bundle.rules
    if bundle.layout != usual:
        raise BundleError(f"{bundle.name} has fields that this version has not; train it again")
    low = min(numbers.values(), default=0.0) < 0 or numbers.get("factor", 2.0) <= 1
    if low or numbers.keys() != NUMBERS[bundle.task].keys():
        raise BundleError(f"{bundle.name} has rules that this version has not; train it again")
    return learned_parts(bundle.task, bundle.layout, bundle.rules, bundle.net, rules)


class Chooses(Protocol):
    """A part of a policy that chooses: a network does it, or somebody outside while its pass stays
    open."""

    layout: SlotLayout
    observation: Floats
    can_choose: bool

    def choose(self, action: int) -> bool:
        """Do it; whether that was possible."""
        ...


def learned_parts(
    task: Task,
    layout: SlotLayout,
    numbers: Mapping[str, float],
    net: Decides | None,
    rules: Rules,
    made: Callable[[Chooses], None] = lambda part: None,
) -> Rules:
    """The parts of a pipeline that a network decides by. Each that is made is told of; without a
    network it leaves its pass open."""

    def noted(part: _Part) -> _Part:
        made(part)
        return part

    def walk(starter: Starter) -> OrderWalk:
        return noted(OrderWalk(starter, layout, numbers, net))

    def shared_walk(rules: Rules, sharing: SharingRules) -> ShareWalk:
        return noted(ShareWalk(rules, sharing, layout, net))

    if task == "scale":
        gain = noted(ScaleByChoice(layout, numbers, net))
        return replace(rules, gain=gain, shrink_after_s=inf)
    if task == "share":
        return replace(rules, shared_walk=shared_walk)
    return replace(rules, walk=walk, needs_history=True)


_Part = TypeVar("_Part", bound=Chooses)
