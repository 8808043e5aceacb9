"""From what people wish for, as they write it, to a plan: amounts are read, what is left open gets
its usual value, and wishes that make no sense are refused in one line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from presage.foresee.goals import TrainingGoal, amount_of, usual_global_batch
from presage.foresee.gpus import Gpu
from presage.foresee.graph.named import NamedModel
from presage.model.errors import UserError
from presage.model.setup import Setup

if TYPE_CHECKING:
    from presage.foresee.answer import Prediction
    from presage.foresee.planned import TrainingPlan

__all__ = ["PlanWish", "plan_wish", "usual_precision", "usual_seq"]

_USUAL_SEQ = 4096
_MOST_GPUS = 4096


@dataclass(frozen=True, slots=True)
class PlanWish:
    """What somebody wants to train; one of tokens, samples and epochs is given."""

    gpus: tuple[Gpu, ...]
    tokens: str | float | None = None
    samples: str | float | None = None
    epochs: float | None = None
    samples_per_epoch: str | float | None = None
    seq: int | None = None
    global_batch: int | None = None
    deadline_s: float | None = None
    budget_usd: float | None = None
    max_gpus: int = 64
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the set-up, as `Setup.make` takes them: what all ways have in common."""


def plan_wish(
    named: NamedModel,
    wish: PlanWish,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> TrainingPlan:
    """The plan of a wish."""
    if not wish.gpus:
        raise UserError("no GPU is named; `presage gpus` lists them")
    if not 1 <= wish.max_gpus <= _MOST_GPUS:
        raise UserError(f"max gpus: give 1 to {_MOST_GPUS:,} GPUs, not {wish.max_gpus}")
    base = _base(named, wish)
    goal = _goal(named, wish, base)
    from presage.foresee import predict
    from presage.foresee.plan import plan_training

    def ask(batch: int, gpus: Sequence[Gpu], setup: Setup) -> Prediction:
        return predict.predict_model(named, batch, gpus, setup, largest=False)

    return plan_training(
        ask,
        goal,
        wish.gpus,
        base,
        decoder=named.decoder,
        most_gpus=wish.max_gpus,
        progress=progress,
    )


def usual_precision(named: NamedModel) -> str:
    """For those who name none."""
    return "amp" if named.decoder is None else "amp-bf16"


def usual_seq(named: NamedModel) -> int | None:
    """Tokens of a sample, for those who name none; None where it is for the model to say."""
    return None if named.decoder is None else min(named.decoder.longest, _USUAL_SEQ)


def _base(named: NamedModel, wish: PlanWish) -> Setup:
    options = {name: value for name, value in wish.options.items() if value is not None}
    # Only some ways can move weights to the host: each is checked by itself.
    weights_too = options.get("offload") == "params"
    if weights_too:
        del options["offload"]
    base = Setup.make(
        **{"precision": usual_precision(named), **options},
        seq=wish.seq if wish.seq is not None else usual_seq(named),
    )
    if named.decoder is not None:
        base.check_for(named.decoder)
    return replace(base, offload="params") if weights_too else base


def _goal(named: NamedModel, wish: PlanWish, base: Setup) -> TrainingGoal:
    seq = base.seq
    if seq is None and wish.tokens is not None:
        seq = _length(named, base)
    samples = _samples(wish, seq)
    batch = wish.global_batch
    if batch is not None and not 1 <= batch <= samples:
        raise UserError(f"global batch: give 1 to {samples:,} samples, not {batch}")
    usd = wish.budget_usd
    if usd is not None and not 0 < usd <= 1e12:
        raise UserError(f"budget: give an amount of USD above 0, not {usd:g}")
    return TrainingGoal(
        samples=samples,
        global_batch=batch or usual_global_batch(samples, seq),
        seq=seq,
        deadline_s=wish.deadline_s,
        budget_usd=usd,
    )


def _length(named: NamedModel, base: Setup) -> int:
    """Tokens of a sample of a model that is no decoder."""
    inputs = named.graph(base).inputs
    if not inputs or len(inputs[0].shape) != 1:
        raise UserError(
            f"{named.name} does not read tokens: give samples, or epochs and samples per epoch"
        )
    return int(inputs[0].shape[0])


def _samples(wish: PlanWish, seq: int | None) -> int:
    given = [what for what in (wish.tokens, wish.samples, wish.epochs) if what is not None]
    if len(given) != 1:
        raise UserError(
            "say how much the training is to see, in one way: tokens (2B), samples (10M), or "
            "epochs with samples per epoch"
        )
    if wish.epochs is not None:
        if wish.samples_per_epoch is None:
            raise UserError("epochs need to know how long one is: add samples per epoch (1.28M)")
        if not 0 < wish.epochs <= 1e6:
            raise UserError(f"epochs: give a number above 0, not {wish.epochs:g}")
        one = amount_of(wish.samples_per_epoch, "samples per epoch")
        return max(1, round(wish.epochs * one))
    if wish.samples_per_epoch is not None:
        raise UserError("samples per epoch go with epochs: add epochs, or leave them out")
    if wish.samples is not None:
        return amount_of(wish.samples, "samples")
    assert wish.tokens is not None
    assert seq is not None
    return max(1, amount_of(wish.tokens, "tokens") // seq)
