"""The policy that decides, who chose it, and which others can be chosen. Chooses none."""

from __future__ import annotations

import asyncio
from typing import Any

from presage.control.deciding import Decider
from presage.control.site.service import Service
from presage.core.engine import Engine
from presage.core.guard import GuardedPolicy
from presage.policy.own import OwnPolicy

__all__ = ["RESET_POLICY", "SET_POLICY", "policy_view"]


SET_POLICY, RESET_POLICY = "set policy", "reset policy"
"""What the audit log calls a choice."""


async def policy_view(service: Service) -> dict[str, Any]:
    """Its name and origin, who chose it and when, and the names of those that can be chosen."""

    def question(engine: Engine) -> tuple[Decider, str]:
        guarded = engine.policy if isinstance(engine.policy, GuardedPolicy) else None
        words = "" if guarded is None else guarded.status(engine.state)
        return service.deciders.now, words  # while nothing is being decided

    answer: tuple[Decider, str] = await service.ask(question)
    now, guard = answer
    entry = None
    if now.chosen:
        entry = await asyncio.to_thread(service.store.audit.latest, SET_POLICY)
    policy, config, origin = now.policy, None, ""
    if isinstance(policy, OwnPolicy):
        origin = policy.loaded.origin
    else:
        config = policy.model_dump(mode="json", exclude={"queues"})
    return {
        "name": now.name,
        "chosen": now.chosen,
        "by": entry.who if entry is not None else "",
        "at": entry.at if entry is not None else None,
        "started_with": service.deciders.started.name,
        "config": config,
        "origin": origin,
        "choices": service.deciders.names(),
        "guard": guard,
    }
