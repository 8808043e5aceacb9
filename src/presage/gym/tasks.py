"""What can be learned: for each task the policy whose pass stays open, and the part of it that is
chosen for. The same parts serve a trained policy (`presage.policy.learned`).

| task | what is chosen | in the pass of |
|---|---|---|
| order | who starts next | its own walk |
| scale | which elastic job gets or gives workers | `elastic` |
| share | who goes with whom on a GPU | `colocate` |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from presage.core.ports import Policy
from presage.model.errors import UserError
from presage.policy.learned.net import SlotLayout, Task
from presage.policy.learned.serve import BASES, LAYOUTS, NUMBERS, Chooses, learned_parts
from presage.policy.pipeline import Pipeline
from presage.policy.registry import pipeline

__all__ = ["layout_of", "maker", "rules_of"]


def rules_of(task: Task, given: Mapping[str, float] | None = None) -> dict[str, float]:
    """The numbers that a task goes by beside its network, some of them given."""
    usual = NUMBERS[task]
    if unknown := set(given or {}) - set(usual):
        there = ", ".join(usual) or "none"
        raise UserError(f"task {task} has no rule {min(unknown)}; there are: {there}")
    return {**usual, **(given or {})}


def layout_of(task: Task, slots: int = 16) -> SlotLayout:
    """What is observed."""
    return LAYOUTS[task](slots)


def maker(
    task: Task, slots: int = 16, rules: Mapping[str, float] | None = None
) -> Callable[[], tuple[Policy, Chooses]]:
    """Makes a policy and what is chosen for."""
    if task not in BASES:
        raise UserError(f"there is no task {task!r}; there are: {', '.join(BASES)}")
    layout, numbers = layout_of(task, slots), rules_of(task, rules)

    def make() -> tuple[Policy, Chooses]:
        parts: list[Chooses] = []
        base = pipeline(BASES[task]).rules
        policy = Pipeline(learned_parts(task, layout, numbers, None, base, parts.append))
        return policy, parts[-1]

    return make
