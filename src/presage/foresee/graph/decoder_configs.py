"""Hugging Face configurations of decoder language models, read into a `DecoderShape`.

One small function for every kind of configuration; what is absent or wrong is one line. Nothing
here reads a file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from presage.foresee.graph.decoders import DECODER_TYPES, DecoderShape
from presage.model.errors import GraphError

__all__ = ["shape_from_config"]


def shape_from_config(config: Mapping[str, Any], name: str = "") -> DecoderShape:
    """The shape that a configuration describes."""
    read = _ConfigReader(config, name)
    kind = str(config.get("model_type", ""))
    if kind not in DECODER_TYPES:
        raise GraphError(
            f"{read.name}: '{kind}' is no decoder language model that Presage knows: "
            f"one of {', '.join(sorted(DECODER_TYPES))}"
        )
    shape = replace(_READERS[kind](read), activation=_activation(kind, read.config))
    if shape.heads % shape.kv_heads:
        raise GraphError(
            f"{read.name}: {shape.kv_heads} key-value heads do not divide {shape.heads} heads"
        )
    return shape


def _activation(kind: str, config: Mapping[str, Any]) -> str:
    said = str(config.get("hidden_act") or config.get("activation_function") or "")
    usual = {
        **dict.fromkeys(("gpt2", "gpt_neo", "gptj", "phi"), "gelu_new"),
        **dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma3_text"), "gelu"),
        **dict.fromkeys(("gpt_neox", "bloom", "falcon", "mpt", "starcoder2"), "gelu"),
        "gpt_bigcode": "gelu",
        "opt": "relu",
    }.get(kind, "silu")
    for word in ("gelu_new", "relu", "silu"):
        if said == word:
            return word
    return "gelu" if said.startswith("gelu") else usual


class _ConfigReader:
    """Numbers of a configuration, with one line about what is wrong with it."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        text = config.get("text_config")
        self.config = {**config, **text} if isinstance(text, Mapping) else dict(config)
        self.name = name or str(config.get("_name_or_path") or config.get("model_type", "config"))

    def size(self, *keys: str, default: int | None = None) -> int:
        for key in keys:
            value = self.config.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or value < 1:
                raise GraphError(f"{self.name}: {key} is {value!r}, give a whole number above 0")
            if int(value) != value or value > 1 << 31:
                raise GraphError(f"{self.name}: {key} is {value!r}, give a whole number")
            return int(value)
        if default is None:
            raise GraphError(f"{self.name}: the configuration has no {keys[0]}")
        return default

    def whole(self, key: str, default: int = 0) -> int:
        value = self.config.get(key)
        return default if value in (None, 0, False) else self.size(key)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.config.get(key)
        return default if value is None else bool(value)

    def share(self, *keys: str, default: float = 0.0) -> float:
        for key in keys:
            value = self.config.get(key)
            if isinstance(value, int | float) and 0 <= value < 1:
                return float(value)
        return default

    def common(self) -> dict[str, Any]:
        """What nearly every decoder names alike."""
        width = self.size("hidden_size", "n_embd", "d_model")
        heads = self.size("num_attention_heads", "n_head", "n_heads", "num_heads")
        return {
            "name": self.name,
            "layers": self.size("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
            "width": width,
            "heads": heads,
            "kv_heads": self.size("num_key_value_heads", default=heads),
            "head_width": self.size("head_dim", default=max(1, width // heads)),
            "vocabulary": self.size("vocab_size"),
            "longest": self.size(
                "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", default=2048
            ),
        }

    def window(self, layers: int, *, every: int = 1, default_on: bool = True) -> dict[str, Any]:
        """Windowed layers: all, or all but one in `every`."""
        size = self.whole("sliding_window")
        if not size or not self.flag("use_sliding_window", default_on):
            return {}
        kinds = self.config.get("layer_types")
        if isinstance(kinds, list):
            near = sum("sliding" in str(kind) for kind in kinds)
        else:
            near = layers if every == 1 else layers - layers // every
        return {"window": size, "windowed_layers": near}


def _llama(r: _ConfigReader) -> DecoderShape:
    kind = str(r.config["model_type"])
    common = r.common()
    biased = r.flag("attention_bias") or r.flag("bias") or r.flag("use_bias")
    return DecoderShape(
        **common,
        **r.window(common["layers"], default_on=kind != "qwen2"),
        inner=r.size("intermediate_size"),
        tied=r.flag("tie_word_embeddings", kind in ("gemma", "gemma2", "gemma3_text", "cohere")),
        qkv_bias=kind == "qwen2" or biased or r.flag("use_qkv_bias"),
        out_bias=biased and kind != "qwen2",
        mlp_bias=r.flag("mlp_bias") or r.flag("use_bias"),
        head_norm=kind in ("qwen3", "olmo2") or r.flag("use_qk_norm"),
        rms_norm=kind not in ("stablelm", "starcoder2", "olmo"),
    )


def _stablelm(r: _ConfigReader) -> DecoderShape:
    return DecoderShape(
        **r.common(),
        inner=r.size("intermediate_size"),
        rms_norm=False,
        tied=r.flag("tie_word_embeddings"),
        qkv_bias=r.flag("use_qkv_bias"),
        head_norm=r.flag("qk_layernorm"),
        parallel_block=r.flag("use_parallel_residual"),
    )


def _starcoder2(r: _ConfigReader) -> DecoderShape:
    common, bias = r.common(), r.flag("use_bias", True)
    return DecoderShape(
        **common,
        **r.window(common["layers"]),
        inner=r.size("intermediate_size"),
        gated=False,
        rms_norm=False,
        tied=r.flag("tie_word_embeddings", True),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        dropout=r.share("residual_dropout", "embedding_dropout"),
    )


def _gemma(r: _ConfigReader) -> DecoderShape:
    kind = str(r.config["model_type"])
    common = r.common()
    every = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6}.get(kind, 0)
    return DecoderShape(
        **common,
        **(r.window(common["layers"], every=every) if every else {}),
        inner=r.size("intermediate_size"),
        tied=r.flag("tie_word_embeddings", True),
        norms=4 if every else 2,
        head_norm=kind.startswith("gemma3"),
        wide_norm=True,
        softcap=kind == "gemma2",
    )


def _phi(r: _ConfigReader) -> DecoderShape:
    return DecoderShape(
        **r.common(),
        inner=r.size("intermediate_size", "n_inner"),
        gated=False,
        rms_norm=False,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        head_bias=True,
        norms=1,
        parallel_block=True,
        dropout=r.share("resid_pdrop"),
    )


def _gpt2(r: _ConfigReader) -> DecoderShape:
    common = r.common()
    code = r.config["model_type"] == "gpt_bigcode"
    if code and r.flag("multi_query", True):
        common["kv_heads"] = 1
    positions = r.size("n_positions", "max_position_embeddings", "n_ctx", default=1024)
    neo = r.config["model_type"] == "gpt_neo"
    return DecoderShape(
        **{**common, "longest": positions},
        inner=r.size("n_inner", "intermediate_size", default=4 * common["width"]),
        gated=False,
        tied=r.flag("tie_word_embeddings", True),
        rms_norm=False,
        qkv_bias=not neo,
        out_bias=True,
        mlp_bias=True,
        rotary=False,
        positions=positions,
        dropout=r.share("resid_pdrop", "resid_dropout", default=0.0 if neo else 0.1),
        window=256 if neo else 0,
        windowed_layers=common["layers"] // 2 if neo else 0,
    )


def _gptj(r: _ConfigReader) -> DecoderShape:
    common = r.common()
    return DecoderShape(
        **common,
        inner=r.size("n_inner", default=4 * common["width"]),
        gated=False,
        rms_norm=False,
        mlp_bias=True,
        head_bias=True,
        norms=1,
        parallel_block=True,
        dropout=r.share("resid_pdrop"),
    )


def _neox(r: _ConfigReader) -> DecoderShape:
    bias = r.flag("attention_bias", True)
    return DecoderShape(
        **r.common(),
        inner=r.size("intermediate_size"),
        gated=False,
        tied=r.flag("tie_word_embeddings"),
        rms_norm=False,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=True,
        parallel_block=r.flag("use_parallel_residual", True),
        dropout=r.share("hidden_dropout"),
    )


def _opt(r: _ConfigReader) -> DecoderShape:
    common = r.common()
    positions = r.size("max_position_embeddings", default=2048)
    wide = r.size("word_embed_proj_dim", default=common["width"])
    return DecoderShape(
        **common,
        inner=r.size("ffn_dim"),
        gated=False,
        tied=r.flag("tie_word_embeddings", True),
        rms_norm=False,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        rotary=False,
        positions=positions + 2,
        dropout=r.share("dropout", default=0.1),
        embedding_width=0 if wide == common["width"] else wide,
    )


def _bloom(r: _ConfigReader) -> DecoderShape:
    common = r.common()
    return DecoderShape(
        **common,
        inner=4 * common["width"],
        gated=False,
        tied=r.flag("tie_word_embeddings", True),
        rms_norm=False,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        rotary=False,
        embedding_norm=True,
        dropout=r.share("hidden_dropout"),
    )


def _falcon(r: _ConfigReader) -> DecoderShape:
    common = r.common()
    new = r.flag("new_decoder_architecture")
    if new:
        common["kv_heads"] = r.size("num_kv_heads", default=common["heads"])
    elif r.flag("multi_query", True):
        common["kv_heads"] = 1
    bias, parallel = r.flag("bias"), r.flag("parallel_attn", True)
    return DecoderShape(
        **common,
        inner=r.size("ffn_hidden_size", default=4 * common["width"]),
        gated=False,
        tied=r.flag("tie_word_embeddings", True),
        rms_norm=False,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        rotary=not r.flag("alibi"),
        norms=2 if new or not parallel else 1,
        parallel_block=new or parallel,
    )


def _mpt(r: _ConfigReader) -> DecoderShape:
    common = r.common()
    attention = r.config.get("attn_config")
    options = attention if isinstance(attention, Mapping) else {}
    alibi = bool(options.get("alibi", True))
    bias = not r.flag("no_bias", True)
    return DecoderShape(
        **common,
        inner=r.size("expansion_ratio", default=4) * common["width"],
        gated=False,
        tied=True,
        rms_norm=False,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        rotary=False,
        positions=0 if alibi else common["longest"],
    )


def _moe(r: _ConfigReader) -> DecoderShape:
    """Mixtral, Qwen MoE, OLMoE, Phi-MoE, Granite MoE, gpt-oss."""
    kind = str(r.config["model_type"])
    common = r.common()
    wide = r.size("moe_intermediate_size", "intermediate_size")
    oss = kind == "gpt_oss"
    return DecoderShape(
        **common,
        **r.window(
            common["layers"], every=2 if oss else 1, default_on=not kind.startswith("qwen")
        ),
        inner=r.size("intermediate_size", "moe_intermediate_size"),
        tied=r.flag("tie_word_embeddings"),
        qkv_bias=kind == "qwen2_moe" or oss or r.flag("attention_bias"),
        out_bias=oss or (r.flag("attention_bias") and kind != "qwen2_moe"),
        head_norm=kind in ("qwen3_moe", "olmoe"),
        experts=r.size("num_local_experts", "num_experts", "n_routed_experts"),
        experts_per_token=r.size("num_experts_per_tok", "experts_per_token", default=2),
        expert_inner=wide,
        shared_inner=r.whole("shared_expert_intermediate_size"),
        expert_bias=oss,
        sinks=oss,
    )


def _deepseek(r: _ConfigReader) -> DecoderShape:
    common = r.common()
    common["head_width"] = r.size("qk_nope_head_dim", default=128)
    common["kv_heads"] = common["heads"]
    wide = r.size("moe_intermediate_size")
    return DecoderShape(
        **common,
        inner=r.size("intermediate_size"),
        tied=r.flag("tie_word_embeddings"),
        experts=r.size("n_routed_experts"),
        experts_per_token=r.size("num_experts_per_tok"),
        expert_inner=wide,
        shared_inner=wide * r.whole("n_shared_experts"),
        dense_layers=r.whole("first_k_dense_replace"),
        query_rank=r.whole("q_lora_rank"),
        kv_rank=r.size("kv_lora_rank"),
        rope_width=r.size("qk_rope_head_dim"),
        value_width=r.size("v_head_dim"),
    )


_READERS: dict[str, Callable[[_ConfigReader], DecoderShape]] = {
    **dict.fromkeys(
        (
            "llama",
            "mistral",
            "qwen2",
            "qwen3",
            "phi3",
            "olmo",
            "olmo2",
            "granite",
            "smollm3",
            "internlm2",
            "baichuan",
            "cohere",
            "exaone",
            "minicpm",
        ),
        _llama,
    ),
    **dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma3_text"), _gemma),
    **dict.fromkeys(("gpt2", "gpt_neo", "gpt_bigcode"), _gpt2),
    **dict.fromkeys(("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe", "gpt_oss"), _moe),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2"), _deepseek),
    "stablelm": _stablelm,
    "starcoder2": _starcoder2,
    "phi": _phi,
    "gptj": _gptj,
    "gpt_neox": _neox,
    "opt": _opt,
    "bloom": _bloom,
    "falcon": _falcon,
    "RefinedWebModel": _falcon,
    "mpt": _mpt,
}
"""How the configuration of each kind is read."""
