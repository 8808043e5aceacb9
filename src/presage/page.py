"""HTML pages that need no network and no other file: the look, the charts, and how they are
written. Whoever makes a page brings its words; texts that come from users are escaped there.

A page has `figures`: `charts`, a Plotly figure by the id of its place, and `choices`, a list of
figures for a place with a `<select data-chart="the place's id">`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import numpy.typing as npt

from presage.model.errors import UserError

__all__ = [
    "COLOURS",
    "asset",
    "choice",
    "counted",
    "duration_text",
    "embedded",
    "page",
    "plotly",
    "readable_unit",
    "section",
    "short",
    "write_page",
]

COLOURS = (
    *("#3b82f6", "#f59e0b", "#10b981", "#ef4444", "#8b5cf6"),
    *("#06b6d4", "#ec4899", "#84cc16", "#f97316", "#64748b"),
)
"""For series in a chart, one after the other."""

_LARGER = {
    "bytes": ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")),
    "kB": ((1 << 20, "GiB"), (1 << 10, "MiB")),
    "MiB": ((1 << 10, "GiB"),),
    "bytes/s": ((1 << 30, "GiB/s"), (1 << 20, "MiB/s"), (1 << 10, "KiB/s")),
    "kB/s": ((1 << 20, "GiB/s"), (1 << 10, "MiB/s")),
}
_TIMES = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"))


def page(title: str, facts: Mapping[str, str], body: str, figures: Mapping[str, Any]) -> str:
    """A page with a heading, a list of facts (both plain text) and a body (HTML)."""
    listed = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts.items()
    )
    return Template(asset("_page.html")).substitute(
        title=escape(f"{title} · Presage"),
        heading=escape(title),
        style=asset("_page.css"),
        facts=listed,
        body=body,
        plotlyjs=plotly(),
        figures=embedded(figures),
        script=asset("_page.js"),
    )


def section(title: str, words: str, inside: str, *, wide: bool = True) -> str:
    """A card of a page: a title (plain text), a sentence about it and its content (HTML)."""
    kind = ' class="wide"' if wide else ""
    return f"<section{kind}><h2>{escape(title)}</h2><p>{words}</p>{inside}</section>"


def choice(place: str, label: str, groups: Mapping[str, list[str]]) -> str:
    """A list to choose a figure from, and the place where it is drawn. The figures of a place have
    the order of the options; a group without a name is not shown as one."""
    options = []
    for group, names in groups.items():
        items = "".join(f"<option>{escape(name[:80])}</option>" for name in names)
        options.append(f'<optgroup label="{escape(group)}">{items}</optgroup>' if group else items)
    return (
        f'<p><label>{escape(label)} <select data-chart="{place}">{"".join(options)}</select>'
        f'</label></p><div class="chart" id="{place}"></div>'
    )


def readable_unit(unit: str, most: float) -> tuple[float, str]:
    """What to divide amounts of up to `most` by for people to read them, and the unit then."""
    for size, name in _LARGER.get(unit, ()):
        if most >= size:
            return float(size), name
    return 1.0, unit


def counted(number: int, what: str) -> str:
    """`1 pod`, `9,578 pods`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def duration_text(seconds: float) -> str:
    """A time in the unit that suits it: `45 s`, `12.5 min`, `3 d`."""
    for size, name in _TIMES:
        if seconds >= 1.5 * size:
            return f"{seconds / size:.3g} {name}"
    return f"{seconds:.3g} s"


def short(values: npt.ArrayLike) -> list[float | None]:
    """Numbers for a chart: six digits are more than a screen shows, and NaN is a gap."""
    numbers = np.asarray(values, dtype=np.float64)
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in numbers]


def asset(name: str) -> str:
    """A file that pages are made of."""
    return (files("presage") / name).read_text(encoding="utf-8")


def plotly() -> str:
    """The program that draws charts."""
    text = (files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
    return text.replace("</script", "<\\/script")


def embedded(data: object) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def write_page(path: Path, text: str) -> None:
    """Write a page whole or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
