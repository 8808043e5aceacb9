"""A number that was foreseen, with the interval it should fall into and where it came from."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Estimate"]


@dataclass(frozen=True, slots=True)
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
