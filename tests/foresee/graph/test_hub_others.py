"""Encoders, speech, images and diffusion from configurations: parameters as published, and a step
that can be traced."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from presage.foresee.allocator import live_peak
from presage.foresee.graph.architectures import known_architectures
from presage.foresee.graph.hub_config import HubConfig
from presage.foresee.graph.hub_others import OTHER_TYPES
from presage.foresee.graph.huggingface import MODEL_TYPES, known_type, read_config
from presage.model.errors import GraphError

PLAIN = ("bert", "roberta", "xlm-roberta", "distilbert", "t5", "vit")
PUBLISHED = {
    name: found
    for name, found in known_architectures().items()
    if found.config["model_type"] in (*OTHER_TYPES, *PLAIN)
}


QUICK = (
    "google-bert/bert-base-uncased",
    "microsoft/deberta-v3-base",
    "albert/albert-base-v2",
    "google/electra-base-discriminator",
    "google/flan-t5-base",
    "facebook/bart-base",
    "microsoft/swin-tiny-patch4-window7-224",
    "openai/clip-vit-base-patch32",
    "openai/whisper-tiny",
    "facebook/wav2vec2-base",
    "stable-diffusion-v1-5/stable-diffusion-v1-5",
    "stabilityai/stable-diffusion-xl-base-1.0",
)


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.soak) for n in PUBLISHED]
)
def test_parameters_are_those_that_were_published(name: str) -> None:
    found = PUBLISHED[name]
    config = HubConfig(name, found.config)
    with torch.device("meta"):
        module = MODEL_TYPES[known_type(config)](config).build()
    count = sum(p.numel() for p in module.parameters())
    assert found.published_params is not None
    # heads are counted or not where an encoder is saved with or without one
    tolerance = 0.01 if found.config["model_type"] in PLAIN else 0.0002
    assert count == pytest.approx(found.published_params, rel=tolerance)


TEXT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 100,
    "max_position_embeddings": 40,
}
SPEECH = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "vocab_size": 100,
}
UNET = {
    "_class_name": "UNet2DConditionModel",
    "sample_size": 16,
    "block_out_channels": [32, 64],
    "layers_per_block": 1,
    "cross_attention_dim": 24,
    "attention_head_dim": 4,
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
}
SMALL: dict[str, dict[str, Any]] = {
    "albert": TEXT | {"model_type": "albert", "embedding_size": 16},
    "electra": TEXT | {"model_type": "electra", "embedding_size": 16},
    "deberta": TEXT
    | {
        "model_type": "deberta-v2",
        "relative_attention": True,
        "position_buckets": 8,
        "pos_att_type": ["p2c", "c2p"],
        "share_att_key": True,
        "position_biased_input": False,
    },
    "bart": SPEECH | {"model_type": "bart", "max_position_embeddings": 40},
    "whisper": SPEECH
    | {
        "model_type": "whisper",
        "num_mel_bins": 16,
        "max_source_positions": 20,
        "max_target_positions": 12,
    },
    "wav2vec2": TEXT
    | {
        "model_type": "wav2vec2",
        "architectures": ["Wav2Vec2ForCTC"],
        "conv_dim": [16, 16],
        "conv_kernel": [10, 3],
        "conv_stride": [5, 2],
        "num_conv_pos_embeddings": 8,
        "num_conv_pos_embedding_groups": 4,
    },
    "clip": {
        "model_type": "clip",
        "projection_dim": 16,
        "text_config": TEXT,
        "vision_config": TEXT | {"image_size": 32, "patch_size": 8},
    },
    "swin": {
        "model_type": "swin",
        "embed_dim": 16,
        "depths": [2, 2],
        "num_heads": [2, 4],
        "window_size": 4,
        "image_size": 64,
        "patch_size": 4,
        "num_labels": 10,
        "architectures": ["SwinForImageClassification"],
    },
    "unet": UNET,
    "unet-xl": UNET
    | {
        "use_linear_projection": True,
        "addition_embed_type": "text_time",
        "projection_class_embeddings_input_dim": 20,
        "transformer_layers_per_block": [1, 2],
    },
}


@pytest.mark.parametrize("kind", SMALL)
def test_a_training_step_is_traced(kind: str) -> None:
    graph = read_config(SMALL[kind], name=kind, optimizer="adamw", precision="amp-bf16")
    assert graph.name == kind
    assert graph.trainable > 0
    assert graph.forward_macs() > 0
    small, large = (live_peak(graph, batch).bytes for batch in (2, 32))
    assert small < large < 16.5 * small


@pytest.mark.parametrize("kind", ["whisper", "bart", "swin", "unet"])
def test_blocks_can_be_computed_again(kind: str) -> None:
    kept, again = (read_config(SMALL[kind], checkpointing=way) for way in ("none", "full"))
    assert live_peak(again, 64).bytes < live_peak(kept, 64).bytes or kind == "unet"


def test_text_is_as_long_as_it_is_asked_to_be() -> None:
    graph = read_config(SMALL["albert"], seq=24)
    assert graph.inputs[0].shape == (24,)
    assert read_config(SMALL["albert"]).inputs[0].shape == (40,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "albret"}, "x: model_type 'albret' is not known: did you mean albert"),
        ({"model_type": "mamba9"}, "give the model itself as file.py:function, or one of"),
        ({"model_type": "swin", "depths": 3}, "x: depths is missing or no list"),
        ({"model_type": "clip"}, "x: the key text_config is missing"),
        (
            {"model_type": "unet2d_condition", "block_out_channels": [32, 64]},
            "x: the key cross_attention_dim is missing",
        ),
    ],
)
def test_mistakes_are_one_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message) as caught:
        read_config(change, name="x")
    assert "\n" not in str(caught.value)
