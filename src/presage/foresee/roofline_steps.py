"""A step foreseen by the roofline: how long, how sure, and how far from what was measured.

Intervals are those of GPUs, families and sources left out by turns; they are the wider, the more
the fit leaves open of the effects that make the step: of hosts, since nobody says which, of GPUs
and of operators that were not measured.
Nothing here learns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from presage.foresee._operators import CLASSES, Operators
from presage.foresee.gpus import Gpu
from presage.foresee.roofline import (
    FILE,
    RATES,
    Roofline,
    Work,
    host_launches,
    joined_ms,
    only_forward,
    without_optimizer,
    work_of,
)
from presage.foresee.roofline_slopes import Doubt, Observation
from presage.learn import Floats
from presage.learn.bundle import load_bundle, prefixed, under
from presage.learn.groups import GroupConformal
from presage.model.setup import Setup

__all__ = [
    "DOUBTS",
    "Distance",
    "RooflineSteps",
    "StepParts",
    "by_drivers",
    "difficulty",
    "shipped_steps",
]

DOUBTS = 0.3, 0.2
"""Standard deviations of the logarithm of a step: what is one unit of difficulty, and what no
fit explains."""
_BARELY_SUPPORTED, _BY_DRIVERS = ("rdna", "gcn"), 1.15
"""Generations whose libraries are not made for training, and how much wider intervals are."""
_SECOND_FORWARD = {"none": 0.0, "selective": 0.1, "full": 1.0}
"""Share of the forward pass that is computed again for the backward one. Selective checkpointing
recomputes the attention's inside, which is little of it."""


@dataclass(frozen=True, slots=True)
class StepParts:
    """What a step of one GPU is made of, in milliseconds."""

    kernels_ms: float
    host_ms: float

    @property
    def step_ms(self) -> float:
        """As long as its kernels or its host, and smoothly so."""
        return joined_ms(self.kernels_ms, self.host_ms)

    @property
    def by_host(self) -> float:
        """0 where kernels decide, 1 where the host does."""
        kernels, host = self.kernels_ms**4, self.host_ms**4
        return host / max(kernels + host, 1e-300)


@dataclass(frozen=True, slots=True)
class Distance:
    """How far a step is from what was measured: 0 to 1, and in words."""

    value: float
    words: str
    wider: float
    """How many times as wide its interval is."""
    unseen: tuple[str, ...]
    """Ways to group in which it is new: see `GroupConformal.interval`."""


def difficulty(deviation: Floats, least: float = DOUBTS[1]) -> Floats:
    """By how much steps' intervals are wider than usual, by what the fit leaves open of them."""
    return np.asarray(np.hypot(deviation, least) / DOUBTS[0])


def by_drivers(gpu: Gpu) -> float:
    """By how much an interval is wider still for what libraries do on a GPU."""
    return _BY_DRIVERS if gpu.architecture.startswith(_BARELY_SUPPORTED) else 1.0


class RooflineSteps:
    """A roofline with its intervals."""

    def __init__(self, roofline: Roofline, intervals: GroupConformal, doubt: Doubt) -> None:
        self.roofline = roofline
        self.intervals = intervals
        self.doubt = doubt

    def parts(self, ops: Operators, batch: float, gpu: Gpu, setup: Setup) -> StepParts:
        """Of one optimizer step (all its micro-batches), or of one inference."""
        forward = only_forward(ops)
        if setup.inference:
            return self._parts(forward, batch, gpu, setup)
        whole = self._parts(ops, batch, gpu, setup)
        again = _SECOND_FORWARD[setup.checkpoint]
        if not again and setup.accumulate == 1:
            return whole
        once, part = self._parts(forward, batch, gpu, setup), without_optimizer(ops)
        most = self._parts(part, batch, gpu, setup) if setup.accumulate > 1 else whole
        more, times = setup.accumulate - 1, again * setup.accumulate
        return StepParts(
            whole.kernels_ms + more * most.kernels_ms + times * once.kernels_ms,
            whole.host_ms + more * most.host_ms + times * once.host_ms,
        )

    def _parts(self, ops: Operators, batch: float, gpu: Gpu, setup: Setup) -> StepParts:
        work = work_of(ops, batch, gpu, setup)
        each = self.roofline.kernels(work, gpu, setup)
        host = self.roofline.host_ms(host_launches(ops, setup), setup)
        return StepParts(float((each * work.count).sum()), host)

    def quantiles(self, ops: Operators, batch: float, gpu: Gpu, setup: Setup) -> Floats:
        """p10, p50, p90 in milliseconds; the middle is the roofline's own."""
        parts = self.parts(ops, batch, gpu, setup)
        distance = self.distance(ops, batch, gpu, setup)
        scale = self._difficulty(ops, batch, gpu, setup) * distance.wider
        guess = np.array([parts.step_ms])
        low, _, high = self.intervals.interval(guess, np.array([scale]), distance.unseen)[0]
        return np.array([min(low, guess[0]), guess[0], max(high, guess[0])])

    def _difficulty(self, ops: Operators, batch: float, gpu: Gpu, setup: Setup) -> float:
        """Of one micro-batch; the others are like it."""
        ops = only_forward(ops) if setup.inference else ops
        work, launches = work_of(ops, batch, gpu, setup), host_launches(ops, setup)
        row = Observation(work, launches, gpu, setup, 1.0, "", "", "")
        return float(difficulty(self.doubt.deviation([row], self.roofline.effects))[0])

    def distance(self, ops: Operators, batch: float, gpu: Gpu, setup: Setup) -> Distance:
        """From what the roofline was fitted on."""
        known = self.roofline.effects
        work = work_of(ops, batch, gpu, setup)
        each = self.roofline.kernels(work, gpu, setup) * work.count
        rate = RATES[int(work.rate[int(np.argmax(each))])]
        strange, kinds = self._strange(work, each)
        words, away, wider = [], 0.0, by_drivers(gpu)
        unseen = ["family", "source"]
        if f"compute gpu {gpu.name}" not in known:
            unseen.append("gpu")
            if f"compute generation {gpu.architecture}" in known:
                words.append(f"no {gpu.name} was measured, but others of its generation were")
                away = 0.25
            else:
                words.append(f"no GPU of the generation {gpu.architecture} was measured")
                away, wider = 0.6, wider * 1.2
        if f"compute generation rate {gpu.architecture} {rate}" not in known and not away > 0.5:
            words.append(f"its {setup.precision} was not measured in that generation")
            away = max(away, 0.4)
        if strange > 0.05:
            words.append(f"{strange:.0%} of the time is in operators like none measured: {kinds}")
            away = 1 - (1 - away) * (1 - strange)
        if setup.compile:
            what = "inference" if "host compiled" in known else "no model"
            words.append(
                f"compiled {what} was measured" + ("" if setup.inference else ", no training")
            )
            away, wider = 1 - (1 - away) * 0.7, wider * (1.1 if setup.inference else 1.3)
        said = "; ".join(words) or f"trainings were measured on this GPU ({gpu.name})"
        return Distance(float(min(away, 1.0)), said, wider, tuple(unseen))

    def _strange(self, work: Work, each: Floats) -> tuple[float, str]:
        """Share of the time in classes of operators that no fitted row had, and their kinds."""
        share: dict[str, float] = {}
        for slot, ms in zip(work.slot.tolist(), each.tolist(), strict=True):
            name = CLASSES[slot % len(CLASSES)]
            if f"memory class {name}" not in self.roofline.effects:
                kind = name.split(" ")[0]
                share[kind] = share.get(kind, 0.0) + ms
        total = max(float(each.sum()), 1e-12)
        names = sorted(share, key=lambda kind: -share[kind])
        return sum(share.values()) / total, ", ".join(names[:3])

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What `from_arrays` takes."""
        return {
            **self.roofline.to_arrays(),
            **prefixed("intervals", self.intervals.to_arrays()),
            **prefixed("doubt", self.doubt.to_arrays()),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> RooflineSteps:
        """Those in these arrays."""
        intervals = GroupConformal.from_arrays(under("intervals", arrays))
        doubt = Doubt.from_arrays(under("doubt", arrays))
        return cls(Roofline.from_arrays(arrays), intervals, doubt)


@cache
def shipped_steps() -> RooflineSteps:
    """Those that are shipped."""
    return RooflineSteps.from_arrays(load_bundle(FILE)[0])
