"""What the parts of a decoder do, operator by operator, as the usual code in PyTorch writes them.

Embedding, attention, MLP, experts, and the head with its loss, each on a `Tape`. Counts are those
of one rank: heads, inner widths and vocabulary are divided by tensor parallelism. What is saved
for the backward pass follows the modules of transformers; fused kernels where a set-up has them.
Nothing here knows how blocks are put together.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from presage.foresee.graph._tape import Tape, TapeValue, TapeWeight
from presage.foresee.graph.decoders import DecoderShape
from presage.model.setup import Setup

__all__ = ["DecoderBlocks", "ElementWidths"]

_NF4 = 0.5 + 4 / 64
"""Bytes of a 4-bit weight: blocks of 64 with an fp32 constant (bitsandbytes without nesting)."""
_CHUNKS = 8
"""Pieces of a chunked loss (torchtune's default)."""


@dataclass(frozen=True, slots=True)
class ElementWidths:
    """Bytes of an element, by what it is for."""

    weight: float
    compute: float
    adapter: float
    cast: float = 0.0
    """Of the copies that autocast makes of fp32 weights; 0 for none."""

    @classmethod
    def of(cls, setup: Setup, *, gathered: bool = False) -> ElementWidths:
        """`gathered`: weights come from shards, already in the type of the products."""
        compute = 2.0 if setup.half or setup.autocast else 4.0
        weight = compute if setup.half or gathered else 4.0
        cast = 2.0 if setup.autocast and not gathered else 0.0
        same = setup.lora is not None and setup.lora.precision == "same"
        return cls(weight, compute, weight if same else 4.0, cast)


@dataclass(slots=True)
class DecoderBlocks:
    """Builds blocks of one model under one set-up on a tape."""

    shape: DecoderShape
    setup: Setup
    seq: int
    tape: Tape
    widths: ElementWidths
    tied: bool = False
    """The head's matrix is the embedding's, on this very rank."""
    tokens: float = field(init=False)
    fused: bool = field(init=False)
    """Norms and activations are single kernels: compiled, or Megatron's."""
    light: bool = field(init=False)
    """Inputs of products are computed again too. A compiler does not: it would have to write them
    out once more (`ban_recompute_materialized_backward` of PyTorch's partitioner)."""

    def __post_init__(self) -> None:
        self.tokens = self.seq / self.setup.parallel.context
        p = self.setup.parallel
        self.fused = self.setup.compile or p.tensor > 1 or p.pipeline > 1
        self.light = self.setup.checkpoint == "selective"

    # -- small operators

    def linear(self, x: TapeValue, inputs: float, outputs: float, target: str = "") -> TapeValue:
        """x · W, with the adapter of `target` beside it where there is one."""
        setup, t = self.setup, self.tape
        lora = setup.lora
        adapted = lora is not None and target in lora.targets
        weight = t.add_parameter(self._weight(inputs * outputs, target))
        given = x
        if x.width > self.widths.compute:  # autocast casts for every product anew
            x = self._half(x)
        quantised = bool(weight.cast) and not weight.cached
        if quantised:
            t.held.append(x)
        out = t.apply(
            "linear",
            "linear",
            [x],
            self._rows(x, inputs) * outputs,
            self.widths.compute,
            # quantised products of bitsandbytes keep their input, though nothing trains on it
            saves=[x] if weight.trainable or quantised else [],
            parameter=weight,
            macs=self._rows(x, inputs) * inputs * outputs,
            last=outputs,
        )
        return self._adapter(given, out, inputs, outputs) if adapted else out

    def _rows(self, x: TapeValue, inputs: float) -> float:
        return x.count / inputs

    def _weight(self, count: float, target: str) -> TapeWeight:
        w, setup = self.widths, self.setup
        frozen = setup.lora is not None
        if setup.quant == "nf4" and target not in ("head", "router"):
            return TapeWeight(count, _NF4, trainable=False, cast=w.compute)
        if setup.quant == "int8" and target not in ("head", "router"):
            return TapeWeight(count, 1.0, trainable=False, cast=w.compute)
        return TapeWeight(count, w.weight, not frozen, w.cast, cached=bool(w.cast))

    def _adapter(self, x: TapeValue, base: TapeValue, inputs: float, outputs: float) -> TapeValue:
        lora, t, w = self.setup.lora, self.tape, self.widths
        assert lora is not None
        wide = w.adapter
        cast = w.cast if wide == 4.0 else 0.0
        compute = w.compute if cast else wide
        rows = self._rows(x, inputs)
        if compute != x.width:
            x = t.apply("cast", "copy", [x], x.count, compute)
        if lora.dropout:
            x = t.apply("dropout", "elementwise", [x], x.count, compute, extra=x.count)
        a = t.add_parameter(TapeWeight(inputs * lora.rank, wide, True, cast, bool(cast)))
        b = t.add_parameter(TapeWeight(outputs * lora.rank, wide, True, cast, bool(cast)))
        low = t.apply(
            "lora_a",
            "linear",
            [x],
            rows * lora.rank,
            compute,
            saves=[x],
            parameter=a,
            macs=rows * inputs * lora.rank,
            last=lora.rank,
        )
        high = t.apply(
            "lora_b",
            "linear",
            [low],
            rows * outputs,
            compute,
            saves=[low],
            parameter=b,
            macs=rows * outputs * lora.rank,
            last=outputs,
        )
        scaled = t.apply("scale", "elementwise", [high], high.count, compute)
        total = t.apply("add", "elementwise", [base, scaled], base.count, compute, shares=True)
        if compute == base.width:
            return total
        return t.apply("cast", "copy", [total], base.count, base.width)

    def bias(self, count: float) -> None:
        """Counted with its product: its gradient is a sum, its addition is part of the kernel."""
        frozen = self.setup.lora is not None
        self.tape.add_parameter(TapeWeight(count, self.widths.weight, not frozen))

    def norm(self, x: TapeValue, wide: float) -> TapeValue:
        """RMS norm in fp32 as transformers writes it, or one kernel."""
        t, w, frozen = self.tape, self.widths, self.setup.lora is not None
        own = wide * (1 if self.shape.rms_norm else 2)
        scale = t.add_parameter(TapeWeight(own, w.weight, not frozen))
        out_width = w.compute if not w.cast else 4.0
        if not self.shape.rms_norm or self.fused:
            # native layer norm under autocast runs and answers in fp32
            wide_out = 4.0 if w.cast and not self.shape.rms_norm else w.compute
            out = t.apply(
                "norm",
                "norm",
                [x],
                x.count,
                wide_out,
                saves=[x],
                parameter=scale,
                extra=4 * x.count / wide,
            )
            out.sources = (x,) if self.light else ()
            return out
        high = x
        if x.width < 4:
            high = t.apply("cast", "copy", [x], x.count, 4.0)
            high.sources = (x,)
        square = t.apply("pow", "elementwise", [high], x.count, 4.0, saves=[high])
        mean = t.apply("mean", "reduce", [square], x.count / wide, 4.0)
        root = t.apply("rsqrt", "elementwise", [mean], x.count / wide, 4.0, save_out=True)
        normal = t.apply("mul", "elementwise", [high, root], x.count, 4.0, saves=[high, root])
        scaled = 4.0 if self.shape.wide_norm else out_width
        if scaled < 4:
            normal = t.apply("cast", "copy", [normal], x.count, scaled)
        normal.sources = (x,)
        saves = [normal] if scale.trainable else []
        out = t.apply(
            "mul", "elementwise", [normal], x.count, scaled, saves=saves, parameter=scale
        )
        if scaled != out_width:
            out = t.apply("cast", "copy", [out], x.count, out_width)
        out.sources = (x,) if self.light else ()
        return out

    def _half(self, x: TapeValue) -> TapeValue:
        """What autocast hands to a product."""
        out = self.tape.apply("cast", "copy", [x], x.count, self.widths.compute)
        out.sources = (x,)
        return out

    @property
    def split(self) -> int:
        """Ranks that share the tokens between blocks (sequence parallelism)."""
        return self.setup.parallel.tensor if self.setup.parallel.sequence else 1

    def _gathered(self, x: TapeValue) -> TapeValue:
        """All tokens for a product; only the own share is kept for the backward pass."""
        if self.split == 1:
            return x
        out = self.tape.apply("all_gather", "copy", [x], x.count * self.split, x.width)
        out.sources, out.remade = (x,), True
        return out

    def _scattered(self, x: TapeValue) -> TapeValue:
        if self.split == 1:
            return x
        return self.tape.apply("reduce_scatter", "copy", [x], x.count / self.split, x.width)

    def _dropped(self, x: TapeValue) -> TapeValue:
        x = self._scattered(x)
        if not self.shape.dropout:
            return x
        return self.tape.apply("dropout", "elementwise", [x], x.count, x.width, extra=x.count)

    def add(self, a: TapeValue, b: TapeValue) -> TapeValue:
        """The residual stream goes on."""
        return self.tape.apply(
            "add", "elementwise", [a, b], a.count, max(a.width, b.width), shares=True
        )

    # -- attention

    def attention(self, h: TapeValue, window: int) -> TapeValue:
        """Projections, positions, attention itself, and the output projection."""
        s, tp = self.shape, self.setup.parallel.tensor
        heads = s.heads / tp
        if s.kv_rank:
            q, k, v = self._latent(h, heads)
        else:
            kv = max(1.0, s.kv_heads / tp)
            q = self.linear(h, s.width, heads * s.head_width, "q")
            k = self.linear(h, s.width, kv * s.head_width, "k")
            v = self.linear(h, s.width, kv * s.head_width, "v")
            if s.qkv_bias:
                self.bias((heads + 2 * kv) * s.head_width)
            if s.head_norm:
                q, k = self.norm(q, s.head_width), self.norm(k, s.head_width)
            if s.rotary:
                q, k = self._rotated(q), self._rotated(k)
            if self.setup.attention != "flash" and not self.fused and kv < heads:
                k, v = self._repeated(k, heads / kv), self._repeated(v, heads / kv)
        context = self._attend(q, k, v, heads, window)
        out = self.linear(context, heads * s.value_size, s.width, "o")
        if s.out_bias:
            self.bias(s.width)
        return self._dropped(out)

    def _latent(self, h: TapeValue, heads: float) -> tuple[TapeValue, TapeValue, TapeValue]:
        """Multi-head latent attention, with keys and values written out as in training."""
        s, t = self.shape, self.tape
        if s.query_rank:
            low = self.norm(self.linear(h, s.width, s.query_rank, "q"), s.query_rank)
            q = self.linear(low, s.query_rank, heads * s.query_size)
        else:
            q = self.linear(h, s.width, heads * s.query_size, "q")
        latent = self.linear(h, s.width, s.kv_rank + s.rope_width, "k")
        part = t.apply(
            "slice", "copy", [latent], self.tokens * s.kv_rank, latent.width, shares=False
        )
        low = self.norm(part, s.kv_rank)
        both = self.linear(low, s.kv_rank, heads * (s.head_width + s.value_size), "v")
        k = t.apply("cat", "copy", [both, latent], self.tokens * heads * s.query_size, both.width)
        v = t.apply("slice", "copy", [both], self.tokens * heads * s.value_size, both.width)
        return self._rotated(q), k, v

    def _rotated(self, x: TapeValue) -> TapeValue:
        """x · cos + rotated x · sin; the tables have no gradient, so x itself is not saved."""
        t = self.tape
        if self.fused:
            return t.apply("rotary", "elementwise", [x], x.count, x.width)
        first = t.apply("mul", "elementwise", [x], x.count, x.width)
        turned = t.apply("cat", "copy", [x], x.count, x.width)
        second = t.apply("mul", "elementwise", [turned], x.count, x.width)
        return t.apply("add", "elementwise", [first, second], x.count, x.width, shares=True)

    def _repeated(self, x: TapeValue, times: float) -> TapeValue:
        return self.tape.apply("repeat", "copy", [x], x.count * times, x.width)

    def _attend(
        self, q: TapeValue, k: TapeValue, v: TapeValue, heads: float, window: int
    ) -> TapeValue:
        s, t = self.shape, self.tape
        out = self.tokens * heads * s.value_size
        reach = float(min(window or self.seq, self.seq))
        pairs = self.tokens * heads * self.seq
        if self.setup.attention == "eager" or (self.setup.attention == "sdpa" and s.softcap):
            if self.setup.checkpoint == "selective":
                return t.region(lambda x: self._scores(x[0], x[1], x[2], pairs, out), (q, k, v))
            return self._scores(q, k, v, pairs, out)
        seen = reach - reach * reach / (2 * self.seq) if window else self.seq / 2
        return t.apply(
            "attention",
            "attention",
            [q, k, v],
            out,
            q.width,
            saves=[q, k, v],
            save_out=True,
            extra=4 * self.tokens * heads,
            macs=self.tokens * heads * seen * (s.query_size + s.value_size),
            back_macs=2.5,
            last=s.value_size,
        )

    def _scores(
        self, q: TapeValue, k: TapeValue, v: TapeValue, pairs: float, out: float
    ) -> TapeValue:
        """Eager attention: scores, softmax in fp32, dropout, and the weighted values."""
        s, t, half = self.shape, self.tape, self.widths.compute
        scores = t.apply(
            "matmul",
            "matmul",
            [q, k],
            pairs,
            q.width,
            saves=[q, k],
            macs=pairs * s.query_size,
            split=True,
        )
        if s.softcap:
            scores = t.apply("tanh", "activation", [scores], pairs, q.width, save_out=True)
        scores = t.apply("mask", "elementwise", [scores], pairs, q.width)
        wide = half if self.fused else 4.0
        soft = t.apply("softmax", "softmax", [scores], pairs, wide, save_out=True)
        if wide != half:
            soft = t.apply("cast", "copy", [soft], pairs, half)
        if s.dropout:
            soft = t.apply("dropout", "elementwise", [soft], pairs, half, extra=pairs)
        return t.apply(
            "matmul",
            "matmul",
            [soft, v],
            out,
            half,
            saves=[soft, v],
            macs=pairs * s.value_size,
            split=True,
        )

    # -- MLP

    def mlp(self, h: TapeValue, inner: float) -> TapeValue:
        """Dense: two or three matrices."""
        s = self.shape
        out = self._mlp(h, inner / self.setup.parallel.tensor)
        if s.mlp_bias:
            self.bias((2 if s.gated else 1) * inner + s.width)
        return self._dropped(out)

    def _mlp(self, h: TapeValue, inner: float) -> TapeValue:
        s, t = self.shape, self.tape
        if s.gated:
            gate = self.linear(h, s.width, inner, "gate")
            up = self.linear(h, s.width, inner, "up")
            act = t.apply(s.activation, "activation", [gate], gate.count, gate.width, saves=[gate])
            act.sources = (gate,)
            middle = t.apply("mul", "elementwise", [act, up], up.count, up.width, saves=[act, up])
            middle.sources = (act, up) if self.light else ()
        else:
            middle = self._activated(self.linear(h, s.width, inner, "up"))
        return self.linear(middle, inner, s.width, "down")

    def _activated(self, x: TapeValue) -> TapeValue:
        t, kind = self.tape, self.shape.activation
        if kind == "relu":
            return t.apply("relu", "activation", [x], x.count, x.width, save_out=True)
        if kind != "gelu_new" or self.fused:
            out = t.apply("gelu", "activation", [x], x.count, x.width, saves=[x])
            out.sources = (x,) if self.light else ()
            return out
        # 0.5 x (1 + tanh(c (x + 0.044715 x³))), one operator after the other
        cube = t.apply("pow", "elementwise", [x], x.count, x.width, saves=[x])
        mixed = t.apply("add", "elementwise", [x, cube], x.count, x.width, shares=True)
        curve = t.apply("tanh", "activation", [mixed], x.count, x.width, save_out=True)
        half = t.apply("mul", "elementwise", [x], x.count, x.width)
        one = t.apply("add", "elementwise", [curve], x.count, x.width, shares=True)
        return t.apply("mul", "elementwise", [half, one], x.count, x.width, saves=[half, one])

    def experts(self, h: TapeValue) -> TapeValue:
        """Router, copies of the tokens for their experts, the experts, and the weighted sum."""
        s, t, p = self.shape, self.tape, self.setup.parallel
        scores = self.linear(h, s.width, s.experts, "router")
        soft = t.apply("softmax", "softmax", [scores], scores.count, 4.0, save_out=True)
        copies = self.tokens * s.experts_per_token * s.width
        sent = t.apply(
            "gather", "copy", [h], copies, h.width, extra=8 * self.tokens * s.experts_per_token
        )
        before = len(t.parameters)
        done = self._mlp(sent, s.expert_inner / p.tensor)
        mine = s.experts / p.expert
        for parameter in t.parameters[before:]:  # one MLP was written down; a rank holds `mine`
            parameter.count *= mine
        if s.expert_bias:
            self.bias(mine * (2 * s.expert_inner + s.width))
        weighed = t.apply(
            "mul", "elementwise", [done, soft], copies, done.width, saves=[done, soft]
        )
        out = t.apply("scatter", "reduce", [weighed], h.count, h.width)
        if s.shared_inner:
            out = self.add(out, self._mlp(h, s.shared_inner / p.tensor))
        return self._scattered(out)

    # -- whole blocks

    def layer(self, x: TapeValue, *, experts: bool, window: int) -> TapeValue:
        """One decoder layer."""
        s = self.shape

        def feed(h: TapeValue) -> TapeValue:
            return self.experts(h) if experts else self.mlp(h, s.inner)

        h = self._gathered(self.norm(x, s.width))
        if s.parallel_block:
            second = self._gathered(self.norm(x, s.width)) if s.norms > 1 else h
            return self.add(self.add(x, self.attention(h, window)), feed(second))
        mixed = self.attention(h, window)
        if s.norms == 4:
            mixed = self.norm(mixed, s.width)
        x = self.add(x, mixed)
        out = feed(self._gathered(self.norm(x, s.width)))
        if s.norms == 4:
            out = self.norm(out, s.width)
        return self.add(x, out)

    def embedding(self) -> TapeValue:
        """Tokens to vectors."""
        s, t, w = self.shape, self.tape, self.widths
        frozen = self.setup.lora is not None
        tp = self.setup.parallel.tensor
        table = t.add_parameter(TapeWeight(s.embedding_params / tp, w.weight, not frozen))
        table.merge = self.tied
        wide = w.weight  # autocast leaves an embedding as it is
        x = t.apply(
            "embedding",
            "embedding",
            [],
            self.tokens * s.width,
            wide,
            extra=8 * self.tokens,
            parameter=table,
            last=s.width,
        )
        return self._dropped(x)

    def head(self, x: TapeValue) -> TapeValue:
        """Final norm, logits and the loss over them."""
        s, t, w = self.shape, self.tape, self.widths
        h = self._gathered(self.norm(x, s.width))
        words = s.vocabulary / self.setup.parallel.tensor
        if self.setup.loss == "chunked" and not self.setup.inference:
            return self._chunked(h, words)
        logits = self._logits(h, words)
        if self.setup.inference:
            return logits
        if s.softcap:
            logits = t.apply(
                "tanh", "activation", [logits], logits.count, w.compute, save_out=True
            )
        if self.fused and not self.setup.compile:
            return self._parallel_loss(logits)
        wide = logits
        if w.compute < 4:
            wide = t.apply("cast", "copy", [logits], logits.count, 4.0)
        soft = t.apply("log_softmax", "softmax", [wide], logits.count, 4.0, save_out=True)
        # the caller holds the logits while it runs backward
        return t.apply("nll_loss", "loss", [soft], self.tokens, 4.0, saves=[logits])

    def _parallel_loss(self, logits: TapeValue) -> TapeValue:
        """Megatron's: exponentials of fp32 logits, turned into the gradient in place."""
        t = self.tape
        wide = t.apply("cast", "copy", [logits], logits.count, 4.0)
        exponents = t.apply("exp", "softmax", [wide], logits.count, 4.0, shares=True)
        return t.apply(
            "cross_entropy",
            "loss",
            [exponents],
            self.tokens,
            4.0,
            saves=[exponents],
            in_place=True,
        )

    def _logits(self, h: TapeValue, words: float) -> TapeValue:
        at = len(self.tape.parameters)
        logits = self.linear(h, self.shape.width, words, "head")
        self.tape.parameters[at].alias = self.tied
        if self.shape.head_bias:
            self.bias(words)
        return logits

    def _chunked(self, h: TapeValue, words: float) -> TapeValue:
        """Logits in pieces: kept in half precision, everything fp32 for one piece at a time."""
        t, w = self.tape, self.widths
        logits = self._logits(h, words)
        piece = logits.count / _CHUNKS
        wide = t.apply("cast", "copy", [logits], piece, 4.0, shares=True)
        t.emit("log_softmax", "softmax", [wide], [(piece, 4.0, 1)])
        return t.apply("cross_entropy", "loss", [logits], self.tokens, w.compute, saves=[logits])
