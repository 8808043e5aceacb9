"""From a graph, a batch and GPUs to one answer: memory, utilization, step time, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from presage.foresee import estimators
from presage.foresee.answer import OnGpu, Prediction, Quantiles, Sharing
from presage.foresee.gpus import Gpu
from presage.foresee.graph.named import NamedModel
from presage.foresee.graph.opgraph import CONVOLUTIONS, KINDS, OpGraph, input_elements
from presage.foresee.interference import JobAlone
from presage.foresee.memory import MemoryForecast, MemoryPhysics, largest_batch
from presage.model.setup import Setup
from presage.foresee.steptime import LATEST, Operators, step_features
from presage.foresee.utilization import Features, InputPipeline, LayerClass, TrainingProfile
from presage.learn import Floats
from presage.model.errors import GraphError

__all__ = ["predict_graph", "predict_model", "share", "verdict"]

_MEASURED_GPU = "rtx3090"
_MEASURED_PRECISION = "amp"
_FULL_MS = 300.0
"""Roofline of a step that fills a GPU, as all measured steps did: by which factor it is off is
asked at the batch that does, and taken over to a smaller one."""
_WIDER = 1.6
"""How much wider a step time's interval is, in logarithms, for a GPU or a precision that no
measured training step had."""


def predict_model(model: NamedModel, batch: int, gpus: Sequence[Gpu], setup: Setup) -> Prediction:
    """Foresee a model that is run as the set-up says, at a batch on some kinds of GPUs."""
    return predict_graph(model.graph(setup), batch, gpus, setup)


def predict_graph(
    graph: OpGraph, batch: int, gpus: Sequence[Gpu], setup: Setup | None = None
) -> Prediction:
    """Foresee a graph at a batch on some GPUs."""
    setup = setup or Setup(inference=bool(graph.options.get("inference")))
    if not len(graph):
        raise GraphError("the model computes nothing")
    physics = MemoryPhysics.of(graph, batch)
    estimator = estimators.memory().graph
    operators = Operators.of(graph)
    answers = {}
    for gpu in gpus:
        step, mattered = _step(graph, operators, batch, gpu)
        memory = estimator.forecast(physics, gpu, setup)
        answers[gpu.name] = _on(graph, batch, gpu, setup, memory, step, mattered)
    macs = graph.forward_macs()
    return Prediction(
        name=graph.name,
        batch=batch,
        macs=macs,
        flops=2 * macs,
        params=graph.params,
        activations=graph.activations(),
        options=dict(graph.options),
        gpus=answers,
        evidence=_evidence(graph, gpus),
    )


def _on(
    graph: OpGraph,
    batch: int,
    gpu: Gpu,
    setup: Setup,
    forecast: MemoryForecast,
    step: Floats,
    mattered: dict[str, float],
) -> OnGpu:
    job = Features.of([_workload(graph, batch, gpu)])
    busy = estimators.utilization().predict_interval(job)[0]
    most = largest_batch(estimators.memory().graph, graph, gpu, setup)
    memory = forecast.shows
    return OnGpu(
        memory_mib=Quantiles.of(memory),
        breakdown={name: round(size, 1) for name, size in forecast.parts.items()},
        gpu_util_pct=Quantiles.of(np.clip(busy, 0, 100)),
        step_ms=Quantiles.of(step, 3),
        max_batch=most,
        **verdict(memory, gpu, most, batch),
        mattered={name: round(value, 3) for name, value in mattered.items()},
    )


def verdict(memory: Sequence[float] | Floats, gpu: Gpu, most: int, batch: int) -> dict[str, Any]:
    """Whether quantiles of memory fit: the fields `fits`, `headroom_mib` and `reason`."""
    room = float(gpu.usable_mib)
    return {
        "fits": bool(memory[2] <= room),
        "headroom_mib": round(room - float(memory[2]), 1),
        "reason": _reason(memory, room, most, batch),
    }


def _reason(memory: Sequence[float] | Floats, room: float, most: int, batch: int) -> str:
    need = f"{memory[2] / 1024:.1f} of {room / 1024:.1f} GiB at the 90 % quantile"
    if memory[2] <= room:
        return f"fits: {need}; batch up to {most:,}"
    if memory[0] <= room:
        return f"may not fit: {need}, {memory[1] / 1024:.1f} at the median; batch {most:,} is safe"
    less = f"batch {most:,} would" if most else "not even one sample would"
    return f"does not fit: {need}; {less} of the {batch:,} asked"


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


def _workload(graph: OpGraph, batch: int, gpu: Gpu) -> TrainingProfile:
    forward = np.flatnonzero(graph.phase == 0)
    kinds = np.full(len(KINDS), int(LayerClass.OTHER))
    for name in CONVOLUTIONS:
        kinds[KINDS.index(name)] = LayerClass.CONV
    for name in ("linear", "matmul", "attention", "recurrent"):
        kinds[KINDS.index(name)] = LayerClass.LINEAR
    kinds[KINDS.index("activation")] = LayerClass.ACTIVATION
    image = bool(graph.inputs) and len(graph.inputs[0].shape) == 3
    return TrainingProfile(
        batch=batch,
        input_elements=float(max(1, input_elements(graph.inputs))),
        kinds=kinds[graph.kind[forward]].astype(np.intp),
        macs=graph.macs[forward, 1],
        activations=graph.written[forward, 1],
        params=graph.weights[forward],
        gpu=gpu,
        pipeline=InputPipeline.IMAGES if image else InputPipeline.VECTORS,
        half_precision=graph.options.get("precision") != "fp32",
    )


def _evidence(graph: OpGraph, gpus: Sequence[Gpu]) -> list[str]:
    lines = [
        f"graph of {len(graph):,} operators, signature {graph.signature()}",
        f"{estimators.version('memory')}: learned on an A100; the floor of others from a table",
        f"{estimators.version('step_time')}: training measured on an RTX 3090 with amp, inference "
        "on four GPUs; others follow their specifications, with a wider interval",
        f"{estimators.version('utilization')}: measured on an A100, other GPUs by specification",
    ]
    if graph.options.get("inference"):
        lines.append("memory and utilization of inference rest on measured training runs")
    return lines + list(graph.notes)


def share(first: OpGraph, second: OpGraph, batches: tuple[int, int], gpu: Gpu) -> Sharing:
    """Foresee two graphs side by side on a GPU."""
    jobs = [_alone(g, b, gpu) for g, b in zip((first, second), batches, strict=True)]
    model = estimators.interference()
    speeds = [model.speed(jobs[0], [jobs[1]], gpu), model.speed(jobs[1], [jobs[0]], gpu)]
    cannot = float(estimators.sharing_limit().cannot_share(jobs, gpu))
    need = sum(job.memory_mib for job in jobs)
    room = gpu.usable_mib
    if need > room or cannot > 0.5:
        reason = f"should not share: {need / 1024:.1f} of {room / 1024:.1f} GiB together"
    else:
        slow = min(speed.p50 for speed in speeds)
        reason = f"may share: the slower one keeps about {100 * min(slow, 1):.0f} % of its speed"
    first_speed, second_speed = (
        Quantiles(*(round(v, 3) for v in (s.p10, s.p50, s.p90))) for s in speeds
    )
    return Sharing(first_speed, second_speed, round(cannot, 3), reason)


def _alone(graph: OpGraph, batch: int, gpu: Gpu) -> JobAlone:
    answer = predict_graph(graph, batch, [gpu]).gpus[gpu.name]
    moved = graph.at(graph.read, batch).sum() + graph.at(graph.written, batch).sum()
    return JobAlone(
        util_pct=answer.gpu_util_pct.p50,
        memory_mib=answer.memory_mib.p50,
        step_ms=answer.step_ms.p50,
        batch=batch,
        params_m=graph.params / 1e6,
        step_gflop=2 * float(graph.at(graph.macs, batch).sum()) / 1e9,
        step_gbyte=4 * float(moved) / 1e9,
    )
