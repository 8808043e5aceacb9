"""The schema of policies and queues in a configuration file; `presage.edge` reads the file."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from presage.policy.budget import Period

__all__ = [
    "ConfigFile",
    "GuardConfig",
    "GuardSection",
    "LearnedConfig",
    "OrderName",
    "PlacementName",
    "PolicyConfig",
    "QueueConfig",
    "RemedyName",
]

OrderName = Literal[
    "fifo", "sjf", "srtf", "qssf", "tiresias", "priority", "fair_share", "utilization"
]
PlacementName = Literal[
    "pack",
    "spread",
    "topology",
    "best_fit",
    "dot_product",
    "gpu_clustering",
    "gpu_packing",
    "fgd",
    "random",
    "links",
]
RemedyName = Literal["checkpoint", "restart", "cordon", "memory"]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Slowdown = Annotated[float, Field(ge=1, allow_inf_nan=False)]
Weights = Annotated[dict[PlacementName, Positive], Field(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _duration(value: object) -> object:
    """`90s`, `2h`, `1h30m` as seconds; a number is seconds."""
    parts = _PART.findall(value) if isinstance(value, str) else []
    if not parts or "".join(map("".join, parts)) != value:
        return value
    return sum(float(number) * _UNIT_S[unit] for number, unit in parts)


_PART = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(s|m|h|d)")
_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


class GpuShareConfig(_Strict):
    """What the workers of a queue get that ask for a share of a GPU and leave it out."""

    request: Annotated[float, Field(ge=0.01, le=1)] | None = None
    limit: Annotated[float, Field(gt=0, le=1)] | None = None
    memory: Annotated[str, Field(pattern=r"^\d{1,6}(\.\d{1,3})?[KMGT]i?$")] | None = None
    hard: bool = True
    """Whether limits hold when nobody else wants the GPU, too."""
    weight: Positive = 1.0
    """Of what nobody's request covers, those who want more get parts by their weights."""

    @model_validator(mode="after")
    def _request_within_limit(self) -> GpuShareConfig:
        if self.request is not None and self.limit is not None and self.request > self.limit:
            raise ValueError(f"limit is below the request of {self.request:g}")
        return self


class QueueConfig(_Strict):
    """What one queue may hold."""

    quota_gpus: Annotated[float, Field(ge=0)] | None = None
    borrow: bool = True
    limit_gpus: Annotated[float, Field(ge=0)] | None = None
    weight: Positive = 1.0
    max_slowdown: Slowdown | None = None
    idle_stop: Annotated[Positive, BeforeValidator(_duration)] | None = None
    """Seconds after which an interactive job that nobody uses is stopped."""
    quota_cpus: Amount | None = None
    limit_cpus: Amount | None = None
    gpu_hours: Amount | None = None
    user_gpu_hours: Amount | None = None
    team_gpu_hours: Amount | None = None
    period: Period = Period.MONTH
    remedies: tuple[RemedyName, ...] = ()
    """What may be done about jobs in trouble without asking anybody."""
    remedy_precision: Annotated[float, Field(ge=0.9, lt=1)] = 0.95
    """Nothing is done about trouble that is less likely than this."""
    gpu: GpuShareConfig = GpuShareConfig()
    """Of shares of GPUs that are enforced."""


class LearnedConfig(_Strict):
    """A learned policy: where its bundle is, and which it must be."""

    bundle: str
    name: str = ""
    version: str = ""
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class GuardSection(_Strict):
    """How a guarded policy is looked at; `core.guard.GuardRules` says what each is."""

    every: Annotated[Positive, BeforeValidator(_duration)] = 3600.0
    margin: Annotated[float, Field(ge=0, le=1)] = 0.01
    margin_p99: Annotated[float, Field(ge=0, le=10)] = 0.1
    harm: Annotated[float, Field(ge=0, le=1)] = 0.01
    draws: Annotated[int, Field(ge=1, le=1000)] = 8
    ahead: Annotated[Positive, BeforeValidator(_duration)] = 86_400.0


class GuardConfig(GuardSection):
    """Who decides while a policy is not trusted, and when it is."""

    candidate: str = "the candidate"
    """What the guarded policy is called."""
    name: str = "its fallback"
    """What the fallback is called."""
    fallback: PolicyConfig


class PolicyConfig(_Strict):
    """A pipeline: one choice per part."""

    order: OrderName = "fifo"
    threshold_gpu_s: Positive = 18_000.0
    round_s: Positive = 60.0
    mode: Literal["strict", "greedy"] = "strict"
    backfill: bool = False
    backfill_depth: Annotated[int, Field(ge=1)] = 100
    placement: PlacementName | Weights = "pack"
    topology_levels: tuple[str, ...] = ("rack", "area")
    gang: bool = True
    preempt: Literal["none", "rank", "order", "priority", "quota"] = "none"
    elastic: bool = False
    shrink_after_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    grow_after_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    grow_by: Literal["gain", "fewest"] = "gain"
    resize_cost_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    max_jobs_per_gpu: Annotated[int, Field(ge=1)] | None = None
    colocate: bool = False
    max_slowdown: Slowdown = 1.5
    idle_worth: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.03
    profile_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    profile_gpus: Annotated[int, Field(ge=0)] = 0
    move_gain_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    learned: LearnedConfig | None = None
    """Decides who starts, who grows or who shares, as its bundle says."""
    queues: dict[str, QueueConfig] = {}
    guard: GuardConfig | None = None

    @model_validator(mode="after")
    def _parts_go_together(self) -> PolicyConfig:
        if self.preempt == "rank" and (self.elastic or self.backfill or not self.gang):
            raise ValueError("preempt: rank goes with neither elastic, backfill nor gang: false")
        if (self.shrink_after_s or self.grow_after_s) and not self.elastic:
            raise ValueError("shrink_after_s and grow_after_s need elastic: true")
        if self.colocate and (self.preempt != "none" or self.elastic or self.backfill):
            raise ValueError("colocate goes with neither preempt, elastic nor backfill")
        if self.colocate and (not self.gang or self.order in ("tiresias", "fair_share")):
            raise ValueError("colocate goes with neither gang: false nor that order")
        if self.resize_cost_s and not (self.elastic and self.grow_by == "gain"):
            raise ValueError("resize_cost_s needs elastic: true and grow_by: gain")
        if self.guard is not None and self.guard.fallback.guard is not None:
            raise ValueError("the fallback of a guard has no guard of its own")
        return self


GuardConfig.model_rebuild()
PolicyConfig.model_rebuild()


class ConfigFile(_Strict):
    """A configuration file: named pipelines, the queues they all share, and how those are looked
    at whose name has a guard (`mine@sjf`)."""

    policies: dict[str, PolicyConfig] = {}
    guard: GuardSection = GuardSection()
    queues: dict[str, QueueConfig] = {}
