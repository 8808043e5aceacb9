"""Configurations of encoders, speech, images and diffusion, read for the modules that build them.

Decoders of language and the plainest encoders are in `huggingface.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from presage.foresee.graph.hub_config import HubConfig, HubModel
from presage.foresee.graph.opgraph import InputSpec
from presage.model.errors import GraphError

__all__ = ["OTHER_TYPES"]

_LENGTH = 512
_SECONDS = 10
_RATE = 16_000


def _pooled(config: HubConfig) -> bool:
    """Whether the saved class is the plain model with its pooler (also when nothing is said)."""
    name = config.architecture()
    return not name or name.endswith("Model")


def _albert(config: HubConfig) -> HubModel:
    from presage.foresee.graph.zoo.transformers import TransformerConfig

    kind = config.text("model_type")
    width = config.size("hidden_size")
    positions = config.size("max_position_embeddings", default=512)
    narrow = config.size("embedding_size", default=width)
    shape = TransformerConfig(
        config.layers("num_hidden_layers"),
        width,
        config.size("num_attention_heads"),
        config.size("intermediate_size"),
        vocabulary=config.size("vocab_size"),
        positions=positions,
        token_types=config.size("type_vocab_size", default=2),
        norm_first=False,
        final_norm=False,
        activation=config.activation("hidden_act", default="gelu"),
        dropout=config.share("hidden_dropout_prob", default=0.1),
    )
    shared = kind == "albert"

    def build() -> Any:
        from presage.foresee.graph.hub_modules import FactoredEncoder

        return FactoredEncoder(shape, narrow, shared=shared, pooler=shared and _pooled(config))

    length = min(_LENGTH, positions)
    return HubModel(build, (InputSpec((length,), "int64", shape.vocabulary),), positions)


def _deberta(config: HubConfig) -> HubModel:
    from presage.foresee.graph.zoo.transformers import TransformerConfig

    positions = config.size("max_position_embeddings", default=512)
    buckets = config.values.get("position_buckets") or positions
    kinds = config.values.get("pos_att_type") or []
    terms = len(kinds.split("|") if isinstance(kinds, str) else kinds)
    shape = TransformerConfig(
        config.layers("num_hidden_layers"),
        config.size("hidden_size"),
        config.size("num_attention_heads"),
        config.size("intermediate_size"),
        vocabulary=config.size("vocab_size"),
        positions=positions if config.flag("position_biased_input", True) else 0,
        norm_first=False,
        norm_embeddings=True,
        final_norm=False,
        activation=config.activation("hidden_act", default="gelu"),
        dropout=config.share("hidden_dropout_prob", default=0.1),
    )
    apart = 2 * int(buckets) if config.flag("relative_attention", False) else 0
    own = not config.flag("share_att_key", False)

    def build() -> Any:
        from presage.foresee.graph.hub_modules import DisentangledEncoder

        return DisentangledEncoder(shape, apart, terms=terms if apart else 0, own_keys=own)

    length = min(_LENGTH, positions)
    return HubModel(build, (InputSpec((length,), "int64", shape.vocabulary),))


def _bart(config: HubConfig) -> HubModel:
    from presage.foresee.graph.zoo.transformers import TransformerConfig

    positions = config.size("max_position_embeddings", default=1024)
    first = config.text("model_type") != "bart"
    shape = TransformerConfig(
        config.layers("encoder_layers"),
        config.size("d_model"),
        config.size("encoder_attention_heads"),
        config.size("encoder_ffn_dim"),
        vocabulary=config.size("vocab_size"),
        positions=positions + 2,
        norm_first=first,
        norm_embeddings=True,
        final_norm=first,
        activation=config.activation("activation_function", default="gelu"),
        dropout=config.share("dropout", default=0.1),
    )
    after = config.layers("decoder_layers")

    def build() -> Any:
        from presage.foresee.graph.zoo.transformers import EncoderDecoder

        return EncoderDecoder(shape, decoder_layers=after, tied=True)

    words = InputSpec((min(_LENGTH, positions),), "int64", shape.vocabulary)
    return HubModel(build, (words, words), positions)


def _whisper(config: HubConfig) -> HubModel:
    from presage.foresee.graph.zoo.transformers import TransformerConfig

    bins = config.size("num_mel_bins", default=80)
    frames = config.size("max_source_positions", default=1500)
    words = config.size("max_target_positions", default=448)
    shape = TransformerConfig(
        config.layers("encoder_layers"),
        config.size("d_model"),
        config.size("encoder_attention_heads"),
        config.size("encoder_ffn_dim"),
        vocabulary=config.size("vocab_size"),
        activation=config.activation("activation_function", default="gelu"),
        dropout=config.share("dropout", default=0.0),
    )
    after = config.layers("decoder_layers")

    def build() -> Any:
        from presage.foresee.graph.hub_modules import SpeechTranscriber

        return SpeechTranscriber(shape, after, bins=bins, frames=frames, words=words)

    sound, text = InputSpec((bins, 2 * frames)), InputSpec((words,), "int64", shape.vocabulary)
    return HubModel(build, (sound, text), words)


def _wav2vec2(config: HubConfig) -> HubModel:
    from presage.foresee.graph.zoo.transformers import TransformerConfig

    channels = config.sizes("conv_dim")
    kernels = config.sizes("conv_kernel", len(channels))
    strides = config.sizes("conv_stride", len(channels))
    stable = config.flag("do_stable_layer_norm", False)
    shape = TransformerConfig(
        config.layers("num_hidden_layers"),
        config.size("hidden_size"),
        config.size("num_attention_heads"),
        config.size("intermediate_size"),
        norm_first=stable,
        final_norm=False,
        activation=config.activation("hidden_act", default="gelu"),
        dropout=config.share("hidden_dropout", default=0.1),
    )
    layered = config.text("feat_extract_norm", default="group") == "layer"
    reach = config.size("num_conv_pos_embeddings", default=128)
    groups = config.size("num_conv_pos_embedding_groups", default=16)
    scores = config.size("vocab_size") if config.architecture().endswith("CTC") else 0

    def build() -> Any:
        from presage.foresee.graph.hub_modules import SpeechEncoder

        return SpeechEncoder(
            shape,
            list(zip(channels, kernels, strides, strict=True)),
            bias=config.flag("conv_bias", False),
            layered=layered,
            reach=reach,
            groups=groups,
            scores=scores,
        )

    return HubModel(build, (InputSpec((_SECONDS * _RATE,)),))


def _clip(config: HubConfig) -> HubModel:
    from presage.foresee.graph.zoo.transformers import TransformerConfig

    text, vision = config.inside("text_config"), config.inside("vision_config")

    def stack(part: HubConfig, causal: bool) -> TransformerConfig:
        return TransformerConfig(
            part.layers("num_hidden_layers", default=12),
            part.size("hidden_size", default=512 if causal else 768),
            part.size("num_attention_heads", default=8 if causal else 12),
            part.size("intermediate_size", default=2048 if causal else 3072),
            vocabulary=part.size("vocab_size", default=49408) if causal else 0,
            positions=part.size("max_position_embeddings", default=77) if causal else 0,
            causal=causal,
            final_norm=causal,
            activation=part.activation("hidden_act", default="gelu"),
        )

    words, pictures = stack(text, True), stack(vision, False)
    image, patch = vision.size("image_size", default=224), vision.size("patch_size", default=32)
    _divides(config, image, patch)
    width = config.size("projection_dim", default=512)

    def build() -> Any:
        from presage.foresee.graph.hub_modules import TextAndImages

        return TextAndImages(words, pictures, image=image, patch=patch, width=width)

    sentence = InputSpec((words.positions,), "int64", words.vocabulary)
    return HubModel(build, (sentence, InputSpec((3, image, image))))


def _swin(config: HubConfig) -> HubModel:
    depths = config.sizes("depths")
    heads = config.sizes("num_heads", len(depths))
    width, window = config.size("embed_dim"), config.size("window_size", default=7)
    image, patch = config.size("image_size", default=224), config.size("patch_size", default=4)
    _divides(config, image, patch * 2 ** (len(depths) - 1))
    ratio = config.values.get("mlp_ratio", 4.0)
    channels = config.size("num_channels", default=3)
    classes = config.labels() if config.architecture().endswith("Classification") else 0

    def build() -> Any:
        from presage.foresee.graph.hub_vision import WindowedVision

        return WindowedVision(
            list(zip(depths, heads, strict=True)),
            width=width,
            window=window,
            image=image,
            patch=patch,
            ratio=float(ratio),
            channels=channels,
            classes=classes,
        )

    return HubModel(build, (InputSpec((channels, image, image)),))


def _unet(config: HubConfig) -> HubModel:
    widths = config.sizes("block_out_channels")
    count = len(widths)
    attends = [
        str(kind).startswith("CrossAttn")
        for kind in config.values.get("down_block_types") or ["CrossAttn"] * (count - 1) + [""]
    ]
    if len(attends) != count:
        raise GraphError(
            f"{config.path}: down_block_types has {len(attends)} entries, not {count}"
        )
    size, text = config.size("sample_size", default=64), config.size("cross_attention_dim")
    channels = config.size("in_channels", default=4)
    added = 0
    if config.values.get("addition_embed_type") == "text_time":
        added = config.size("projection_class_embeddings_input_dim")
    heads = config.sizes("attention_head_dim", count)
    depth = (
        config.sizes("transformer_layers_per_block", count)
        if ("transformer_layers_per_block" in config.values)
        else [1] * count
    )

    def build() -> Any:
        from presage.foresee.graph.hub_vision import DenoisingUnet

        return DenoisingUnet(
            [*zip(widths, attends, heads, depth, strict=True)],
            layers=config.size("layers_per_block", default=2),
            text=text,
            channels=(channels, config.size("out_channels", default=4)),
            linear=config.flag("use_linear_projection", False),
            added=added,
        )

    inputs = [InputSpec((channels, size, size)), InputSpec((77, text))]
    return HubModel(build, (*inputs, InputSpec((added,))) if added else tuple(inputs))


def _divides(config: HubConfig, image: int, patch: int) -> None:
    if image % patch:
        raise GraphError(f"{config.path}: patches of {patch} do not divide images of {image}")


OTHER_TYPES: dict[str, Callable[[HubConfig], HubModel]] = {
    "albert": _albert,
    "electra": _albert,
    "deberta": _deberta,
    "deberta-v2": _deberta,
    "bart": _bart,
    "mbart": _bart,
    "whisper": _whisper,
    "wav2vec2": _wav2vec2,
    "hubert": _wav2vec2,
    "clip": _clip,
    "swin": _swin,
    "unet2d_condition": _unet,
}
