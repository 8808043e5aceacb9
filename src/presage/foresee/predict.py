"""From a model, how it is run, a batch and GPUs to one answer: memory, utilization, time, money,
and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from presage.foresee import estimators
from presage.foresee.answer import Domain, OnGpu, Prediction, Quantiles, Sharing
from presage.foresee.decoder_memory import decoder_forecast, largest_decoder_batch
from presage.foresee.gpus import Gpu
from presage.foresee.graph.decoder_graph import decoder_length
from presage.foresee.graph.decoders import DecoderShape
from presage.foresee.graph.named import NamedModel
from presage.foresee.graph.opgraph import OpGraph
from presage.foresee.interference import JobAlone
from presage.foresee.loader import LoaderTiming, fed
from presage.foresee.memory import MemoryForecast, MemoryPhysics, largest_batch
from presage.foresee.prices import cost_of, price_of, price_source
from presage.foresee.served import predict_serving
from presage.foresee.steptime import Operators
from presage.foresee.timing import StepForecast, step_time
from presage.foresee.utilization import Features, profile_of
from presage.foresee.verdicts import chance_below, verdict
from presage.learn import Floats
from presage.model.errors import ConfigError, GraphError
from presage.model.setup import Setup

__all__ = ["predict_graph", "predict_model", "share"]


def predict_model(
    model: NamedModel,
    batch: int,
    gpus: Sequence[Gpu],
    setup: Setup,
    *,
    largest: bool = True,
    loader: LoaderTiming | None = None,
) -> Prediction:
    """Foresee a model that is run as the set-up says, at a batch on some kinds of GPUs. To look
    for the largest batch that fits takes most of the time: without it, `max_batch` is 0. `loader`
    is what each GPU is fed by, if it was timed."""
    assumed = []
    if model.decoder is not None and setup.seq is None:
        length = decoder_length(model.decoder, setup)
        if not setup.inference:
            setup = replace(setup, seq=length)
            assumed.append(f"{length:,} tokens a sample")
        elif setup.kv_len is None:
            setup = replace(setup, kv_len=length)
            assumed.append(f"{length:,} tokens that a served sequence holds")
    if model.decoder is not None and setup.layout != "nchw":
        raise ConfigError(f"{model.name} reads no images: leave --layout {setup.layout} out")
    for gpu in gpus:
        _check_gpu(gpu, setup)
    if model.decoder is not None and setup.inference:
        if loader is not None:
            raise ConfigError("serving reads no training samples: leave --loader out")
        answer = predict_serving(model.decoder, gpus, setup)
    else:
        answer = predict_graph(
            *(model.graph(setup), batch, gpus, setup, model.decoder),
            largest=largest,
            loader=loader,
        )
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
    loader: LoaderTiming | None = None,
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
        step, busy = _fed(physics, gpu, setup, time, loader)
        timed = replace(time, step_ms=step)
        answers[gpu.name] = _on(physics, decoder, gpu, setup, timed, busy, largest)
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
        evidence=_evidence(graph, decoder, gpus, loader),
    )


def _fed(
    physics: MemoryPhysics,
    gpu: Gpu,
    setup: Setup,
    time: StepForecast,
    loader: LoaderTiming | None,
) -> tuple[Floats, Floats]:
    """Milliseconds of a step and percent of utilization behind what feeds it."""
    job = Features.of([profile_of(physics.graph, physics.batch, gpu)])
    if loader is None:
        return time.step_ms, estimators.utilization_of(job)[0]
    alone = estimators.job_utilization().unstarved(job)[0]
    behind = fed(list(time.step_ms), list(alone), loader, physics.batch * setup.accumulate)
    return np.array(behind.step_ms), np.array(behind.util_pct)


def _options(graph: OpGraph, setup: Setup) -> dict[str, Any]:
    """How it is run, as plain values; what is left at its default is left out."""
    said = {f.name: getattr(setup, f.name) for f in fields(setup)}
    plain = {f.name: f.default for f in fields(setup)}
    always = ("optimizer", "precision", "inference")
    kept = {name: value for name, value in said.items() if name in always or value != plain[name]}
    kept |= {name: str(kept[name]) for name in ("parallel", "lora") if name in kept}
    return {**graph.options, **kept}


def _on(
    physics: MemoryPhysics,
    decoder: DecoderShape | None,
    gpu: Gpu,
    setup: Setup,
    time: StepForecast,
    busy: Floats,
    largest: bool,
) -> OnGpu:
    graph, batch = physics.graph, int(physics.batch)
    forecast, most = _memory(physics, decoder, gpu, setup, largest)
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


def _memory(
    physics: MemoryPhysics, decoder: DecoderShape | None, gpu: Gpu, setup: Setup, largest: bool
) -> tuple[MemoryForecast, int]:
    """Memory on one GPU, and the largest batch that fits if it is asked for."""
    graph, most = physics.graph, 0
    if decoder is not None:
        forecast = decoder_forecast(physics, decoder, gpu, setup)
        if largest:
            most = largest_decoder_batch(graph, decoder, gpu, setup, known=physics)
        return forecast, most
    estimator = estimators.memory().graph
    if largest:
        most = largest_batch(estimator, graph, gpu, setup)
    return estimator.forecast(physics, gpu, setup), most


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


def _evidence(
    graph: OpGraph,
    decoder: DecoderShape | None,
    gpus: Sequence[Gpu],
    loader: LoaderTiming | None,
) -> list[str]:
    time = ("throughput",) if decoder is not None else ("roofline", "step_time")
    lines = [
        f"graph of {len(graph):,} operators, signature {graph.signature()}",
        *(estimators.version(name) for name in ("memory", *time, "utilization")),
    ]
    if loader is None:
        lines.append("utilization allows for jobs that wait for their samples: --loader tells")
    else:
        busy = f"; others had the cores {loader.waited:.0%} of that time, which is not counted"
        lines.append(
            f"its loader hands out {loader.p50:,.0f} samples/s on this machine "
            f"({loader.batches} batches timed{busy if loader.waited > 0.05 else ''})"
        )
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
