"""The YAML schema of policies, queues and the simulated world's behaviour, checked at the edge.

Unknown keys and wrong values are refused with one line that names the place and the nearest valid
key.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from presage.model.errors import ConfigError

__all__ = [
    "ConfigFile",
    "OrderName",
    "PlacementName",
    "PolicyConfig",
    "QueueConfig",
    "load_config_file",
]

OrderName = Literal["fifo", "sjf", "srtf", "qssf", "tiresias", "priority", "fair_share"]
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
]
Positive = Annotated[float, Field(gt=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class QueueConfig(_Strict):
    """What one queue may hold."""

    quota_gpus: Annotated[float, Field(ge=0)] | None = None
    borrow: bool = True
    limit_gpus: Annotated[float, Field(ge=0)] | None = None
    weight: Positive = 1.0


class PolicyConfig(_Strict):
    """A pipeline: one choice per part."""

    order: OrderName = "fifo"
    threshold_gpu_s: Positive = 18_000.0
    round_s: Positive = 60.0
    mode: Literal["strict", "greedy"] = "strict"
    backfill: bool = False
    backfill_depth: Annotated[int, Field(ge=1)] = 100
    placement: PlacementName | dict[PlacementName, Positive] = "pack"
    topology_levels: tuple[str, ...] = ("rack", "area")
    gang: bool = True
    preempt: Literal["none", "rank", "order", "priority", "quota"] = "none"
    elastic: bool = False
    max_jobs_per_gpu: Annotated[int, Field(ge=1)] | None = None
    queues: dict[str, QueueConfig] = {}

    @model_validator(mode="after")
    def _parts_go_together(self) -> PolicyConfig:
        if self.preempt == "rank" and (self.elastic or self.backfill or not self.gang):
            raise ValueError("preempt: rank goes with neither elastic, backfill nor gang: false")
        return self


class ConfigFile(_Strict):
    """A configuration file: named pipelines, the queues they all share, and how a simulated world
    behaves (which is not for policies to know)."""

    policies: dict[str, PolicyConfig] = {}
    queues: dict[str, QueueConfig] = {}
    world: dict[str, Any] = {}


def load_config_file(path: Path) -> ConfigFile:
    """Read and check a file; every problem is one ConfigError that names the line or the key."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {_first_line(error)}") from None
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "not YAML"
        raise ConfigError(f"{path}{where}: {problem}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path} line 1: expected a mapping with the key 'policies'")
    try:
        return ConfigFile.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_explain(path, text, error)) from None


def _explain(path: Path, text: str, error: ValidationError) -> str:
    first: Any = error.errors()[0]
    place = [str(part) for part in first["loc"]]
    line = _line_of(text, place)
    where = f"{path}{f' line {line}' if line else ''}: {'.'.join(place)}"
    if first["type"] != "extra_forbidden":
        return f"{where}: {first['msg'].lower()}"
    keys = sorted(_keys_beside(place))
    near = get_close_matches(place[-1], keys, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"known keys: {', '.join(keys)}"
    return f"{where}: unknown key; {hint}"


def _keys_beside(place: list[str]) -> set[str]:
    if len(place) == 1:
        return set(ConfigFile.model_fields)
    is_queue = place[0] == "queues" or (len(place) > 3 and place[2] == "queues")
    return set((QueueConfig if is_queue else PolicyConfig).model_fields)


def _line_of(text: str, place: list[str]) -> int | None:
    """The line of a key in a YAML text, following its path."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    line = None
    for part in place:
        if not isinstance(node, yaml.MappingNode):
            break
        for key, value in node.value:
            if key.value == part:
                line, node = key.start_mark.line + 1, value
                break
        else:
            break
    return line


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
