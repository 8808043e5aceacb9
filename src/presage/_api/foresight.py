"""`presage.predict`: what a model will need on a GPU, before it runs.

`foresee` does the work, and the store of profiles is asked first. What predicts is imported and
read while a process of its own reads the user's model.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from os import PathLike, fspath
from threading import Thread
from typing import TYPE_CHECKING, Any

from presage.foresee.bursts.settings import Setting
from presage.foresee.gpus import Gpu, find
from presage.foresee.graph.load import find_model, on_one_rank, trace_options
from presage.foresee.graph.named import NamedModel
from presage.foresee.graph.opgraph import InputSpec, OpGraph
from presage.foresee.loader import time_loader
from presage.model.errors import PresageError, UserError
from presage.model.setup import LoraAdapter, Parallelism, Setup

if TYPE_CHECKING:
    from presage.foresee.answer import OnGpu, Prediction
    from presage.model.profile import Profile

__all__ = ["get_ready", "predict"]


def predict(
    model: Any,
    inputs: str | Sequence[InputSpec] | None = None,
    *,
    batch: int = 32,
    gpu: str | Sequence[str] = "a100-40g",
    optimizer: str = "sgd",
    precision: str = "fp32",
    inference: bool = False,
    seq: int | None = None,
    accumulate: int = 1,
    gpus: int = 1,
    parallel: str | Parallelism | None = None,
    lora: str | LoraAdapter | None = None,
    quant: str | None = None,
    checkpoint: str | None = None,
    loss: str | None = None,
    attention: str | None = None,
    layout: str | None = None,
    compile: bool = False,
    cudnn_benchmark: bool = False,
    offload: str | None = None,
    interconnect: str | None = None,
    kv_len: int | None = None,
    concurrency: int = 1,
    loader: str | None = None,
    setting: str | None = None,
    device: str | Sequence[str] | None = None,
) -> Prediction:
    """Foresee GPU memory, utilization, time and cost of a model on one kind of GPU or several.

    The model is `zoo:resnet50`, `hf:meta-llama/Llama-3.1-8B`, `file.py:function`,
    `package.module:function`, `model.onnx`, a Hugging Face `config.json`, a PyTorch module, or a
    function without arguments that builds one; the last two need `inputs`, one sample without the
    batch: `"3x224x224"`, or `"128:int64"` for token numbers. `batch` is what one GPU takes in one
    go; `gpus` of a kind work together as `parallel` says. What the same job was seen to use before
    takes the place of what is foreseen, and the evidence says so. `loader` names a function of the
    user's that makes the input pipeline, which is timed here. `setting` (`P2W2/1gbit`)
    asks for the bursts of a distributed training. `device` is an older name of `gpu`.

        presage.predict("zoo:resnet50", batch=64, gpu="a100-40g").memory_mib.p90
        presage.predict("hf:meta-llama/Llama-3.1-8B", batch=1, seq=4096, precision="bf16",
                        lora="r=16:all", quant="nf4", optimizer="adamw", gpu="rtx4090").fits
    """
    setup = Setup.make(
        optimizer=optimizer,
        precision=precision,
        inference=inference,
        seq=seq,
        accumulate=accumulate,
        gpus=gpus,
        parallel=parallel,
        lora=lora,
        quant=quant,
        checkpoint=checkpoint,
        loss=loss,
        attention=attention,
        layout=layout,
        compile=compile,
        cudnn_benchmark=cudnn_benchmark,
        offload=offload,
        interconnect=interconnect,
        kv_len=kv_len,
        concurrency=concurrency,
    )
    wanted = gpu if device is None else device
    kinds = list(dict.fromkeys(find(name) for name in _listed(wanted)))
    if not kinds:
        raise UserError("no GPU is named; `presage gpus` lists them")
    if not isinstance(batch, int) or batch < 1:
        raise UserError(f"a batch has 1 sample or more, not {batch!r}")
    named = _named(model, inputs)
    timing = None if loader is None else time_loader(loader)
    asked = None if setting is None else Setting.parse(setting)
    from presage.foresee.predict import predict_model

    foreseen = predict_model(named, batch, kinds, setup, loader=timing)
    if asked is not None:
        foreseen = _with_bursts(foreseen, named, setup, asked)
    if named.decoder is not None and setup.inference:
        return foreseen
    return _with_history(foreseen, named.graph(setup), kinds)


def _with_bursts(
    foreseen: Prediction, named: NamedModel, setup: Setup, asked: Setting
) -> Prediction:
    """With how the training pulses in a setting, if a bundle knows it."""
    from presage.foresee.bursts import use

    if setup.inference:
        raise UserError("bursts are those of a training: leave --inference or --setting out")
    graph, evidence = named.graph(setup), list(foreseen.evidence)
    bundle, steps = use.bundle_for(asked), use.step_model()
    bursts = distributed = None
    if bundle is None:
        known = ", ".join(map(str, use.known_settings()))
        why = f"no bundle knows the bursts of {asked}: `presage fit bursts` makes one from runs"
        evidence.append(f"{why}; there are {known}" if known else why)
    else:
        bursts = bundle.foresee(graph, foreseen.batch)
        card = bundle.card
        machine = f", on {card['machine']}" if "machine" in card else ""
        evidence.append(
            f"bursts by {card['model']} from {card['data']} in {asked}{machine} ({card['date']})"
        )
    if steps is not None:
        slopes = 4.0 * graph.trainable
        distributed = use.distributed(steps, foreseen.step_ms, slopes, foreseen.batch, asked)
        told = (steps.card or {}).get("data")
        evidence.append(
            f"distributed steps by {told}; each worker on one {next(iter(foreseen.gpus))}"
        )
    return replace(
        foreseen, setting=str(asked), bursts=bursts, distributed=distributed, evidence=evidence
    )


def get_ready() -> None:
    """Import what predicts and read its models, beside something else that takes time; what is
    wrong with them raises when they are asked."""
    Thread(target=_warm_up, daemon=True).start()


def _warm_up() -> None:
    from presage.foresee import estimators, predict  # noqa: F401

    with suppress(PresageError):
        for of in (estimators.memory, estimators.step_time, estimators.utilization):
            of()


def _named(model: Any, inputs: str | Sequence[InputSpec] | None) -> NamedModel:
    if isinstance(model, NamedModel):
        return model
    if isinstance(model, OpGraph):
        return NamedModel(model.name, lambda setup: model)
    if isinstance(model, str | PathLike):
        if inputs is not None and not isinstance(inputs, str):
            raise UserError("write the inputs of a model that is named as text: 3x224x224")
        target = fspath(model)
        if not target.startswith(("zoo:", "hf:")):
            get_ready()
        return find_model(target, inputs=inputs)
    if inputs is None:
        raise UserError("a module needs its inputs, one sample without the batch: '3x224x224'")
    specs = InputSpec.parse(inputs) if isinstance(inputs, str) else tuple(inputs)

    def build(setup: Setup) -> OpGraph:
        from presage.foresee.graph.torch_trace import trace

        options = trace_options(setup)
        if options.pop("seq", None) is not None:
            raise UserError("the inputs of a module say how long it is: leave seq out")
        name = type(model).__name__
        return on_one_rank(lambda: trace(model, specs, name=name, **options), setup)

    return NamedModel(type(model).__name__, build)


def _listed(names: str | Sequence[str]) -> Sequence[str]:
    return [names] if isinstance(names, str) else names


def _with_history(foreseen: Prediction, graph: OpGraph, gpus: Sequence[Gpu]) -> Prediction:
    """What the same job was seen to use before takes the place of what was foreseen."""
    from presage.telemetry.store import ProfileStore

    signature = graph.signature()
    on, evidence = dict(foreseen.gpus), list(foreseen.evidence)
    for profile in ProfileStore().read_all():
        if profile.graph_signature != signature or profile.batch != foreseen.batch:
            continue
        gpu = _gpu_of(profile, gpus)
        if gpu is None or not profile.alone:
            continue
        on[gpu.name] = _as_seen(on[gpu.name], profile, gpu, foreseen.batch)
        day = datetime.fromtimestamp(profile.started_s, UTC).date()
        evidence.insert(0, f"history: this graph ran on {gpu.name} on {day}")
    return replace(foreseen, gpus=on, evidence=evidence)


def _gpu_of(profile: Profile, gpus: Sequence[Gpu]) -> Gpu | None:
    try:
        device = find(profile.device)
    except UserError:
        return None
    return next((gpu for gpu in gpus if gpu.name == device.name), None)


def _as_seen(on: OnGpu, profile: Profile, gpu: Gpu, batch: int) -> OnGpu:
    from presage.foresee.answer import Quantiles
    from presage.foresee.verdicts import verdict

    if (busy := profile.gpu_util_pct) is not None:
        on = replace(on, gpu_util_pct=Quantiles(busy.p50, busy.p50, busy.p95))
    if (step := profile.step_ms) is not None:
        on = replace(on, step_ms=Quantiles(step.p50, step.p50, step.p95))
    if profile.gpu_memory_mib is not None:
        most = (profile.gpu_memory_mib.max,) * 3
        told = verdict(most, gpu, on.max_batch, batch)
        on = replace(on, memory_mib=Quantiles(*most), **told)
    return on
