"""What a reproduction found: lines of paper against ours, what differs, charts; and its page.

Values and their forms (JSON, HTML); experiments fill them, commands print them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from presage.page import render

__all__ = ["Chart", "Progress", "ReproducedFigure", "Reproduction", "reproduction_page"]

Progress = Callable[[int, int], None]
"""Called with (done, total)."""


@dataclass(frozen=True, slots=True)
class ReproducedFigure:
    """One figure: what it is, what the paper has, what we have, and what was aimed at."""

    what: str
    ours: float
    paper: float | None = None
    unit: str = ""
    target: str = ""
    """In words: `at least 1.6`; empty when there is none."""
    met: bool | None = None
    """Whether the target was; None when there is none."""

    @classmethod
    def at_least(
        cls, what: str, ours: float, target: float, *, paper: float | None = None, unit: str = ""
    ) -> ReproducedFigure:
        """A figure that should be large."""
        return cls(what, ours, paper, unit, f"≥ {figure(target)}", ours >= target)

    @classmethod
    def at_most(
        cls, what: str, ours: float, target: float, *, paper: float | None = None, unit: str = ""
    ) -> ReproducedFigure:
        """A figure that should be small."""
        return cls(what, ours, paper, unit, f"≤ {figure(target)}", ours <= target)


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure for the page: Plotly's own form, with a title and a sentence about it."""

    title: str
    words: str
    figure: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reproduction:
    """One experiment: the paper's table beside ours."""

    name: str
    title: str
    source: str
    """Who published it, where."""
    lines: tuple[ReproducedFigure, ...]
    differs: tuple[str, ...] = ()
    """What differs in the set-up, one sentence each."""
    charts: tuple[Chart, ...] = ()

    @property
    def met(self) -> bool:
        """Whether every target was met."""
        return all(line.met is not False for line in self.lines)

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "name": self.name,
            "title": self.title,
            "source": self.source,
            "met": self.met,
            "lines": [
                {
                    "what": line.what,
                    "unit": line.unit,
                    "paper": line.paper,
                    "ours": line.ours,
                    "target": line.target or None,
                    "met": line.met,
                }
                for line in self.lines
            ],
            "differs": list(self.differs),
        }


def figure(value: float | None, unit: str = "") -> str:
    """A figure as a person writes it: `1.62`, `17,962 s`, `–` for none."""
    if value is None:
        return "–"
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{text} {unit}".rstrip()


def verdict(line: ReproducedFigure) -> str:
    """Whether a line met its target, in one word; empty when it has none."""
    return "" if line.met is None else "met" if line.met else "missed"


def reproduction_page(result: Reproduction) -> str:
    """The page as HTML."""
    charts = {f"chart{at}": chart for at, chart in enumerate(result.charts)}
    rows = [
        (
            line.what,
            (
                figure(line.paper, line.unit),
                figure(line.ours, line.unit),
                line.target,
                verdict(line),
            ),
        )
        for line in result.lines
    ]
    return render(
        "reproduction.html",
        title=result.title,
        facts={"Experiment": result.name, "Published": result.source},
        rows=rows,
        charts=charts,
        differs=result.differs,
        figures={"charts": {place: chart.figure for place, chart in charts.items()}},
    )
