"""What the page *Foresee* is asked, checked at the edge: from an address or a form to a question,
and from a question to a manifest. Nothing here draws or predicts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from presage.foresee.desk import check_name
from presage.manifest.quantities import duration_s
from presage.manifest.schema import ModelReference
from presage.model.errors import UserError

__all__ = ["ForeseeQuestion", "manifest_text", "read_question"]

_MOST_KINDS = 6


def _or_none(value: object) -> object:
    return None if value in ("", None) else value


Count = Annotated[int, Field(ge=1, le=1 << 20)]
Maybe = BeforeValidator(_or_none)
Word = Annotated[str, Field(max_length=40, pattern=r"^[A-Za-z0-9.,=:_+ -]*$")]


class ForeseeQuestion(BaseModel):
    """The state of the page; its names are those of the address."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    model: Annotated[str, Field(max_length=200)] = "hf:meta-llama/Llama-3.1-8B"
    kinds: Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z0-9., _-]*$")] = (
        "a100-80g,h100-80g"
    )
    use: Literal["training", "serving"] = "training"
    batch: Count = 1
    seq: Annotated[int | None, Field(ge=1, le=1 << 22), Maybe] = None
    gpus: Annotated[int, Field(ge=1, le=4096)] = 8
    accumulate: Annotated[int, Field(ge=1, le=65_536)] = 1
    precision: Literal["", "fp32", "tf32", "amp", "amp-bf16", "bf16", "fp16", "fp8"] = ""
    optimizer: Word = "adamw"
    sharding: Literal["none", "ddp", "zero1", "zero2", "zero3", "fsdp"] = "fsdp"
    tp: Annotated[int, Field(ge=1, le=64)] = 1
    pp: Annotated[int, Field(ge=1, le=64)] = 1
    checkpoint: Literal["none", "selective", "full"] = "full"
    lora: Annotated[int, Field(ge=0, le=4096)] = 0
    targets: Word = "all"
    quant: Literal["none", "nf4", "int8"] = "none"
    kv_len: Annotated[int | None, Field(ge=1, le=1 << 22), Maybe] = None
    concurrency: Count = 1
    amount: Word = ""
    unit: Literal["tokens", "samples"] = "tokens"
    global_batch: Annotated[int | None, Field(ge=1, le=1 << 24), Maybe] = None
    deadline: Word = ""
    budget: Annotated[float | None, Field(gt=0, le=1e12, allow_inf_nan=False), Maybe] = None
    max_gpus: Annotated[int, Field(ge=1, le=1024), BeforeValidator(lambda v: v or 64)] = 64

    def devices(self) -> list[str]:
        """Kinds of GPUs."""
        names = [name.strip() for name in self.kinds.split(",") if name.strip()]
        if not 1 <= len(names) <= _MOST_KINDS:
            raise UserError(f"choose one to {_MOST_KINDS} kinds of GPU")
        return list(dict.fromkeys(names))

    def common(self) -> dict[str, Any]:
        """Options of the set-up that a plan leaves as they are."""
        lora = f"r={self.lora}:{self.targets}" if self.lora else None
        return {
            "optimizer": self.optimizer,
            **({"precision": self.precision} if self.precision else {}),
            **({"lora": lora, "quant": self.quant} if lora else {}),
        }

    def options(self) -> dict[str, Any]:
        """Options of the set-up, as `Setup.make` takes them."""
        if self.use == "serving":
            return {
                "inference": True,
                **({"precision": self.precision} if self.precision else {}),
                **{"kv_len": self.kv_len, "concurrency": self.concurrency},
                **{"quant": self.quant, "gpus": self.gpus, "parallel": self.parallel() or None},
            }
        return {
            **self.common(),
            "seq": self.seq,
            "accumulate": self.accumulate,
            "gpus": self.gpus,
            "parallel": self.parallel() or None,
            "checkpoint": self.checkpoint,
        }

    def parallel(self) -> str:
        """As `--parallel` takes it; empty for one GPU, which shares with nobody."""
        if self.gpus == 1:
            return ""
        split = [f"{name}={size}" for name, size in (("tp", self.tp), ("pp", self.pp)) if size > 1]
        shards = self.use == "training" and self.sharding != "none"
        return ",".join([self.sharding] * shards + split)

    def look(self, *, largest: bool) -> dict[str, Any]:
        """For the desk: one set-up, and whether to say what batch would fit at most."""
        return {
            "model": check_name(self.model),
            "gpus": self.devices(),
            "batch": self.batch,
            "options": self.options(),
            "largest": largest,
        }

    def wish(self) -> dict[str, Any]:
        """For the desk: a plan."""
        if self.use == "serving":
            raise UserError("plans are of trainings: choose training")
        if not self.amount:
            raise UserError("say how much the training is to see, such as 2B tokens")
        deadline_s = None
        if self.deadline:
            try:
                plain = re.fullmatch(r"\d+(\.\d+)?", self.deadline)
                deadline_s = duration_s(float(self.deadline) if plain else self.deadline)
            except ValueError as wrong:
                raise UserError(f"deadline: {wrong}") from None
        return {
            "model": check_name(self.model),
            "gpus": self.devices(),
            "options": self.common(),
            "wish": {
                self.unit: self.amount,
                "seq": self.seq,
                "global_batch": self.global_batch,
                "deadline_s": deadline_s,
                "budget_usd": self.budget,
                "max_gpus": self.max_gpus,
            },
        }


def read_question(given: Mapping[str, Any]) -> ForeseeQuestion:
    """The question that an address or a form holds; a `UserError` names the field."""
    try:
        return ForeseeQuestion.model_validate(dict(given))
    except ValidationError as wrong:
        first = wrong.errors()[0]
        where = ".".join(str(part) for part in first["loc"]).replace("_", " ")
        raise UserError(f"{where}: {first['msg']}") from None


def manifest_text(question: ForeseeQuestion, kind: str, precision: str) -> str:
    """A manifest that asks for these GPUs and says what it trains, to copy."""
    serves = question.use == "serving"
    said: dict[str, Any] = {
        **{"ref": check_name(question.model)},
        **({} if serves else {"batch": question.batch}),
        **{name: value for name, value in question.options().items() if value is not None},
        "precision": precision,
    }
    gpus = said.pop("gpus")
    job: dict[str, Any] = {
        "name": re.sub(r"[^a-z0-9]+", "-", question.model.rpartition(":")[2].lower()).strip("-"),
        "command": f"python {'serve' if serves else 'train'}.py",
        **({"launcher": "torchrun", "workers": gpus} if gpus > 1 and not serves else {}),
        "resources": {"gpus": gpus if serves else 1, "gpu_type": kind},
        "model": _said_in_manifests(said),
    }
    return yaml.safe_dump(job, sort_keys=False, width=99)


def _said_in_manifests(said: Mapping[str, Any]) -> dict[str, Any]:
    """What a manifest has words for."""
    kept = {name: value for name, value in said.items() if name in ModelReference.model_fields}
    try:
        ModelReference.model_validate(kept)
    except ValidationError as wrong:
        refused = {str(error["loc"][0]) for error in wrong.errors()}
        kept = {name: value for name, value in kept.items() if name not in refused}
    return kept
