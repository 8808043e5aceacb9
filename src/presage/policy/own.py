"""Policies of one's own: what somebody's object becomes, and what happens when it raises.

Fit for use are a policy (something with `schedule`), a class or a function that makes one, an
order (a function of job, plan and predictor), and a `PolicyConfig`. How code is loaded is the
business of `plugins`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from presage.core.plan import Plan
from presage.core.ports import Policy, Predictor
from presage.model.errors import ConfigError
from presage.model.job import Job, Reason, ReasonCode
from presage.plugins import Loaded, installed, is_file, load, load_source, where
from presage.policy import registry
from presage.policy.config import GuardConfig, GuardSection, PolicyConfig, QueueConfig
from presage.policy.pipeline import Pipeline

__all__ = ["GROUP", "Guarded", "OwnPolicy", "Schedules", "complete", "find_own"]

GROUP = "presage.policies"
"""The entry points under which packages offer policies."""


class Schedules(Protocol):
    """The least that a policy of one's own has; `explain`, as `Policy` has it, is welcome."""

    def schedule(self, plan: Plan, predict: Predictor) -> None:
        """Place, stop, resize, reserve and reject through the plan."""
        ...


@dataclass(frozen=True, slots=True)
class OwnPolicy:
    """A policy that came from somebody's code."""

    loaded: Loaded
    queues: Mapping[str, QueueConfig] = field(default_factory=dict)
    """What queues may hold: for orders, whose pipeline is ours."""
    guard: GuardConfig | None = None
    """Who decides while it is not trusted, if it is guarded."""

    @property
    def name(self) -> str:
        """What it is called."""
        return self.loaded.name + (f"@{self.guard.name}" if self.guard is not None else "")

    def described(self) -> str:
        """What it is, for the journal: no folder of anybody's machine, and which text exactly."""
        loaded = self.loaded
        about = {"name": loaded.name, "origin": loaded.origin, "sha256": loaded.digest}
        if self.guard is None:
            return json.dumps({"own": about})
        return json.dumps({"own": about, "guard": self.guard.model_dump(mode="json")})

    def packed(self) -> dict[str, Any]:
        """As JSON values, for another process of the same server; `unpacked` reads them."""
        loaded = self.loaded
        return {
            "name": loaded.name,
            "origin": loaded.origin,
            "source": loaded.source,
            "queues": {name: queue.model_dump() for name, queue in self.queues.items()},
            "guard": None if self.guard is None else self.guard.model_dump(mode="json"),
        }

    @staticmethod
    def unpacked(data: Mapping[str, Any]) -> OwnPolicy:
        """The policy that `packed` describes: the same text, whatever became of its file."""
        name, source = data["name"], data["source"]
        loaded = load_source(source, name, data["origin"]) if source else load(name, GROUP)
        queues = {key: QueueConfig.model_validate(q) for key, q in data["queues"].items()}
        guard = data.get("guard")
        return OwnPolicy(loaded, queues, guard and GuardConfig.model_validate(guard))

    def base(self) -> PolicyConfig:
        """What decides where it cannot: its fallback, else first come, first served."""
        base = PolicyConfig() if self.guard is None else self.guard.fallback
        return base.model_copy(update={"queues": dict(self.queues)})

    def went_wrong(self, error: BaseException) -> str:
        """That it raised, in one line."""
        return f"policy {self.loaded.name} raised {where(error, self.loaded.origin)}"

    def made(self, raised: Callable[[str], None]) -> Policy:
        """A new one that may raise: what it is guarded by, or its base, decides then, and `raised`
        is told."""
        otherwise = self.base()
        if self.guard is None:
            return Guarded(self, registry.pipeline(otherwise), raised)
        alone = replace(self, guard=None)
        return registry.guarded(
            self.guard,
            lambda: Guarded(alone, registry.pipeline(otherwise), raised),
            self.queues,
        )

    def make(self) -> Policy:
        """A new one, that has seen nothing yet."""
        if self.guard is not None:
            alone = replace(self, guard=None)
            return registry.guarded(self.guard, alone.make, self.queues)
        value = self.loaded.value
        try:
            if _is_order(value):
                return Pipeline(replace(registry.pipeline(self.base()).rules, order=value))
            if isinstance(value, type) or (callable(value) and not _schedules(value)):
                value = value()
            elif not isinstance(value, PolicyConfig):
                value = deepcopy(value)
        except Exception as error:
            what = f"{self.loaded.origin}: {self.name} cannot be made"
            raise ConfigError(f"{what}: {where(error, self.loaded.origin)}") from None
        if isinstance(value, PolicyConfig):
            queues = {**self.queues, **value.queues}
            return registry.build(value.model_copy(update={"queues": queues}))
        if not _schedules(value):
            raise ConfigError(
                f"{self.loaded.origin}: {self.name} is no policy; it needs a method schedule, or "
                "is an order: a function of job, plan and predict"
            )
        return complete(value)


def find_own(
    text: str,
    known: Mapping[str, PolicyConfig],
    queues: Mapping[str, QueueConfig],
    section: GuardSection | None = None,
) -> OwnPolicy | None:
    """The policy that `file.py:name` or the name of an installed one stands for, with the guard
    that may follow (`file.py:name@sjf`); None for a name that is known or nobody's. Runs that
    code, and raises ConfigError when it is no policy."""
    if text in known:
        return None
    text, guard = registry.guard_of(text, known or registry.NAMED, section)
    if text in known or not (is_file(text) or text in installed(GROUP)):
        return None
    loaded = load(text, GROUP)
    if guard is not None:
        guard = guard.model_copy(update={"candidate": loaded.name})
    own = OwnPolicy(loaded, dict(queues), guard)
    own.make()
    return own


class Guarded:
    """A policy of somebody's own that may raise: nothing of such a pass is left, and it is decided
    by another one instead. The next pass is its own again, so what follows depends on the state
    alone and a journal is decided the same when it is read back."""

    def __init__(
        self, own: OwnPolicy, otherwise: Policy, raised: Callable[[str], None] = lambda text: None
    ) -> None:
        self._own, self._otherwise, self._raised = own, otherwise, raised
        self._policy = own.make()
        self.prefers_estimates = bool(getattr(self._policy, "prefers_estimates", False))
        self.counts_hours = any(
            bool(getattr(one, "counts_hours", False)) for one in (self._policy, otherwise)
        )

    def schedule(self, plan: Plan, predict: Predictor) -> None:
        """Its own pass, else the other's."""
        try:
            with plan.attempt() as keep:
                self._policy.schedule(plan, predict)
                keep()
        except Exception as error:
            self._start_over(error)
            self._otherwise.schedule(plan, predict)

    def explain(self, job: Job, plan: Plan, predict: Predictor) -> Reason:
        """In its own words, else in the other's."""
        try:
            return self._policy.explain(job, plan, predict)
        except Exception as error:
            self._start_over(error)
            return self._otherwise.explain(job, plan, predict)

    def _start_over(self, error: Exception) -> None:
        """What it remembers may be half of something."""
        self._policy = self._own.make()
        self._raised(self._own.went_wrong(error))


def complete(policy: Schedules) -> Policy:
    """A policy that also explains."""
    return policy if hasattr(policy, "explain") else _Terse(policy)  # type: ignore[return-value]


class _Terse:
    """A policy that does not say why jobs wait."""

    def __init__(self, policy: Schedules) -> None:
        self.schedule: Callable[[Plan, Predictor], None] = policy.schedule
        self.prefers_estimates = bool(getattr(policy, "prefers_estimates", False))

    def explain(self, job: Job, plan: Plan, predict: Predictor) -> Reason:
        """All that can be said."""
        return Reason(ReasonCode.QUEUED_BEHIND, "the policy has not placed it yet")


def _schedules(value: Any) -> bool:
    return callable(getattr(value, "schedule", None))


def _is_order(value: Any) -> bool:
    """Whether it takes a job, a plan and a predictor."""
    if isinstance(value, type) or not callable(value) or _schedules(value):
        return False
    try:
        inspect.signature(value).bind(None, None, None)
    except (TypeError, ValueError):
        return False
    return True
