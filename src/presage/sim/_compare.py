"""The figures people compare policies by: their names, units, and which way is better.

One list serves the terminal, the HTML page and notebooks, so that they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from presage.sim.result import SimResult

__all__ = ["FIGURES", "ComparedFigure", "Figure", "best", "lines", "scaled", "time_unit"]

Value = float | int | None

_UNITS = ((1.0, "s"), (60.0, "min"), (3600.0, "h"), (86_400.0, "d"))


@dataclass(frozen=True)
class Figure:
    """One row of the comparison."""

    key: str
    name: str
    kind: str
    """time (in the unit that suits the row), seconds, count or share."""
    better: int = 0
    """-1 when less is better, 1 when more is, 0 when it is no contest."""
    optional: bool = False
    """Whether it is left out when it is nothing for everyone."""

    def of(self, result: SimResult) -> Value:
        """The value for a result."""
        if self.key == "held_gpu_hours":
            return result.held_gpu_seconds / 3600
        return result.summary[self.key]

    def texts(self, values: Sequence[Value]) -> tuple[list[str], str]:
        """The values as text in one common unit, and the unit."""
        if self.kind == "time":
            return scaled(values)
        if self.kind == "count":
            return ["–" if value is None else f"{value:,.0f}" for value in values], ""
        if self.kind == "share":
            return ["–" if value is None else f"{value * 100:.1f}" for value in values], "%"
        return ["–" if value is None else f"{value:,.2f}" for value in values], "s"


FIGURES: tuple[Figure, ...] = (
    Figure("finished", "finished", "count", 1),
    Figure("rejected", "rejected", "count", optional=True),
    Figure("avg_jct_s", "avg JCT", "time", -1),
    Figure("p50_jct_s", "p50 JCT", "time", -1),
    Figure("p99_jct_s", "p99 JCT", "time", -1),
    Figure("avg_wait_s", "avg wait", "time", -1),
    Figure("p99_wait_s", "p99 wait", "time", -1),
    Figure("makespan_s", "makespan", "time", -1),
    Figure("gpu_utilization", "GPU use", "share", 1),
    Figure("preemptions", "preemptions", "count"),
    Figure("held_gpu_hours", "held, not started (GPU h)", "count", -1, True),
    Figure("cpu_s", "simulated in", "seconds"),
)
"""Every figure of the comparison, in order."""


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """One figure of all results, as people see it."""

    figure: Figure
    unit: str
    texts: list[str]
    winners: set[int]
    """Where the best values are."""

    @property
    def name(self) -> str:
        """The figure with its unit."""
        return self.figure.name + (f" ({self.unit})" if self.unit else "")


def lines(results: Sequence[SimResult]) -> Iterator[ComparedFigure]:
    """The comparison figure by figure, without those that are nothing for everyone."""
    for figure in FIGURES:
        values = [figure.of(result) for result in results]
        if not figure.optional or any(values):
            texts, unit = figure.texts(values)
            yield ComparedFigure(figure, unit, texts, best(figure, values))


def best(figure: Figure, values: Sequence[Value]) -> set[int]:
    """Where the best values are, as people see them; nowhere when all look equal."""
    there = [value for value in values if value is not None]
    texts, _ = figure.texts(values)
    if not figure.better or not there or len(set(texts)) < 2:
        return set()
    top = texts[values.index(max(there) if figure.better > 0 else min(there))]
    return {index for index, text in enumerate(texts) if text == top}


def scaled(values: Sequence[Value]) -> tuple[list[str], str]:
    """Times in the one unit that suits the largest of them."""
    divisor, unit = time_unit(max((value for value in values if value is not None), default=0.0))
    texts = []
    for value in values:
        number = None if value is None else value / divisor
        digits = 0 if number is None or number >= 100 else 1 if number >= 10 else 2
        texts.append("–" if number is None else f"{number:,.{digits}f}")
    return texts, unit


def time_unit(seconds: float) -> tuple[float, str]:
    """The unit in which a time of this length reads best: its seconds and its name."""
    units = [unit for unit in _UNITS if seconds >= 2 * unit[0]]
    return units[-1] if units else _UNITS[0]
