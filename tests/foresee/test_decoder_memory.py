"""Memory of language models on a GPU: parts that add up, and intervals that hold what was seen."""

from __future__ import annotations

from typing import Any

import pytest

from presage.foresee.decoder_memory import decoder_forecast, largest_decoder_batch
from presage.foresee.floors import Floor
from presage.foresee.gpus import find
from presage.foresee.graph.architectures import find_architecture
from presage.foresee.graph.decoder_graph import busiest_graph
from presage.foresee.graph.decoders import DecoderShape
from presage.foresee.memory import MemoryForecast, MemoryPhysics
from presage.model.setup import Setup


def _shape(name: str) -> DecoderShape:
    return DecoderShape.from_config(find_architecture(name).config, name)


def _forecast(name: str, gpu: str, batch: int, **given: Any) -> MemoryForecast:
    shape, setup = _shape(name), Setup.make(**given)
    physics = MemoryPhysics.of(busiest_graph(shape, setup, batch), batch)
    return decoder_forecast(physics, shape, find(gpu), setup)


def test_parts_add_up_to_the_median() -> None:
    given = {"precision": "bf16", "seq": 1024, "optimizer": "adamw"}
    for more in ({}, {"gpus": 8, "parallel": "fsdp"}):
        answer = _forecast("llama-3.2-1b", "a100-80g", 2, **given, **more)
        assert sum(answer.parts.values()) == pytest.approx(answer.needs[1])
        assert all(size >= 0 for size in answer.parts.values())
        assert ("communication" in answer.parts) == bool(more)


def test_a_published_figure_is_inside() -> None:
    """LoRA of Llama 3.2 3B, 20.76 GiB reserved as PEFT measured it; without the floor."""
    answer = _forecast(
        "llama-3.2-3b", "l40s", 4, precision="bf16", seq=768, optimizer="adamw", lora="r=32:q,v"
    )
    low, middle, high = answer.needs - answer.parts["device and driver"]
    assert low < 20.76 * 1024 < high
    assert high / middle < 1.15


def test_the_largest_batch_is_the_last_that_fits() -> None:
    shape, gpu = _shape("llama-3.2-1b"), find("rtx4090")
    setup = Setup.make(precision="bf16", seq=2048, optimizer="adamw", checkpoint="full")
    graph = busiest_graph(shape, setup)
    best = largest_decoder_batch(graph, shape, gpu, setup)
    assert best >= 2
    for batch, fits in ((best, True), (int(best * 1.2) + 1, False)):
        answer = decoder_forecast(MemoryPhysics.of(graph, batch), shape, gpu, setup)
        assert bool(answer.needs[2] <= gpu.usable_mib) is fits
    known = MemoryPhysics.of(graph, 3)
    assert largest_decoder_batch(graph, shape, gpu, setup, known=known) == pytest.approx(
        best, rel=0.05
    )
    heavy = Floor(30_000.0, 30_000.0, 30_000.0)
    assert largest_decoder_batch(graph, shape, gpu, setup, floor=heavy) == 0


def test_fp16_over_quantised_weights_is_autocast() -> None:
    given = {"seq": 512, "optimizer": "adamw", "lora": "r=8", "quant": "int8"}
    half, autocast = (
        _forecast("llama-3.2-1b", "t4", 1, precision=precision, **given)
        for precision in ("fp16", "amp")
    )
    assert half.needs == pytest.approx(autocast.needs)
    said = Setup.make(precision="fp16", **given).assumptions()
    assert any("autocast" in words for words in said)
