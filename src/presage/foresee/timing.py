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
from presage.foresee.steptime import LATEST, Operators, step_features
from presage.foresee.throughput import llm_step
from presage.learn import Floats
from presage.model.setup import Setup

__all__ = ["StepForecast", "step_time"]

_MEASURED_GPU = "rtx3090"
_MEASURED_PRECISION = "amp"
_FULL_MS = 300.0
"""Roofline of a step that fills a GPU, as all measured steps did: by which factor it is off is
asked at the batch that does, and taken over to a smaller one."""
_WIDER = 1.6
"""How much wider a step time's interval is, in logarithms, for a GPU or a precision that no
measured training step had."""


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
    alone, mattered = _step(graph, operators, batch, gpu)
    domain = Domain(0.5, "")
    if setup.inference:
        return StepForecast(alone, domain, mattered)
    whole = alone * setup.accumulate
    if setup.gpus > 1:
        whole = whole + _between(graph, gpu, setup, float(alone[1]))
    return StepForecast(whole, domain, mattered)


def _between(graph: OpGraph, gpu: Gpu, setup: Setup, alone_ms: float) -> float:
    """Milliseconds of a step that several GPUs lose to each other."""
    sent = data_parallel(
        graph.params, setup, gpu, alone_ms / 3, 2 * alone_ms / 3, float(graph.trainable)
    )
    return sent.exposed_ms


def _step(
    graph: OpGraph, operators: Operators, batch: int, gpu: Gpu
) -> tuple[Floats, dict[str, float]]:
    precision = str(graph.options.get("precision", "fp32"))
    if graph.options.get("inference"):
        return _inference(graph, batch, gpu, precision), {}
    model = estimators.step_time().graph
    row = np.append(step_features(operators, batch, gpu, precision), 0.0)
    base = row[0]
    if base < _FULL_MS:
        row = np.append(step_features(operators, batch * _FULL_MS / base, gpu, precision), 0.0)
    step = model.predict_interval(row[None, :])[0] * (base / row[0])
    wider = 1.0
    wider *= _WIDER if gpu.name != _MEASURED_GPU else 1.0
    wider *= _WIDER if precision != _MEASURED_PRECISION else 1.0
    return step[1] * (step / step[1]) ** wider, model.explain(row)


def _inference(graph: OpGraph, batch: int, gpu: Gpu, precision: str) -> Floats:
    peak = gpu.tflops("fp32" if precision == "fp32" else "fp16") * 1e12
    size = float(graph.inputs[0].shape[-1]) if graph.inputs else 224.0
    row = [
        graph.forward_macs() / 1e9,
        max(graph.activations(), 1.0) / 1e6,
        max(graph.params, 1) / 1e6,
        size,
        batch,
        peak,
        gpu.bandwidth_gbs * 1e9,
        0.0,
        0.0,
        float(precision == "bf16"),
        float(precision != "amp"),
        LATEST,
    ]
    step: Floats = estimators.step_time().infer.predict_interval(np.array([row]))[0]
    return step
