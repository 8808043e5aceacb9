"""A Hugging Face `config.json` to a graph: the configuration describes a transformer, which is
built from our own blocks. Needs PyTorch, not `transformers`; weights are never read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from presage.foresee.graph.hub_config import HubConfig, HubModel
from presage.foresee.graph.hub_others import OTHER_TYPES
from presage.foresee.graph.opgraph import InputSpec, OpGraph
from presage.model.errors import GraphError

if TYPE_CHECKING:
    from presage.foresee.graph.zoo.transformers import TransformerConfig

__all__ = ["MODEL_TYPES", "as_long", "config_name", "known_type", "read_config", "read_json"]

_MOST_BYTES = 4 << 20
_LENGTH = 512


def read_config(
    source: Path | Mapping[str, Any],
    *,
    name: str | None = None,
    inputs: tuple[InputSpec, ...] | None = None,
    seq: int | None = None,
    **options: Any,
) -> OpGraph:
    """The graph of the model that a configuration describes, a file or what is in one; text has
    `seq` tokens (512 if not given) unless `inputs` says all. `options` are those of `trace`."""
    from presage.foresee.graph.torch_trace import trace

    if isinstance(source, Path):
        config = HubConfig(source, read_json(source))
        name = name or config_name(source)
    else:
        config = HubConfig(name or "the configuration", dict(source))
    model = MODEL_TYPES[known_type(config)](config)
    if seq and model.longest and seq > model.longest:
        raise GraphError(
            f"{name or config.path} has {model.longest} learned positions: use --seq "
            f"{model.longest} or less"
        )
    given = inputs or tuple(as_long(spec, seq) for spec in model.inputs)
    return trace(model.build, given, name=name or "model", **options)


def known_type(config: HubConfig) -> str:
    """The kind of model that a configuration describes, if we can build it."""
    kind = _CLASSES.get(str(config.values.get("_class_name", ""))) or config.text("model_type")
    if kind not in MODEL_TYPES:
        near = get_close_matches(kind, MODEL_TYPES, n=1, cutoff=0.7)
        hint = f"did you mean {near[0]}? " if near else ""
        raise GraphError(
            f"{config.path}: model_type '{kind}' is not known: {hint}give the model itself as "
            f"file.py:function, or one of {', '.join(sorted(MODEL_TYPES))}"
        )
    return kind


def as_long(spec: InputSpec, seq: int | None) -> InputSpec:
    """An input of tokens with another number of them."""
    tokens = spec.dtype == "int64" and len(spec.shape) == 1
    return replace(spec, shape=(seq,)) if seq and tokens else spec


def read_json(path: Path) -> dict[str, Any]:
    """The object in a configuration file."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise GraphError(f"{path} is larger than {_MOST_BYTES >> 20} MiB: not a config.json")
        values = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise GraphError(f"{path} line {error.lineno}: broken JSON: {error.msg}") from None
    except RecursionError:
        raise GraphError(f"{path} is nested too deeply: not a config.json") from None
    except (OSError, UnicodeDecodeError) as error:
        says = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise GraphError(f"{path} cannot be read: {says}") from None
    if not isinstance(values, dict):
        raise GraphError(f"{path}: write an object with the key model_type")
    return values


def config_name(path: Path) -> str:
    """What the model of a configuration file is called."""
    return path.parent.resolve().name if path.name == "config.json" else path.stem


def _text(config: HubConfig, shape: TransformerConfig, head: str, longest: int) -> HubModel:
    _check_heads(config, shape)

    def build() -> Any:
        from presage.foresee.graph.zoo.transformers import TextModel

        return TextModel(shape, head, config.labels())

    length = min(_LENGTH, longest)
    words = InputSpec((length,), "int64", shape.vocabulary)
    return HubModel(build, (words,), longest if shape.positions else 0)


def _check_heads(config: HubConfig, shape: TransformerConfig) -> None:
    if not shape.head_width and shape.width % shape.heads:
        raise GraphError(
            f"{config.path}: the width {shape.width} cannot be divided by {shape.heads} heads"
        )
    if shape.kv_heads and shape.heads % shape.kv_heads:
        raise GraphError(
            f"{config.path}: {shape.heads} heads cannot share {shape.kv_heads} key and value heads"
        )


def _encoder_head(config: HubConfig) -> str:
    name = config.architecture()
    if name.endswith(("QuestionAnswering", "TokenClassification")):
        return "span"
    if name.endswith("SequenceClassification"):
        return "class"
    return "pooled" if name.endswith("Model") and not name.endswith("LMHeadModel") else "masked"


def _decoder_head(config: HubConfig, *, tied: bool) -> str:
    name = config.architecture()
    if name.endswith("Model") and not name.endswith("LMHeadModel"):
        return "none"
    if name.endswith("TokenClassification"):
        return "span"
    return "tied" if config.flag("tie_word_embeddings", tied) else "untied"


def _bert(config: HubConfig) -> HubModel:
    from presage.foresee.graph.zoo.transformers import TransformerConfig

    roberta = "roberta" in config.text("model_type")
    positions = config.size("max_position_embeddings", default=512)
    shape = TransformerConfig(
        config.layers("num_hidden_layers"),
        config.size("hidden_size"),
        config.size("num_attention_heads"),
        config.size("intermediate_size"),
        vocabulary=config.size("vocab_size"),
        positions=positions,
        token_types=config.size("type_vocab_size", default=2),
        norm_first=False,
        norm_embeddings=True,
        final_norm=False,
        activation=config.activation("hidden_act", default="gelu"),
        dropout=config.share("hidden_dropout_prob", default=0.1),
    )
    return _text(config, shape, _encoder_head(config), max(1, positions - 2 * roberta))


def _distilbert(config: HubConfig) -> HubModel:
    from presage.foresee.graph.zoo.transformers import TransformerConfig

    positions = config.size("max_position_embeddings", default=512)
    shape = TransformerConfig(
        config.layers("n_layers"),
        config.size("dim"),
        config.size("n_heads"),
        config.size("hidden_dim"),
        vocabulary=config.size("vocab_size"),
        positions=positions,
        norm_first=False,
        norm_embeddings=True,
        final_norm=False,
        activation=config.activation("activation", default="gelu"),
        dropout=config.share("dropout", default=0.1),
    )
    head = _encoder_head(config)
    return _text(config, shape, "none" if head == "pooled" else head, positions)


def _gpt2(config: HubConfig) -> HubModel:
    from presage.foresee.graph.zoo.transformers import TransformerConfig

    neo = config.text("model_type") == "gpt_neo"
    width = config.size("n_embd", "hidden_size")
    positions = config.size("n_positions", "max_position_embeddings")
    shape = TransformerConfig(
        config.layers("n_layer", "num_layers", "num_hidden_layers"),
        width,
        config.size("n_head", "num_heads", "num_attention_heads"),
        config.size("n_inner", "intermediate_size", default=4 * width),
        vocabulary=config.size("vocab_size"),
        positions=positions,
        causal=True,
        activation=config.activation("activation_function", default="gelu_new"),
        one_projection=not neo,
        qkv_bias=not neo,
        dropout=config.share("resid_pdrop", "resid_dropout", default=0.1),
    )
    return _text(config, shape, _decoder_head(config, tied=True), positions)


def _neox(config: HubConfig) -> HubModel:
    from presage.foresee.graph.zoo.transformers import TransformerConfig

    width, heads = config.size("hidden_size"), config.size("num_attention_heads")
    shape = TransformerConfig(
        config.layers("num_hidden_layers"),
        width,
        heads,
        config.size("intermediate_size"),
        vocabulary=config.size("vocab_size"),
        rotary=_even(width // heads * config.share("rotary_pct", default=0.25)),
        causal=True,
        parallel=config.flag("use_parallel_residual", True),
        activation=config.activation("hidden_act", default="gelu"),
        one_projection=True,
        qkv_bias=config.flag("attention_bias", True),
        out_bias=config.flag("attention_bias", True),
    )
    longest = config.size("max_position_embeddings", default=2048)
    return _text(config, shape, _decoder_head(config, tied=False), longest)


def _even(size: float) -> int:
    return int(size) // 2 * 2


def _opt(config: HubConfig) -> HubModel:
    from presage.foresee.graph.zoo.transformers import TransformerConfig

    positions = config.size("max_position_embeddings")
    bias, first = config.flag("enable_bias", True), config.flag("do_layer_norm_before", True)
    width = config.size("hidden_size")
    shape = TransformerConfig(
        config.layers("num_hidden_layers"),
        width,
        config.size("num_attention_heads"),
        config.size("ffn_dim"),
        vocabulary=config.size("vocab_size"),
        positions=positions + 2,
        embedding_width=config.size("word_embed_proj_dim", default=width),
        causal=True,
        norm_first=first,
        final_norm=first and not config.flag("_remove_final_layer_norm", False),
        activation=config.activation("activation_function", default="relu"),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        dropout=config.share("dropout", default=0.1),
    )
    return _text(config, shape, _decoder_head(config, tied=True), positions)


def _llama(config: HubConfig) -> HubModel:
    from presage.foresee.graph.zoo.transformers import TransformerConfig

    kind = config.text("model_type")
    width, heads = config.size("hidden_size"), config.size("num_attention_heads")
    size = config.size("head_dim", default=max(1, width // heads))
    biased = config.flag("attention_bias", False)
    shape = TransformerConfig(
        config.layers("num_hidden_layers"),
        width,
        heads,
        config.size("intermediate_size"),
        vocabulary=config.size("vocab_size"),
        kv_heads=config.size("num_key_value_heads", default=heads),
        head_width=size,
        rotary=_even(size * config.share("partial_rotary_factor", default=1.0)),
        causal=True,
        rms_norm=True,
        gated=True,
        activation=config.activation("hidden_act", "hidden_activation", default="silu"),
        qkv_bias=kind == "qwen2" or biased,
        out_bias=biased,
        mlp_bias=config.flag("mlp_bias", False),
        head_norm=kind == "qwen3",
    )
    longest = config.size("max_position_embeddings", default=2048)
    return _text(config, shape, _decoder_head(config, tied=kind == "gemma"), longest)


def _t5(config: HubConfig) -> HubModel:
    from presage.foresee.graph.zoo.transformers import TransformerConfig

    style = config.text("feed_forward_proj", default="relu")
    layers = config.layers("num_layers")
    shape = TransformerConfig(
        layers,
        config.size("d_model"),
        config.size("num_heads"),
        config.size("d_ff"),
        vocabulary=config.size("vocab_size"),
        head_width=config.size("d_kv"),
        buckets=config.size("relative_attention_num_buckets", default=32),
        rms_norm=True,
        gated="gated" in style,
        activation="relu" if style == "relu" else "tanh_gelu",
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
        dropout=config.share("dropout_rate", default=0.1),
    )
    after = config.layers("num_decoder_layers", default=layers)
    tied = config.flag("tie_word_embeddings", True)

    def build() -> Any:
        from presage.foresee.graph.zoo.transformers import EncoderDecoder

        return EncoderDecoder(shape, decoder_layers=after, tied=tied)

    return HubModel(build, (InputSpec((_LENGTH,), "int64", shape.vocabulary),) * 2)


def _vit(config: HubConfig) -> HubModel:
    from presage.foresee.graph.zoo.transformers import TransformerConfig

    width = config.size("hidden_size")
    image, patch = config.size("image_size"), config.size("patch_size")
    if image % patch:
        raise GraphError(f"{config.path}: patches of {patch} do not divide images of {image}")
    shape = TransformerConfig(
        config.layers("num_hidden_layers"),
        width,
        config.size("num_attention_heads"),
        config.size("intermediate_size"),
        activation=config.activation("hidden_act", default="gelu"),
        qkv_bias=config.flag("qkv_bias", True),
        dropout=config.share("hidden_dropout_prob", default=0.0),
    )
    _check_heads(config, replace(shape))
    channels = config.size("num_channels", default=3)
    pooled = config.architecture().endswith("Model")  # its pooler is as large as `width` classes

    def build() -> Any:
        from presage.foresee.graph.zoo.transformers import VisionModel

        classes = width if pooled else config.labels()
        return VisionModel(shape, image=image, patch=patch, channels=channels, classes=classes)

    return HubModel(build, (InputSpec((channels, image, image)),))


MODEL_TYPES: dict[str, Callable[[HubConfig], HubModel]] = {
    "bert": _bert,
    "roberta": _bert,
    "xlm-roberta": _bert,
    "distilbert": _distilbert,
    "gpt2": _gpt2,
    "gpt_neo": _gpt2,
    "gpt_neox": _neox,
    "opt": _opt,
    "llama": _llama,
    "mistral": _llama,
    "qwen2": _llama,
    "qwen3": _llama,
    "gemma": _llama,
    "t5": _t5,
    "mt5": _t5,
    "vit": _vit,
    "deit": _vit,
    **OTHER_TYPES,
}
_CLASSES = {"UNet2DConditionModel": "unet2d_condition"}
"""How diffusers names what it saved."""
