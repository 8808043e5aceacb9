"""Names and configurations of well-known models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from presage.foresee.graph.architectures import find_architecture, known_architectures
from presage.foresee.graph.decoder_configs import _READERS
from presage.foresee.graph.decoders import DECODER_TYPES, DecoderShape
from presage.model.errors import GraphError


def test_decoders_have_the_published_parameters() -> None:
    checked = 0
    for found in known_architectures().values():
        if found.config["model_type"] in DECODER_TYPES:
            shape = DecoderShape.from_config(found.config, found.name)
            assert shape.params == pytest.approx(found.published_params, rel=5e-3), found.name
            checked += 1
    assert checked >= 100
    kinds = {found.config["model_type"] for found in known_architectures().values()}
    assert kinds >= {"bert", "t5", "vit", "whisper", "wav2vec2", "unet2d_condition", "clip"}


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("hf:meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("llama-3.1-8b", "meta-llama/Llama-3.1-8B"),
        ("Mistral 7B", "mistralai/Mistral-7B-v0.1"),
        ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"),
        ("gpt2", "openai-community/gpt2"),
    ],
)
def test_names_are_found_as_people_write_them(
    name: str, full: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert find_architecture(name).name == full


def test_a_near_miss_is_told() -> None:
    with pytest.raises(GraphError, match="did you mean meta-llama/Llama-3"):
        find_architecture("llama-3.1-9b")
    with pytest.raises(GraphError, match=r"config\.json"):
        find_architecture("nobody/knows-this")


def test_the_cache_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "models--meta-llama--Llama-3.1-8B" / "snapshots" / "abc"
    place.mkdir(parents=True)
    config = dict(known_architectures()["meta-llama/Llama-3.1-8B"].config)
    (place / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 4}))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    found = find_architecture("meta-llama/Llama-3.1-8B")
    assert (found.origin, found.config["num_hidden_layers"]) == ("cache", 4)
    (place / "config.json").write_text("{not json")
    assert find_architecture("meta-llama/Llama-3.1-8B").origin == "table"


def test_active_parameters_of_mixtures() -> None:
    def shape(name: str) -> DecoderShape:
        return DecoderShape.from_config(find_architecture(name).config, name)

    assert shape("mixtral-8x7b").active_params == pytest.approx(12.9e9, rel=0.01)
    assert shape("deepseek-v3").active_params == pytest.approx(37.5e9, rel=0.02)
    assert shape("gpt-oss-120b").active_params == pytest.approx(5.7e9, rel=0.02)


def test_cache_and_products() -> None:
    llama = DecoderShape.from_config(find_architecture("llama-3.1-8b").config)
    assert llama.kv_bytes_per_token() == 131072
    assert llama.flops_per_token(8192) == pytest.approx(51.5e9, rel=0.01)
    latent = DecoderShape.from_config(find_architecture("deepseek-v3").config)
    assert latent.kv_bytes_per_token() == 61 * 576 * 2
    near = DecoderShape.from_config(find_architecture("mistral-7b").config)
    assert near.attended(32768) < 4096 < 32768 / 2


def test_every_kind_has_a_reader() -> None:
    assert set(_READERS) == DECODER_TYPES


def test_wrong_configurations_are_one_line() -> None:
    config = dict(known_architectures()["openai-community/gpt2"].config)
    with pytest.raises(GraphError, match="no decoder language model"):
        DecoderShape.from_config({"model_type": "resnet"}, "x")
    with pytest.raises(GraphError, match="n_layer is -1"):
        DecoderShape.from_config({**config, "n_layer": -1}, "x")
    with pytest.raises(GraphError, match="has no vocab_size"):
        DecoderShape.from_config({k: v for k, v in config.items() if k != "vocab_size"}, "x")
