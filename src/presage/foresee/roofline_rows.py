"""Measured steps that others published, as observations to fit a roofline on or to judge it by.

Reads tables of the shared data; each row names a model, whose operators come from the zoo or from
the known models. What a source measured otherwise than a plain step (no optimizer, a copy from the
host inside) is said here, so that nobody has to learn it. Nothing here fits or predicts.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from presage.foresee import throughput_fitting
from presage.foresee._operators import Operators
from presage.foresee.gpus import Gpu, find
from presage.foresee.graph import precomputed, zoo
from presage.foresee.graph.decoder_graph import decoder_graph
from presage.foresee.graph.decoders import DecoderShape
from presage.foresee.known import known_models, scaled_batches
from presage.foresee.roofline import (
    host_launches,
    only_forward,
    plain_precision,
    without_optimizer,
    work_of,
)
from presage.foresee.roofline_slopes import Observation
from presage.foresee.throughput import llm_step
from presage.learn.evaluate import family_of
from presage.model.errors import GraphError
from presage.model.setup import Setup

__all__ = [
    "SHIPPED",
    "decoder_rows",
    "fitted_rows",
    "neusight_rows",
    "published_rows",
    "timm_inference_rows",
    "timm_rows",
]

SHIPPED = frozenset(
    {
        "nvidia-dlexamples",
        "ryujaehun-pgb",
        "lamikr-pgb",
        "deepspeed-docs",
        "deepspeed-autotuning",
        "mosaicml-diffusion",
        "timm",
        "timm-inference",
        "neusight",
        "llm-foundry",
        "bigscience",
        "torchtune",
        "peft-method-comparison",
    }
)
"""Sources whose licence lets Presage ship what was learned from them."""
_EVERY_TRAINED, _EVERY_INFERRED = 4, 40
"""One of so many of timm's models helps: as many rows as the published ones have."""
_COPY_GBS = 6.0
"""From pageable memory of a host to a GPU, as the sources with a copy inside did it."""
_FORMS = {
    ("a100-80g", "pcie"): "a100-pcie-80g",
    ("h100-80g", "pcie"): "h100-pcie",
    ("v100-16g", "pcie"): "v100-pcie-16g",
    ("v100-32g", "pcie"): "v100-pcie-32g",
}
_CALLED = {
    "ncf": "neumf-ml20m",
    "efficientnet-v1-b0": "efficientnet-b0",
    "efficientnet-v1-b4": "efficientnet-b4",
    "biobert-finetune": "bert-base-pretrain-128",
    "bart-large-finetune": "bart-large-512",
    "electra-base-squad": "bert-base-squad",
    "mobilenet-v2": "mobilenetv2",
    "mobilenet-v3-large": "mobilenetv3-large",
    "mobilenet-v3-small": "mobilenetv3-small",
}
_BY_LENGTH = {
    "bert-large-pretrain": "bert-large-pretrain-{}",
    "electra-base-pretrain": "bert-base-pretrain-{}",
    "bart-large-pretrain": "bart-large-{}",
}
_LONGEST_MS = 1e6
"""Beyond this a table had another unit."""


def fitted_rows(data: Path) -> tuple[list[Observation], list[Observation]]:
    """What the shipped roofline is fitted on: published trainings in PyTorch, and helpers that are
    not what it is judged by: one lab's models, inference on newer GPUs, eager and compiled,
    transformers in FP32, language models."""
    published = published_rows(data)
    ours = [
        row
        for row in published
        if row.source in SHIPPED and row.note.get("framework") == "pytorch"
    ]
    helpers = timm_rows(data, _EVERY_TRAINED) + decoder_rows(data)
    helpers += timm_inference_rows(data, _EVERY_INFERRED) + neusight_rows(data)
    return ours, helpers


def timm_rows(data: Path, every: int = 1) -> list[Observation]:
    """Training steps of timm's models on an RTX 3090 with AMP; one of `every` so many models."""
    table = pl.read_parquet(data / "profiles" / "timm_train_rtx3090.parquet")
    places = known_models().places(table["model"].to_list())
    table, places = table.filter(pl.Series(places >= 0)), places[places >= 0]
    batches, gpu = scaled_batches(table, places), find("rtx3090")
    out = []
    for row, place, batch in zip(table.iter_rows(named=True), places, batches, strict=True):
        if place % every:
            continue
        setup = Setup(precision="amp", layout=row["layout"])
        family = family_of(row["model"])
        names = {"source": "timm", "model": row["model"], "family": family}
        ops = known_models().operators(int(place))
        out.append(_observation(ops, batch, gpu, setup, row["step_time"], **names))
    return out


def timm_inference_rows(data: Path, every: int = 1) -> list[Observation]:
    """Inference of timm's models on newer GPUs; one of `every` so many models, eager and
    compiled."""
    table = pl.read_parquet(data / "profiles" / "timm_infer_multi_gpu.parquet")
    table = table.filter(
        pl.col("step_time").is_not_null() & ~pl.col("device").str.starts_with("i")
    )
    places = known_models().places(table["model"].to_list())
    table, places = table.filter(pl.Series(places >= 0)), places[places >= 0]
    batches = scaled_batches(table, places)
    out = []
    for row, place, batch in zip(table.iter_rows(named=True), places, batches, strict=True):
        if place % every:
            continue
        precision = plain_precision(row["dtype"])
        setup = Setup(
            precision=precision,  # type: ignore[arg-type]  # named as in the table
            layout=row["layout"],
            inference=True,
            compile=bool(row["dynamo"]),
        )
        family = family_of(row["model"])
        names = {"source": "timm-inference", "model": row["model"], "family": family}
        ops = only_forward(known_models().operators(int(place)))
        gpu = find(row["device"])
        out.append(_observation(ops, batch, gpu, setup, row["step_time"], **names))
    return out


def neusight_rows(data: Path) -> list[Observation]:
    """Transformers in plain PyTorch, FP32 products, without an optimizer."""
    table = pl.read_parquet(data / "profiles" / "neusight_models.parquet")
    table = table.filter(pl.col("tag").is_null() & ~pl.col("model").str.starts_with("switch"))
    out = []
    for row in table.iter_rows(named=True):
        infers = row["mode"] == "inf"
        ops, family = _operators(f"neusight:{row['model']}", "none")
        setup = Setup(precision="fp32", attention="eager", inference=infers)
        names = {"source": "neusight", "model": row["model"], "family": family}
        ops = only_forward(ops) if infers else ops
        gpu = find(row["device"].replace("_", " "))
        out.append(_observation(ops, row["batch"], gpu, setup, row["e2e_latency"], **names))
    return out


def decoder_rows(data: Path) -> list[Observation]:
    """Language models that are not divided among GPUs: what one GPU computes of a micro-batch, as
    the throughput model tells it from sending and from the update."""
    table = pl.read_parquet(data / "profiles" / "published_llm_training.parquet")
    out = []
    for row in throughput_fitting.published_rows(table):
        share = _computing(row)
        if share is None:
            continue
        setup = Setup(precision=row.setup.precision, attention=_attention(row), seq=row.setup.seq)
        ops = _decoder_operators(row.shape, setup)
        if row.setup.checkpoint == "full":
            again = only_forward(ops)
            ops = Operators.from_rows(np.vstack([ops.rows(), again.rows()]), ops.params)
        names = {"source": row.source, "model": row.model, "family": "decoder"}
        out.append(_observation(ops, row.batch, row.gpu, setup, 1e3 * share, **names))
    return out


def _computing(row: throughput_fitting.Measured) -> float | None:
    """Seconds of a micro-batch that one GPU computes; None where a model is divided."""
    cut, setup = row.setup.parallel, row.setup
    if cut.tensor * cut.pipeline * cut.context * cut.expert > 1 or row.shape.expert_layers:
        return None
    if setup.lora or setup.compile or setup.offload != "none" or setup.precision == "fp8":
        return None
    if row.source not in SHIPPED or row.source == "deepspeed-autotuning":  # a tuner's probes
        return None
    step = llm_step(row.shape, setup, row.batch, row.gpu, machine=row.machine, stack=row.source)
    computing = sum(step.parts.get(k, 0.0) for k in ("products", "attention", "memory", "host"))
    measured = row.batch * (setup.seq or row.shape.longest) / row.tokens_per_s_per_gpu
    return float(measured * computing / sum(step.parts.values()))


def _attention(row: throughput_fitting.Measured) -> Any:
    return "eager" if row.setup.attention == "eager" else "sdpa"


@cache
def _decoder_operators(shape: DecoderShape, setup: Setup) -> Operators:
    return without_optimizer(Operators.of(decoder_graph(shape, setup)))


def published_rows(data: Path, table: str = "published_training") -> list[Observation]:
    """Steps on one GPU of models that Presage has a graph of; FP64 and suspects are left out."""
    rows = pl.read_parquet(data / "profiles" / f"{table}.parquet")
    rows = rows.filter((pl.col("gpus") == 1) & (pl.col("precision") != "fp64"))
    sound = pl.col("batch_per_gpu") * 8000 / pl.col("samples_per_s") * 1e3
    said = pl.when(pl.col("unit") == "audio_samples").then(sound).otherwise(None)
    rows = rows.with_columns(pl.col("step_ms").fill_null(said))
    rows = rows.drop_nulls(["step_ms", "batch_per_gpu"]).filter(pl.col("step_ms") < _LONGEST_MS)
    if "suspect" in rows.columns:
        rows = rows.filter(~pl.col("suspect"))
    return list(_published(rows, infers=table.endswith("inference")))


def _published(rows: pl.DataFrame, *, infers: bool) -> Iterator[Observation]:
    for row in rows.iter_rows(named=True):
        plain = row["source"].endswith("-pgb")  # no optimizer, a copy inside
        optimizer = "none" if plain or infers or (row.get("grad_accum") or 1) > 1 else "sgd"
        try:
            ops, family = _operators(_name(row), optimizer)
        except GraphError:
            continue
        ops = only_forward(ops) if infers else ops
        gpu = find(_FORMS.get((row["gpu"], row["gpu_form"]), row["gpu"]))
        precision = _precision(row)
        setup = Setup(
            precision=precision,
            layout=row["layout"] or "nchw",
            attention="eager",
            inference=infers,
        )
        width = 2.0 if precision == "fp16" else 4.0
        copied = row["batch_per_gpu"] * 3 * 224**2 * width if plain else 0.0
        yield _observation(
            ops,
            row["batch_per_gpu"],
            gpu,
            setup,
            row["step_ms"],
            extra_ms=copied / _COPY_GBS / 1e6,
            source=row["source"],
            model=row["model"],
            family=family,
            note={"framework": row["framework"], "precision": row["precision"]},
        )


def _name(row: dict[str, Any]) -> str:
    model = str(row["model"])
    if model in _BY_LENGTH:
        return _BY_LENGTH[model].format(row["input"])
    return _CALLED.get(model, model)


def _precision(row: dict[str, Any]) -> Any:
    """As `Setup` has it. The table's `tf32` says that a GPU could; plain PyTorch from 1.12 on does
    so in convolutions only, NVIDIA's containers everywhere."""
    said, release = row["precision"], str(row["framework_version"])
    plain = row["source"].endswith("-pgb") and release.startswith(("1.12", "1.13", "2."))
    if said == "tf32" and plain:
        return "fp32"
    return "amp-bf16" if said == "bf16" else said


@cache
def _operators(name: str, optimizer: str) -> tuple[Operators, str]:
    """Of a model in the zoo, with a momentum, or of one of timm's; and its family."""
    try:
        entry = zoo.find(name)
    except GraphError:
        place = int(known_models().places([name.replace("-", "_")])[0])
        if place < 0:
            raise
        ops, family = known_models().operators(place), family_of(name)
    else:
        graph = precomputed.read(entry, optimizer="momentum")
        if graph is None:
            raise GraphError(f"{name} was not traced beforehand")
        ops, family = Operators.of(graph), entry.family
    return (without_optimizer(ops) if optimizer == "none" else ops), family


def _observation(
    ops: Operators, batch: float, gpu: Gpu, setup: Setup, ms: float, **named: Any
) -> Observation:
    work, launches = work_of(ops, batch, gpu, setup), host_launches(ops, setup)
    return Observation(work, launches, gpu, setup, float(ms), **named)
