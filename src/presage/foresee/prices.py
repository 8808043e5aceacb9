"""What GPUs cost: a list of typical prices that people replace with theirs.

The list is in `prices.yaml` beside this file, with its sources. People give their own in a file of
the same form: `$PRESAGE_PRICES`, else `~/.config/presage/prices.yaml`. Nothing here predicts, and
nothing asks a cloud: a GPU without a price has no cost.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from presage.edge import read_yaml
from presage.foresee import gpus
from presage.foresee.answer import Cost
from presage.foresee.gpus import Gpu
from presage.model.errors import ConfigError

__all__ = ["cost_of", "price_list", "price_of", "price_source", "prices_file"]

_SHIPPED = Path(__file__).with_name("prices.yaml")


def price_of(gpu: Gpu) -> float | None:
    """USD for an hour of one; None if nobody said."""
    return price_list().get(gpu.name)


def cost_of(gpu: Gpu, count: int, per_s: float, unit: str = "samples") -> Cost | None:
    """What `count` GPUs cost that get through `per_s` samples or tokens a second together; None
    without a price."""
    price = price_of(gpu)
    if price is None or per_s <= 0:
        return None
    hour = price * count
    return Cost(round(hour, 4), round(hour / (per_s * 3600) * 1e6, 6), unit)


def price_list() -> dict[str, float]:
    """USD for an hour of one GPU, by its name in the catalogue; those of people come last and
    replace the shipped ones."""
    own = prices_file()
    return {**_shipped(), **(_read(own) if own is not None else {})}


def price_source() -> str:
    """Where the prices are from, in words."""
    own = prices_file()
    return f"prices: {own}" if own is not None else "prices: typical list prices of public clouds"


def prices_file() -> Path | None:
    """The file of own prices that is read on this machine, if there is one."""
    if named := os.environ.get("PRESAGE_PRICES"):
        return Path(named)
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    path = Path(home).expanduser() / "presage" / "prices.yaml"
    return path if path.is_file() else None


class _PriceFile(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid")

    usd_per_gpu_hour: dict[str, Annotated[float, Field(gt=0, le=1e5, allow_inf_nan=False)]]


@cache
def _shipped() -> dict[str, float]:
    return _read(_SHIPPED)


def _read(path: Path) -> dict[str, float]:
    """Prices by the catalogue's names; a file may use any alias."""
    prices: dict[str, float] = {}
    for name, price in read_yaml(path, _PriceFile, ConfigError).usd_per_gpu_hour.items():
        try:
            known = gpus.find(name).name
        except ConfigError as unknown:
            raise ConfigError(f"{path}: {unknown}") from None
        if known in prices:
            raise ConfigError(f"{path}: {name!r} is {known}, which has a price already; keep one")
        prices[known] = price
    return prices
