"""What can be learned: for each task the policy whose pass stays open, and the part of it that is
chosen for. The same parts serve a trained policy (`presage.policy.learned`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from presage.core.ports import Policy
from presage.gym.episode import Chooses
from presage.model.errors import UserError
from presage.policy.learned.net import SlotLayout, Task
from presage.policy.learned.order import ORDER_RULES, OrderWalk, order_layout
from presage.policy.learned.serve import BASES
from presage.policy.pipeline import Pipeline
from presage.policy.registry import pipeline
from presage.policy.start import Starter

__all__ = ["layout_of", "maker", "rules_of"]


def rules_of(task: Task, given: Mapping[str, float] | None = None) -> dict[str, float]:
    """The numbers that a task goes by beside its network, some of them given."""
    usual = {"order": ORDER_RULES}[task]
    if unknown := set(given or {}) - set(usual):
        raise UserError(f"task {task} has no rule {min(unknown)}; there are: {', '.join(usual)}")
    return {**usual, **(given or {})}


def layout_of(task: Task, slots: int = 16) -> SlotLayout:
    """What is observed."""
    return {"order": order_layout}[task](slots)


def maker(
    task: Task, slots: int = 16, rules: Mapping[str, float] | None = None
) -> Callable[[], tuple[Policy, Chooses]]:
    """Makes a policy and what is chosen for."""
    if task not in BASES:
        raise UserError(f"there is no task {task!r}; there are: {', '.join(BASES)}")
    layout, numbers = layout_of(task, slots), rules_of(task, rules)

    def make() -> tuple[Policy, Chooses]:
        parts: list[OrderWalk] = []

        def walk(starter: Starter) -> OrderWalk:
            parts.append(OrderWalk(starter, layout, numbers))
            return parts[-1]

        policy = Pipeline(replace(pipeline(BASES[task]).rules, walk=walk))
        return policy, parts[-1]

    return make
