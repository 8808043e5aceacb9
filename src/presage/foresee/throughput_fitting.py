"""Learn efficiencies of language-model trainings from published figures.

`communication_fitting` writes the bundle that is shipped. The fit is one maximum a posteriori
estimate: logarithms of efficiencies around what physics lets one expect, and effects of groups
(architecture, GPU, software stack) around zero, so that a group with few rows stays near the
others. Only fitting reads tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from presage.foresee._llm_work import StepWork, work
from presage.foresee.gpus import Gpu, find
from presage.foresee.graph.architectures import find_architecture
from presage.foresee.graph.decoders import DecoderShape
from presage.foresee.throughput import (
    EFFECTS,
    PRIORS,
    Throughput,
    difficulty,
    groups_of,
    precision_on,
    priced,
    size_class,
)
from presage.learn import Floats
from presage.learn.conformal import Conformal, grouped_folds
from presage.learn.posterior import most_probable
from presage.model.errors import PresageError
from presage.model.setup import LoraAdapter, Parallelism, Setup

__all__ = ["Measured", "Trainings", "fit_throughput", "learn", "published_rows", "without"]

_SHARDING = {"fsdp_full": "fsdp", "fsdp_grad": "zero2"}
_HYBRIDS = ("nemotron-3", "deepseekv4")
"""State-space layers, or attention that is compressed: no stack of layers that a shape can say."""
_ALIASES = {
    "deepseekv3-(w/o-mtp)": "deepseek-v3",
    "deepseekv3-(w/-mtp)": "deepseek-v3",
    "deepseekv3-(dropless)": "deepseek-v3",
}


@dataclass(frozen=True, slots=True)
class Measured:
    """One published training that a set-up can say."""

    source: str
    model: str
    shape: DecoderShape
    setup: Setup
    batch: int
    gpu: Gpu
    machine: int | None
    tokens_per_s_per_gpu: float


def published_rows(table: pl.DataFrame) -> list[Measured]:
    """The rows that name their speed and can be said as a set-up."""
    wanted = table.filter(
        ~pl.col("suspect")
        & (pl.col("outcome") == "ok")
        & pl.col("method").is_in(["pretrain", "full", "lora", "qlora"])
        & pl.col("tokens_per_s_per_gpu").is_not_null()
        & pl.col("micro_batch").is_not_null()
    )
    return [
        _measured(row)
        for row in wanted.iter_rows(named=True)
        if not row["model"].startswith(_HYBRIDS)
    ]


def _measured(row: Mapping[str, Any]) -> Measured:
    setup = _setup(row)
    gpu = find(row["gpu"])
    machine = row["gpus"] // row["nodes"] if row["nodes"] and row["gpus"] > 1 else None
    if machine is not None and row["interconnect"] == "nvl72":
        machine = 72
    return Measured(
        row["source"],
        row["model"],
        _shape(row),
        setup,
        row["micro_batch"],
        gpu,
        machine,
        row["tokens_per_s_per_gpu"],
    )


def _setup(row: Mapping[str, Any]) -> Setup:
    tp, pp, cp = (row[f"{k}_parallel"] or 1 for k in ("tensor", "pipeline", "context"))
    replicas = max(1, row["gpus"] // (tp * pp * cp))
    steps = max(1, round(row["global_batch"] / (row["micro_batch"] * replicas)))
    sharding = _SHARDING.get(row["sharding"], row["sharding"])
    said = str(row["interconnect"] or "")
    omni = "nvlink+4xomnipath" if "Omni-Path" in said else None
    method = row["method"]
    seq = 210 if row["source"].startswith("peft") else row["seq_len"]  # padded to no more
    return Setup(
        optimizer={"adamw8bit": "adamw-8bit"}.get(str(row["optimizer"]), "adamw"),
        precision=row["precision"],
        seq=seq,
        accumulate=steps,
        gpus=row["gpus"],
        parallel=Parallelism(
            sharding=sharding if replicas > 1 or sharding == "none" else "none",
            tensor=tp,
            pipeline=pp,
            context=cp,
            expert=row["expert_parallel"] or 1,
            interleave=row["virtual_pipeline"] or 1,
            sequence=tp > 1 and row["source"] != "bigscience",
        ),
        lora=LoraAdapter(row["lora_rank"] or 8, ("q", "v"))
        if method in ("lora", "qlora")
        else None,
        quant="nf4" if method == "qlora" else "none",
        checkpoint="full" if row["activation_checkpointing"] == "full" else "none",
        attention="flash" if row["flash_attention"] == "y" else "eager",
        compile=row["compile"] == "y",
        offload="params"
        if row["offload"] == "optimizer+params"
        else "optimizer"
        if row["offload"] == "optimizer"
        else "none",
        interconnect=omni or ("pcie" if said == "pcie" else None),
    )


def _shape(row: Mapping[str, Any]) -> DecoderShape:
    name = _ALIASES.get(row["model"], row["model"])
    if row["layers"] is None or row["params_active"]:
        try:
            return DecoderShape.from_config(find_architecture(name).config, name)
        except PresageError:
            return _from_params(name, row["params"], row["vocab"] or 50257)
    base = DecoderShape(
        name=name,
        layers=row["layers"],
        width=row["hidden"],
        heads=row["heads"] or max(1, row["hidden"] // 128),
        kv_heads=row["heads"] or max(1, row["hidden"] // 128),
        head_width=row["hidden"] // (row["heads"] or max(1, row["hidden"] // 128)),
        inner=row["ffn"],
        vocabulary=row["vocab"] or 50257,
    )
    forms = [
        replace(base, gated=gated, kv_heads=kv, tied=tied)
        for gated in (True, False)
        for kv in sorted({base.kv_heads, 8, 4, 1})
        for tied in (True, False)
        if base.heads % kv == 0
    ]
    if row["source"] in ("llm-foundry", "bigscience"):
        forms = [replace(base, gated=False, tied=True)]
    return min(forms, key=lambda form: abs(form.params - row["params"]))


def _from_params(name: str, params: float, vocabulary: int) -> DecoderShape:
    """A GPT of that size: depth and width as published ones have them."""
    width = round((params / 12 / 0.0068) ** (1 / 3) / 128) * 128 or 128
    layers = max(1, round((params - vocabulary * width) / (12 * width**2)))
    heads = max(1, width // 128)
    return DecoderShape(
        name,
        layers,
        width,
        heads,
        heads,
        width // heads,
        4 * width,
        vocabulary,
        gated=False,
        tied=True,
    )


# -- the fit ------------------------------------------------------------------------------------

NOISE = 0.07
"""What the same training differs by from one publication to the next."""
WAYS = ("model", "size", "gpu", "stack")
"""What predictions are made without, to learn how far they are off."""


@dataclass(frozen=True, eq=False)
class Trainings:
    """Measured trainings, ready to be fitted."""

    rows: tuple[Measured, ...]
    columns: Mapping[str, Any]
    groups: tuple[Mapping[str, str], ...]
    seconds: Floats

    @classmethod
    def of(cls, rows: Sequence[Measured]) -> Trainings:
        """With the work of each."""
        works = [work(r.shape, r.setup, r.batch, r.gpu, r.machine) for r in rows]
        columns: dict[str, Any] = {}
        for field in fields(StepWork):
            values = np.array([getattr(w, field.name) for w in works], dtype=float)
            columns[field.name] = list(values.T) if values.ndim == 2 else values
        speed = np.array([r.tokens_per_s_per_gpu * r.setup.gpus for r in rows])
        groups = tuple(groups_of(r.setup, r.gpu, r.source) for r in rows)
        return cls(tuple(rows), columns, groups, columns["tokens"] / speed)

    def __getitem__(self, chosen: npt.NDArray[np.bool_]) -> Trainings:
        columns = {
            name: [each[chosen] for each in values] if isinstance(values, list) else values[chosen]
            for name, values in self.columns.items()
        }
        picked = np.flatnonzero(chosen)
        return Trainings(
            tuple(self.rows[i] for i in picked),
            columns,
            tuple(self.groups[i] for i in picked),
            self.seconds[chosen],
        )

    def labels(self, kind: str) -> npt.NDArray[np.str_]:
        """The model, its size (to a factor of two), GPU or software of each."""
        if kind == "model":
            return np.array([row.model for row in self.rows])
        if kind == "size":
            return np.array([size_class(row.shape) for row in self.rows])
        return np.array([one[kind] for one in self.groups])

    @property
    def weights(self) -> Floats:
        """Many publications of one model on one GPU by one source count less each."""
        key = ["|".join((r.source, r.model, r.gpu.name)) for r in self.rows]
        _, place, count = np.unique(key, return_inverse=True, return_counts=True)
        return np.asarray(count[place] ** -0.5, dtype=np.float64)


def fit_throughput(
    trainings: Trainings, spread: Mapping[str, Conformal] | None = None
) -> Throughput:
    """The most probable efficiencies and effects of groups."""
    names = list(PRIORS)
    members = [
        (kind, member)
        for kind in EFFECTS
        for member in sorted({one[kind] for one in trainings.groups})
    ]
    place = {member: len(names) + i for i, member in enumerate(members)}
    which = {
        kind: np.array([place[kind, one[kind]] for one in trainings.groups]) for kind in EFFECTS
    }
    expected = np.array([PRIORS[name][0] for name in names] + [0.0] * len(members))
    surprise = np.array([PRIORS[name][1] for name in names] + [EFFECTS[k] for k, _ in members])
    truth, certain = np.log(trainings.seconds), np.sqrt(trainings.weights) / NOISE

    def residuals(x: Floats) -> Floats:
        logs = dict(zip(names, x.tolist(), strict=False))
        parts = priced(trainings.columns, logs, {kind: x[at] for kind, at in which.items()})
        return np.asarray((truth - np.log(sum(parts.values()))) * certain)

    probable = most_probable(residuals, expected, surprise).tolist()
    return Throughput(
        dict(zip(names, probable, strict=False)),
        dict(zip(members, probable[len(names) :], strict=True)),
        spread or {},
        *_measured_domain(trainings),
    )


def _measured_domain(trainings: Trainings) -> tuple[dict[str, Any], dict[str, Any]]:
    pairs = sorted({precision_on(r.gpu, r.setup) for r in trainings.rows})
    sizes = {
        "parameters": [r.shape.params for r in trainings.rows],
        "tokens": [r.batch * (r.setup.seq or r.shape.longest) for r in trainings.rows],
        "GPUs": [r.setup.gpus for r in trainings.rows],
    }
    classes = sorted({size_class(r.shape) for r in trainings.rows})
    ranges = {name: (float(min(v)), float(max(v))) for name, v in sizes.items()}
    return {"precision": pairs, "size": classes}, ranges


def without(trainings: Trainings, kind: str, folds: int = 8, seed: int = 0) -> dict[str, Floats]:
    """Seconds of each training, by what takes them, from a fit without its model, GPU or
    software."""
    labels = trainings.labels(kind)
    place = grouped_folds(labels, min(folds, len(set(labels))), seed)
    foreseen: dict[str, Floats] = {}
    for fold in np.unique(place):
        out = place == fold
        held = trainings[out]
        parts = fit_throughput(trainings[~out]).parts(held.columns, held.groups)
        for name, seconds in parts.items():
            foreseen.setdefault(name, np.empty(len(labels)))[out] = seconds
    return foreseen


def learn(
    trainings: Trainings, kinds: Sequence[str] = WAYS, folds: int = 12
) -> tuple[Throughput, dict[str, float]]:
    """Fit, and learn from fits without each model, GPU and software how far they are off; with
    the typical errors of these."""
    spread, errors = {}, {}
    for kind in kinds:
        parts = without(trainings, kind, folds)
        guess = np.sum(list(parts.values()), axis=0)
        spread[kind] = Conformal.fit(
            trainings.seconds, guess, trainings.labels(kind), difficulty(parts)
        )
        errors[f"{kind}_out"] = round(float(np.median(np.abs(trainings.seconds / guess - 1))), 4)
    return fit_throughput(trainings, spread), errors
