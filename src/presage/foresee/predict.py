"""From a model, how it is run, a batch and GPUs to one answer: memory, utilization, time, money,
and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from math import erf, log, sqrt
from typing import Any

import numpy as np

from presage.foresee import estimators
from presage.foresee.answer import Domain, OnGpu, Prediction, Quantiles, Sharing
from presage.foresee.gpus import Gpu
from presage.foresee.graph.decoder_graph import decoder_length
from presage.foresee.graph.decoders import DecoderShape
from presage.foresee.graph.named import NamedModel
from presage.foresee.graph.opgraph import OpGraph
from presage.foresee.interference import JobAlone
from presage.foresee.memory import MemoryPhysics, largest_batch
from presage.foresee.prices import cost_of, price_of, price_source
from presage.foresee.steptime import Operators
from presage.foresee.timing import StepForecast, step_time
from presage.foresee.utilization import Features, profile_of
from presage.learn import Floats
from presage.model.errors import ConfigError, GraphError
from presage.model.setup import Setup

__all__ = ["chance_below", "predict_graph", "predict_model", "share", "verdict"]

_P90 = 1.2815515655446004
"""Standard deviations between the median and the 90 % quantile of a normal distribution."""


def predict_model(
    model: NamedModel,
    batch: int,
    gpus: Sequence[Gpu],
    setup: Setup,
    *,
    largest: bool = True,
) -> Prediction:
    """Foresee a model that is run as the set-up says, at a batch on some kinds of GPUs. To look
    for the largest batch that fits takes most of the time: without it, `max_batch` is 0."""
    assumed = []
    if model.decoder is not None and setup.seq is None:
        setup = replace(setup, seq=decoder_length(model.decoder, setup))
        assumed.append(f"{setup.seq:,} tokens a sample")
    for gpu in gpus:
        _check_gpu(gpu, setup)
    graph = model.graph(setup)
    answer = predict_graph(graph, batch, gpus, setup, model.decoder, largest=largest)
    said = setup.assumptions(language=model.decoder is not None)
    return replace(answer, assumptions=[*assumed, *said])


def _check_gpu(gpu: Gpu, setup: Setup) -> None:
    """Refuse what a kind of GPU cannot do at all."""
    if setup.precision == "fp8" and not gpu.fp8_tflops:
        raise ConfigError(f"{gpu.name} does not compute in fp8: use --precision bf16 or amp")


def predict_graph(
    graph: OpGraph,
    batch: int,
    gpus: Sequence[Gpu],
    setup: Setup | None = None,
    decoder: DecoderShape | None = None,
    *,
    largest: bool = True,
) -> Prediction:
    """Foresee a graph at a batch on some kinds of GPUs; a decoder's shape tells more of it."""
    if setup is None:
        said = ("optimizer", "precision", "inference")
        setup = Setup.make(**{name: graph.options.get(name) for name in said})
    if not len(graph):
        raise GraphError("the model computes nothing")
    physics = MemoryPhysics.of(graph, batch)
    operators = Operators.of(graph)
    answers = {}
    for gpu in gpus:
        time = step_time(graph, operators, batch, gpu, setup, decoder)
        answers[gpu.name] = _on(physics, gpu, setup, time, largest)
    macs = graph.forward_macs()
    return Prediction(
        name=graph.name,
        batch=batch,
        macs=macs,
        flops=2 * macs,
        params=decoder.params if decoder else graph.params,
        activations=graph.activations(),
        options=_options(graph, setup),
        gpus=answers,
        evidence=_evidence(graph, setup, gpus),
    )


def _options(graph: OpGraph, setup: Setup) -> dict[str, Any]:
    """How it is run, as plain values; what is left at its default is left out."""
    said = {f.name: getattr(setup, f.name) for f in fields(setup)}
    plain = {f.name: f.default for f in fields(setup)}
    always = ("optimizer", "precision", "inference")
    kept = {name: value for name, value in said.items() if name in always or value != plain[name]}
    kept |= {name: str(kept[name]) for name in ("parallel", "lora") if name in kept}
    return {**graph.options, **kept}


def _on(
    physics: MemoryPhysics, gpu: Gpu, setup: Setup, time: StepForecast, largest: bool
) -> OnGpu:
    graph, batch = physics.graph, int(physics.batch)
    estimator = estimators.memory().graph
    forecast = estimator.forecast(physics, gpu, setup)
    busy = estimators.utilization_of(Features.of([profile_of(graph, batch, gpu)]))[0]
    most = largest_batch(estimator, graph, gpu, setup) if largest else 0
    samples = batch * setup.accumulate * setup.data_parallel
    tokens = _tokens(graph, setup)
    per_s = 1e3 * samples / time.step_ms[::-1]
    counted = per_s * (tokens or 1)
    return OnGpu(
        memory_mib=Quantiles.of(forecast.shows),
        breakdown={name: round(size, 1) for name, size in forecast.parts.items()},
        gpu_util_pct=Quantiles.of(np.clip(busy, 0, 100)),
        step_ms=Quantiles.of(time.step_ms, 3),
        max_batch=most,
        **verdict(forecast.shows, gpu, most, batch),
        mattered={name: round(value, 3) for name, value in time.mattered.items()},
        chance_fits=round(chance_below(forecast.needs, float(gpu.usable_mib)), 3),
        samples_per_s=Quantiles.of(per_s, 2),
        tokens_per_s=Quantiles.of(counted) if tokens else None,
        domain=_joined(Domain(forecast.distance, forecast.words), time.domain),
        cost=cost_of(gpu, setup.gpus, float(counted[1]), "tokens" if tokens else "samples"),
    )


def _tokens(graph: OpGraph, setup: Setup) -> int:
    """Tokens of a sample; 0 for a model that does not read them."""
    if setup.seq:
        return setup.seq
    first = graph.inputs[0] if graph.inputs else None
    return first.shape[0] if first and first.dtype.startswith("int") and first.shape else 0


def _joined(memory: Domain, time: Domain) -> Domain:
    """The farther of both, with the words of each."""
    words = "; ".join(
        f"{what}: {one.words}" for what, one in (("memory", memory), ("time", time)) if one.words
    )
    return Domain(round(max(memory.distance, time.distance), 2), words)


def chance_below(quantiles: Sequence[float] | Floats, room: float) -> float:
    """The chance that something with these p10, p50, p90 is at most `room`: normal in logarithms,
    with a width for each side."""
    low, middle, high = (max(float(value), 1e-9) for value in quantiles)
    away = log(max(room, 1e-9) / middle)
    width = log(high / middle) if away > 0 else log(middle / low)
    return 0.5 * (1 + erf(away / max(width, 1e-9) * _P90 / sqrt(2)))


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


def _evidence(graph: OpGraph, setup: Setup, gpus: Sequence[Gpu]) -> list[str]:
    lines = [
        f"graph of {len(graph):,} operators, signature {graph.signature()}",
        *(f"{estimators.version(name)}" for name in ("memory", "step_time", "utilization")),
    ]
    if any(price_of(gpu) is not None for gpu in gpus):
        lines.append(price_source())
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
        util_low_pct=answer.gpu_util_pct.p10,
        util_high_pct=answer.gpu_util_pct.p90,
        memory_mib=answer.memory_mib.p50,
        step_ms=answer.step_ms.p50,
        batch=batch,
        params_m=graph.params / 1e6,
        step_gflop=2 * float(graph.at(graph.macs, batch).sum()) / 1e9,
        step_gbyte=4 * float(moved) / 1e9,
    )
