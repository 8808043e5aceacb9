"""Set-ups: what people write, and one line about what does not go together."""

from __future__ import annotations

from typing import Any

import pytest

from presage.foresee.graph.architectures import find_architecture
from presage.foresee.graph.decoders import DecoderShape
from presage.model.errors import ConfigError
from presage.model.optimizers import OPTIMIZER_TABLE, optimizer_memory
from presage.model.setup import LoraAdapter, Parallelism, Setup

LLAMA = DecoderShape.from_config(find_architecture("llama-3.1-8b").config, "llama-3.1-8b")


def test_parallelism_is_read_and_written() -> None:
    assert Parallelism.parse("fsdp") == Parallelism("fsdp")
    read = Parallelism.parse("zero1,tp=4,pp=12,sp")
    assert (read.sharding, read.tensor, read.pipeline, read.sequence) == ("zero1", 4, 12, True)
    assert Parallelism.parse(str(read)) == read
    assert Parallelism.parse("tp=2,pp=2,cp=1") == Parallelism(tensor=2, pipeline=2)
    assert str(Parallelism()) == "none"
    assert Parallelism.parse("fsdp,no-sync") == Parallelism("fsdp")
    assert str(Parallelism.parse("fsdp,sync")) == "fsdp,sync"


def test_adapters_are_read() -> None:
    assert LoraAdapter.parse("16") == LoraAdapter(16)
    assert LoraAdapter.parse("r=16:q,k,v,o").targets == ("q", "k", "v", "o")
    assert LoraAdapter.parse("r=8:all").targets == ("q", "k", "v", "o", "gate", "up", "down")
    assert LoraAdapter.parse("r=8:q_proj,lm_head").targets == ("q", "head")
    assert LoraAdapter.parse("r=8:q:same").precision == "same"


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"parallel": "fdsp"}, "did you mean 'fsdp'"),
        ({"parallel": "ddp,sync", "gpus": 4}, "write fsdp,sync"),
        ({"parallel": "tp=0"}, "at least 1"),
        ({"gpus": 8, "parallel": "tp=3"}, "8 GPUs cannot be divided.*--gpus 6"),
        ({"parallel": "fsdp"}, "needs more than one GPU"),
        ({"gpus": 8, "parallel": "zero3,pp=2"}, "use zero1"),
        ({"quant": "nf4"}, "add --lora"),
        ({"attention": "flash"}, "--precision bf16"),
        ({"kv_len": 64}, "add --inference"),
        ({"concurrency": 4}, "add --inference"),
        ({"optimizer": "adamx"}, "did you mean 'adam'"),
        ({"precision": "fp61"}, "did you mean 'fp16'"),
        ({"lora": "r=8:qq"}, "targets are q, k"),
        ({"lora": "many"}, "whole number"),
        ({"offload": "params"}, "--parallel fsdp"),
        ({"inference": True, "lora": "8"}, "leave --lora out"),
        ({"seq": 0}, "--seq is 0"),
        ({"sequence": 5}, "unknown option 'sequence'"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line) as caught:
        Setup.make(**given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"gpus": 6, "parallel": "tp=6"}, "does not divide the 32 heads.*use tp="),
        ({"gpus": 64, "parallel": "pp=64"}, "more stages"),
        ({"gpus": 2, "parallel": "ep=2"}, "no experts"),
        ({"lora": "r=5000"}, "more than the width"),
        ({"seq": 2047, "gpus": 2, "parallel": "cp=2"}, "does not divide --seq"),
    ],
)
def test_what_a_model_cannot_do_is_refused(given: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        Setup.make(**given).check_for(LLAMA)


def test_adapters_need_a_projection() -> None:
    gpt2 = DecoderShape.from_config(find_architecture("gpt2").config, "gpt2")
    with pytest.raises(ConfigError, match="no projection 'gate'"):
        Setup.make(lora="r=4:gate").check_for(gpt2)
    Setup.make(lora="r=4:all").check_for(gpt2)


def test_assumptions_say_what_was_taken() -> None:
    said = " ".join(Setup.make(optimizer="adamw", precision="bf16", lora="8").assumptions())
    assert "foreach" in said
    assert "adapters in fp32" in said


def test_optimizers_have_other_spellings() -> None:
    assert optimizer_memory("adamw8bit").name == "adamw-8bit"
    assert optimizer_memory("paged_adamw_8bit").paged
    assert OPTIMIZER_TABLE["adamw-fused"].foreach_values == 0
    assert optimizer_memory("AdamW").values == 2
