"""What data-parallel ranks share among them: DDP, ZeRO and FSDP applied to the graph of one rank.

Weights, gradients and optimizer state are divided; buffers that gather and reduce them are added.
Works on any `OpGraph`; a graph that knows its blocks says so in `ShardUnit`s, otherwise they are
guessed from where weights are read. Nothing here knows a GPU or a network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from presage.foresee.graph.opgraph import ROLES, Floats, OpGraph, Tensors
from presage.model.setup import Setup

__all__ = ["ShardUnit", "communicator_bytes", "guess_units", "shard"]

DDP_BUCKET_BYTES = 25 << 20
"""`bucket_cap_mb` of DistributedDataParallel; buckets hold a second copy of all gradients unless
`gradient_as_bucket_view` is set, which is not the default."""
ZERO_BUCKET_ELEMENTS = 5e8
"""`reduce_bucket_size` and `allgather_bucket_size` of DeepSpeed's configuration."""
ZERO3_LIVE_ELEMENTS = 1e9
"""`stage3_max_live_parameters` of DeepSpeed's configuration."""
COMMUNICATOR_BYTES = 300 << 20
"""Of one NCCL communicator: some 24 channels with buffers of 4 MiB and less for three protocols,
to send and to receive. Outside PyTorch's allocator."""
_GUESSED_UNITS = 16


@dataclass(frozen=True, slots=True)
class ShardUnit:
    """Weights that are gathered together, and the operators that need them."""

    forward: int
    forward_end: int
    backward: int
    backward_end: int
    weight_bytes: float
    gradient_bytes: float


def communicator_bytes(setup: Setup) -> float:
    """What NCCL holds: a communicator for everyone, and one for each way to divide."""
    p = setup.parallel
    if setup.gpus < 2:
        return 0.0
    ways = [setup.data_parallel, p.tensor, p.pipeline, p.context, p.expert]
    divided = sum(way > 1 for way in ways)
    return COMMUNICATOR_BYTES * (divided + (divided > 1))


def shard(graph: OpGraph, setup: Setup, units: Sequence[ShardUnit] | None = None) -> OpGraph:
    """The graph of one rank among `setup.data_parallel`."""
    kind, ranks = setup.parallel.sharding, setup.data_parallel
    if kind == "none" or ranks < 2 or setup.inference:
        return graph
    known = list(units) if units is not None else guess_units(graph)
    t = graph.tensors
    scale = t.scale.copy()
    away = setup.offload == "params"
    divided = {"ddp": (), "zero1": ("state",), "zero2": ("state", "gradient")}
    whole = ("state", "weight") if setup.whole_gradients else ("state", "gradient", "weight")
    for role in divided.get(kind, whole):
        scale[t.role == ROLES.index(role)] /= ranks
    if kind != "ddp":  # each rank updates its own part alone
        update = (t.role == ROLES.index("transient")) & (t.born >= int((graph.phase < 2).sum()))
        scale[update] /= ranks
    if away:
        scale[np.isin(t.role, [ROLES.index("weight"), ROLES.index("gradient")])] = 0.0
    extra = _buffers(graph, kind, known)
    return replace(graph, tensors=_joined(t, scale, extra))


def _buffers(
    graph: OpGraph, kind: str, units: Sequence[ShardUnit]
) -> list[tuple[int, int, float, str]]:
    """(born, died, bytes, role) of what gathers and reduces."""
    end = len(graph)
    t = graph.tensors
    weights = float(t.scale[t.role == ROLES.index("weight")].sum())
    each = weights / max(graph.params, 1)
    trained = graph.trainable * each
    if kind == "ddp":
        return [(-1, end, trained, "gradient")]
    if kind in ("zero1", "zero2"):
        bucket = min(ZERO_BUCKET_ELEMENTS * each, trained)
        return [(int((graph.phase < 1).sum()), end, bucket, "transient")]
    buffers: list[tuple[int, int, float, str]] = []
    order = sorted(units, key=lambda u: (u.forward, -u.forward_end))
    roots = [u for u in order if u.forward_end - u.forward >= (graph.phase == 0).sum()]
    blocks = [u for u in order if u not in roots]
    for root in roots:
        buffers.append((root.forward, root.backward_end, root.weight_bytes, "transient"))
        buffers.append((root.backward, root.backward_end, root.gradient_bytes, "transient"))
    if kind == "zero3":
        live = min(ZERO3_LIVE_ELEMENTS * each, weights)
        buffers.append((0, end, live, "transient"))
        buffers.append((0, end, min(ZERO_BUCKET_ELEMENTS * each, trained), "transient"))
        return buffers
    for i, unit in enumerate(blocks):
        early = blocks[i - 1].forward if i else unit.forward
        buffers.append((early, unit.forward_end, unit.weight_bytes, "transient"))
        later = blocks[i + 1] if i + 1 < len(blocks) else None
        ahead = later.backward if later else unit.backward
        buffers.append((ahead, unit.backward_end, unit.weight_bytes, "transient"))
        after = blocks[i - 1].backward_end if i else unit.backward_end
        buffers.append((unit.backward, after, unit.gradient_bytes, "transient"))
    return buffers


def guess_units(graph: OpGraph) -> list[ShardUnit]:
    """Blocks of about a sixteenth of the weights each, in the order they are read."""
    t = graph.tensors
    total = float(t.scale[t.role == ROLES.index("weight")].sum())
    each = total / max(graph.params, 1)
    spans: list[list[tuple[int, int, float]]] = []
    for phase in (0, 1):
        at = np.flatnonzero((graph.phase == phase) & (graph.weights > 0))
        spans.append(_spans(at, graph.weights[at] * each, total / _GUESSED_UNITS))
    forward, backward = spans[0], spans[1][::-1]
    units = []
    for i, (start, end, size) in enumerate(forward):
        back = backward[min(i, len(backward) - 1)] if backward else (start, end, 0.0)
        units.append(ShardUnit(start, end, back[0], back[1], size, size))
    return units


def _spans(at: np.ndarray, sizes: Floats, most: float) -> list[tuple[int, int, float]]:
    spans: list[tuple[int, int, float]] = []
    start, held = 0, 0.0
    for i in range(len(at)):
        if held and held + sizes[i] > most:
            spans.append((int(at[start]), int(at[i - 1]) + 1, held))
            start, held = i, 0.0
        held += float(sizes[i])
    if held:
        spans.append((int(at[start]), int(at[-1]) + 1, held))
    return spans


def _joined(t: Tensors, scale: Floats, extra: list[tuple[int, int, float, str]]) -> Tensors:
    extra = [row for row in extra if row[2] > 0]
    return Tensors(
        np.concatenate([t.born, np.array([row[0] for row in extra], np.int64)]),
        np.concatenate([t.died, np.array([row[1] for row in extra], np.int64)]),
        np.concatenate([scale, np.array([row[2] for row in extra], np.float64)]),
        np.concatenate([t.power, np.zeros(len(extra), np.int64)]),
        np.concatenate([t.role, np.array([ROLES.index(row[3]) for row in extra], np.int64)]),
    )
