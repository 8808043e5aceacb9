"""How fast a decoder language model trains on one GPU or a thousand.

A step is products at a learned share of a GPU's peak, passes over its memory, the launches of its
host, and what other GPUs make it wait (`communication`). `_llm_work` turns a model and a set-up
into operations and bytes; `step_seconds` prices them with efficiencies that `throughput_fitting`
learned from published trainings, by architecture and precision, so that a GPU that nobody
published inherits those of its generation. Nothing here reads measurements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from math import exp, log
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from presage.foresee._llm_work import StepWork, way, work
from presage.foresee.communication import KINDS, Exposure, exposed, shipped
from presage.foresee.gpus import Gpu
from presage.foresee.graph.decoders import DecoderShape
from presage.learn import Floats
from presage.learn.bundle import under
from presage.learn.conformal import Conformal
from presage.model.errors import BundleError
from presage.model.setup import Setup

__all__ = [
    "EFFECTS",
    "PRIORS",
    "LlmStep",
    "Throughput",
    "difficulty",
    "groups_of",
    "llm_step",
    "precision_on",
    "priced",
    "size_class",
    "step_seconds",
    "throughput",
]

Numbers = Any
"""A number or an array of them."""
Arrays = dict[str, npt.NDArray[Any]]

PRIORS: dict[str, tuple[float, float]] = {
    # logarithms: what physics lets one expect, and how far from it is a surprise
    "products": (log(0.75), 0.15),
    "products fp8": (log(0.8), 0.2),  # beside those of 16 bits
    "products nvfp4": (log(0.6), 0.25),
    "products experts": (log(0.6), 0.3),  # beside those of dense layers
    "power": (log(0.1), 0.7),  # products go with this power of the watts for an operation
    "reuse": (log(1.5), 0.5),  # bytes of a product over the least, as caches are small
    "attention": (log(0.5), 0.3),
    "attention eager": (log(6.0), 0.4),  # passes over the scores
    "passes": (log(60.0), 0.4),  # over the values between layers
    "passes inner": (log(12.0), 0.4),
    "passes loss": (log(4.0), 0.5),
    "passes routed": (log(12.0), 0.5),
    "passes eight bits": (log(6.0), 0.5),
    "compiled": (log(0.5), 0.3),  # passes of compiled code, beside eager
    "plain": (log(1.3), 0.3),  # passes of code from before fused attention, beside later code
    "dequantize": (log(8.0), 0.7),
    "optimizer": (log(1.2), 0.4),
    "launch_us": (log(8.0), 0.5),
    "uneven": (log(0.3), 0.7),  # the share of the head that the last stage has too much
    "offload_gbs": (log(4.0), 0.8),
    "nvlink": (log(0.75), 0.15),
    "far": (log(0.7), 0.4),
    "least": (log(0.1), 0.7),
    "gather": (log(0.7), 0.3),
    "zero3": (log(1.5), 0.5),  # gathering parameter by parameter, beside whole layers
    "tensor": (log(0.3), 0.7),
    "pipeline": (log(0.3), 0.7),
    "context": (log(0.7), 0.4),
    "experts": (log(0.3), 0.7),
    "crowded": (log(1.5), 0.5),  # tokens to experts on other machines, beside sums over them
    "waiting": (log(0.02), 0.7),
}
"""What is learned beside effects of groups. Those named as fields of `Exposure` are such."""

EFFECTS: dict[str, float] = {
    "architecture": 0.2,
    "attention of architecture": 0.12,
    "attention of stack": 0.4,
    "gpu": 0.1,
    "way": 0.1,
    "stack": 0.1,
}
"""Groups whose members differ in what nothing above explains, and by how much one expects."""

_DOUBTS = {
    "products": 0.08,
    "attention": 0.2,
    "memory": 0.2,
    "bubble": 0.15,
    "host": 0.5,
    "optimizer": 0.5,
    "offload": 1.0,
}
"""How far off the seconds of each part may be, in logarithms; 0.5 for all that is sent."""
_SURE = 0.1

_SHARES = ("gather", "tensor", "pipeline", "context", "experts")
_MOST_HIDDEN = 0.95
_SMOOTH = 4.0
"""How sharply the longer of host and GPU decides: a power mean of this order."""
_EXPOSED = tuple(f.name for f in fields(Exposure) if f.name in PRIORS)


@dataclass(frozen=True, slots=True)
class LlmStep:
    """A foreseen training step of all GPUs together."""

    step_s: tuple[float, float, float]
    """p10, p50, p90."""
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    mfu: float
    """Operations of the model (causal, without recomputation) over what the GPUs could do at the
    precision of its products."""
    parts: Mapping[str, float]
    """Seconds of the median step by what takes them."""
    domain: float
    """0 for what was measured, 1 for far from all that was."""
    why: tuple[str, ...]
    """What was not measured, in words."""


def step_seconds(of: Mapping[str, Numbers], value: Mapping[str, Numbers]) -> dict[str, Numbers]:
    """Seconds of a step by what takes them. `of` has the fields of `StepWork`, one or a column of
    each; `value` the names of `PRIORS`, with what architecture and precision do to them."""
    memory = of["bytes_per_s"]
    cool = of["watts"] ** value["power"]
    half = of["half_peak"] * cool * value["products"]
    linear = of["peak"] * cool * value["products"] * value["bits"]
    thin = value["reuse"] / memory
    dense = of["dense_flops"] / linear + of["dense_thin"] * thin
    experts = of["expert_flops"] / (linear * value["products experts"]) + of["expert_thin"] * thin
    head = (of["head_flops"] + value["uneven"] * of["head_last"]) / half
    attention = of["attention_flops"] / (of["half_peak"] * value["attention"])
    attention = attention + of["score_bytes"] * value["attention eager"] / memory
    fused = value["compiled"] ** of["compiled"] * value["plain"] ** of["plain"]
    passing = _passing(of, value, fused) / memory
    busy = dense + experts + head + attention + passing
    host = of["kernels"] * value["launch_us"] * 1e-6 * fused
    micro = (busy**_SMOOTH + host**_SMOOTH) ** (1 / _SMOOTH)
    computing = micro * of["accumulate"]
    seen = _seen(of, value, computing, micro * 2 / 3)
    parts = {
        "products": (dense + experts + head) * of["accumulate"],
        "attention": attention * of["accumulate"],
        "memory": passing * of["accumulate"],
        "host": computing - busy * of["accumulate"],
        "optimizer": value["optimizer"] * of["optimizer_bytes"] / memory,
        "offload": of["offloaded"] / (value["offload_gbs"] * 1e9),
        "bubble": (computing + seen["tensor"] + seen["experts"]) * of["bubble"],
    }
    return parts | seen


def _passing(of: Mapping[str, Numbers], value: Mapping[str, Numbers], fused: Numbers) -> Numbers:
    """Bytes that everything but products moves in a micro-batch."""
    few = of["eight"] + of["four"]
    inner = value["passes inner"] * fused + value["passes eight bits"] * few
    moved = value["passes"] * fused * of["wide_bytes"] + inner * of["inner_bytes"]
    moved = moved + value["passes routed"] * of["routed_bytes"]
    loss = value["passes loss"] * of["loss_bytes"]
    return of["passes"] * moved + loss + value["dequantize"] * of["quantized"]


def _seen(
    of: Mapping[str, Numbers],
    value: Mapping[str, Numbers],
    computing: Numbers,
    last_backward: Numbers,
) -> dict[str, Numbers]:
    """Seconds of sending that nothing hides."""
    singly = value["zero3"] ** of["zero3"]
    near = dict(zip(KINDS, of["near"], strict=True))
    far = dict(zip(KINDS, of["far"], strict=True))
    near["gather"], far["gather"] = near["gather"] * singly, far["gather"] * singly
    far["experts"] = far["experts"] * value["crowded"]
    how = replace(
        Exposure(), **{name: value[name] for name in _EXPOSED}, gradients=value["gather"]
    )
    through_host = 1 - of["nvlink"] - of["pcie"]
    reach = of["nvlink"] * how.nvlink + of["pcie"] * how.pcie + through_host * how.host
    return exposed(near, far, computing, last_backward, of["replicas"], how, reach)


def priced(
    of: Mapping[str, Numbers], logs: Mapping[str, float], effects: Mapping[str, Numbers]
) -> dict[str, Numbers]:
    """Seconds by what takes them, from logarithms by the names of `PRIORS` and `EFFECTS`."""
    value: dict[str, Numbers] = {name: exp(x) for name, x in logs.items()}
    value |= {share: min(value[share], _MOST_HIDDEN) for share in _SHARES}
    value["bits"] = value["products fp8"] ** of["eight"] * value["products nvfp4"] ** of["four"]
    value["products"] = value["products"] * np.exp(effects["architecture"])
    fit = effects["attention of architecture"] + effects["attention of stack"]
    value["attention"] = value["attention"] * np.exp(fit)
    whole = np.exp(effects["gpu"] + effects["way"] + effects["stack"])
    return {kind: part * whole for kind, part in step_seconds(of, value).items()}


def difficulty(parts: Mapping[str, Numbers]) -> Floats:
    """How much wider than usual an interval should be, by what the steps consist of."""
    whole = sum(parts.values())
    doubt = sum((_DOUBTS.get(kind, 0.5) * part / whole) ** 2 for kind, part in parts.items())
    return np.atleast_1d(np.sqrt(1 + doubt / _SURE**2))


def groups_of(setup: Setup, gpu: Gpu, stack: str | None) -> dict[str, str]:
    """The member of each group of `EFFECTS` that a question is about."""
    return {
        "architecture": gpu.architecture,
        "attention of architecture": gpu.architecture,
        "attention of stack": f"{stack} on {gpu.architecture}" if stack else "",
        "gpu": gpu.name,
        "way": way(setup),
        "stack": stack or "",
    }


def size_class(shape: DecoderShape) -> str:
    """The size of a model to a factor of two."""
    return str(round(log(shape.active_params) / log(2.0)))


def precision_on(gpu: Gpu, setup: Setup) -> str:
    """The precision of products and the architecture; both kinds of 16 bits are one where a GPU
    is as fast in both."""
    kinds = {"amp": "fp16", "amp-bf16": "bf16"}
    kind = kinds.get(setup.precision, setup.precision)
    alike = kind == "fp16" or (kind == "bf16" and gpu.bf16_tflops)
    return f"{gpu.architecture} {'16 bits' if alike else kind}"


class Throughput:
    """Learned efficiencies, effects of groups, and how far predictions are off."""

    def __init__(
        self,
        values: Mapping[str, float],
        effects: Mapping[tuple[str, str], float],
        spread: Mapping[str, Conformal],
        seen: Mapping[str, Sequence[str]] | None = None,
        ranges: Mapping[str, tuple[float, float]] | None = None,
    ) -> None:
        self.values = dict(values)
        """Logarithms by the names of `PRIORS`."""
        self.effects = dict(effects)
        self.spread = dict(spread)
        """How far off seconds are, by what was left out: model, size, gpu, stack."""
        self.seen = {key: tuple(measured) for key, measured in (seen or {}).items()}
        """Pairs of architecture and precision, and sizes of models, that were measured."""
        self.ranges = dict(ranges or {})
        """Least and most of what was measured."""

    def parts(
        self, of: Mapping[str, Numbers], groups: Sequence[Mapping[str, str]]
    ) -> dict[str, Numbers]:
        """Seconds by what takes them, of as many steps as there are groups."""
        effects = {
            kind: np.array([self.effects.get((kind, one[kind]), 0.0) for one in groups])
            for kind in EFFECTS
        }
        return priced(of, self.values, effects)

    def seconds(self, of: Mapping[str, Numbers], groups: Sequence[Mapping[str, str]]) -> Floats:
        """Seconds of steps."""
        return np.asarray(sum(self.parts(of, groups).values()), dtype=np.float64)

    def interval(
        self, parts: Mapping[str, Numbers], unseen: Sequence[str], wider: Numbers = 1.0
    ) -> Floats:
        """p10, p50, p90 of the seconds of steps with these parts: the widest of what is unseen."""
        whole = np.atleast_1d(sum(parts.values()))
        known = [self.spread[kind] for kind in unseen if kind in self.spread]
        offsets = np.array(
            [
                min([0.0, *(one.low for one in known)]),
                0.0,
                max([0.0, *(one.high for one in known)]),
            ]
        )
        scale = difficulty(parts) * wider
        return np.asarray(whole[:, None] * np.exp(scale[:, None] * offsets))

    def unseen(self, groups: Mapping[str, str], shape: DecoderShape) -> list[str]:
        """What nothing was measured of. A model always counts as new, and so does its size unless
        others as large were measured."""
        new = [kind for kind in ("gpu", "stack") if (kind, groups[kind]) not in self.effects]
        known = "model" in self.spread and size_class(shape) in self.seen.get("size", ())
        return ["model" if known else "size", *new]

    def to_arrays(self) -> Arrays:
        """What `from_arrays` takes."""
        kinds, members = zip(*self.effects, strict=True) if self.effects else ((), ())
        return {
            "values": np.array([self.values[name] for name in PRIORS]),
            "effect.kinds": np.array(kinds, dtype=str),
            "effect.members": np.array(members, dtype=str),
            "effect.values": np.array(list(self.effects.values())),
            "seen": np.array(self.seen.get("precision", ()), dtype=str),
            "sizes": np.array(self.seen.get("size", ()), dtype=str),
            "range.names": np.array(list(self.ranges), dtype=str),
            "range.values": np.array(list(self.ranges.values())).reshape(-1, 2),
            "spread.names": np.array(list(self.spread), dtype=str),
            "spread.offsets": np.array(
                [(one.low, one.middle, one.high) for one in self.spread.values()]
            ).reshape(-1, 3),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """The model in these arrays."""
        try:
            values = dict(zip(PRIORS, map(float, arrays["values"]), strict=True))
            kinds, members = arrays["effect.kinds"], arrays["effect.members"]
            effects = {
                (str(kind), str(member)): float(x)
                for kind, member, x in zip(kinds, members, arrays["effect.values"], strict=True)
            }
            ranges = {
                str(name): (float(low), float(high))
                for name, (low, high) in zip(
                    arrays["range.names"], arrays["range.values"], strict=True
                )
            }
            seen = {"precision": [str(pair) for pair in arrays["seen"]]}
            seen["size"] = [str(size) for size in arrays.get("sizes", ())]
            spread = {
                str(name): Conformal(float(low), float(middle), float(high), "log")
                for name, (low, middle, high) in zip(
                    arrays["spread.names"], arrays["spread.offsets"], strict=True
                )
            }
        except (KeyError, ValueError, TypeError) as wrong:
            raise BundleError(f"these arrays hold no throughput model: {wrong}") from None
        return cls(values, effects, spread, seen, ranges)

    def distance(self, shape: DecoderShape, setup: Setup, gpu: Gpu, tokens: float) -> _Remoteness:
        """How far a question is from what was measured, from 0 to 1, and why."""
        why: list[str] = []
        far = covered = 0.0
        if ("gpu", gpu.name) not in self.effects:
            known = ("architecture", gpu.architecture) in self.effects
            far, covered = (0.2, 0.2) if known else (0.5, 0.2)
            why.append(f"no published training on {gpu.name}" + ("" if known else " or its kind"))
        pair = precision_on(gpu, setup)
        if pair not in self.seen.get("precision", ()):
            far += 0.2
            why.append(f"none in {setup.precision} on {gpu.architecture} GPUs")
        asked = {"parameters": shape.params, "tokens": tokens, "GPUs": setup.gpus}
        for name, size in asked.items():
            low, high = self.ranges.get(name, (size, size))
            beyond = max(log(low / size), log(size / high), 0.0)
            if beyond > 0:
                far += 0.15 * beyond
                why.append(f"{name} beyond those measured ({low:.3g} to {high:.3g})")
        return _Remoteness(min(1.0, far), min(1.0, far) - covered, tuple(why))


@dataclass(frozen=True, slots=True)
class _Remoteness:
    far: float
    wider: float
    """What of it the intervals for an unseen GPU do not cover."""
    why: tuple[str, ...]


@cache
def throughput() -> Throughput:
    """The shipped model, or a user's own."""
    return Throughput.from_arrays(under("llm", shipped()))


def llm_step(
    shape: DecoderShape,
    setup: Setup,
    batch: int,
    gpu: Gpu,
    *,
    machine: int | None = None,
    stack: str | None = None,
    model: Throughput | None = None,
) -> LlmStep:
    """A training step with micro-batches of `batch` samples for each replica. `machine` is the
    GPUs of a machine where that is known, `stack` the software if it is one that was measured."""
    model = model or throughput()
    of = work(shape, setup, batch, gpu, machine)
    groups = groups_of(setup, gpu, stack)
    columns = {f.name: getattr(of, f.name) for f in fields(StepWork)}
    parts = {k: float(np.ravel(v)[0]) for k, v in model.parts(columns, [groups]).items()}
    distance = model.distance(shape, setup, gpu, batch * (setup.seq or shape.longest))
    interval = model.interval(parts, model.unseen(groups, shape), 1 + distance.wider)
    low, middle, high = map(float, interval[0])
    speed = of.tokens / middle
    return LlmStep(
        step_s=(low, middle, high),
        tokens_per_s=speed,
        tokens_per_s_per_gpu=speed / setup.gpus,
        mfu=of.flops / middle / setup.gpus / of.peak,
        parts={kind: part for kind, part in parts.items() if part > 0},
        domain=distance.far,
        why=distance.why,
    )
