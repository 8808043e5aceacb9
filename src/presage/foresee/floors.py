"""What a process holds on a GPU before its first tensor: the driver's context and kernels.

It differs by GPU, driver and framework, so it is a small table with its spread (`floors.yaml`,
which names who measured what). The first own run on a machine replaces it. Nothing here knows a
model, and nothing asks a driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from presage.edge import read_yaml
from presage.foresee.gpus import Gpu
from presage.model.errors import ConfigError, UserError

__all__ = ["FRAMEWORKS", "Floor", "floor_mib", "own_floor_mib"]

_FILE = Path(__file__).with_name("floors.yaml")
FRAMEWORKS = ("pytorch", "pytorch-eager", "cuda", "other")
"""`pytorch-eager` loads all kernels at once, as before CUDA 11.7; `cuda` has no framework."""
_RUN_TO_RUN = 0.04
"""By how much runs on one machine differ, as a share: which libraries a model brings in."""


class Floor(NamedTuple):
    """MiB at 10, 50 and 90 %."""

    p10: float
    p50: float
    p90: float


def floor_mib(gpu: Gpu, framework: str = "pytorch", measured: Sequence[float] = ()) -> Floor:
    """The floor of a process on a GPU; `measured` are floors of own runs on that machine, which
    count instead of the table."""
    if len(measured):
        return own_floor_mib(measured)
    table = _table()
    if framework not in table.kernels_mib:
        known = ", ".join(table.kernels_mib)
        raise UserError(f"unknown framework '{framework}': one of {known}")
    context = table.context_mib.fixed + table.context_mib.each_sm * gpu.sms
    low, middle, high = table.kernels_mib[framework]
    # both are seldom extreme together: deviations add up like those of independent errors
    below = np.hypot(context * (1 - table.context_mib.low), middle - low)
    above = np.hypot(context * (table.context_mib.high - 1), high - middle)
    centre = context + middle
    return Floor(float(max(centre - below, 0.0)), float(centre), float(centre + above))


def own_floor_mib(measured: Sequence[float]) -> Floor:
    """The floor of a machine from what own runs on it showed before their first tensor: the more
    there are, the closer to their spread alone."""
    seen = np.asarray(measured, np.float64)
    if not seen.size or not np.all(np.isfinite(seen)) or (seen < 0).any():
        raise UserError("measured floors are MiB from 0 up, one at least")
    centre = float(np.median(seen))
    spread = centre * _RUN_TO_RUN * np.sqrt(1 + 1 / seen.size)
    low, high = np.quantile(seen, [0.1, 0.9])
    return Floor(
        float(max(min(low, centre - spread), 0.0)), centre, float(max(high, centre + spread))
    )


class _Context(BaseModel):
    """What the driver takes."""

    model_config = ConfigDict(extra="forbid")

    fixed: float = Field(ge=0)
    each_sm: float = Field(gt=0)
    low: float = Field(gt=0, le=1)
    high: float = Field(ge=1)


class _FloorFile(BaseModel):
    """The whole table."""

    model_config = ConfigDict(extra="forbid")

    context_mib: _Context
    kernels_mib: dict[str, tuple[float, float, float]]


@cache
def _table() -> _FloorFile:
    return read_yaml(_FILE, _FloorFile, ConfigError)
