"""`presage.plan`: how a training should be run, by time, money and the chance that it fits.

`foresee` does the work; this turns what people write into what it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike, fspath
from typing import TYPE_CHECKING

from presage.foresee.gpus import Gpu, find
from presage.foresee.graph.load import find_model
from presage.foresee.graph.named import NamedModel
from presage.foresee.wishes import PlanWish, plan_wish
from presage.manifest.quantities import duration_s
from presage.model.errors import UserError
from presage.model.setup import LoraAdapter

if TYPE_CHECKING:
    from presage.foresee.planned import TrainingPlan

__all__ = ["USUAL_GPUS", "plan"]

USUAL_GPUS = ("a100-80g", "h100-80g", "l40s", "rtx4090")


def plan(
    model: str | PathLike[str] | NamedModel,
    inputs: str | None = None,
    *,
    tokens: str | float | None = None,
    samples: str | float | None = None,
    epochs: float | None = None,
    samples_per_epoch: str | float | None = None,
    seq: int | None = None,
    global_batch: int | None = None,
    deadline: str | float | None = None,
    budget: float | None = None,
    devices: str | Sequence[str] = USUAL_GPUS,
    max_gpus: int = 64,
    optimizer: str = "adamw",
    precision: str | None = None,
    lora: str | LoraAdapter | None = None,
    quant: str | None = None,
    loss: str | None = None,
    attention: str | None = None,
    offload: str | None = None,
    interconnect: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> TrainingPlan:
    """How to train a model: kinds and number of GPUs, sharding, checkpointing and micro-batch.

    Say how much it is to see: `tokens="2B"`, `samples="10M"`, or `epochs` with
    `samples_per_epoch`. A `deadline` (`"24h"`, or seconds) and a `budget` in USD choose among the
    ways; both hold at the 90 % quantile. Without a `precision`, decoder language models train with
    `amp-bf16` and others with `amp`.

        presage.plan("zoo:resnet50", epochs=90, samples_per_epoch="1.28M").best
    """
    wish = PlanWish(
        gpus=_kinds(devices),
        tokens=tokens,
        samples=samples,
        epochs=epochs,
        samples_per_epoch=samples_per_epoch,
        seq=seq,
        global_batch=global_batch,
        deadline_s=_deadline(deadline),
        budget_usd=budget,
        max_gpus=max_gpus,
        options={
            **{"optimizer": optimizer, "precision": precision, "lora": lora, "quant": quant},
            **{"loss": loss, "attention": attention, "offload": offload},
            "interconnect": interconnect,
        },
    )
    named = model if isinstance(model, NamedModel) else find_model(fspath(model), inputs=inputs)
    return plan_wish(named, wish, progress)


def _kinds(devices: str | Sequence[str]) -> tuple[Gpu, ...]:
    names = devices.split(",") if isinstance(devices, str) else devices
    return tuple(dict.fromkeys(find(name.strip()) for name in names if name.strip()))


def _deadline(text: str | float | None) -> float | None:
    if text is None:
        return None
    try:
        length_s = duration_s(text)
    except ValueError as wrong:
        raise UserError(f"deadline: {wrong}") from None
    if length_s <= 0:
        raise UserError(f"deadline: give a time above 0, such as 24h or 3d, not {text!r}")
    return length_s
