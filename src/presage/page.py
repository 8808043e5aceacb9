"""HTML pages that need no network and no other file: `render` puts values into a template of
`templates/`, where every text is escaped (Jinja2 with autoescape).

A page has `figures`: `charts`, a Plotly figure by the id of its place, and `choices`, a list of
figures for a place with a `<select data-chart="the place's id">`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from presage.model.errors import UserError

if TYPE_CHECKING:
    from jinja2 import Environment
    from plotly.graph_objects import Figure

__all__ = [
    "COLOURS",
    "counted",
    "duration_text",
    "figure",
    "html_table",
    "readable_unit",
    "render",
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


def render(template: str, **values: object) -> str:
    """A template of the package with these values; one that it needs and does not get raises."""
    return _environment().get_template(template).render(values)


def html_table(
    title: str, heads: Sequence[str], rows: Sequence[tuple[object, Sequence[object]]]
) -> str:
    """How a result shows itself in a notebook; rows are a name and its cells each."""
    return render("notebook.html", title=title, heads=heads, rows=rows)


def figure(chart: Mapping[str, Any], title: str) -> Figure:
    """A chart as a Plotly figure, to show in a notebook or to change."""
    from plotly.graph_objects import Figure

    layout = {"template": "plotly_white", "title": {"text": title}, **chart["layout"]}
    return Figure(_texts({"data": list(chart["data"]), "layout": layout}))


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


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("presage"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals["plotly"] = _plotly
    made.filters["texts"] = _texts
    dense = {"allow_nan": False, "separators": (",", ":"), "ensure_ascii": False}
    made.policies["json.dumps_kwargs"] = dense
    return made


def _plotly() -> str:
    """The program that draws charts."""
    text = (files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
    return text.replace("</script", "<\\/script")


def _texts(figure: Any) -> Any:
    """A figure in which tags are text: Plotly would follow them. `<extra>` is its own word."""
    if isinstance(figure, str):
        return escape(figure).replace("&lt;extra&gt;&lt;/extra&gt;", "<extra></extra>")
    if isinstance(figure, Mapping):
        return {key: _texts(value) for key, value in figure.items()}
    return [_texts(value) for value in figure] if isinstance(figure, list) else figure
