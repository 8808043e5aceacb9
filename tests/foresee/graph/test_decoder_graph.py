"""The decoder graph beside what PyTorch really keeps, and what each technique does to it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from presage.foresee.allocator import live_peak, reserved_bytes
from presage.foresee.graph.architectures import find_architecture
from presage.foresee.graph.decoder_graph import busiest_graph, decoder_graph
from presage.foresee.graph.decoders import DecoderShape
from presage.foresee.graph.opgraph import KINDS, ROLES, OpGraph
from presage.model.setup import Setup

GIB = 1 << 30
SMALL = DecoderShape("small", 2, 64, 4, 2, 16, 160, 512, longest=128)
LLAMA = DecoderShape.from_config(find_architecture("llama-3.1-8b").config, "llama-3.1-8b")


def _saved(graph: OpGraph, batch: int) -> float:
    t = graph.tensors
    here = (t.role == ROLES.index("saved")) & (t.power == 1)
    return float((t.scale[here] * batch).sum())


def _peak(shape: DecoderShape, batch: float = 1, **given: Any) -> float:
    return live_peak(busiest_graph(shape, Setup.make(**given), batch), batch).bytes


def _llama(torch: Any, shape: DecoderShape, *, frozen: bool, adapter: int) -> Any:
    """A decoder as transformers writes it: fp32 norms, rotary copies, repeated keys."""
    nn, f = torch.nn, torch.nn.functional
    d, h, kv, w = shape.width, shape.heads, shape.kv_heads, shape.head_width

    class Norm(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(d))

        def forward(self, x: Any) -> Any:
            kind = x.dtype
            x = x.to(torch.float32)
            variance = x.pow(2).mean(-1, keepdim=True)
            return self.weight * (x * torch.rsqrt(variance + 1e-6)).to(kind)

    class Linear(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self, wide: int, out: int, rank: int = 0) -> None:
            super().__init__()
            self.base = nn.Linear(wide, out, bias=False)
            self.a = nn.Linear(wide, rank, bias=False) if rank else None
            self.b = nn.Linear(rank, out, bias=False) if rank else None

        def forward(self, x: Any) -> Any:
            out = self.base(x)
            if self.a is None or self.b is None:
                return out
            return (out + self.b(self.a(x.to(torch.float32))) * 2.0).to(out.dtype)

    def turned(x: Any, cos: Any, sin: Any) -> Any:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin

    class Layer(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = Norm(), Norm()
            self.q, self.v = Linear(d, h * w, adapter), Linear(d, kv * w, adapter)
            self.k, self.o = Linear(d, kv * w), Linear(h * w, d)
            self.gate, self.up = Linear(d, shape.inner), Linear(d, shape.inner)
            self.down = Linear(shape.inner, d)

        def forward(self, x: Any, cos: Any, sin: Any) -> Any:
            b, s, _ = x.shape
            n = self.one(x)
            q = turned(self.q(n).view(b, s, h, w).transpose(1, 2), cos, sin)
            k = turned(self.k(n).view(b, s, kv, w).transpose(1, 2), cos, sin)
            v = self.v(n).view(b, s, kv, w).transpose(1, 2)
            k, v = (t.repeat_interleave(h // kv, 1) for t in (k, v))
            out = f.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.o(out.transpose(1, 2).reshape(b, s, h * w))
            n = self.two(x)
            return x + self.down(f.silu(self.gate(n)) * self.up(n))

    class Model(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(shape.vocabulary, d)
            self.layers = nn.ModuleList([Layer() for _ in range(shape.layers)])
            self.norm = Norm()
            self.head = nn.Linear(d, shape.vocabulary, bias=False)

        def forward(self, ids: Any, cos: Any, sin: Any) -> Any:
            x = self.words(ids)
            for layer in self.layers:
                x = layer(x, cos, sin)
            logits = self.head(self.norm(x)).float()
            return f.cross_entropy(logits.view(-1, shape.vocabulary), ids.view(-1))

    model = Model().to(torch.bfloat16)
    for name, parameter in model.named_parameters():
        if ".a." in name or ".b." in name:
            parameter.data = parameter.data.float()
        else:
            parameter.requires_grad_(not frozen)
    return model


@pytest.mark.parametrize("adapter", [0, 8])
def test_saved_bytes_are_those_of_pytorch(adapter: int) -> None:
    """Of many layers: the first of a frozen model keeps less, which the graph does not know."""
    import torch

    batch, seq = 3, 96
    shape = replace(SMALL, layers=8)
    model = _llama(torch, shape, frozen=adapter > 0, adapter=adapter)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Any) -> Any:
        place = tensor.untyped_storage()
        if place.data_ptr() not in weights:
            kept[place.data_ptr()] = place.nbytes()
        return tensor

    cos = torch.ones(seq, SMALL.head_width, dtype=torch.bfloat16)
    ids = torch.zeros(batch, seq, dtype=torch.int64)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(ids, cos, cos)
    setup = Setup.make(
        precision="bf16", seq=seq, optimizer="adamw", lora=f"r={adapter}" if adapter else None
    )
    graph = decoder_graph(shape, setup)
    held = batch * seq * SMALL.vocabulary * 2  # the caller's logits
    assert loss.requires_grad
    assert _saved(graph, batch) - held == pytest.approx(sum(kept.values()), rel=0.02)


def test_parameters_are_those_of_the_shape() -> None:
    for name in ("llama-3.1-8b", "gpt2", "mixtral-8x7b", "falcon-7b", "deepseek-v2-lite", "phi-2"):
        found = find_architecture(name)
        shape = DecoderShape.from_config(found.config, name)
        graph = decoder_graph(shape, Setup.make(precision="bf16", seq=64, optimizer="sgd"))
        assert graph.params == pytest.approx(shape.params, rel=2e-3), name


def test_products_agree_with_six_a_parameter() -> None:
    graph = decoder_graph(LLAMA, Setup.make(precision="bf16", seq=2048, optimizer="sgd"))
    flops = 2 * float(graph.at(graph.macs, 1).sum())
    assert flops == pytest.approx(2048 * LLAMA.flops_per_token(2048), rel=0.02)


def test_published_peaks() -> None:
    """Rank-32 LoRA on q and v as PEFT measured it, and a packed full fine-tune of torchtune."""
    shape = DecoderShape.from_config(find_architecture("llama-3.2-3b").config, "llama-3.2-3b")
    lora = decoder_graph(
        shape, Setup.make(precision="bf16", seq=768, optimizer="adamw", lora="r=32:q,v")
    )
    assert lora.trainable == 9_175_040
    assert reserved_bytes(lora, 4) / GIB == pytest.approx(20.76, rel=0.07)
    full = {"precision": "bf16", "seq": 4096, "optimizer": "adamw-fused"}
    assert _peak(shape, 2, **full) / GIB == pytest.approx(60.0, rel=0.07)
    assert _peak(shape, 2, **full, compile=True) / GIB == pytest.approx(51.0, rel=0.07)


def test_techniques_order_as_they_should() -> None:
    base: dict[str, Any] = {"precision": "bf16", "seq": 2048, "optimizer": "adamw-fused"}

    def peak(**more: Any) -> float:
        return _peak(LLAMA, 4, **(base | more))

    plain = peak()
    assert peak(checkpoint="full") < peak(checkpoint="selective") < peak(compile=True) < plain
    assert peak(loss="chunked") < plain < peak(attention="eager")
    assert peak(precision="amp-bf16") > 1.3 * plain
    lora = peak(lora="r=16")
    assert peak(lora="r=16", quant="nf4", checkpoint="full") < lora < plain
    for lighter in ("adamw-8bit", "paged-adamw-8bit", "sgd"):
        assert peak(optimizer=lighter) < plain


def test_sharding_divides_what_it_should() -> None:
    base: dict[str, Any] = {
        "precision": "amp-bf16",
        "seq": 1024,
        "optimizer": "adamw",
        "checkpoint": "full",
        "gpus": 8,
    }
    ways = ("ddp", "zero1", "zero2", "fsdp")
    peaks = [_peak(LLAMA, **base, parallel=way) for way in ways]
    assert all(later < earlier for earlier, later in pairwise(peaks))
    graph = decoder_graph(LLAMA, Setup.make(**base, parallel="fsdp"))
    state = graph.tensors.scale[graph.tensors.role == ROLES.index("state")].sum()
    assert state == pytest.approx(LLAMA.params * 8 / 8, rel=0.01)


def test_tensor_and_pipeline_ranks_hold_their_part() -> None:
    given: dict[str, Any] = {"precision": "bf16", "seq": 1024, "optimizer": "adamw", "gpus": 8}
    setup = Setup.make(**given, parallel="tp=2,pp=4", accumulate=16)
    graphs = [decoder_graph(LLAMA, setup, stage=stage) for stage in range(4)]
    assert sum(g.params for g in graphs) * 2 == pytest.approx(LLAMA.params, rel=0.01)
    first, later = (live_peak(g, 1).bytes for g in graphs[1:3])
    assert first > later  # more micro-batches in flight
    half = replace(setup, parallel=replace(setup.parallel, sequence=True))
    assert live_peak(decoder_graph(LLAMA, half), 1).bytes < live_peak(graphs[0], 1).bytes


def test_a_large_model_is_quick_and_consistent() -> None:
    shape = DecoderShape.from_config(find_architecture("llama-3.1-405b").config, "405b")
    setup = Setup.make(
        precision="bf16", seq=4096, optimizer="adamw", gpus=64, parallel="fsdp", checkpoint="full"
    )
    graph = decoder_graph(shape, setup)
    t = graph.tensors
    assert len(graph) < 20_000
    assert (t.born < t.died).all()
    assert t.died.max() <= len(graph)
    assert set(np.unique(graph.kind)) <= set(range(len(KINDS)))
    assert (graph.edges[:, 0] < graph.edges[:, 1]).all()
    again = OpGraph.from_bytes(graph.to_bytes())
    assert live_peak(again, 2).bytes == live_peak(graph, 2).bytes


def test_inference_has_neither_gradients_nor_state() -> None:
    graph = decoder_graph(LLAMA, Setup.make(precision="bf16", seq=512, inference=True))
    roles = set(graph.tensors.role.tolist())
    assert ROLES.index("gradient") not in roles
    assert ROLES.index("state") not in roles
    assert (graph.phase == 0).all()
    kinds = {KINDS[kind] for kind in graph.kind.tolist()}
    assert not kinds & {"loss", "update"}
    assert live_peak(graph, 1).bytes < 1.1 * LLAMA.params * 2
