"""How a model is run: everything that is asked beside the model, its batch and the GPU.

One frozen value that commands, manifests, the page and the estimators share. It is checked where
it is made (`Setup.make`), so that the estimators only meet set-ups that make sense. Nothing here
predicts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, Literal, Protocol, get_args

from presage.model.errors import ConfigError
from presage.model.optimizers import optimizer_memory

__all__ = [
    "Attention",
    "Checkpointing",
    "Layout",
    "LoraAdapter",
    "LossMemory",
    "Offload",
    "Parallelism",
    "Quantization",
    "Setup",
    "Sharding",
    "StackShape",
    "TrainingPrecision",
]

Sharding = Literal["none", "ddp", "zero1", "zero2", "zero3", "fsdp"]
TrainingPrecision = Literal["fp32", "tf32", "amp", "amp-bf16", "bf16", "fp16", "fp8"]
Quantization = Literal["none", "nf4", "int8"]
Checkpointing = Literal["none", "selective", "full"]
LossMemory = Literal["full", "chunked"]
Attention = Literal["eager", "sdpa", "flash"]
Layout = Literal["nchw", "nhwc"]
Offload = Literal["none", "optimizer", "params"]

_CHOICES: dict[str, tuple[str, ...]] = {
    "precision": get_args(TrainingPrecision),
    "quant": get_args(Quantization),
    "checkpoint": get_args(Checkpointing),
    "loss": get_args(LossMemory),
    "attention": get_args(Attention),
    "layout": get_args(Layout),
    "offload": get_args(Offload),
}
_DEGREES = {
    "tp": "tensor",
    "pp": "pipeline",
    "cp": "context",
    "ep": "expert",
    "vpp": "interleave",
}
_FLAGS = {"sp": ("sequence", True), "sync": ("sync", True), "no-sync": ("sync", False)}
_LORA_TARGETS = ("q", "k", "v", "o", "gate", "up", "down", "head")
_LORA_GROUPS = {
    "all": ("q", "k", "v", "o", "gate", "up", "down"),
    "attention": ("q", "k", "v", "o"),
    "mlp": ("gate", "up", "down"),
}
_LORA_SPELLINGS = {
    **{f"{t}_proj": t for t in ("q", "k", "v", "o", "gate", "up", "down")},
    "lm_head": "head",
    "query": "q",
    "key": "k",
    "value": "v",
    "out": "o",
    "output": "o",
    "all-linear": "all",
}


class StackShape(Protocol):
    """What of a model decides whether a set-up goes with it."""

    @property
    def name(self) -> str: ...
    @property
    def layers(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def experts(self) -> int: ...
    @property
    def positions(self) -> int: ...
    @property
    def gated(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How the work is divided among GPUs; what is left of them after tensor, pipeline and context
    parallelism is data parallel."""

    sharding: Sharding = "none"
    """Of weights, gradients and optimizer state among data-parallel ranks."""
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    interleave: int = 1
    """Model chunks of a pipeline rank (virtual pipeline stages)."""
    sequence: bool = False
    """Norms and residuals are divided among tensor-parallel ranks too."""
    sync: bool = False
    """FSDP divides gradients after each micro-batch. Without, whole gradients are added up and
    divided at the last one, as Accelerate, the Hugging Face trainer and Lightning do."""

    @classmethod
    def parse(cls, text: str) -> Parallelism:
        """`fsdp`, `tp=2,pp=2,cp=1` or `zero1,tp=4,pp=12`."""
        sharding: Any = "none"
        degrees: dict[str, Any] = {}
        for part in filter(None, (p.strip().lower() for p in text.split(","))):
            key, _, value = part.partition("=")
            if key in _DEGREES and value:
                degrees[_DEGREES[key]] = _whole(f"{key} of --parallel", value)
            elif key in _FLAGS and not value:
                name, on = _FLAGS[key]
                degrees[name] = on
            elif not value and key in get_args(Sharding):
                if sharding != "none":
                    raise ConfigError(f"'{text}': choose one of {sharding} and {key}")
                sharding = key
            else:
                known = (*get_args(Sharding), *_FLAGS, *(f"{d}=N" for d in _DEGREES))
                raise ConfigError(
                    f"'{part}' is no way to divide work: {_near(key, known)}"
                    f"write any of {', '.join(known)} with commas between"
                )
        return cls(sharding, **degrees)

    def __str__(self) -> str:
        parts = [] if self.sharding == "none" else [str(self.sharding)]
        for short, name in _DEGREES.items():
            if getattr(self, name) > 1:
                parts.append(f"{short}={getattr(self, name)}")
        parts += [flag for flag, (name, on) in _FLAGS.items() if on and getattr(self, name)]
        return ",".join(parts) or "none"


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """Low-rank adapters beside frozen weights."""

    rank: int
    targets: tuple[str, ...] = ("q", "v")
    """Projections that have one: q, k, v, o, gate, up, down, head."""
    precision: Literal["fp32", "same"] = "fp32"
    """Of the adapters: fp32 as PEFT keeps them, or the same as the weights."""
    dropout: bool = False
    """On the input of each adapter."""

    @classmethod
    def parse(cls, text: str) -> LoraAdapter:
        """`r=16:q,k,v,o`, `16`, `r=8:all`; `:same` at the end keeps adapters in the weights' type
        and `:dropout` drops some of their inputs."""
        first, *rest = (part.strip().lower() for part in text.split(":"))
        rank = _whole("the rank of --lora", re.sub(r"^(r|rank)\s*=\s*", "", first))
        flags = {part for part in rest if part in ("same", "fp32", "dropout")}
        lists = [part for part in rest if part not in flags]
        if len(lists) > 1:
            raise ConfigError(f"'{text}' is no adapter: write r=16:q,k,v,o")
        targets = cls._targets(lists[0]) if lists else ("q", "v")
        return cls(rank, targets, "same" if "same" in flags else "fp32", "dropout" in flags)

    @staticmethod
    def _targets(text: str) -> tuple[str, ...]:
        targets: dict[str, None] = {}
        for part in filter(None, (p.strip() for p in text.split(","))):
            name = _LORA_SPELLINGS.get(part, part)
            for target in _LORA_GROUPS.get(name, (name,)):
                if target not in _LORA_TARGETS:
                    known = (*_LORA_TARGETS, *_LORA_GROUPS)
                    raise ConfigError(
                        f"no projection '{part}' for LoRA: {_near(part, known)}"
                        f"targets are {', '.join(known)}"
                    )
                targets[target] = None
        if not targets:
            raise ConfigError("--lora names no projection: write r=16:q,k,v,o")
        return tuple(targets)

    def __str__(self) -> str:
        return f"r={self.rank}:{','.join(self.targets)}"


@dataclass(frozen=True, slots=True)
class Setup:
    """How a model is trained or served on `gpus` equal GPUs. `batch` is asked for elsewhere: the
    samples that one GPU (of tensor, pipeline and context ranks: one group) takes in one go."""

    optimizer: str = "sgd"
    precision: TrainingPrecision = "fp32"
    seq: int | None = None
    """Tokens of a sample; None for what the model says."""
    accumulate: int = 1
    """Micro-batches before the optimizer steps."""
    gpus: int = 1
    parallel: Parallelism = Parallelism()
    lora: LoraAdapter | None = None
    quant: Quantization = "none"
    checkpoint: Checkpointing = "none"
    loss: LossMemory = "full"
    attention: Attention = "sdpa"
    layout: Layout = "nchw"
    compile: bool = False
    cudnn_benchmark: bool = False
    offload: Offload = "none"
    interconnect: str | None = None
    """Between GPUs: nvlink, pcie, ib400, eth100 and so on; None for what the GPU usually has."""
    inference: bool = False
    kv_len: int | None = None
    """Tokens that the cache of a served sequence holds at most."""
    concurrency: int = 1
    """Sequences that are served at once."""

    @classmethod
    def make(cls, **given: Any) -> Setup:
        """A checked set-up from what a command or a manifest gives: `parallel` and `lora` may be
        text; what is None is left at its default."""
        known = {f.name for f in fields(cls)}
        values = {key: value for key, value in given.items() if value is not None}
        for key in values:
            if key not in known:
                raise ConfigError(
                    f"unknown option '{key}': {_near(key, known)}one of {', '.join(sorted(known))}"
                )
        if isinstance(values.get("parallel"), str):
            values["parallel"] = Parallelism.parse(values["parallel"])
        if isinstance(values.get("lora"), str):
            values["lora"] = LoraAdapter.parse(values["lora"])
        for key, choices in _CHOICES.items():
            if key in values:
                values[key] = _choice(key, str(values[key]), choices)
        if "optimizer" in values:
            values["optimizer"] = optimizer_memory(str(values["optimizer"])).name
        made = cls(**values)
        made.check()
        return made

    @property
    def data_parallel(self) -> int:
        """Replicas that see different samples."""
        p = self.parallel
        return max(1, self.gpus // (p.tensor * p.pipeline * p.context))

    @property
    def model_parallel(self) -> int:
        """GPUs that hold one replica together."""
        return self.parallel.tensor * self.parallel.pipeline * self.parallel.context

    @property
    def whole_gradients(self) -> bool:
        """FSDP keeps gradients of all weights on every rank while it adds them up."""
        fsdp = self.parallel.sharding == "fsdp" and not self.inference
        return fsdp and self.accumulate > 1 and not self.parallel.sync

    @property
    def half(self) -> bool:
        """Weights of the computation have two bytes, without a cast."""
        return self.precision in ("bf16", "fp16", "fp8")

    @property
    def autocast(self) -> bool:
        """fp32 weights, half-precision products."""
        return self.precision in ("amp", "amp-bf16")

    def check(self) -> None:
        """Whether the parts go together; a `ConfigError` of one line with the fix if not."""
        for problem in (self._numbers, self._division, self._training, self._serving):
            line = problem()
            if line:
                raise ConfigError(line)

    def _numbers(self) -> str | None:
        for name in ("accumulate", "gpus", "concurrency", "seq", "kv_len"):
            value = getattr(self, name)
            if value is not None and value < 1:
                return f"--{name.replace('_', '-')} is {value}: give a whole number of at least 1"
        p = self.parallel
        for short, name in _DEGREES.items():
            if getattr(p, name) < 1:
                return f"{short}={getattr(p, name)} in --parallel: give at least 1"
        return None

    def _division(self) -> str | None:
        p, whole = self.parallel, self.model_parallel
        if self.gpus % whole:
            return (
                f"{self.gpus} GPUs cannot be divided by tp={p.tensor} × pp={p.pipeline} × "
                f"cp={p.context}: use --gpus {whole * max(1, self.gpus // whole)} or other degrees"
            )
        if p.sharding in ("zero1", "zero2", "zero3", "fsdp", "ddp") and self.gpus == 1:
            return f"{p.sharding} needs more than one GPU: add --gpus 8 or leave --parallel out"
        if p.interleave > 1 and p.pipeline == 1:
            return "vpp divides pipeline stages: add pp=2 or more"
        if p.sync and p.sharding != "fsdp":
            return "sync divides the gradients of fsdp: write fsdp,sync, or leave sync out"
        if p.sequence and p.tensor == 1:
            return "sp divides among tensor-parallel ranks: add tp=2 or more"
        if p.sharding in ("zero2", "zero3") and p.pipeline > 1:
            return f"{p.sharding} with pp={p.pipeline} is not built: use zero1, or pp=1"
        return None

    def _training(self) -> str | None:
        if self.inference:
            return None
        if self.quant != "none" and self.lora is None:
            return (
                f"weights in {self.quant} cannot be trained themselves: "
                "add --lora r=16, or --inference"
            )
        if self.attention == "flash" and self.precision in ("fp32", "tf32"):
            return (
                f"flash attention has no {self.precision}: use --precision bf16, amp or fp16, "
                "or --attention sdpa"
            )
        if self.quant != "none" and self.precision == "fp8":
            return f"{self.quant} weights are computed with in bf16: use --precision bf16"
        if self.offload == "params" and self.parallel.sharding not in ("zero3", "fsdp"):
            return (
                "only zero3 and fsdp offload params: add --parallel fsdp, or --offload optimizer"
            )
        return None

    def _serving(self) -> str | None:
        if not self.inference:
            if self.kv_len is not None or self.concurrency != 1:
                name = "kv-len" if self.kv_len is not None else "concurrency"
                return f"--{name} is for serving: add --inference"
            return None
        if self.lora is not None:
            return "serving merges adapters into the weights: leave --lora out"
        if self.accumulate > 1 or self.checkpoint != "none" or self.offload == "optimizer":
            return "accumulation, checkpointing and optimizers are for training: leave them out"
        if self.parallel.sharding not in ("none", "ddp"):
            return f"serving divides with tp and pp, not {self.parallel.sharding}: use tp=N"
        return None

    def check_for(self, shape: StackShape) -> None:
        """Whether the set-up goes with a model's shape."""
        for line in (self._heads(shape), self._layers(shape), self._targets(shape)):
            if line:
                raise ConfigError(line)

    def _heads(self, shape: StackShape) -> str | None:
        tp, ep = self.parallel.tensor, self.parallel.expert
        if shape.heads % tp:
            fits = _near_divisor(shape.heads, tp)
            return (
                f"tp={tp} does not divide the {shape.heads} heads of {shape.name}: use tp={fits}"
            )
        if ep > 1 and not shape.experts:
            return f"{shape.name} has no experts to divide: leave ep={ep} out"
        if ep > 1 and shape.experts % ep:
            fits = _near_divisor(shape.experts, ep)
            return (
                f"ep={ep} does not divide the {shape.experts} experts of {shape.name}: "
                f"use ep={fits}"
            )
        return None

    def _layers(self, shape: StackShape) -> str | None:
        chunks = self.parallel.pipeline * self.parallel.interleave
        if chunks > shape.layers:
            return (
                f"pp={self.parallel.pipeline} has more stages than {shape.name} has layers "
                f"({shape.layers}): use fewer"
            )
        if self.seq is not None and shape.positions and self.seq > shape.positions:
            return (
                f"{shape.name} has {shape.positions} learned positions: use --seq "
                f"{shape.positions} or less"
            )
        if self.seq is not None and self.seq % self.parallel.context:
            return f"cp={self.parallel.context} does not divide --seq {self.seq}"
        return None

    def _targets(self, shape: StackShape) -> str | None:
        if self.lora is None:
            return None
        there = [t for t in _LORA_TARGETS if t != "gate" or shape.gated]
        if shape.experts:  # adapters of expert matrices are not built by PEFT
            there = [t for t in there if t not in ("gate", "up", "down")]
        asked = self.lora.targets
        absent = [t for t in asked if t not in there]
        if absent and tuple(asked) != _LORA_GROUPS["all"]:
            return f"{shape.name} has no projection '{absent[0]}' for LoRA: use {', '.join(there)}"
        if self.lora.rank > shape.width:
            return f"rank {self.lora.rank} is more than the width {shape.width} of {shape.name}"
        return None

    def assumptions(self, *, language: bool = True) -> tuple[str, ...]:
        """In words, what is taken for granted when nothing else is said; of attention and logits
        only where it is a language model."""
        said = []
        if not self.inference:
            said.append(f"optimizer {self.optimizer}, {_STATE_WORDS[self._state()]}")
            if self.optimizer in ("adam", "adamw"):
                said.append("the optimizer's foreach form (PyTorch's default), not fused")
        if self.precision == "fp32":
            said.append("fp32 with PyTorch's defaults: TF32 for convolutions only")
        if language:
            said.append(f"attention: {_ATTENTION_WORDS[self.attention]}")
        if self.lora is not None:
            kept = "fp32" if self.lora.precision == "fp32" else "the precision of the weights"
            said.append(f"adapters in {kept}, on {', '.join(self.lora.targets)}")
        if self.quant != "none" and self.precision == "fp16" and not self.inference:
            said.append("fp16 by autocast: what is not quantised stays in fp32")
        if self.quant == "nf4" and not self.inference:
            said.append("a loop that holds its last loss while the next forward pass runs")
        if self.quant == "nf4":
            said.append(
                "4-bit weights in blocks of 64 without double quantisation; embeddings "
                "and head not quantised"
            )
        if language and self.loss == "full" and not self.inference:
            said.append("logits of the whole batch in fp32 for the loss")
        if self.gpus > 1 and self.parallel.sharding == "none" and self.data_parallel > 1:
            said.append("replicas keep all weights, gradients and state (as ddp)")
        if self.whole_gradients:
            said.append(
                "whole gradients stay between micro-batches, as in Accelerate (fsdp,sync: divided)"
            )
        return tuple(said)

    def _state(self) -> str:
        if self.autocast or not self.half:
            return "fp32"
        return "master" if self.master_weights else "half"

    @property
    def master_weights(self) -> bool:
        """fp32 copies of half-precision weights, as DeepSpeed and Megatron keep them."""
        if not self.half or self.inference or self.lora is not None:
            return False
        zero = self.parallel.sharding in ("zero1", "zero2", "zero3")
        split = self.parallel.tensor > 1 or self.parallel.pipeline > 1
        return zero or split or self.precision == "fp8"


_STATE_WORDS = {
    "fp32": "its state in fp32",
    "half": "its state in half precision like the weights",
    "master": "its state and a master copy of the weights in fp32",
}
_ATTENTION_WORDS = {
    "eager": "eager, scores kept for the backward pass",
    "sdpa": "PyTorch's fused kernels, no scores kept",
    "flash": "flash, no scores kept",
}


def _choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    key = value.strip().lower()
    if key not in choices:
        raise ConfigError(
            f"unknown --{name} '{value}': {_near(key, choices)}one of {', '.join(choices)}"
        )
    return key


def _near(word: str, known: Any) -> str:
    near = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean '{near[0]}'? " if near else ""


def _near_divisor(whole: int, asked: int) -> int:
    """What divides it and is nearest to what was asked."""
    return min((d for d in range(1, whole + 1) if whole % d == 0), key=lambda d: abs(d - asked))


def _whole(what: str, text: str) -> int:
    if not text.strip().isdigit() or int(text) < 1:
        raise ConfigError(f"{what} is '{text}': give a whole number of at least 1, like 8")
    return int(text)
