"""Memory of language-model trainings that others published, beside what the physics foresees.

Nothing is fitted: a row is one set-up, and its graph says what is allocated or reserved. Which
rows can be asked is decided by what the source says about the set-up, never by the error.
Intervals are conformal over sources: the spread for a source comes from the other sources alone.

`python -m benchmarks.foresee_llm_memory [--rows] [--plain]`: `--plain` leaves out what only the
source's code tells (adapters' targets and types, chunked losses, fused optimizers), as a user
would who asks by name, length, batch and rank alone.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from benchmarks._data import shared
from presage.foresee.allocator import MIB
from presage.foresee.decoder_memory import decoder_forecast
from presage.foresee.decoder_spread import HALF_WIDTH, technique_difficulty
from presage.foresee.floors import floor_mib
from presage.foresee.gpus import Gpu
from presage.foresee.gpus import find as find_gpu
from presage.foresee.graph.architectures import find_architecture
from presage.foresee.graph.decoder_graph import busiest_graph
from presage.foresee.graph.decoders import DecoderShape
from presage.foresee.memory import MemoryPhysics
from presage.foresee.sharding import communicator_bytes
from presage.learn import Floats
from presage.model.errors import UserError
from presage.model.setup import Setup

_CARDS = {"t4-16g": "t4", "a10g": "a10", "24g-class": "rtx3090"}
_VARIANTS = ("dora", "lorafa", "mica", "bdlora")
"""Adapters that are more, or less, than two low-rank matrices."""


@dataclass(frozen=True)
class Case:
    """A published figure and the set-up it belongs to."""

    source: str
    model: str
    group: str
    shape: DecoderShape
    setup: Setup
    batch: float
    gpu: str
    kind: str
    truth_mib: float | None
    outcome: str


@dataclass
class Tally:
    """What was read: cases, and rows left out by reason."""

    cases: list[Case] = field(default_factory=list)
    left: Counter[str] = field(default_factory=Counter)


class Unexpressible(Exception):
    """A row whose set-up cannot be asked, with the reason."""


def read_cases(*, plain: bool = False) -> Tally:
    """Both tables; what is in both counts once."""
    tally = Tally()
    training = pl.read_parquet(shared("profiles/published_llm_training.parquet"))
    known = training.filter(pl.col("peak_memory_gib").is_not_null() | (pl.col("outcome") == "oom"))
    memory = pl.read_parquet(shared("profiles/published_memory.parquet"))
    sources = ("torchtune", "peft-readme", "hf-blog-4bit", "deepspeed-docs")
    own = memory.filter(
        pl.col("source").is_in(sources) & ~pl.col("note").str.starts_with("also in llm_training")
    )
    for make, table in ((_from_training, known), (_from_memory, own)):
        for row in table.iter_rows(named=True):
            try:
                tally.cases.append(make(row, plain))
            except Unexpressible as reason:
                tally.left[f"{row['source']}: {reason}"] += 1
    return tally


def _shape(row: Mapping[str, Any]) -> DecoderShape:
    try:
        found = find_architecture(str(row["model"]))
        return DecoderShape.from_config(found.config, found.name)
    except UserError:
        pass
    if row.get("layers") is None or row.get("hidden") is None:
        raise Unexpressible("layers and width are not printed")
    width = int(row["hidden"])
    heads = int(row["heads"] or _usual_heads(width, int(row["tensor_parallel"] or 1)))
    config = {
        "model_type": "bloom" if row["source"] == "bigscience" else "gpt2",
        "hidden_size": width,
        "n_layer": int(row["layers"]),
        "n_head": heads,
        "vocab_size": int(row["vocab"] or 50257),
        "n_positions": int(row["seq_len"]),
    }
    if config["model_type"] == "bloom" and row["model"].startswith("gpt-1.3b"):
        config["model_type"] = "gpt2"
    return DecoderShape.from_config(config, str(row["model"]))


def _usual_heads(width: int, ranks: int) -> int:
    """Where heads are not printed: about 128 wide, a whole number on each rank."""
    fits = [h for h in range(ranks, width // 32, ranks) if width % h == 0]
    return min(fits, key=lambda h: abs(width / h - 128))


def _from_training(row: Mapping[str, Any], plain: bool) -> Case:
    _refuse(row)
    shape = _shape(row)
    if (
        row["source"] == "litgpt" and not plain
    ):  # its models never share the head with the embedding
        shape = replace(shape, tied=False)
    lora = row["method"] in ("lora", "qlora")
    given: dict[str, Any] = {
        "optimizer": row["optimizer"] or "adamw",
        "precision": row["precision"],
        "seq": row["seq_len"],
        "accumulate": max(1, round(row["grad_accum"] or 1)),
        "gpus": row["gpus"],
        "parallel": _parallel(row),
        "checkpoint": row["activation_checkpointing"],
        "attention": "sdpa" if row["flash_attention"] == "y" else "eager",
        "compile": row["compile"] == "y",
        "offload": "params" if row["offload"] == "optimizer+params" else "none",
        **(_asked(row, lora) if plain else _framework(row, lora)),
    }
    truth = row["peak_memory_gib"]
    return Case(
        row["source"],
        row["model"],
        _group(row["method"], row["gpus"]),
        shape,
        _made(given),
        float(row["micro_batch"]),
        row["gpu"],
        row["memory_kind"] or "limit",
        None if truth is None else truth * 1024,
        row["outcome"],
    )


def _parallel(row: Mapping[str, Any]) -> str:
    sharding = {"fsdp_full": "fsdp", "fsdp_grad": "zero2"}.get(row["sharding"], row["sharding"])
    degrees = {
        "tp": row["tensor_parallel"],
        "pp": row["pipeline_parallel"],
        "cp": row["context_parallel"],
        "vpp": row["virtual_pipeline"],
    }
    parts = [sharding, *(f"{k}={v}" for k, v in degrees.items() if v and v > 1)]
    replicas = row["gpus"] // max(1, (degrees["tp"] or 1) * (degrees["pp"] or 1))
    if replicas < 2 and sharding != "none":
        parts[0] = "none"
    return ",".join(parts)


def _refuse(row: Mapping[str, Any]) -> None:
    note = row["note"] or ""
    if row["suspect"]:
        raise Unexpressible("marked suspect")
    if row["method"] not in ("full", "pretrain", "lora", "qlora"):
        raise Unexpressible("another method than full, LoRA or QLoRA")
    if any(word in note for word in _VARIANTS):
        raise Unexpressible("a variant of LoRA")
    if row["activation_checkpointing"] == "unknown":
        raise Unexpressible("checkpointing is not stated")
    if row["offload"] == "activation":
        raise Unexpressible("offloads activations")
    if "in backward" in (row["optimizer"] or ""):
        raise Unexpressible("steps inside the backward pass")
    if "unpacked" in note:
        raise Unexpressible("lengths vary and the longest is not stated")
    if row["micro_batch"] is None:
        raise Unexpressible("the batch is not stated")


def _asked(row: Mapping[str, Any], lora: bool) -> dict[str, Any]:
    """What the table alone says."""
    given: dict[str, Any] = {"lora": f"r={row['lora_rank'] or 8}"} if lora else {}
    if row["method"] == "qlora":
        given["quant"] = "nf4"
    return given


def _framework(row: Mapping[str, Any], lora: bool) -> dict[str, Any]:
    """What the source's code does, as its repository shows: not in the table, but no guess."""
    note, given = row["note"] or "", {}
    if lora:
        rank = row["lora_rank"] or 8
        targets = "mlp" if "target-mlp" in note else "q,v"
        kept = ""
        if row["source"] in ("litgpt", "torchtune"):
            kept = ":same"
        if row["source"] == "litgpt":
            kept += ":dropout"
            if row["model"].startswith(("gemma", "tinyllama")):
                targets = "all,head"
        if row["source"] == "torchtune":
            targets = "q,v,o"
        given["lora"] = f"r={rank}:{targets}{kept}"
    if row["method"] == "qlora":
        given["quant"] = "nf4"
    if (
        row["source"] == "litgpt"
        or "chunked" in note
        or "checkpointing" in note
        or (
            "table 1"
            in note  # torchtune's own configurations chunk; its table 2 adds it step by step
        )
    ):
        given["loss"] = "chunked"
    if row["source"] == "torchtune":
        given["optimizer"] = "adamw-fused"
    return given


def _made(given: dict[str, Any]) -> Setup:
    try:
        return Setup.make(**given)
    except UserError as error:
        raise Unexpressible(str(error)) from None


def _from_memory(row: Mapping[str, Any], plain: bool) -> Case:
    if row["source"] == "deepspeed-docs" or row["model"].startswith(("t0", "mt0", "stable-diff")):
        raise Unexpressible("not a decoder")
    if row["source"] != "hf-blog-4bit":
        raise Unexpressible("batch or length is not printed")
    if row["gpus"] != 1:
        raise Unexpressible("layers are spread over GPUs by hand")
    technique = row["technique"]
    if "nested" in technique:
        raise Unexpressible("nested quantisation")
    given = {
        "optimizer": "adamw",
        # Trainer(fp16=True) over what prepare_model_for_kbit_training has made fp32
        "precision": "fp16" if plain else "amp",
        "seq": int(row["seq_or_image"]),
        "lora": "r=8:q,v",
        "quant": "int8" if "int8" in technique else "nf4",
        "checkpoint": "full" if "gc" in technique and "no gc" not in technique else "none",
        "attention": "eager",
    }
    found = find_architecture(row["model"])
    return Case(
        row["source"],
        row["model"],
        "qlora",
        DecoderShape.from_config(found.config, found.name),
        _made(given),
        float(row["batch_per_gpu"]),
        row["gpu"],
        "limit",
        None,
        row["outcome"],
    )


def _group(method: str, gpus: int) -> str:
    if gpus > 1:
        return "sharded"
    return "qlora" if method == "qlora" else "one GPU"


def foreseen_mib(case: Case) -> dict[str, float]:
    """MiB by the way of measuring."""
    graph = busiest_graph(case.shape, case.setup, case.batch)
    # kernels were all loaded at once before CUDA 11.7
    era = "pytorch-eager" if case.source == "bigscience" else "pytorch"
    context = floor_mib(card(case), era).p50
    physics = MemoryPhysics.of(graph, case.batch)
    reserved = physics.reserved
    said = decoder_forecast(
        physics, case.shape, card(case), case.setup, floor_mib(card(case), era)
    )
    return {
        "allocated": physics.peak,
        "reserved": reserved,
        "nvidia_smi": reserved + context + communicator_bytes(case.setup) / MIB,
        "at 10 %": float(said.needs[0]),
        "at 90 %": float(said.needs[2]),
    }


def card(case: Case) -> Gpu:
    """The GPU of a row."""
    return find_gpu(_CARDS.get(case.gpu, case.gpu))


def room_mib(case: Case) -> float:
    """What programs may take on it."""
    return float(card(case).usable_mib)


def half_width(errors: Floats, difficulty: Floats, sources: npt.NDArray[np.str_]) -> float:
    """The 80 % quantile of absolute log errors by difficulty; large sources weigh less by row."""
    names, member = np.unique(sources, return_inverse=True)
    weights = np.bincount(member, minlength=len(names))[member] ** -0.5
    values = np.abs(errors) / difficulty
    order = np.argsort(values)
    middle = np.cumsum(weights[order]) - weights[order] / 2
    return float(np.interp(0.8 * weights.sum(), middle, values[order]))


def main(arguments: list[str]) -> None:
    tally = read_cases(plain="--plain" in arguments)
    done = [(case, foreseen_mib(case)) for case in tally.cases]
    if "--rows" in arguments:
        _rows(done)
    _figures(done)
    _fits(done)
    print("\nleft out:")
    for reason, count in sorted(tally.left.items()):
        print(f"  {count:4d}  {reason}")


def _measured(done: list[tuple[Case, dict[str, float]]]) -> Iterator[tuple[Case, float]]:
    for case, figures in done:
        if case.truth_mib is not None and case.kind in figures:
            yield case, float(np.log(figures[case.kind] / case.truth_mib))


def _rows(done: list[tuple[Case, dict[str, float]]]) -> None:
    for case, error in _measured(done):
        truth = (case.truth_mib or 0) / 1024
        s = case.setup
        print(
            f"{case.source[:10]:10s} {case.model:22s} {case.group:8s} {case.kind:10s} "
            f"b{case.batch:g} s{s.seq} {s.checkpoint:5s} {s.parallel} lora={s.lora} {s.quant} "
            f"acc{s.accumulate} truth {truth:6.1f} foreseen {truth * np.exp(error):6.1f} GiB "
            f"{100 * (np.exp(error) - 1):+6.1f} %"
        )


def _figures(done: list[tuple[Case, dict[str, float]]]) -> None:
    measured = list(_measured(done))
    errors = np.array([error for _, error in measured])
    difficulty = np.array([technique_difficulty(case.setup) for case, _ in measured])
    sources = np.array([case.source for case, _ in measured])
    held = np.zeros(len(errors), bool)
    for source in np.unique(sources):
        mine = sources == source
        width = half_width(errors[~mine], difficulty[~mine], sources[~mine])
        held[mine] = np.abs(errors[mine]) <= width * difficulty[mine]
    print(f"{'':28s}{'n':>4s} {'typical':>8s} {'in 10 %':>8s} {'bias':>7s} {'80 % holds':>11s}")
    for group in ("one GPU", "qlora", "sharded", "all"):
        here = np.array([group in (case.group, "all") for case, _ in measured])
        print(f"{group:28s}{_summary(errors[here], held[here])}")
        for source in np.unique(sources[here]):
            both = here & (sources == source)
            print(f"    {source:24s}{_summary(errors[both], held[both])}")
    width = half_width(errors, difficulty, sources)
    print(f"half width {width:.3f} of all sources (shipped: {HALF_WIDTH}); held: source left out")


def _summary(logs: Floats, held: npt.NDArray[np.bool_]) -> str:
    off = np.abs(np.exp(logs) - 1)
    bias = 100 * (np.exp(np.median(logs)) - 1)
    return (
        f"{len(logs):4d} {100 * np.median(off):7.1f}% {100 * (off <= 0.1).mean():7.0f}% "
        f"{bias:+6.1f}% {100 * held.mean():9.0f} %"
    )


def _fits(done: list[tuple[Case, dict[str, float]]]) -> None:
    ran = [(case, f) for case, f in done if case.outcome in ("ok", "fits")]
    out = [(case, f) for case, f in done if case.outcome == "oom"]
    refused = [(case, f) for case, f in ran if f["nvidia_smi"] > room_mib(case)]
    missed = [(case, f) for case, f in out if f["nvidia_smi"] <= room_mib(case)]
    print(f"\nset-ups that ran: {len(ran)}, said not to fit: {len(refused)}")
    _list(refused)
    print(f"published OOMs: {len(out)}, foreseen: {len(out) - len(missed)}; missed:")
    _list(missed)
    print("as `presage predict` says it, by the 10 and the 90 % quantile:")
    for what, of in (("ran", ran), ("OOM", out)):
        said = Counter(_said(case, figures) for case, figures in of)
        words = ", ".join(
            f"{word} {said[word]}" for word in ("fits", "may not fit", "does not fit")
        )
        print(f"    {what}, {len(of)}: {words}")


def _said(case: Case, figures: Mapping[str, float]) -> str:
    room = room_mib(case)
    if figures["at 90 %"] <= room:
        return "fits"
    return "may not fit" if figures["at 10 %"] <= room else "does not fit"


def _list(cases: list[tuple[Case, dict[str, float]]]) -> None:
    for case, figures in cases:
        print(
            f"    {case.source} {case.model} {case.gpu} {case.setup.parallel} b{case.batch:g} "
            f"s{case.setup.seq} {figures['nvidia_smi'] / 1024:.1f} GiB"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
