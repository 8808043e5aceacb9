"""What was foreseen: a number with the interval it should fall into and where it came from, and
all of them for one job."""

from __future__ import annotations

from dataclasses import dataclass

from presage.model.value import value

__all__ = ["Estimate", "Estimates"]


@value
class Estimate:
    """Ten, fifty and ninety percent quantiles of a quantity."""

    p10: float
    p50: float
    p90: float
    unit: str
    source: str
    """What made it: `trace`, `user`, `history`, the name and version of a model."""

    @classmethod
    def exact(cls, value: float, unit: str, source: str) -> Estimate:
        """A value that is known."""
        return cls(value, value, value, unit, source)


@dataclass(frozen=True, slots=True)
class Estimates:
    """What was foreseen of a job when it was submitted. It is journaled with the job: decisions
    can be replayed whatever becomes of the models."""

    version: str
    """Of the models that were asked."""
    runtime_s: Estimate | None = None
    """Seconds of running in all, as it asked to run."""
    memory_mib: Estimate | None = None
    """GPU memory on each device."""
    utilization: Estimate | None = None
    """Share of a device's compute that one worker keeps busy, 0 to 1."""
    step_s: Estimate | None = None
    """Seconds for one training step."""
    link_share: Estimate | None = None
    """The part of a step for which it loads the link of each node it is on, 0 to 1, if those are
    several and nobody else loads them."""
