"""`presage.plan`: how a training should be run, by time, money and the chance that it fits.

`foresee` does the work; this turns what people write into what it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike, fspath
from typing import TYPE_CHECKING

from presage.foresee.goals import TrainingGoal, amount_of, usual_global_batch
from presage.foresee.gpus import Gpu, find
from presage.foresee.graph.load import find_model
from presage.foresee.graph.named import NamedModel
from presage.foresee.setup import LoraAdapter, Setup
from presage.manifest.quantities import duration_s
from presage.model.errors import UserError

if TYPE_CHECKING:
    from presage.foresee.answer import Prediction
    from presage.foresee.planned import TrainingPlan

__all__ = ["USUAL_GPUS", "plan"]

USUAL_GPUS = ("a100-80g", "h100-80g", "l40s", "rtx4090")
_USUAL_SEQ = 4096
_MOST_GPUS = 4096


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
    kinds = _kinds(devices)
    if not 1 <= max_gpus <= _MOST_GPUS:
        raise UserError(f"max_gpus: give 1 to {_MOST_GPUS:,} GPUs, not {max_gpus}")
    named = model if isinstance(model, NamedModel) else find_model(fspath(model), inputs=inputs)
    decoder = named.decoder
    usual = "amp" if decoder is None else "amp-bf16"
    if decoder is not None and seq is None:
        seq = min(decoder.longest, _USUAL_SEQ)
    base = Setup.make(
        optimizer=optimizer,
        precision=precision or usual,
        seq=seq,
        lora=lora,
        quant=quant,
        loss=loss,
        attention=attention,
        offload=None if offload == "params" else offload,
        interconnect=interconnect,
    )
    if offload == "params":  # which only some of the ways can do: each is checked by itself
        base = replace(base, offload="params")
    if decoder is not None:
        base.check_for(decoder)
    length = seq if seq is not None or tokens is None else _length(named, base)
    wanted = _samples(tokens, samples, epochs, samples_per_epoch, length)
    if global_batch is not None and not 1 <= global_batch <= wanted:
        raise UserError(f"global_batch: give 1 to {wanted:,} samples, not {global_batch}")
    goal = TrainingGoal(
        samples=wanted,
        global_batch=global_batch or usual_global_batch(wanted, length),
        seq=length,
        deadline_s=_deadline(deadline),
        budget_usd=_budget(budget),
    )
    from presage.foresee.plan import plan_training
    from presage.foresee.predict import predict_model

    def ask(batch: int, gpus: Sequence[Gpu], setup: Setup) -> Prediction:
        return predict_model(named, batch, gpus, setup)

    return plan_training(
        ask, goal, kinds, base, decoder=decoder, most_gpus=max_gpus, progress=progress
    )


def _kinds(devices: str | Sequence[str]) -> list[Gpu]:
    names = devices.split(",") if isinstance(devices, str) else devices
    kinds = list(dict.fromkeys(find(name.strip()) for name in names if name.strip()))
    if not kinds:
        raise UserError("no GPU is named; `presage gpus` lists them")
    return kinds


def _length(named: NamedModel, base: Setup) -> int:
    """Tokens of a sample of a model that is no decoder."""
    inputs = named.graph(base).inputs
    if not inputs or len(inputs[0].shape) != 1:
        raise UserError(
            f"{named.name} does not read tokens: give samples, or epochs and samples per epoch"
        )
    return int(inputs[0].shape[0])


def _samples(
    tokens: str | float | None,
    samples: str | float | None,
    epochs: float | None,
    samples_per_epoch: str | float | None,
    seq: int | None,
) -> int:
    given = [what for what in (tokens, samples, epochs) if what is not None]
    if len(given) != 1:
        raise UserError(
            "say how much the training is to see, in one way: tokens (2B), samples (10M), or "
            "epochs with samples per epoch"
        )
    if epochs is not None:
        if samples_per_epoch is None:
            raise UserError("epochs need to know how long one is: add samples per epoch (1.28M)")
        if not 0 < epochs <= 1e6:
            raise UserError(f"epochs: give a number above 0, not {epochs:g}")
        return max(1, round(epochs * amount_of(samples_per_epoch, "samples per epoch")))
    if samples_per_epoch is not None:
        raise UserError("samples per epoch go with epochs: add epochs, or leave them out")
    if samples is not None:
        return amount_of(samples, "samples")
    assert tokens is not None
    assert seq is not None
    return max(1, amount_of(tokens, "tokens") // seq)


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


def _budget(usd: float | None) -> float | None:
    if usd is not None and not 0 < usd <= 1e12:
        raise UserError(f"budget: give an amount of USD above 0, not {usd:g}")
    return usd
