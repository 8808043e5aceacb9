"""Every way to spread a training that is worth a thought: GPU, how many, sharding, checkpointing
and micro-batch. What cannot be is counted by its reason. Nothing here predicts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from presage.foresee.goals import TrainingGoal
from presage.foresee.gpus import Gpu
from presage.foresee.graph.decoders import DecoderShape
from presage.model.errors import ConfigError
from presage.model.setup import Checkpointing, Parallelism, Setup, Sharding

__all__ = ["Candidate", "candidates", "gpu_counts"]

_SHARDINGS: tuple[Sharding, ...] = ("ddp", "zero1", "zero2", "fsdp", "zero3")
"""From the simplest on: of two that are equally good, the first is taken."""
_CHECKPOINTS: tuple[Checkpointing, ...] = ("none", "selective", "full")
_SPLITS = (1, 2, 4, 8)
_LONG = 16_384
"""Tokens of a sample from which on it is worth dividing among GPUs."""
_MOST_MICRO = 1024


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to train."""

    gpu: Gpu
    setup: Setup
    batch: int
    """Of one replica, in one go."""

    @property
    def fleet(self) -> tuple[str, int]:
        """Which GPUs, and how many."""
        return (self.gpu.name, self.setup.gpus)

    @property
    def kind(self) -> tuple[str, bool, bool, bool, bool, str]:
        """What it has in common with those whose estimate errs alike."""
        p = self.setup.parallel
        divided = (p.tensor > 1, p.pipeline > 1, p.context > 1, p.expert > 1)
        return (p.sharding, *divided, self.setup.checkpoint)


def gpu_counts(most: int) -> list[int]:
    """1, 2, 4, 8 and so on, and the most there can be."""
    counts = [1 << power for power in range(most.bit_length())]
    return counts if counts[-1] == most else [*counts, most]


def candidates(
    base: Setup,
    goal: TrainingGoal,
    gpus: Sequence[Gpu],
    counts: Sequence[int],
    decoder: DecoderShape | None,
    left_out: Counter[str],
) -> Iterator[Candidate]:
    """Every way; what cannot be is counted in `left_out`, once for each kind of GPU."""
    for count in counts:
        for parallel in _spreads(count, decoder, goal.seq or 0, left_out, len(gpus)):
            replicas = count // (parallel.tensor * parallel.pipeline * parallel.context)
            share, rest = divmod(goal.global_batch, replicas)
            if rest:
                why = f"{replicas} replicas do not divide a global batch of {goal.global_batch:,}"
                left_out[why] += len(gpus)
                continue
            spread = replace(base, gpus=count, parallel=parallel)
            if why := _refused(spread, decoder):
                left_out[why] += len(gpus)
                continue
            for batch in _micro_batches(share):
                if parallel.pipeline > share // batch:
                    left_out["fewer micro-batches than pipeline stages"] += len(gpus)
                    continue
                several = share // batch > 1
                divided = replace(parallel, sync=several and parallel.sharding == "fsdp")
                for checkpoint in _CHECKPOINTS:
                    setup = replace(
                        spread,
                        parallel=divided,
                        checkpoint=checkpoint,
                        accumulate=share // batch,
                    )
                    for gpu in gpus:
                        yield Candidate(gpu, setup, batch)


def _refused(setup: Setup, decoder: DecoderShape | None) -> str:
    """Why a set-up makes no sense, if it does not."""
    try:
        setup.check()
        if decoder is not None:
            setup.check_for(decoder)
    except ConfigError as refused:
        return str(refused)
    return ""


def _spreads(
    count: int, decoder: DecoderShape | None, seq: int, left_out: Counter[str], kinds: int
) -> Iterator[Parallelism]:
    if count == 1:
        yield Parallelism()
        return
    for sharding in _SHARDINGS:
        yield Parallelism(sharding)
    if decoder is None:
        return
    for tensor in _SPLITS:
        for pipeline in _SPLITS:
            split = tensor * pipeline
            if split == 1 or count % split:
                continue
            if decoder.heads % tensor:
                left_out[f"tp={tensor} does not divide the {decoder.heads} heads"] += kinds
            elif decoder.layers % pipeline:
                left_out[f"pp={pipeline} does not divide the {decoder.layers} layers"] += kinds
            else:
                optimizer: Sharding = "zero1" if count > split else "none"
                yield Parallelism(optimizer, tensor=tensor, pipeline=pipeline)
    yield from _long_samples(count, decoder, seq)
    yield from _experts(count, decoder)


def _long_samples(count: int, decoder: DecoderShape, seq: int) -> Iterator[Parallelism]:
    """Each sample divided among GPUs, by its tokens and perhaps by heads."""
    for context in _SPLITS[1:] if seq >= _LONG else ():
        for tensor in _SPLITS:
            split = context * tensor
            if count % split or seq % context or decoder.heads % tensor:
                continue
            optimizer: Sharding = "zero1" if count > split else "none"
            yield Parallelism(optimizer, tensor=tensor, context=context)


def _experts(count: int, decoder: DecoderShape) -> Iterator[Parallelism]:
    """Experts divided among the replicas, and perhaps all else by heads."""
    for expert in _SPLITS[1:] if decoder.expert_layers else ():
        for tensor in _SPLITS:
            divides = count % (expert * tensor) == 0 and decoder.experts % expert == 0
            if divides and decoder.heads % tensor == 0:
                yield Parallelism("zero1", tensor=tensor, expert=expert)


def _micro_batches(share: int) -> list[int]:
    """Divisors of a replica's share of the batch: powers of two, and the whole of it."""
    sizes = [1 << power for power in range(share.bit_length())]
    fitting = [size for size in sizes if size <= _MOST_MICRO and share % size == 0]
    if share not in fitting and share <= _MOST_MICRO:
        fitting.append(share)
    return fitting
