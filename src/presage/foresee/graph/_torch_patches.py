"""What is changed in a module before it is traced, so that it does on fake tensors what it would
do on a GPU: attention, recomputation, compiled parts, sparse gradients. Nothing is recorded here.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

__all__ = ["attention", "checkpoint_blocks", "sparse_embeddings", "uncompiled", "where"]


@contextlib.contextmanager
def attention(torch: Any, half: Any, kind: str) -> Iterator[None]:
    """Attention as a GPU runs it: one fused operator, or product by product (`eager`); in `half`
    precision under autocast, if there is one."""
    from torch.overrides import TorchFunctionMode

    whole = torch._C._nn.scaled_dot_product_attention
    run = _eager if kind == "eager" else _fused

    class AttentionKernel(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = dict(kwargs or {})
            if func is not whole or len(args) < 3:
                return func(*args, **kwargs)
            query, key, value = (t.to(half) if half is not None else t for t in args[:3])
            if kwargs.pop("enable_gqa", False):
                times = query.shape[-3] // key.shape[-3]
                key, value = (t.repeat_interleave(times, -3) for t in (key, value))
            with torch.autocast("cpu", enabled=False):
                return run(torch, query, key, value, args[3:], kwargs)

    with AttentionKernel():
        yield


def _fused(torch: Any, query: Any, key: Any, value: Any, rest: Any, kwargs: Any) -> Any:
    lead = query.shape[:-2]
    query, key, value = (_four(t) for t in (query, key, value))
    out = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value)[0]
    return out.reshape(*lead, *out.shape[-2:])


def _eager(torch: Any, query: Any, key: Any, value: Any, rest: Any, kwargs: Any) -> Any:
    """Scores, mask, softmax in fp32, dropout, product: each is a tensor of its own."""
    mask = rest[0] if rest else kwargs.get("attn_mask")
    dropout = rest[1] if len(rest) > 1 else kwargs.get("dropout_p", 0.0)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.shape[-1])
    if mask is not None and mask.is_floating_point():
        scores = scores + mask
    elif mask is not None or kwargs.get("is_causal") or (len(rest) > 2 and rest[2]):
        scores = scores + scores.new_zeros(scores.shape[-2:])
    weights = torch.softmax(scores, -1, dtype=torch.float32).to(query.dtype)
    if dropout:
        weights = torch.nn.functional.dropout(weights, dropout)
    return torch.matmul(weights, value)


def _four(tensor: Any) -> Any:
    """(batch, heads, length, width), as fused attention wants it."""
    if tensor.dim() == 3:
        return tensor.unsqueeze(1)
    return tensor.flatten(0, tensor.dim() - 4) if tensor.dim() > 4 else tensor


def checkpoint_blocks(module: Any, every: int = 1) -> int:
    """Blocks of a repeated class are computed again in the backward pass: all of them, or each
    `every`-th. Returns how many."""
    import torch
    from torch.utils.checkpoint import checkpoint

    count = 0
    for parent in module.modules():
        if not isinstance(parent, (torch.nn.ModuleList, torch.nn.Sequential)):
            continue
        children = list(parent.children())
        if (
            len(children) > 1
            and len({type(c) for c in children}) == 1
            and list(children[0].children())
        ):
            for child in children[::every]:
                child.forward = _again(checkpoint, child.forward)
                count += 1
    return count


def _again(checkpoint: Any, forward: Any) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return run


def uncompiled(module: Any) -> tuple[Any, bool]:
    """The module without `torch.compile`, and whether any part of it was compiled."""
    compiled = False
    if hasattr(module, "_orig_mod"):
        module, compiled = module._orig_mod, True
    if not hasattr(module, "modules"):
        return module, compiled
    for part in list(module.modules()):
        if getattr(part, "_compiled_call_impl", None) is not None:
            part._compiled_call_impl = None
            compiled = True
        for name, child in list(part._modules.items()):
            if child is not None and hasattr(child, "_orig_mod"):
                part._modules[name] = child._orig_mod
                compiled = True
    return module, compiled


def sparse_embeddings(torch: Any, module: Any) -> list[Any]:
    """Embeddings whose gradients are sparse, which fake tensors do not know: made dense."""
    embeddings = []
    for part in module.modules():
        if isinstance(part, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and part.sparse:
            part.sparse = False
            embeddings.append(part)
    return embeddings


@contextlib.contextmanager
def where(torch: Any, module: Any) -> Iterator[list[str]]:
    """The names of the modules whose forward is under way, outermost first; after an error those
    in which it happened."""
    from torch.nn.modules import module as hooks

    names = {id(part): name for name, part in module.named_modules()}
    inside: list[str] = []

    def enter(part: Any, _: Any) -> None:
        kind = type(part).__name__
        name = names.get(id(part), "")
        inside.append(f"{name} ({kind})" if name else kind)

    def leave(part: Any, _: Any, out: Any) -> None:
        if inside:
            inside.pop()

    handles = [
        hooks.register_module_forward_pre_hook(enter),
        hooks.register_module_forward_hook(leave),
    ]
    try:
        yield inside
    finally:
        for handle in handles:
            handle.remove()
