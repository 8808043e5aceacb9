"""Links of nodes as a resource: who loads which of them, and how much longer a step takes there.

Each node has one link, all of one speed. A job whose workers are on several nodes loads the link
of each of them for the part of its step in which it talks; a job on one node loads none. Where
loads meet, talking takes longer. Pure bookkeeping: it knows neither time nor devices, and no
policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random

from presage.model.cluster import WHOLE_GPU, Node
from presage.model.estimate import Estimate, Estimates
from presage.model.job import JobSpec

__all__ = [
    "LinkLoads",
    "LinkPhase",
    "LinkRules",
    "drawn_share",
    "needs_several",
    "still_with_share",
    "stretches",
    "with_share",
]

MEASURED_SHARES = (0.04, 0.25, 0.32, 0.39, 0.43, 0.46, 0.50, 0.54, 0.57, 0.60, 0.80)
"""Deciles of the share of a step in which the workers of `benchmarks/data/bursts` load their
link of 1 Gbit/s (all-reduce of two workers), of the 158 workloads."""
_HALVINGS = 50


class LinkPhase(StrEnum):
    """How the steps of jobs on one link lie to each other."""

    RANDOM = "random"
    """As chance has it: each meets the loads of all others while it talks."""
    INTERLEAVED = "interleaved"
    """Somebody shifts them so that one talks while others compute, as far as the link goes."""


@dataclass(frozen=True, slots=True)
class LinkRules:
    """What is said of all links."""

    gbit_s: float
    measured_gbit_s: float
    """The speed of the links on which durations and shares were measured."""
    phase: LinkPhase = LinkPhase.RANDOM
    unsaid: float | None = None
    """The share of a job of which the trace says none; None: drawn from those measured."""

    def share(self, measured: float) -> float:
        """The part of a step for which a job loads a link here, alone on it."""
        talk = self._talk(measured)
        return talk / (1.0 - measured + talk) if talk else 0.0

    def speed(self, measured: float, apart: bool, stretch: float | None) -> float:
        """The speed of a job that talks so many times longer than alone; `None`: it is on one
        node and does not. 1 for the run that was measured, on several nodes if `apart`."""
        computes = 1.0 - measured
        step = computes if stretch is None else computes + self._talk(measured) * stretch
        return (1.0 if apart else computes) / step

    def _talk(self, measured: float) -> float:
        return measured * self.measured_gbit_s / self.gbit_s


def stretches(shares: Sequence[float], phase: LinkPhase = LinkPhase.RANDOM) -> list[float]:
    """How many times longer than alone each job talks that loads a link for such a part of its
    step.

    At random, each meets the sum of the other loads. However they lie, a link does not carry more
    than it can: then all talk for as many times longer as fills it.
    """
    if phase is LinkPhase.RANDOM:
        met = [1.0 + sum(shares[:at]) + sum(shares[at + 1 :]) for at in range(len(shares))]
    else:
        met = [1.0] * len(shares)
    if _carried(shares, met) <= 1.0:
        return met
    low, high = 1.0, float(len(shares))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _carried(shares, [middle] * len(shares)) > 1.0:
            low = middle
        else:
            high = middle
    return [max(own, high) for own in met]


def _carried(shares: Sequence[float], times: Sequence[float]) -> float:
    """The part of the time for which a link would be loaded."""
    return sum(
        share / (1.0 - share + share * longer)
        for share, longer in zip(shares, times, strict=True)
        if share
    )


class LinkLoads:
    """The links of a cluster, and the jobs on each."""

    def __init__(self, phase: LinkPhase = LinkPhase.RANDOM) -> None:
        self.phase = phase
        self._on: dict[str, dict[str, float]] = {}
        """Share of each job, by node."""
        self._nodes: dict[str, tuple[str, ...]] = {}
        self._stretches: dict[str, dict[str, float]] = {}
        """Of nodes where nothing changed since they were asked for."""

    def join(self, job: str, nodes: Iterable[str], share: float) -> list[str]:
        """A job begins to run on these nodes; answers with the others on its links. On one node,
        or with a share of 0, it loads none."""
        spanned = tuple(dict.fromkeys(nodes))
        if len(spanned) < 2:
            return []
        self._nodes[job] = spanned
        if not share:
            return []
        others = self._others(spanned)
        for node in spanned:
            self._on.setdefault(node, {})[job] = share
            self._stretches.pop(node, None)
        return others

    def leave(self, job: str) -> list[str]:
        """A job runs no more; answers with those that were on its links."""
        spanned = self._nodes.pop(job, ())
        for node in spanned:
            here = self._on.get(node, {})
            here.pop(job, None)
            if not here:
                self._on.pop(node, None)
            self._stretches.pop(node, None)
        return self._others(spanned)

    def load(self, node: str) -> float:
        """The sum of the loads on the link of a node, as each would be alone."""
        return sum(self._on.get(node, {}).values())

    def stretch(self, job: str) -> float | None:
        """How many times longer a job talks than alone: on the worst of its links, as all its
        workers wait for that. None where it is on one node."""
        spanned = self._nodes.get(job)
        if spanned is None:
            return None
        return max(self._at(node).get(job, 1.0) for node in spanned)

    def _at(self, node: str) -> dict[str, float]:
        by_job = self._stretches.get(node)
        if by_job is None:
            here = self._on.get(node, {})
            by_job = dict(zip(here, stretches(list(here.values()), self.phase), strict=True))
            self._stretches[node] = by_job
        return by_job

    def _others(self, nodes: Iterable[str]) -> list[str]:
        return list(dict.fromkeys(job for node in nodes for job in self._on.get(node, ())))


def needs_several(spec: JobSpec, workers: int, nodes: Iterable[Node]) -> bool:
    """Whether so many workers of a job ask for more than any one node has, by GPUs, CPU or
    memory: those above the least are of its first role."""
    more = workers - sum(role.min for role in spec.roles)
    asks = [
        (role.resources, role.min + (more if at == 0 else 0)) for at, role in enumerate(spec.roles)
    ]
    gpus = sum(count * ask.gpu_milli for ask, count in asks)
    cpu = sum(count * ask.cpu_milli for ask, count in asks)
    memory = sum(count * ask.memory_mib for ask, count in asks)
    return not any(
        gpus <= WHOLE_GPU * len(node.devices)
        and cpu <= node.cpu_milli
        and memory <= node.memory_mib
        for node in nodes
    )


def drawn_share(name: str, seed: int) -> float:
    """A share of those measured, the same for all jobs of one name."""
    at = Random(f"{seed} {name}").random() * (len(MEASURED_SHARES) - 1)
    below = min(int(at), len(MEASURED_SHARES) - 2)
    low, high = MEASURED_SHARES[below : below + 2]
    return low + (at - below) * (high - low)


def with_share(said: Estimates | None, share: float) -> Estimates:
    """What was foreseen of a job, and the part of its step for which it loads a link."""
    known = Estimates("trace") if said is None else said
    return replace(known, link_share=Estimate.exact(share, "share", "trace"))


def still_with_share(said: Estimates | None, before: Estimates | None) -> Estimates | None:
    """What was foreseen anew, with the share of the link that was known before."""
    if before is None or before.link_share is None:
        return said
    return before if said is None else replace(said, link_share=before.link_share)
