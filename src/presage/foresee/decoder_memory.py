"""GPU memory of a decoder language model: its graph, the floor of the process and the buffers of
communication, with the interval that published figures leave.

Nothing is learned on top: on figures that others published the graph alone is closer than any term
learned from image models. How wide the interval is says `decoder_spread`.
"""

from __future__ import annotations

import numpy as np

from presage.foresee.allocator import MIB, live_peak, reserved_bytes
from presage.foresee.decoder_spread import decoder_spread
from presage.foresee.floors import Floor, floor_mib
from presage.foresee.gpus import Gpu
from presage.foresee.graph.decoders import DecoderShape
from presage.foresee.graph.opgraph import OpGraph
from presage.foresee.memory import MemoryForecast, MemoryPhysics
from presage.foresee.sharding import communicator_bytes
from presage.learn import Floats
from presage.model.setup import Setup

__all__ = ["decoder_forecast", "largest_decoder_batch"]

_LINKS = (0.4, 2.0)
"""Buffers of communication at 10 and 90 %, as shares of the median."""


def decoder_forecast(
    physics: MemoryPhysics,
    shape: DecoderShape,
    gpu: Gpu,
    setup: Setup,
    floor: Floor | None = None,
) -> MemoryForecast:
    """The whole answer for one GPU; `floor` is that of own runs on the machine, if any."""
    base = floor or floor_mib(gpu)
    links = communicator_bytes(setup) / MIB
    spread = decoder_spread(shape, setup)
    needs = _quantiles(physics.reserved, physics.peak, base, links, spread.half_width)
    role = {name: size / MIB for name, size in physics.by_role.items()}
    parts = {
        "device and driver": base.p50,
        "weights": role["weight"] + role["buffer"],
        "gradients": role["gradient"],
        "optimizer": role["state"],
        "activations": role["saved"] + role["input"],
        "temporary": role["transient"],
        "allocator": physics.reserved - physics.peak,
        **({"communication": links} if links else {}),
    }
    return MemoryForecast(needs, needs.copy(), parts, spread.distance, spread.words)


def _quantiles(reserved: float, peak: float, floor: Floor, links: float, width: float) -> Floats:
    """Errors of the graph, of the floor and of communication are independent."""
    middle = floor.p50 + links + reserved
    below = np.sqrt(
        (reserved * -np.expm1(-width)) ** 2
        + (floor.p50 - floor.p10) ** 2
        + (links * (1 - _LINKS[0])) ** 2
    )
    above = np.sqrt(
        (reserved * np.expm1(width)) ** 2
        + (floor.p90 - floor.p50) ** 2
        + (links * (_LINKS[1] - 1)) ** 2
    )
    interval: Floats = np.array([middle - below, middle, middle + above])
    return np.maximum(interval, peak)


def largest_decoder_batch(
    graph: OpGraph,
    shape: DecoderShape,
    gpu: Gpu,
    setup: Setup,
    *,
    floor: Floor | None = None,
    most: int = 1 << 16,
    known: MemoryPhysics | None = None,
) -> int:
    """The largest batch whose p90 stays within what the GPU leaves to programs; 0 for none.

    Searched with the tensors that live together, which is quick, and settled with the replayed
    allocator; `known` is the graph at some batch, replayed before."""
    base = floor or floor_mib(gpu)
    links = communicator_bytes(setup) / MIB
    width = decoder_spread(shape, setup).half_width

    kept = known.reserved / known.peak if known is not None else 1.0
    """What the allocator reserves for each byte that lives, as last replayed."""

    def fits(batch: int, *, replayed: bool) -> bool:
        nonlocal kept
        if known is not None and batch == known.batch:
            peak = known.peak
            kept = known.reserved / peak
        else:
            peak = live_peak(graph, batch).bytes / MIB
            if replayed:
                kept = reserved_bytes(graph, batch) / MIB / peak
        high = _quantiles(kept * peak, peak, base, links, width)[2]
        return bool(high <= gpu.usable_mib)

    if not fits(1, replayed=True):
        return 0
    low, high = 1, 2
    while high <= most and fits(high, replayed=False):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle, replayed=False) else (low, middle)
    while low > 1 and not fits(low, replayed=True):
        low -= 1  # with what the allocator keeps there, and at least as much less
        while low > 1 and not fits(low, replayed=False):
            low = max(1, min(low - 1, int(low * 0.99)))
    return low
