"""Serving: what is held, and how bandwidth and concurrency decide the speed."""

from __future__ import annotations

from typing import Any

import pytest

from presage.foresee.gpus import find
from presage.foresee.graph.architectures import find_architecture
from presage.foresee.graph.decoders import DecoderShape
from presage.foresee.serving import largest_concurrency, serve
from presage.model.errors import ConfigError
from presage.model.setup import Setup

LLAMA = DecoderShape.from_config(find_architecture("llama-3.1-8b").config, "llama-3.1-8b")
A100 = find("a100-80g")


def _setup(**given: Any) -> Setup:
    base = {"inference": True, "precision": "bf16", "kv_len": 8192, "concurrency": 32}
    return Setup.make(**(base | given))


def test_weights_and_cache_are_exact() -> None:
    figures = serve(LLAMA, _setup(), A100)
    assert figures.weights_mib == pytest.approx(8.03e9 * 2 / 2**20, rel=1e-3)
    assert figures.cache_mib == 32 * 8192 * 131072 / 2**20  # 128 KiB a token
    half = serve(LLAMA, _setup(gpus=2, parallel="tp=2"), A100)
    assert half.cache_mib == figures.cache_mib / 2
    assert half.weights_mib == pytest.approx(figures.weights_mib / 2)


def test_decoding_is_bound_by_bandwidth_and_gains_by_concurrency() -> None:
    one = serve(LLAMA, _setup(concurrency=1, kv_len=512), A100)
    many = serve(LLAMA, _setup(concurrency=16, kv_len=512), A100)
    limit = A100.bandwidth_gbs * 1e9 / (LLAMA.params * 2)
    assert 0.4 * limit < one.decode_tokens_per_s[1] < limit
    assert many.decode_tokens_per_s[1] > 10 * one.decode_tokens_per_s[1]
    assert many.sequence_tokens_per_s < one.sequence_tokens_per_s
    slow, middle, fast = one.decode_tokens_per_s
    assert slow < middle < fast
    assert one.prefill_tokens_per_s[1] > many.decode_tokens_per_s[1]


def test_quantised_weights_are_smaller_and_faster() -> None:
    whole = serve(LLAMA, _setup(concurrency=1), A100)
    small = serve(LLAMA, _setup(concurrency=1, quant="nf4"), A100)
    assert small.weights_mib < 0.45 * whole.weights_mib
    assert small.decode_tokens_per_s[1] > 1.5 * whole.decode_tokens_per_s[1]


def test_mixtures_read_the_experts_that_are_used() -> None:
    shape = DecoderShape.from_config(find_architecture("mixtral-8x7b").config, "mixtral")
    one, many = (serve(shape, _setup(concurrency=n, kv_len=256), A100) for n in (1, 64))
    assert one.decode_tokens_per_s[1] > 2 * A100.bandwidth_gbs * 1e9 * 0.5 / (shape.params * 2)
    assert many.decode_tokens_per_s[1] < 40 * one.decode_tokens_per_s[1]


def test_what_fits() -> None:
    room = A100.usable_mib - 1000
    count = largest_concurrency(LLAMA, _setup(concurrency=1), A100, room)
    assert serve(LLAMA, _setup(concurrency=count), A100).total_mib <= room
    assert serve(LLAMA, _setup(concurrency=count + 2), A100).total_mib > room
    assert largest_concurrency(LLAMA, _setup(), A100, 1000) == 0


def test_mistakes_are_one_line() -> None:
    with pytest.raises(ConfigError, match="add --inference"):
        serve(LLAMA, Setup.make(precision="bf16"), A100)
    with pytest.raises(ConfigError, match="use --kv-len 131072"):
        serve(LLAMA, _setup(kv_len=1 << 20), A100)
