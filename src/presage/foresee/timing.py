"""How long a step of a whole set-up takes: micro-batches, the optimizer, and what the GPUs tell
each other. One GPU's part comes from `steptime`, a decoder language model's from `throughput`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from presage.foresee import estimators
from presage.foresee.answer import Domain
from presage.foresee.communication import data_parallel
from presage.foresee.gpus import Gpu
from presage.foresee.graph.decoders import DecoderShape
from presage.foresee.graph.opgraph import OpGraph
from presage.foresee.steptime import Operators
from presage.foresee.throughput import llm_step
from presage.learn import Floats
from presage.model.setup import Setup

__all__ = ["StepForecast", "step_time"]


@dataclass(frozen=True, slots=True)
class StepForecast:
    """A foreseen step: from one update of the weights to the next, or one inference."""

    step_ms: Floats
    """p10, p50, p90."""
    domain: Domain
    mattered: dict[str, float] = field(default_factory=dict)


def step_time(
    graph: OpGraph,
    operators: Operators,
    batch: int,
    gpu: Gpu,
    setup: Setup,
    decoder: DecoderShape | None = None,
) -> StepForecast:
    """The step of a set-up on one kind of GPU."""
    if decoder is not None and not setup.inference:
        step = llm_step(decoder, setup, batch, gpu)
        words = "; ".join(step.why) or "like published trainings"
        return StepForecast(1e3 * np.array(step.step_s), Domain(step.domain, words))
    model = estimators.step_time().graph
    alone = model.quantiles(operators, batch, gpu, setup)
    domain = Domain(*model.domain(operators, batch, gpu, setup))
    mattered = model.mattered(operators, batch, gpu, setup)
    if setup.gpus > 1 and not setup.inference:
        alone = alone + _between(graph, gpu, setup, float(alone[1]) / setup.accumulate)
    return StepForecast(alone, domain, mattered)


def _between(graph: OpGraph, gpu: Gpu, setup: Setup, micro_ms: float) -> float:
    """Milliseconds of a step that several GPUs lose to each other: of a micro-batch, a third is
    forward and two thirds are backward."""
    sent = data_parallel(
        graph.params, setup, gpu, micro_ms / 3, 2 * micro_ms / 3, float(graph.trainable)
    )
    return sent.exposed_ms
