"""A Hugging Face `config.json` to a graph: the configuration describes a transformer, which is
built from our own blocks. Needs PyTorch, not `transformers`; weights are never read.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from presage.foresee.graph.opgraph import InputSpec, OpGraph
from presage.model.errors import GraphError

if TYPE_CHECKING:
    from presage.foresee.graph.zoo.transformers import TransformerConfig

__all__ = ["MODEL_TYPES", "config_name", "read_config", "read_json"]

_MOST_BYTES = 4 << 20
_LENGTH = 512
_MOST = {"layers": 4096, "size": 1 << 24}


def read_config(
    path: Path,
    *,
    inputs: tuple[InputSpec, ...] | None = None,
    optimizer: str = "sgd",
    precision: str = "fp32",
    inference: bool = False,
) -> OpGraph:
    """The graph of the model that a configuration describes; 512 tokens unless `inputs` says."""
    from presage.foresee.graph.torch_trace import trace

    config = _Config(path, read_json(path))
    kind = config.text("model_type")
    if kind not in MODEL_TYPES:
        raise GraphError(
            f"{path}: model_type '{kind}' is not known; known are {', '.join(sorted(MODEL_TYPES))}"
        )
    model = MODEL_TYPES[kind](config)
    return trace(
        model.build,
        inputs or model.inputs,
        name=config_name(path),
        optimizer=optimizer,
        precision=precision,
        inference=inference,
    )


@dataclass(frozen=True, slots=True)
class _Architecture:
    """How to build what was described, and what it takes."""

    build: Callable[[], Any]
    inputs: tuple[InputSpec, ...]


@dataclass(frozen=True, slots=True)
class _Config:
    """Checked access to a configuration."""

    path: Path
    values: dict[str, Any]

    def size(self, *names: str, default: int | None = None) -> int:
        """A whole number above 0 under the first of these names that is there."""
        for name in names:
            value = self.values.get(name)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                raise GraphError(f"{self.path}: {name} is {value!r}; write a whole number")
            if not 0 < value <= _MOST["size"]:
                raise GraphError(f"{self.path}: {name} is {value}; give 1 to {_MOST['size']}")
            return value
        if default is None:
            raise GraphError(f"{self.path}: the key {names[0]} is missing")
        return default

    def layers(self, *names: str, default: int | None = None) -> int:
        """A number of layers."""
        count = self.size(*names, default=default)
        if count > _MOST["layers"]:
            raise GraphError(f"{self.path}: {names[0]} is {count}; give 1 to {_MOST['layers']}")
        return count

    def text(self, name: str, default: str | None = None) -> str:
        """A text."""
        value = self.values.get(name, default)
        if not isinstance(value, str):
            raise GraphError(f"{self.path}: the key {name} is missing or not a text")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.values.get(name)
        return default if value is None else bool(value)

    def share(self, *names: str, default: float) -> float:
        """A number from 0 to 1."""
        for name in names:
            value = self.values.get(name)
            if isinstance(value, (int, float)) and 0 <= value <= 1:
                return float(value)
            if value is not None:
                raise GraphError(f"{self.path}: {name} is {value!r}; give a number from 0 to 1")
        return default

    def activation(self, *names: str, default: str) -> str:
        """One of our activations; those that cost the same are taken for each other."""
        said = next((self.values[n] for n in names if self.values.get(n)), default)
        for sign, ours in (("relu", "relu"), ("silu", "silu"), ("swish", "silu")):
            if sign in str(said):
                return ours
        return "gelu" if said == "gelu" else "tanh_gelu"

    def architecture(self) -> str:
        """The class that was saved, or an empty text."""
        named = self.values.get("architectures")
        return str(named[0]) if isinstance(named, list) and named else ""

    def labels(self) -> int:
        """Classes of a classifier."""
        named = self.values.get("id2label")
        return len(named) if isinstance(named, dict) and named else 2


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


def _text(config: _Config, shape: TransformerConfig, head: str, longest: int) -> _Architecture:
    _check_heads(config, shape)

    def build() -> Any:
        from presage.foresee.graph.zoo.transformers import TextModel

        return TextModel(shape, head, config.labels())

    length = min(_LENGTH, longest)
    return _Architecture(build, (InputSpec((length,), "int64", shape.vocabulary),))


def _check_heads(config: _Config, shape: TransformerConfig) -> None:
    if not shape.head_width and shape.width % shape.heads:
        raise GraphError(
            f"{config.path}: the width {shape.width} cannot be divided by {shape.heads} heads"
        )
    if shape.kv_heads and shape.heads % shape.kv_heads:
        raise GraphError(
            f"{config.path}: {shape.heads} heads cannot share {shape.kv_heads} key and value heads"
        )


def _encoder_head(config: _Config) -> str:
    name = config.architecture()
    if name.endswith(("QuestionAnswering", "TokenClassification")):
        return "span"
    if name.endswith("SequenceClassification"):
        return "class"
    return "pooled" if name.endswith("Model") and not name.endswith("LMHeadModel") else "masked"


def _decoder_head(config: _Config, *, tied: bool) -> str:
    name = config.architecture()
    if name.endswith("Model") and not name.endswith("LMHeadModel"):
        return "none"
    if name.endswith("TokenClassification"):
        return "span"
    return "tied" if config.flag("tie_word_embeddings", tied) else "untied"


def _bert(config: _Config) -> _Architecture:
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


def _distilbert(config: _Config) -> _Architecture:
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


def _gpt2(config: _Config) -> _Architecture:
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


def _neox(config: _Config) -> _Architecture:
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


def _opt(config: _Config) -> _Architecture:
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


def _llama(config: _Config) -> _Architecture:
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


def _t5(config: _Config) -> _Architecture:
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

    return _Architecture(build, (InputSpec((_LENGTH,), "int64", shape.vocabulary),) * 2)


def _vit(config: _Config) -> _Architecture:
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

    return _Architecture(build, (InputSpec((channels, image, image)),))


MODEL_TYPES: dict[str, Callable[[_Config], _Architecture]] = {
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
    "vit": _vit,
}
