"""How far memory of a decoder language model may be from what its graph says, by how it is run.

The constants are computed by `python -m benchmarks.foresee_llm_memory`, which prints them with
their coverage: half widths of 80 % intervals in logarithms, from published figures with each
source left out by turns. What nobody published widens them. Nothing is fitted here.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from presage.foresee.graph.decoders import DecoderShape
from presage.model.setup import Setup

__all__ = ["HALF_WIDTH", "DecoderSpread", "decoder_spread", "technique_difficulty"]

HALF_WIDTH = 0.052
"""Of training with whole weights on one GPU: 112 figures of four sources give 0.047 where what
their code does is asked too, and 0.057 where it is not (`--plain`)."""
_QUANTISED = 2.0
_SEVERAL_GPUS = 4.0
"""What frameworks add there is theirs: buckets, copies of gradients, which rank was looked at."""
_WIDEN = 3.0
"""By how much the width grows up to a distance of 1."""
_ALIKE = {"zero1", "fsdp", "none"}


@dataclass(frozen=True, slots=True)
class DecoderSpread:
    """Width of an 80 % interval around the median, and why."""

    half_width: float
    """In logarithms."""
    distance: float
    """From what was published: 0 for the same techniques, up to 1."""
    words: str


def technique_difficulty(setup: Setup) -> float:
    """How many times wider than on one GPU with whole weights."""
    wide = _SEVERAL_GPUS if setup.gpus > 1 else 1.0
    return max(wide, _QUANTISED) if setup.quant != "none" else wide


def decoder_spread(shape: DecoderShape, setup: Setup) -> DecoderSpread:
    """The interval of a model under a set-up."""
    far = [(share, name) for share, name in _unpublished(shape, setup) if share]
    distance = 1 - prod(1 - share for share, _ in far)
    width = HALF_WIDTH * technique_difficulty(setup) * (1 + _WIDEN * distance)
    words = "like published trainings"
    if far:
        words = "no published figures for " + ", ".join(name for _, name in far)
    return DecoderSpread(width, round(distance, 3), words)


def _unpublished(shape: DecoderShape, setup: Setup) -> list[tuple[float, str]]:
    """What no figure was published with, each with how much it takes away."""
    p = setup.parallel
    return [
        (0.3 * bool(shape.experts), "mixtures of experts"),
        (0.3 * bool(shape.kv_rank), "latent attention"),
        (0.3 * (setup.precision == "fp8"), "fp8"),
        (0.2 * (setup.precision in ("fp32", "tf32")), setup.precision),
        (0.3 * (setup.quant == "int8"), "int8 weights"),
        (0.3 * (setup.offload == "optimizer"), "an offloaded optimizer"),
        (0.4 * (setup.offload == "params"), "offloaded weights"),
        (0.2 * (setup.checkpoint == "selective"), "selective checkpointing"),
        (0.3 * (p.context > 1), "context parallelism"),
        (0.2 * (p.interleave > 1), "interleaved stages"),
        (0.2 * p.sequence, "sequence parallelism"),
        (0.2 * (p.sharding not in _ALIKE), p.sharding),
        (
            0.2 * (p.tensor * p.pipeline > 1 and setup.lora is not None),
            "adapters on divided layers",
        ),
        (0.5 * setup.inference, "inference"),
    ]
