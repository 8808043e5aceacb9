"""The time of each operator on a GPU from its arithmetic, its traffic and a launch.

An operator cannot be faster than its arithmetic at the GPU's peak or its traffic at the GPU's
bandwidth. How much slower it is, is a sum of effects in logarithms, each shrunk toward none: of
its class, of the class backward or at a precision, of the GPU's generation, of the class in that
generation, of the GPU itself. So a GPU that nobody measured inherits from its generation, and a
new generation from all. A step takes as long as its kernels, or as the host needs to launch them.
The effects are fitted in `roofline_fitting`; nothing here learns, and no trees are asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from presage.foresee._operators import CLASSES, Operators
from presage.foresee.gpus import Gpu
from presage.foresee.graph.opgraph import KINDS
from presage.learn import Floats
from presage.model.setup import Setup

__all__ = [
    "Roofline",
    "Work",
    "host_launches",
    "joined_ms",
    "kernel_ms",
    "matrix_peak",
    "only_forward",
    "plain_precision",
    "shipped_roofline",
    "step_ms",
    "without_optimizer",
    "work_of",
]

Ints = npt.NDArray[np.int64]

FILE = Path(__file__).with_name("models") / "roofline.npz"
_CONVOLUTIONS = ("conv", "pointwise", "depthwise", "grouped")
_DENSE = (*_CONVOLUTIONS, "linear", "matmul", "attention", "recurrent")
_DIRECT = 0.1
"""Share of the FP32 peak that is a depthwise convolution's: tensor cores are of no use to it, and
it reads about as much from the caches as it computes."""
_TFLOPS_A_WATT = 0.9
"""What matrix units sustain at most: about 630 TFLOP/s on an H100 of 700 W, whose peak is 989. The
peak of a card with little power for its size is no more than a figure. Half of it in TF32, whose
operands are twice as wide, and twice of it in FP8."""
_TILE = 128 * 128
"""Elements of the output that one multiprocessor computes at a time in a product of matrices."""
_SHARP = 2.0
"""Of an operator: arithmetic and traffic overlap, but not wholly (2 is their root sum of squares,
infinity the larger one)."""
_HOST_SHARP = 4.0
"""The same of a step: its kernels and the host that launches them."""
_KIND = np.array([KINDS.index(name.split(" ")[0]) for name in CLASSES])
_PHASES = 2
RATES = ("simt", "emulated", "tf32", "half", "fp8")


def plain_precision(precision: str) -> str:
    """As `Setup` names it: `amp_bf16` is `amp-bf16`."""
    return precision.replace("_", "-")


@dataclass(frozen=True, slots=True)
class Work:
    """What a step does on a GPU before any efficiency: one entry for each unlike operator."""

    slot: Ints
    """Class, phase and whether it is a convolution over a line: see `_slots`."""
    rate: Ints
    """Index into RATES: which arithmetic it runs on."""
    compute_ms: Floats
    """At the peak of that arithmetic."""
    waves: Floats
    """Time of one round of tiles on all multiprocessors, as a share of `compute_ms`."""
    traffic_ms: Floats
    count: Floats


def work_of(ops: Operators, batch: float, gpu: Gpu, setup: Setup) -> Work:
    """The work of a set-up: eager attention is several operators, an optimizer may be left out."""
    if setup.attention == "eager":
        ops = _with_eager_attention(ops)
    powers = np.power(float(batch), np.arange(3))
    macs, read, written = ops.macs @ powers, ops.read @ powers, ops.written @ powers
    precision = plain_precision(setup.precision)
    rate, peak = _rates(ops.kind, gpu, precision)
    width = np.where(ops.phase == _PHASES, 4.0, _bytes_of(precision))
    depthwise = ops.kind == KINDS.index("depthwise")
    peak = np.where(depthwise, np.minimum(peak, _DIRECT * gpu.fp32_tflops * 1e12), peak)
    dense = np.isin(ops.kind, [KINDS.index(kind) for kind in _DENSE])
    waves = np.where(dense & ~depthwise, gpu.sms * _TILE / np.maximum(written, 1.0), 0.0)
    return Work(
        slot=_slots(ops),
        rate=rate,
        compute_ms=2e3 * macs / peak,
        waves=np.minimum(waves, 1e3),
        traffic_ms=1e3 * (read + written) * width / (gpu.bandwidth_gbs * 1e9),
        count=ops.count,
    )


def _slots(ops: Operators) -> Ints:
    """Class + number of classes · (phase + 2 · whether it convolves over a line, as of sound, or
    stands between such convolutions)."""
    convolves = np.isin(ops.kind, [KINDS.index(kind) for kind in _CONVOLUTIONS])
    line = convolves & (ops.side == 0)
    done = ops.macs.sum(1) * ops.count
    if done[line].sum() > 0.5 * done.sum():
        line = ops.side == 0
    phase = np.minimum(ops.phase, _PHASES - 1)
    return np.asarray(ops.classes() + len(CLASSES) * (phase + _PHASES * line), np.int64)


def host_launches(ops: Operators, setup: Setup) -> float:
    """Operators that the host launches in a step; eager attention has more of them."""
    attention = ops.count[ops.kind == KINDS.index("attention")].sum()
    return float(ops.count.sum() + (5.0 * attention if setup.attention == "eager" else 0.0))


def _bytes_of(precision: str) -> float:
    return 4.0 if precision in ("fp32", "tf32") else 2.0


def _rates(kind: Ints, gpu: Gpu, precision: str) -> tuple[Ints, Floats]:
    """Which arithmetic each operator runs on, and its peak. `fp32` is what PyTorch does unasked:
    TF32 in convolutions where there is TF32, plain FP32 in products of matrices."""
    convolution = np.isin(kind, [KINDS.index(name) for name in _CONVOLUTIONS])
    if precision in ("fp32", "tf32"):
        fast = convolution | (precision == "tf32")
        fast &= gpu.tf32_tflops is not None
        rate = np.where(fast, RATES.index("tf32"), RATES.index("simt"))
        peak = np.where(fast, _sustained(gpu, gpu.tflops("tf32"), 0.5), gpu.fp32_tflops)
        return rate, peak * 1e12
    if precision == "fp8" and gpu.fp8_tflops is not None:
        fast = np.isin(kind, [KINDS.index("linear")])
        rate = np.where(fast, RATES.index("fp8"), RATES.index("half"))
        half, eighth = gpu.tflops("bf16"), gpu.tflops("fp8")
        peak = np.where(fast, _sustained(gpu, eighth, 2.0), _sustained(gpu, half))
        return rate, peak * 1e12
    asked = gpu.bf16_tflops if "bf16" in precision or precision == "fp8" else gpu.fp16_tflops
    name = "emulated" if asked is None else "half"
    peak_tflops = gpu.fp32_tflops if asked is None else _sustained(gpu, asked)
    return np.full(len(kind), RATES.index(name)), np.full(len(kind), peak_tflops * 1e12)


def matrix_peak(gpu: Gpu, precision: str) -> float:
    """Operations a second of the matrix units that a whole step runs on at a precision."""
    asked = plain_precision(precision)
    if asked == "tf32":
        return _sustained(gpu, gpu.tflops("tf32"), 0.5) * 1e12
    if asked not in ("amp", "fp16", "bf16", "amp-bf16"):
        return gpu.tflops("fp32") * 1e12
    return _sustained(gpu, gpu.tflops("bf16" if "bf16" in asked else "fp16")) * 1e12


def _sustained(gpu: Gpu, tflops: float, narrow: float = 1.0) -> float:
    return min(tflops, narrow * _TFLOPS_A_WATT * (gpu.watts or float("inf")))


def _with_eager_attention(ops: Operators) -> Operators:
    """Attention as products of matrices with the scores in memory between them: they are scaled,
    masked, normalized and dropped out, and each of that is read and written."""
    here = ops.kind == KINDS.index("attention")
    if not here.any():
        return ops
    rows = ops.rows()
    mine = rows[here]
    forward = mine[:, 1] == 0
    products = np.where(forward, 2.0, 5.0)[:, None]
    macs, count = mine[:, 2:5], mine[:, 13].copy()
    head = np.where(mine[:, 12] > 0, mine[:, 12], mine[:, 11])  # (batch, heads, length, width)
    mine[:, 11], mine[:, 12] = head, 0.0
    scores = macs / products / np.maximum(head, 1.0)[:, None]
    made = []

    def add(kind: str, read: Floats, written: Floats, times: Floats, done: Floats) -> None:
        new = mine.copy()
        new[:, 0] = KINDS.index(kind)
        new[:, 2:5], new[:, 5:8], new[:, 8:11] = done, read, written
        new[:, 13] = count * times
        made.append(new)

    none = np.zeros_like(macs)
    each = np.where(forward, 2.0, 4.0)
    add("matmul", scores + 0.5 * mine[:, 5:8], 0.5 * scores, each, macs / products)
    add("softmax", scores * np.where(forward, 1, 2)[:, None], scores, np.ones(len(mine)), none)
    add("elementwise", scores, scores, np.where(forward, 3.0, 2.0), none)
    return Operators.from_rows(np.vstack([rows[~here], *made]), ops.params)


class Roofline:
    """Effects by name, as logarithms of times, and what they add up to."""

    def __init__(self, effects: Mapping[str, float]) -> None:
        self.effects = dict(effects)
        self._tables: dict[tuple[str, str, str, bool], tuple[Floats, Floats, Floats]] = {}

    def kernels(self, work: Work, gpu: Gpu, setup: Setup) -> Floats:
        """Milliseconds of each unlike operator, once."""
        compute, memory, launch = self._tables_of(gpu, setup)
        ratio = self._fill(gpu) * work.waves
        done = work.compute_ms * np.exp(compute[work.rate, work.slot]) * (1.0 + ratio)
        moved = work.traffic_ms * np.exp(memory[work.rate, work.slot])
        each = (done**_SHARP + moved**_SHARP) ** (1.0 / _SHARP)
        return np.asarray(each + np.exp(launch[work.rate, work.slot]))

    def host_ms(self, launches: float, setup: Setup, *, slower: float = 0.0) -> float:
        """What a host needs to launch so many operators, and for the loop around them, which is as
        much as some more; `slower` is a logarithm."""
        names = host_effects(setup)
        each = float(np.exp(sum(self._effect(name) for name in names) + slower))
        return each * (launches + float(np.exp(self._effect("fixed"))))

    def copied_ms(self, at_once_ms: float) -> float:
        """A copy from the host that would take so long at the usual speed of one."""
        return at_once_ms * float(np.exp(self._effect("copy")))

    def _fill(self, gpu: Gpu) -> float:
        return float(np.exp(sum(self._effect(name) for name in fill_effects(gpu))))

    def _effect(self, name: str) -> float:
        return self.effects.get(name, 0.0)

    def _tables_of(self, gpu: Gpu, setup: Setup) -> tuple[Floats, Floats, Floats]:
        key = (gpu.name, gpu.architecture, setup.layout, setup.compile)
        if key not in self._tables:
            shape = (len(RATES), 2 * _PHASES * len(CLASSES))
            tables = np.zeros((3, *shape))
            for place, what in enumerate(("compute", "memory", "launch")):
                for rate in range(shape[0]):
                    for slot in range(shape[1]):
                        names = kernel_effects(what, slot, rate, gpu, setup)
                        tables[place, rate, slot] = sum(self._effect(name) for name in names)
            self._tables[key] = (tables[0], tables[1], tables[2])
        return self._tables[key]

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What `from_arrays` takes."""
        return {
            "names": np.array(list(self.effects), np.str_),
            "values": np.array(list(self.effects.values()), np.float64),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Roofline:
        """The one in these arrays."""
        names = [str(name) for name in arrays["names"]]
        return cls(dict(zip(names, arrays["values"].tolist(), strict=True)))


def kernel_effects(what: str, slot: int, rate: int, gpu: Gpu, setup: Setup) -> list[str]:
    """Names of the effects on the arithmetic, the traffic or the launch of operators."""
    place, turn = slot % len(CLASSES), slot // len(CLASSES)
    line, phase = divmod(turn, _PHASES)
    name, kind, speed = CLASSES[place], KINDS[_KIND[place]], RATES[rate]
    if what == "launch":  # an operator may be several kernels
        names = ["launch", f"launch generation {gpu.architecture}", f"launch of {kind} {phase}"]
        return [*names, *(["launch compiled"] if setup.compile else [])]
    if what == "compute" and kind not in _DENSE:
        return []
    ours, lineage = gpu.architecture, lineage_of(gpu)
    effects = [
        what,
        f"{what} kind {kind}",
        f"{what} class {name}",
        f"{what} phase {name} {phase}",
        f"{what} rate {speed}",
        f"{what} kind rate {kind} {speed}",
        f"{what} lineage {lineage} {speed}",
        f"{what} generation {ours}",
        f"{what} generation rate {ours} {speed}",
        f"{what} generation kind {ours} {kind} {speed}",
        f"{what} gpu {gpu.name}",
    ]
    if line:
        effects += [f"{what} line", f"{what} line {kind}"]
    if setup.compile:
        effects += [f"{what} compiled", f"{what} compiled {kind}"]
    if setup.layout == "nhwc":
        effects += [f"{what} nhwc {speed}", f"{what} nhwc {kind}", f"{what} nhwc {name}"]
    return effects


def lineage_of(gpu: Gpu) -> str:
    """What generations come from one another."""
    return gpu.architecture.rstrip("0123456789")


def host_effects(setup: Setup) -> list[str]:
    """Names of the effects on the time of a launch by the host."""
    amp = plain_precision(setup.precision).startswith("amp")
    names = ["host", *(["host amp"] if amp else [])]
    return [*names, *(["host compiled"] if setup.compile else [])]


def fill_effects(gpu: Gpu) -> list[str]:
    """Names of the effects on how much a product loses that does not fill the GPU."""
    return ["fill", f"fill generation {gpu.architecture}"]


@cache
def shipped_roofline() -> Roofline:
    """The one that is shipped."""
    from presage.learn.bundle import load_bundle

    return Roofline.from_arrays(load_bundle(FILE)[0])


def kernel_ms(
    ops: Operators, batch: float, gpu: Gpu, setup: Setup, roofline: Roofline | None = None
) -> Floats:
    """Milliseconds of each unlike operator on a GPU, once; `count` says how often it runs. With
    eager attention its parts stand at the end, in the place of the fused ones."""
    model = roofline or shipped_roofline()
    return model.kernels(work_of(ops, batch, gpu, setup), gpu, setup)


def step_ms(
    ops: Operators, batch: float, gpu: Gpu, setup: Setup, roofline: Roofline | None = None
) -> float:
    """Milliseconds of a step of one micro-batch on one GPU."""
    model = roofline or shipped_roofline()
    work = work_of(ops, batch, gpu, setup)
    kernels = float((model.kernels(work, gpu, setup) * work.count).sum())
    host = model.host_ms(host_launches(ops, setup), setup)
    return joined_ms(kernels, host)


def joined_ms(kernels_ms: float, host_ms: float) -> float:
    """A step as long as its kernels or its launches, whichever is longer, and smoothly so."""
    longer, shorter = max(kernels_ms, host_ms), min(kernels_ms, host_ms)
    ratio = shorter / max(longer, 1e-12)
    return float(longer * (1.0 + ratio**_HOST_SHARP) ** (1.0 / _HOST_SHARP))


def without_optimizer(ops: Operators) -> Operators:
    """The operators of a micro-batch that is not the last before the optimizer steps."""
    return Operators.from_rows(ops.rows()[ops.phase < _PHASES], ops.params)


def only_forward(ops: Operators) -> Operators:
    """Those of the forward pass, as inference runs them."""
    return Operators.from_rows(ops.rows()[ops.phase == 0], ops.params)
