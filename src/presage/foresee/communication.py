"""What several GPUs tell each other in a training step, and how much of it computing hides.

Bytes follow from the set-up: gradients of data parallelism, gathered weights of sharding, sums of
tensor parallelism, what pipeline stages hand on, keys and values that go round a context ring, and
tokens on their way to experts. Collectives take a ring's time over the narrowest link that a group
crosses. How near a link comes to its published bandwidth, and how much of each kind hides behind
computing, is learned (`Exposure`); the links themselves are in `interconnects.yaml`. Nothing here
knows how long computing takes: that is an argument.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from presage.edge import read_yaml
from presage.foresee.gpus import Gpu
from presage.learn.bundle import load_bundle
from presage.model.errors import ConfigError
from presage.model.setup import Setup

__all__ = [
    "KINDS",
    "Communication",
    "Exposure",
    "Fabric",
    "Link",
    "RankLoad",
    "bubble_share",
    "communication",
    "data_parallel",
    "exposed",
    "fabric",
    "learned",
    "links",
    "shipped",
    "traffic",
]

_SHIPPED = Path(__file__).with_name("interconnects.yaml")
_LEARNED = Path(__file__).with_name("models") / "throughput.npz"

KINDS = ("gradients", "gather", "tensor", "pipeline", "context", "experts")
"""What is sent in a step."""

_HALF = 2
"""Bytes of a weight or an activation on its way, whatever the products are computed in."""

Numbers = Any
"""A number or an array of them: the same sums serve one question and a table of measurements."""


@dataclass(frozen=True, slots=True)
class Link:
    """One kind of connection, as its maker publishes it."""

    name: str
    gbs: float
    """10⁹ bytes a second in one direction, for each GPU."""
    latency_us: float

    @property
    def family(self) -> str:
        """Links of a family come equally near to what they should do: nvlink, pcie, host, far."""
        if self.name.startswith(("nvl", "infinity")):
            return "nvlink"
        if self.name.startswith(("pcie", "bridge")):
            return "pcie"
        return "host" if self.name.startswith("host") else "far"


@dataclass(frozen=True, slots=True)
class Fabric:
    """What joins the GPUs of a job."""

    near: Link
    """Within a machine, or within a rack that one switch joins."""
    far: Link
    """Between machines, for each GPU when all of a machine send."""
    machine: int
    """GPUs that the near link joins."""


@dataclass(frozen=True, slots=True)
class RankLoad:
    """What one GPU holds and works on, as far as others have to hear of it."""

    parameters: float
    """Weights of this rank before data-parallel ranks divide them."""
    trained: float
    """Those of them that have gradients."""
    layers: float = 1
    """Of this rank."""
    width: float = 0
    """Values of a token between layers; 0 where the model is no stack of equal layers."""
    kv_width: float = 0
    """Values of a token that its keys and values take in one layer."""
    tokens: float = 0
    """Of a micro-batch, over all context ranks."""
    routed: float = 0
    """Experts that a token goes to, summed over the layers of this rank."""
    gradient_bytes: float = 2


@dataclass(frozen=True, slots=True)
class Exposure:
    """How near links come to their published bandwidth, and how much of the sending is hidden."""

    nvlink: float = 0.8
    pcie: float = 0.35
    host: float = 0.15
    far: float = 0.7
    gradients: float = 0.8
    """The share of the last backward pass behind which gradients can hide."""
    gather: float = 0.8
    """The share of all computing behind which gathered weights and scattered gradients can."""
    tensor: float = 0.2
    """The share of these that is hidden, as they wait on each other."""
    pipeline: float = 0.5
    context: float = 0.8
    experts: float = 0.3
    least: float = 0.1
    """The share of gradients and gathered weights that never hides: the first and the last."""
    waiting: float = 0.02
    """The share of computing that eight replicas lose by waiting for the slowest."""
    fixed_ms: float = 0.0
    """What a step of several replicas adds whatever it sends."""

    def times(self, family: str) -> float:
        """How near links of a family come to what they should do."""
        return float(getattr(self, family))


@dataclass(frozen=True, slots=True)
class Communication:
    """What a step loses to the others."""

    exposed_ms: float
    """Sending that computing does not hide, and waiting for the slowest."""
    bubble_share: float
    """The share of a step in which a pipeline stage has nothing to do."""
    parts: Mapping[str, float]
    """The exposed milliseconds by kind."""


# -- links --------------------------------------------------------------------------------------


class _LinkSpec(BaseModel):
    model_config = ConfigDict(extra="forbid")

    kind: Literal["near", "far"]
    gbs: float = Field(gt=0, le=1e5, allow_inf_nan=False)
    latency_us: float = Field(ge=0, le=1e6, allow_inf_nan=False)
    cards: int | Literal["gpu"] = 1


class _Usual(BaseModel):
    model_config = ConfigDict(extra="forbid")

    gpu: str
    architecture: str | None = None
    near: str
    far: str
    machine: int = Field(ge=1, le=1024)
    pro: str | None = None


class _LinkFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    links: dict[str, _LinkSpec]
    usual: list[_Usual]
    direct: list[str]


@cache
def _file() -> _LinkFile:
    return read_yaml(_SHIPPED, _LinkFile, ConfigError)


def links() -> list[str]:
    """Names that `--interconnect` takes."""
    return sorted({*_file().links, "nvlink", "pcie"})


def fabric(gpu: Gpu, interconnect: str | None = None, machine: int | None = None) -> Fabric:
    """What joins GPUs of this kind: as users say (`nvlink`, `pcie`, `ib400`, `nvlink+4xib100`),
    and as usual where they do not. `machine` is how many GPUs a machine has, if that is known."""
    usual = _usual(gpu)
    direct = any(fnmatch(gpu.name, pattern) for pattern in _file().direct)
    near = usual.pro if direct and usual.pro else usual.near
    far, cards = usual.far, None
    for word in interconnect.lower().split("+") if interconnect else ():
        name, cards_said = _named(word.strip(), gpu, near)
        if _file().links[name].kind == "near":
            near = name
        else:
            far, cards = name, cards_said
    size = machine or (72 if near == "nvl72" else min(usual.machine, 8))
    if near == "bridge" and size > 2:  # a ring over several pairs crosses PCIe
        near = f"pcie{_pcie(gpu)}"
    inside = _file().links[near]
    return Fabric(Link(near, inside.gbs, inside.latency_us), _far(far, cards, min(size, 8)), size)


def _far(name: str, cards: int | None, gpus: int) -> Link:
    spec = _file().links[name]
    count = cards or spec.cards
    share = 1.0 if count == "gpu" else count / gpus
    return Link(name, spec.gbs * share, spec.latency_us)


def _usual(gpu: Gpu) -> _Usual:
    return next(
        entry
        for entry in _file().usual
        if fnmatch(gpu.name, entry.gpu) and entry.architecture in (None, gpu.architecture)
    )


def _named(word: str, gpu: Gpu, near: str) -> tuple[str, int | None]:
    """The link that a user's word means for this GPU, and how many network cards."""
    match = re.fullmatch(r"(?:(\d{1,2})x)?([a-z]+\d*)", word)
    cards, name = (match[1], match[2]) if match else (None, word)
    if name in ("nvlink", "nvswitch"):
        name = near if near.startswith("nvl") else _LINKS_OF.get(gpu.architecture, "bridge")
    elif name == "pcie":
        name = near if near.startswith(("pcie", "host")) else f"pcie{_pcie(gpu)}"
    if name not in _file().links:
        close = get_close_matches(name, links(), n=2, cutoff=0.5)
        hint = f"did you mean {' or '.join(close)}?" if close else f"use {', '.join(links())}"
        raise ConfigError(f"unknown interconnect {word!r}; {hint}")
    if cards is not None and (_file().links[name].kind == "near" or int(cards) < 1):
        raise ConfigError(f"{word!r}: a number of cards goes with a network, as in 4xib100")
    return name, int(cards) if cards else None


_LINKS_OF = {"pascal": "nvlink1", "volta": "nvlink2"}
"""NVLink of boards by architecture; later ones without a board have bridges between pairs."""


def _pcie(gpu: Gpu) -> int:
    return 3 if gpu.year < 2020 else 4 if gpu.architecture in ("ampere", "ada") else 5


# -- bytes --------------------------------------------------------------------------------------

Seconds = tuple[float, float]
"""At the published bandwidth: near and far."""


def traffic(load: RankLoad, setup: Setup, over: Fabric) -> dict[str, Seconds]:
    """Seconds that each kind would take in a step if links did what they should, split by the link
    that decides. Ranks of tensor parallelism sit closest, then context, data, pipeline."""
    cut, steps = setup.parallel, setup.accumulate
    tokens = load.tokens / cut.context
    again = 1.5 if setup.checkpoint == "full" else 1.0  # sums of the forward pass, twice
    inner = cut.tensor * cut.context
    said: dict[str, Seconds] = dict.fromkeys(KINDS, (0.0, 0.0))
    said |= _data(load, setup, over, inner)
    if cut.tensor > 1:
        size = tokens * load.width * _HALF
        one = _ring(over, 2 * size, cut.tensor, 1)
        said["tensor"] = _scaled(one, 4 * again * load.layers * steps)
    if cut.pipeline > 1:
        size = tokens * load.width * _HALF / cut.tensor
        stride = max(1, setup.gpus // cut.pipeline)
        one = _ring(over, 2 * size, 2, stride)
        said["pipeline"] = _scaled(one, 2 * cut.interleave * steps)
    if cut.context > 1:
        size = tokens * load.kv_width * _HALF * cut.context / cut.tensor
        one = _ring(over, size, cut.context, cut.tensor)
        said["context"] = _scaled(one, 3 * again * load.layers * steps)
    if cut.expert > 1 and load.routed:
        size = tokens * load.width * _HALF / cut.tensor
        one = _all_to_all(over, size, cut.expert, inner)
        said["experts"] = _scaled(one, 4 * again * load.routed * steps)
    return said


def _data(load: RankLoad, setup: Setup, over: Fabric, stride: int) -> dict[str, Seconds]:
    replicas = setup.data_parallel
    if replicas < 2:
        return {}
    gradients = load.trained * load.gradient_bytes
    if setup.parallel.sharding not in ("zero3", "fsdp"):
        return {"gradients": _ring(over, 2 * gradients, replicas, stride)}
    whole = 2 * load.parameters * _HALF + gradients  # gathered for both passes
    return {"gather": _scaled(_ring(over, whole, replicas, stride), setup.accumulate)}


def _ring(over: Fabric, sent: float, ranks: int, stride: int) -> Seconds:
    """A collective in which each rank passes on (ranks - 1) / ranks of so many bytes. Every GPU of
    a machine has a ring of its own, so that a group with several ranks there uses their cards."""
    inside = max(1, min(ranks, over.machine // stride)) if stride <= over.machine else 1
    share = sent * (ranks - 1) / ranks
    if inside >= ranks:
        hops = 2 * (ranks - 1) * over.near.latency_us * 1e-6
        return share / (over.near.gbs * 1e9) + hops, 0.0
    machines = -(-ranks // inside)
    wide = inside * over.far.gbs
    hops = 2 * np.log2(machines) * over.far.latency_us * 1e-6
    if inside > 1 and over.near.gbs < wide:
        return share / (over.near.gbs * 1e9) + hops, 0.0
    return 0.0, share / (wide * 1e9) + hops


def _all_to_all(over: Fabric, sent: float, ranks: int, stride: int) -> Seconds:
    inside = max(1, min(ranks, over.machine // stride)) if stride <= over.machine else 1
    near = sent * (inside - 1) / ranks / (over.near.gbs * 1e9)
    far = sent * (ranks - inside) / ranks / (over.far.gbs * 1e9)
    return near, far


def _scaled(seconds: Seconds, times: float) -> Seconds:
    return seconds[0] * times, seconds[1] * times


# -- what is not hidden -------------------------------------------------------------------------


def bubble_share(setup: Setup) -> float:
    """The share of computing that a pipeline adds by filling and draining (1F1B, interleaved)."""
    cut = setup.parallel
    return (cut.pipeline - 1) / (setup.accumulate * max(1, cut.interleave))


def exposed(
    near: Mapping[str, Numbers],
    far: Mapping[str, Numbers],
    computing: Numbers,
    last_backward: Numbers,
    replicas: Numbers,
    how: Exposure,
    reach: Numbers,
) -> dict[str, Numbers]:
    """Seconds of a step that each kind adds to computing; `reach` is how near the near link comes
    to its bandwidth."""
    took = {kind: near[kind] / reach + far[kind] / how.far for kind in KINDS}
    seen: dict[str, Numbers] = {}
    for kind, room in (("gradients", last_backward), ("gather", computing)):
        hides = getattr(how, kind) * room
        seen[kind] = np.maximum(took[kind] - hides, how.least * took[kind])
    for kind in ("tensor", "pipeline", "context", "experts"):
        seen[kind] = (1 - getattr(how, kind)) * took[kind]
    seen["waiting"] = how.waiting * computing * np.log2(np.maximum(replicas, 1)) / 3
    return seen


def communication(
    load: RankLoad,
    setup: Setup,
    over: Fabric,
    forward_ms: float,
    backward_ms: float,
    how: Exposure | None = None,
) -> Communication:
    """What a step of this set-up loses; both times are those of one micro-batch on this rank."""
    how = how or learned()
    said = traffic(load, setup, over)
    computing = (forward_ms + backward_ms) * setup.accumulate
    seen = exposed(
        {kind: 1e3 * said[kind][0] for kind in KINDS},
        {kind: 1e3 * said[kind][1] for kind in KINDS},
        computing,
        backward_ms,
        setup.data_parallel,
        how,
        how.times(over.near.family),
    )
    if setup.data_parallel > 1:
        seen["waiting"] = seen["waiting"] + how.fixed_ms
    parts = {kind: float(value) for kind, value in seen.items() if value > 0}
    bubble = bubble_share(setup)
    return Communication(sum(parts.values()), bubble / (1 + bubble), parts)


def data_parallel(
    parameters: float,
    setup: Setup,
    gpu: Gpu,
    forward_ms: float,
    backward_ms: float,
    trained: float | None = None,
) -> Communication:
    """The same for any model of which only the parameters are known: data parallelism, with or
    without sharding."""
    half = setup.precision in ("bf16", "fp16", "fp8")
    load = RankLoad(
        parameters,
        parameters if trained is None else trained,
        gradient_bytes=2 if half else 4,
    )
    return communication(load, setup, fabric(gpu, setup.interconnect), forward_ms, backward_ms)


@cache
def shipped() -> dict[str, npt.NDArray[Any]]:
    """The arrays of the bundle that was learned from published trainings, or a user's own."""
    from presage.foresee.estimators import own_models

    own = own_models() / "throughput.npz"
    return load_bundle(own if own.is_file() else _LEARNED)[0]


@cache
def learned() -> Exposure:
    """What the published measurements say."""
    values = shipped()
    names = [str(name) for name in values["exposure.names"]]
    fitted = dict(zip(names, map(float, values["exposure.values"]), strict=True))
    return Exposure(**{f.name: fitted[f.name] for f in fields(Exposure) if f.name in fitted})
