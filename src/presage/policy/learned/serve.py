"""Learned policies by name: `learned:FILE` becomes a configuration that names the bundle, and the
parts of a pipeline that its network decides by.

The configuration has the digest of the bundle, so the journal says exactly what decided, and a
file that was exchanged is refused. A name is read only where the person at this machine gave it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

from presage.model.errors import BundleError, ConfigError
from presage.policy.config import LearnedConfig, PolicyConfig
from presage.policy.learned.net import Bundle, Net, SlotLayout, Task, read_bundle
from presage.policy.learned.order import ORDER_RULES, OrderWalk, order_layout
from presage.policy.rules import Rules

__all__ = [
    "BASES",
    "PREFIX",
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


BASES = {
    "order": PolicyConfig(),
}
"""What decides the rest, by task."""


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
    usual = order_layout(bundle.layout.slots)
    if bundle.layout != usual:
        raise BundleError(f"{bundle.name} has fields that this version has not; train it again")
    if bundle.rules.keys() != ORDER_RULES.keys() or bundle.rules["factor"] <= 1:
        raise BundleError(f"{bundle.name} has rules that this version has not; train it again")
    return learned_parts(bundle.task, bundle.layout, bundle.rules, bundle.net, rules)


def learned_parts(
    task: Task, layout: SlotLayout, numbers: Mapping[str, float], net: Net, rules: Rules
) -> Rules:
    """The parts of a pipeline that a network decides by."""
    walk = partial(OrderWalk, layout=layout, rules=numbers, net=net)
    return replace(rules, walk=walk, needs_history=True)
