"""How fast language models train: operations, bytes, and efficiencies that were learned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from presage.foresee._llm_work import work
from presage.foresee.gpus import find
from presage.foresee.graph.architectures import find_architecture
from presage.foresee.graph.decoders import DecoderShape
from presage.foresee.throughput import (
    PRIORS,
    LlmStep,
    Throughput,
    groups_of,
    llm_step,
    throughput,
)
from presage.foresee.throughput_fitting import Trainings, fit_throughput, published_rows
from presage.learn.posterior import most_probable
from presage.model.errors import BundleError
from presage.model.setup import LoraAdapter, Parallelism, Setup

H100, A100 = find("h100-80g"), find("a100-80g")


def shape(name: str) -> DecoderShape:
    return DecoderShape.from_config(find_architecture(name).config, name)


LLAMA = shape("llama-3.1-8b")
FSDP = Setup(
    optimizer="adamw",
    precision="bf16",
    seq=4096,
    gpus=8,
    attention="flash",
    parallel=Parallelism("fsdp"),
)


def step(setup: Setup = FSDP, batch: int = 2, model: DecoderShape = LLAMA) -> LlmStep:
    return llm_step(model, setup, batch, H100)


def test_operations_are_those_of_the_shape() -> None:
    """Products, head and attention add up to six operations for each weight and token."""
    found = work(LLAMA, replace(FSDP, gpus=1, parallel=Parallelism()), 1, H100)
    linear = found.dense_flops + found.head_flops + found.attention_flops * 3 / 3.5
    assert linear == pytest.approx(found.flops, rel=0.01)
    assert found.tokens == 4096


def test_experts_that_a_token_uses_count() -> None:
    mixture = shape("mixtral-8x7b")
    found = work(mixture, replace(FSDP, gpus=1, parallel=Parallelism()), 1, H100)
    used = found.dense_flops + found.expert_flops + found.head_flops
    assert used == pytest.approx(6 * (mixture.active_params - 32000 * 4096) * 4096, rel=0.02)


@pytest.mark.parametrize("cut", ["tp=2", "pp=2", "cp=2", "tp=2,pp=2,cp=2"])
def test_ranks_divide_the_work(cut: str) -> None:
    whole = work(LLAMA, replace(FSDP, gpus=8, parallel=Parallelism()), 2, H100)
    divided = Parallelism.parse(cut)
    part = work(LLAMA, replace(FSDP, gpus=8, parallel=divided), 2, H100)
    ranks = divided.tensor * divided.pipeline * divided.context
    assert part.dense_flops == pytest.approx(whole.dense_flops / ranks)
    assert part.attention_flops == pytest.approx(whole.attention_flops / ranks)
    assert part.tokens == pytest.approx(whole.tokens / ranks)


def test_utilization_of_well_known_trainings() -> None:
    """About half of an A100 and two fifths of an H100 (llm-foundry, bf16, FSDP)."""
    a100 = llm_step(LLAMA, FSDP, 2, A100)
    h100 = llm_step(LLAMA, FSDP, 2, H100)
    assert 0.45 < a100.mfu < 0.62
    assert 0.33 < h100.mfu < 0.48
    assert 2.0 < h100.tokens_per_s / a100.tokens_per_s < 2.8


def test_parts_add_up_and_the_interval_is_in_order() -> None:
    found = step()
    low, middle, high = found.step_s
    assert low < middle < high
    assert sum(found.parts.values()) == pytest.approx(middle)
    assert found.tokens_per_s == pytest.approx(8 * found.tokens_per_s_per_gpu)
    assert found.tokens_per_s == pytest.approx(8 * 2 * 4096 / middle)


def test_what_makes_a_step_longer() -> None:
    base = step().step_s[1]
    assert step(replace(FSDP, checkpoint="full")).step_s[1] > 1.15 * base
    assert step(replace(FSDP, attention="eager")).step_s[1] > 1.1 * base
    assert step(replace(FSDP, interconnect="pcie")).step_s[1] > base
    assert step(replace(FSDP, precision="fp8")).step_s[1] < 0.85 * base
    assert step(replace(FSDP, precision="tf32")).step_s[1] > 1.4 * base
    frozen = replace(FSDP, lora=LoraAdapter(16, ("q", "v")))
    assert step(frozen).step_s[1] < 0.9 * base
    assert step(replace(FSDP, gpus=64, interconnect="eth10")).step_s[1] > 2 * base


def test_pipelines_want_micro_batches() -> None:
    cut = replace(FSDP, parallel=Parallelism("zero1", pipeline=4))
    few, many = (step(replace(cut, accumulate=n), 1) for n in (2, 64))
    assert few.tokens_per_s < 0.6 * many.tokens_per_s
    assert few.parts["bubble"] > few.parts["products"]


def test_far_from_what_was_measured_is_said_and_wide() -> None:
    known, strange = llm_step(LLAMA, FSDP, 2, A100), llm_step(LLAMA, FSDP, 2, find("mi300x"))
    assert known.domain == 0
    assert known.why == ()
    assert strange.domain > 0.5
    assert "mi300x" in strange.why[0]
    width = [step.step_s[2] / step.step_s[0] for step in (known, strange)]
    assert width[1] > 1.5 * width[0]
    huge = llm_step(LLAMA, replace(FSDP, gpus=1 << 15), 2, A100)
    assert 0 < huge.domain < 1
    assert "GPUs" in huge.why[0]


def test_a_known_stack_narrows_the_interval() -> None:
    anyone = step().step_s
    known = llm_step(LLAMA, FSDP, 2, H100, stack="llm-foundry").step_s
    assert known[2] / known[0] < anyone[2] / anyone[0]


def test_a_size_that_no_model_had_is_less_sure_than_a_new_model() -> None:
    model = throughput()
    groups = groups_of(FSDP, A100, None)
    huge = replace(LLAMA, layers=4000)
    assert model.unseen(groups, LLAMA) == ["model", "stack"]
    assert model.unseen(groups, huge) == ["size", "stack"]
    older = Throughput(model.values, model.effects, {"size": model.spread["size"]})
    assert older.unseen(groups, LLAMA)[0] == "size"  # what former releases fitted


def test_arrays_round_trip() -> None:
    model = throughput()
    again = Throughput.from_arrays(model.to_arrays())
    assert again.seen == model.seen
    assert again.values == model.values
    assert again.effects == model.effects
    assert again.ranges == model.ranges
    assert again.spread == model.spread
    with pytest.raises(BundleError, match="no throughput model"):
        Throughput.from_arrays({"values": np.zeros(3)})


# -- fitting ------------------------------------------------------------------------------------

COLUMNS = [
    "source",
    "model",
    "params",
    "params_active",
    "layers",
    "hidden",
    "heads",
    "vocab",
    "ffn",
    "seq_len",
    "gpu",
    "gpus",
    "nodes",
    "interconnect",
    "micro_batch",
    "grad_accum",
    "global_batch",
    "precision",
    "optimizer",
    "sharding",
    "tensor_parallel",
    "pipeline_parallel",
    "context_parallel",
    "expert_parallel",
    "virtual_pipeline",
    "method",
    "lora_rank",
    "activation_checkpointing",
    "offload",
    "flash_attention",
    "compile",
    "tokens_per_s_per_gpu",
    "outcome",
    "suspect",
]


def published(**row: object) -> dict[str, object]:
    usual: dict[str, object] = dict.fromkeys(COLUMNS) | {
        "source": "llm-foundry",
        "model": "mpt-7b",
        "params": 6.65e9,
        "layers": 32,
        "hidden": 4096,
        "heads": 32,
        "vocab": 50368,
        "ffn": 16384,
        "seq_len": 2048,
        "gpu": "h100-80g",
        "gpus": 8,
        "nodes": 1,
        "micro_batch": 6,
        "global_batch": 48,
        "precision": "bf16",
        "optimizer": "adamw",
        "sharding": "fsdp_full",
        "method": "pretrain",
        "activation_checkpointing": "none",
        "offload": "none",
        "flash_attention": "y",
        "compile": "n",
        "tokens_per_s_per_gpu": 10640.0,
        "outcome": "ok",
        "suspect": False,
    }
    return usual | row


def test_published_rows_become_set_ups() -> None:
    rows = published_rows(
        pl.DataFrame(
            [
                published(),
                published(suspect=True),
                published(tokens_per_s_per_gpu=None),
                published(
                    source="megatron-bridge",
                    model="llama-3-70b",
                    params=70.55e9,
                    layers=80,
                    hidden=8192,
                    heads=64,
                    vocab=128256,
                    ffn=28672,
                    gpus=64,
                    nodes=None,
                    micro_batch=1,
                    global_batch=128,
                    precision="fp8",
                    sharding="zero1",
                    tensor_parallel=4,
                    pipeline_parallel=8,
                    context_parallel=1,
                    virtual_pipeline=5,
                ),
            ],
            infer_schema_length=None,
        )
    )
    plain, divided = rows
    assert plain.shape.params == pytest.approx(6.65e9, rel=0.01)
    assert not plain.shape.gated
    assert plain.setup.parallel == Parallelism("fsdp")
    assert plain.setup.accumulate == 1
    assert divided.shape.gated
    assert divided.shape.kv_heads == 8
    assert divided.setup.accumulate == 64
    assert divided.setup.data_parallel == 2


def test_a_fit_finds_what_made_the_figures() -> None:
    """Figures that a GPU half as efficient would give move its architecture's effect."""
    told = throughput()
    slow = Throughput(told.values, told.effects | {("architecture", "hopper"): -0.3}, told.spread)
    rows = published_rows(
        pl.DataFrame(
            [
                published(gpu=gpu, seq_len=seq, micro_batch=batch, global_batch=8 * batch)
                for gpu in ("h100-80g", "a100-80g")
                for seq in (512, 2048, 8192)
                for batch in (4, 12)
            ],
            infer_schema_length=None,
        )
    )
    made = Trainings.of(rows)
    true = Trainings(made.rows, made.columns, made.groups, slow.seconds(made.columns, made.groups))
    found = fit_throughput(true)
    assert found.seconds(true.columns, true.groups) == pytest.approx(true.seconds, rel=0.1)
    hopper, ampere = (found.effects["architecture", name] for name in ("hopper", "ampere"))
    assert hopper < ampere - 0.1


def test_the_most_probable_line() -> None:
    x = np.arange(20.0)
    truth = 3 + 0.5 * x
    truth[7] = 100  # something else slowed this one

    def residuals(at: np.ndarray) -> np.ndarray:
        return np.asarray((at[0] + at[1] * x - truth) / 0.1)

    found = most_probable(residuals, np.zeros(2), np.full(2, 10.0))
    assert found == pytest.approx([3, 0.5], abs=0.05)
    kept = most_probable(residuals, np.zeros(2), np.full(2, 1e-4))
    assert np.abs(kept).max() < 0.05  # who expects nothing else is not moved


def test_every_expectation_has_room() -> None:
    assert all(room > 0 for _, room in PRIORS.values())
