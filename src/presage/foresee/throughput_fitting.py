"""Learn efficiencies of language-model trainings from published figures.

`python -m presage.foresee.throughput_fitting DATA DATE` writes the shipped bundle anew, from rows
whose licence allows it. The fit is one maximum a posteriori estimate: logarithms of efficiencies
around what physics lets one expect, and effects of groups (architecture, GPU, software stack)
around zero, so that a group with few rows stays near the others. Only fitting reads tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import polars as pl

from presage.foresee.gpus import Gpu, find
from presage.foresee.graph.architectures import find_architecture
from presage.foresee.graph.decoders import DecoderShape
from presage.foresee.throughput import EFFECTS, PRIORS, StepWork, step_seconds
from presage.learn import Floats
from presage.model.errors import PresageError
from presage.model.setup import LoraAdapter, Parallelism, Setup

__all__ = ["Measured", "published_rows"]

_SHARDING = {"fsdp_full": "fsdp", "fsdp_grad": "zero2"}
_HYBRIDS: dict[str, dict[str, Any]] = {
    # Attention and state-space layers in turn; written as layers of attention over a short window,
    # which cost about the same. Sizes from the makers' reports, the last three from the operations
    # a token that the makers print.
    "nemotron-3-nano": dict(
        layers=23,
        width=2688,
        heads=48,
        kv_heads=4,
        head_width=128,
        inner=3712,
        vocabulary=131072,
        gated=False,
        experts=128,
        experts_per_token=6,
        expert_inner=1856,
        shared_inner=3712,
        window=256,
        windowed_layers=17,
    ),
    "nemotron-3-super": dict(
        layers=44,
        width=4096,
        heads=64,
        kv_heads=4,
        head_width=128,
        inner=8192,
        vocabulary=131072,
        gated=False,
        experts=512,
        experts_per_token=22,
        expert_inner=700,
        shared_inner=5376,
        window=256,
        windowed_layers=36,
    ),
    "nemotron-3-ultra": dict(
        layers=54,
        width=8192,
        heads=128,
        kv_heads=4,
        head_width=128,
        inner=16384,
        vocabulary=131072,
        gated=False,
        experts=512,
        experts_per_token=22,
        expert_inner=1280,
        shared_inner=10240,
        window=256,
        windowed_layers=42,
    ),
    "nemotron-3-5-lightning": dict(
        layers=26,
        width=3072,
        heads=48,
        kv_heads=4,
        head_width=128,
        inner=3712,
        vocabulary=131072,
        gated=False,
        experts=128,
        experts_per_token=6,
        expert_inner=2304,
        shared_inner=4608,
        window=256,
        windowed_layers=20,
    ),
    "deepseekv4-flash": dict(
        layers=43,
        width=4096,
        heads=64,
        kv_heads=1,
        head_width=512,
        inner=8192,
        vocabulary=129280,
        experts=256,
        experts_per_token=6,
        expert_inner=2048,
        shared_inner=2048,
        window=512,
        windowed_layers=43,
    ),
}
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
    return [_measured(row) for row in wanted.iter_rows(named=True)]


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
    if name in _HYBRIDS:
        return DecoderShape(name=name, **_HYBRIDS[name])
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


def columns(works: Sequence[StepWork]) -> dict[str, Any]:
    """A table of work: an array for each field, by kind where there are several."""
    table: dict[str, Any] = {}
    for f in fields(StepWork):
        values = np.array([getattr(w, f.name) for w in works], dtype=float)
        table[f.name] = list(values.T) if values.ndim == 2 else values
    return table


def levels(row: Measured) -> dict[str, str]:
    """The groups that a row is of."""
    kind = "experts" if row.shape.experts else "dense"
    return {
        "architecture": row.gpu.architecture,
        "attention architecture": row.gpu.architecture,
        "gpu": row.gpu.name,
        "stack": row.source,
        "model kind": kind,
    }


SHARES = ("gather", "tensor", "pipeline", "context", "experts")
"""Values that are shares of a whole."""


class ThroughputModel:
    """Efficiencies and effects of groups."""

    def __init__(
        self,
        effects: Mapping[str, float] = EFFECTS,
        priors: Mapping[str, tuple[float, float]] = PRIORS,
        noise: float = 0.1,
        robust: float = 1.5,
        balance: float = 0.5,
    ) -> None:
        self.spread = dict(effects)
        self.priors = dict(priors)
        self.noise, self.robust, self.balance = noise, robust, balance

    def fit(
        self,
        table: Mapping[str, Any],
        groups: Sequence[Mapping[str, str]],
        seconds: Floats,
        weights: Floats,
    ) -> ThroughputModel:
        self.names = [*self.priors]
        self.members = {e: sorted({g[e] for g in groups}) for e in self.spread}
        place = {}
        start = [m for m, _ in self.priors.values()]
        scale = [s for _, s in self.priors.values()]
        for e, found in self.members.items():
            for m in found:
                place[e, m] = len(start)
                start.append(0.0)
                scale.append(self.spread[e])
        self.place = place
        mean, sd = np.array(start), np.array(scale)
        index = {e: np.array([place[e, g[e]] for g in groups]) for e in self.spread}
        y = np.log(seconds)
        w = np.sqrt(weights) / self.noise

        def residuals(x: Floats) -> Floats:
            return (y - self._log(table, x, index)) * w

        x = mean.copy()
        damp = 1e-2
        r = residuals(x)

        def cost(r, x):
            a = np.abs(r)
            k = self.robust
            return np.sum(np.where(a < k, r**2, 2 * k * a - k * k)) + np.sum(
                ((x - mean) / sd) ** 2
            )

        best = cost(r, x)
        for _ in range(40):
            J = np.empty((len(y), len(x)))
            for i in range(len(x)):
                h = 1e-4
                step = x.copy()
                step[i] += h
                J[:, i] = (residuals(step) - r) / h
            irls = np.minimum(1.0, self.robust / np.maximum(np.abs(r), 1e-9))
            A = (J * irls[:, None]).T @ J + np.diag(1 / sd**2)
            g = (J * irls[:, None]).T @ r + (x - mean) / sd**2
            for _ in range(8):
                d = np.linalg.solve(A + damp * np.diag(np.diag(A)), -g)
                trial = x + np.clip(d, -0.5, 0.5)
                rt = residuals(trial)
                c = cost(rt, trial)
                if c < best:
                    break
                damp *= 4
            else:
                break
            done = best - c < 1e-3
            x, r, best, damp = trial, rt, c, max(damp / 6, 1e-6)
            if done:
                break
        self.x = x
        return self

    def _log(self, table, x, index):
        v = {n: np.exp(x[i]) for i, n in enumerate(self.names)}
        for s in SHARES:
            v[s] = np.minimum(v[s], 0.95)
        get = lambda e: x[index[e]] if e in index else 0.0
        arch = np.exp(get("architecture"))
        bits = np.where(
            table["eight"] > 0,
            np.where(table["four"] > 0, v["products nvfp4"], v["products fp8"]),
            1.0,
        )
        v["products half"] = v["products"] * arch
        v["products"] = v["products"] * arch * bits
        v["attention"] = v["attention"] * np.exp(get("attention architecture"))
        total = sum(step_seconds(table, v).values())
        return np.log(total) + get("gpu") + get("stack") + get("model kind")

    def predict(self, table, groups):
        x = np.append(self.x, 0.0)
        index = {
            e: np.array([self.place.get((e, g[e]), len(self.x)) for g in groups])
            for e in self.spread
        }
        return np.exp(self._log(table, x, index))
