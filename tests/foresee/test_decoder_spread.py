"""Intervals of language models: wider where less was published."""

from __future__ import annotations

from typing import Any

import pytest

from presage.foresee.decoder_spread import HALF_WIDTH, decoder_spread
from presage.foresee.graph.architectures import find_architecture
from presage.foresee.graph.decoders import DecoderShape
from presage.model.setup import Setup

LLAMA = DecoderShape.from_config(find_architecture("llama-3.1-8b").config, "llama-3.1-8b")


def _width(**given: Any) -> float:
    base = {"optimizer": "adamw", "precision": "bf16"}
    return decoder_spread(LLAMA, Setup.make(**(base | given))).half_width


def test_the_published_case_is_the_narrowest() -> None:
    assert _width() == HALF_WIDTH
    assert _width(lora="16") < _width(lora="16", quant="nf4") < _width(gpus=8, parallel="fsdp")


@pytest.mark.parametrize(
    "given",
    [
        {"precision": "fp8"},
        {"offload": "optimizer"},
        {"checkpoint": "selective"},
        {"gpus": 4, "parallel": "cp=4"},
        {"gpus": 4, "parallel": "zero3"},
    ],
)
def test_what_nobody_published_is_wider(given: dict[str, Any]) -> None:
    spread = decoder_spread(LLAMA, Setup.make(**({"precision": "bf16"} | given)))
    plain = _width(gpus=4, parallel="fsdp") if "gpus" in given else _width()
    assert spread.half_width > plain
    assert 0 < spread.distance <= 1
    assert spread.words.startswith("no published figures for")


def test_experts_are_far() -> None:
    mixture = DecoderShape.from_config(find_architecture("mixtral-8x7b").config, "mixtral")
    assert decoder_spread(mixture, Setup.make(precision="bf16")).distance >= 0.3
