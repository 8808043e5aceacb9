"""The answer for a language model that is served: memory by weights and cache, tokens a second.

`serving` has the physics. What nobody measured here has a wide interval and says so.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from presage.foresee.answer import Domain, OnGpu, Prediction, Quantiles
from presage.foresee.floors import floor_mib
from presage.foresee.gpus import Gpu
from presage.foresee.graph.decoders import DecoderShape
from presage.foresee.prices import cost_of, price_source
from presage.foresee.serving import largest_concurrency, serve
from presage.foresee.verdicts import chance_below, verdict
from presage.model.setup import Setup

__all__ = ["predict_serving"]

_DOMAIN = Domain(0.6, "weights and cache are counted; speed is a roofline that was not measured")
_ACTIVATIONS = (0.4, 1.0, 2.0)
"""What engines take for activations and buffers, as a share of what is counted."""
_BUSY = Quantiles(40.0, 90.0, 100.0)
"""How busy serving keeps a GPU hangs on how many ask; this is with all sequences there."""


def predict_serving(shape: DecoderShape, gpus: Sequence[Gpu], setup: Setup) -> Prediction:
    """Foresee serving on some kinds of GPUs."""
    answers = {gpu.name: _on(shape, gpu, setup) for gpu in gpus}
    length = setup.kv_len or setup.seq or shape.longest
    macs = shape.flops_per_token(length) / 6  # forward alone, of one token
    return Prediction(
        name=shape.name,
        batch=setup.concurrency,
        macs=macs,
        flops=2 * macs,
        params=shape.params,
        activations=0.0,
        options={
            **{"optimizer": "none", "precision": setup.precision, "inference": True},
            **{"kv_len": length, "concurrency": setup.concurrency, "gpus": setup.gpus},
            **({"parallel": str(setup.parallel)} if setup.gpus > 1 else {}),
        },
        gpus=answers,
        evidence=[price_source()],
    )


def _on(shape: DecoderShape, gpu: Gpu, setup: Setup) -> OnGpu:
    figures = serve(shape, setup, gpu)
    floor = floor_mib(gpu)
    lasting = figures.weights_mib + figures.cache_mib
    memory = np.array(
        [
            start + lasting + share * figures.activations_mib
            for start, share in zip(floor, _ACTIVATIONS, strict=True)
        ]
    )
    room = float(gpu.usable_mib)
    most = largest_concurrency(shape, setup, gpu, room - floor.p50)
    replicas = setup.data_parallel
    tokens = replicas * np.array(figures.decode_tokens_per_s)
    return OnGpu(
        memory_mib=Quantiles.of(memory),
        breakdown={
            "device and driver": round(floor.p50, 1),
            "weights": round(figures.weights_mib, 1),
            "cache of keys and values": round(figures.cache_mib, 1),
            "activations": round(figures.activations_mib, 1),
        },
        gpu_util_pct=_BUSY,
        step_ms=Quantiles.of(1e3 * setup.concurrency * replicas / tokens[::-1], 3),
        max_batch=most,
        **verdict(memory, gpu, most, setup.concurrency, "concurrency"),
        mattered={},
        chance_fits=round(chance_below(memory, room), 3),
        tokens_per_s=Quantiles.of(tokens),
        domain=_DOMAIN,
        cost=cost_of(gpu, setup.gpus, float(tokens[1]), "tokens"),
    )
