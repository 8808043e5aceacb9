"""Configurations: the parameters are those `transformers` has for the same configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from presage.foresee.graph.hub_others import OTHER_TYPES
from presage.foresee.graph.huggingface import MODEL_TYPES, read_config
from presage.foresee.graph.load import load_graph
from presage.model.errors import GraphError

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 1000,
    "max_position_embeddings": 96,
}
LLAMA = SMALL | {"num_key_value_heads": 2}
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 96, "vocab_size": 1000}
NEO = {
    "hidden_size": 64,
    "num_layers": 2,
    "num_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 96,
}
OPT = SMALL | {"ffn_dim": 128, "word_embed_proj_dim": 32}
DISTILBERT = {
    "dim": 64,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 128,
    "vocab_size": 1000,
    "max_position_embeddings": 96,
}
T5 = {
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 128,
    "num_layers": 2,
    "num_heads": 4,
    "vocab_size": 1000,
    "relative_attention_num_buckets": 32,
}
VIT = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "image_size": 32,
    "patch_size": 8,
    "num_channels": 3,
}
COUNTED: list[tuple[str, dict[str, Any], str, int]] = [
    ("bert", SMALL, "BertForMaskedLM", 142632),
    ("bert", SMALL, "BertModel", 141504),
    ("roberta", SMALL, "RobertaForMaskedLM", 142632),
    ("distilbert", DISTILBERT, "DistilBertForMaskedLM", 142504),
    ("gpt2", GPT2, "GPT2LMHeadModel", 170240),
    ("gpt_neo", NEO, "GPTNeoForCausalLM", 169856),
    ("gpt_neox", SMALL, "GPTNeoXForCausalLM", 195072),
    ("opt", OPT, "OPTForCausalLM", 109440),
    ("llama", LLAMA, "LlamaForCausalLM", 202048),
    ("mistral", LLAMA, "MistralForCausalLM", 202048),
    ("qwen2", LLAMA, "Qwen2ForCausalLM", 202304),
    ("qwen3", LLAMA | {"head_dim": 32}, "Qwen3ForCausalLM", 226752),
    ("gemma", LLAMA | {"head_dim": 32}, "GemmaForCausalLM", 162624),
    ("t5", T5, "T5ForConditionalGeneration", 228864),
    ("vit", VIT, "ViTForImageClassification", 80706),
]
"""model_type, the rest, the class, and its parameters as transformers 5.22 counts them."""


def write(folder: Path, **values: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(values))
    return path


@pytest.mark.parametrize(("kind", "values", "architecture", "params"), COUNTED)
def test_the_parameters_are_those_of_transformers(
    tmp_path: Path, kind: str, values: dict[str, Any], architecture: str, params: int
) -> None:
    path = write(tmp_path, model_type=kind, architectures=[architecture], **values)
    assert read_config(path, inference=True).params == params


def test_every_known_type_is_compared() -> None:
    assert {kind for kind, *_ in COUNTED} == set(MODEL_TYPES) - set(OTHER_TYPES) - {
        "xlm-roberta",
        "mt5",
        "deit",
    }


def test_the_length_is_512_or_what_the_model_takes_or_what_is_asked(tmp_path: Path) -> None:
    short = write(tmp_path, model_type="llama", **LLAMA)
    assert read_config(short, inference=True).inputs[0].shape == (96,)
    long = write(tmp_path, model_type="llama", **LLAMA | {"max_position_embeddings": 4096})
    assert read_config(long, inference=True).inputs[0].shape == (512,)
    asked = load_graph(str(long), inputs="1024:int64", inference=True)
    assert asked.inputs[0].shape == (1024,)


def test_shared_key_heads_save_work_and_training_works(tmp_path: Path) -> None:
    shared = read_config(write(tmp_path, model_type="llama", **LLAMA), optimizer="adamw")
    whole = read_config(write(tmp_path, model_type="llama", **SMALL), optimizer="adamw")
    saved = 2 * 2 * 96 * 64 * 32  # layers, keys and values, tokens, width, half of the heads
    assert whole.forward_macs() - shared.forward_macs() == saved
    assert shared.trainable == shared.params


def test_a_classifier_has_its_labels(tmp_path: Path) -> None:
    labels = {str(i): f"label {i}" for i in range(7)}
    values = SMALL | {"architectures": ["BertForSequenceClassification"], "id2label": labels}
    graph = read_config(write(tmp_path, model_type="bert", **values), inference=True)
    assert graph.params == 141504 + 64 * 7 + 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1: broken JSON"),
        ("[]", "write an object"),
        ("{}", "model_type is missing"),
        (
            '{"model_type": "mamba"}',
            "'mamba' is not known: give the model itself as file.py:function",
        ),
        ('{"model_type": "bert"}', "num_hidden_layers is missing"),
        (json.dumps(SMALL | {"model_type": "bert", "hidden_size": "wide"}), "whole number"),
        (json.dumps(SMALL | {"model_type": "bert", "hidden_size": -1}), "give 1 to"),
        (json.dumps(SMALL | {"model_type": "bert", "num_attention_heads": 5}), "by 5 heads"),
        (json.dumps(SMALL | {"model_type": "llama", "num_key_value_heads": 3}), "cannot share"),
        (json.dumps(SMALL | {"model_type": "bert", "hidden_dropout_prob": 3}), "from 0 to 1"),
        (json.dumps(VIT | {"model_type": "vit", "patch_size": 7}), "do not divide"),
        (json.dumps(SMALL | {"model_type": "bert", "num_hidden_layers": 9999}), "1 to 4096"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_wrong_with_a_configuration_is_said(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(GraphError, match=message) as caught:
        read_config(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("kind", "longest"), [("bert", 96), ("roberta", 94), ("albert", 96)])
def test_more_tokens_than_learned_positions_are_refused(kind: str, longest: int) -> None:
    config = {"model_type": kind, **SMALL}
    with pytest.raises(GraphError, match=f"has {longest} learned positions: use --seq {longest}"):
        read_config(config, name=kind, seq=97)
    if kind == "bert":
        assert len(read_config(config, name=kind, seq=longest))
