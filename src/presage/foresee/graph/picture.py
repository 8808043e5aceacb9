"""A graph as one HTML page that needs nothing else: layers from top to bottom, repeated blocks
drawn once, and lines for what skips layers.

A layer is an operator that computes (a convolution, a product, an embedding …) with the cheap ones
that follow it. Every text is escaped. It writes nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from html import escape
from string import Template
from typing import Any

import numpy as np

from presage.foresee.graph.opgraph import CONVOLUTIONS, KINDS, OpGraph
from presage.foresee.graph.summary import short, summarize

__all__ = ["Layer", "Run", "condense", "page"]

_LEADING = frozenset(
    [*CONVOLUTIONS, "linear", "matmul", "attention", "recurrent", "embedding", "loss"]
)
_MOST_BOXES = 150
_LONGEST_BLOCK = 80
_COLOURS = {
    **dict.fromkeys(CONVOLUTIONS, "#3b73c4"),
    "linear": "#b0662a",
    "matmul": "#8a5bb5",
    "attention": "#8a5bb5",
    "recurrent": "#2f8f6b",
    "embedding": "#7a7f3a",
    "loss": "#b33a4f",
}
_BOX, _GAP, _LEFT, _WIDE = 34, 10, 20, 640


@dataclass(slots=True)
class Layer:
    """An operator and the cheap ones after it."""

    kind: str
    shape: tuple[int, ...]
    macs: float
    weights: float
    also: list[str] = field(default_factory=list)
    before: set[int] = field(default_factory=set)
    """Numbers of the layers it reads from."""


@dataclass(frozen=True, slots=True)
class Run:
    """Layers `start` to `start + length`, `times` times in a row."""

    start: int
    length: int
    times: int


def condense(graph: OpGraph) -> tuple[list[Layer], list[Run]]:
    """The layers of the forward pass, and the runs of equal blocks that they fall into."""
    layers = _layers(graph)
    runs: list[Run] = []
    for key in (
        lambda layer: (layer.kind, layer.shape, layer.weights),
        lambda layer: (layer.kind, layer.shape),
        lambda layer: layer.kind,
    ):
        runs = _runs([key(layer) for layer in layers])
        if sum(run.length for run in runs) <= _MOST_BOXES:
            break
    return layers, runs


def _layers(graph: OpGraph) -> list[Layer]:
    forward = int((graph.phase == 0).sum())
    macs = graph.at(graph.macs, 1)
    readers: dict[int, list[int]] = {}
    for source, target in graph.edges.tolist():
        if target < forward:
            readers.setdefault(target, []).append(source)
    layers: list[Layer] = []
    home: list[int] = []
    for i in range(forward):
        kind = KINDS[int(graph.kind[i])]
        sources = {home[source] for source in readers.get(i, ()) if source < i}
        if kind in _LEADING or not sources:
            if kind not in _LEADING and layers and not sources:
                home.append(len(layers) - 1)  # a constant that somebody will need
                continue
            layers.append(Layer(kind, graph.shapes[i], float(macs[i]), float(graph.weights[i])))
            layers[-1].before = sources
            home.append(len(layers) - 1)
            continue
        mine = max(sources)
        layer = layers[mine]
        layer.before |= sources - {mine}
        layer.macs += float(macs[i])
        layer.weights += float(graph.weights[i])
        if kind not in ("copy", "reduce") and kind not in layer.also:
            layer.also.append(kind)
        home.append(mine)
    return layers


def _runs(signs: Sequence[Hashable]) -> list[Run]:
    """Blocks that repeat in a row, longest saving first at each place."""
    numbers = {sign: i for i, sign in enumerate(dict.fromkeys(signs))}
    row = np.array([numbers[sign] for sign in signs], np.int64)
    runs: list[Run] = []
    at, count = 0, len(row)
    while at < count:
        best = Run(at, 1, 1)
        for length in range(1, min(_LONGEST_BLOCK, (count - at) // 2) + 1):
            block, times = row[at : at + length], 1
            while np.array_equal(row[at + times * length : at + (times + 1) * length], block):
                times += 1
            if (times - 1) * length > max(1, (best.times - 1) * best.length):
                best = Run(at, length, times)
        runs.append(best)
        at += best.length * best.times
    return runs


def page(graph: OpGraph, batch: int = 1) -> str:
    """The page as HTML."""
    layers, runs = condense(graph)
    facts = summarize(graph, batch)
    each = facts["per_sample"]
    rows = {
        "One sample": ", ".join(facts["inputs"]),
        "MACs": f"{short(each['macs'])} for one sample forward; FLOPs {short(each['flops'])}",
        "Parameters": f"{graph.params:,}",
        "Activations": f"{short(each['activations'])} for one sample forward",
        "Operators": f"{len(graph):,}, {short(facts['macs'])} MACs at batch {batch}",
    }
    if graph.notes:
        rows["Notes"] = "; ".join(graph.notes)
    return _PAGE.substitute(
        title=escape(f"{graph.name} · Presage"),
        heading=escape(graph.name),
        facts="".join(f"<dt>{k}</dt><dd>{escape(v)}</dd>" for k, v in rows.items()),
        picture=_picture(layers, runs),
        kinds=_kinds(facts["kinds"]),
    )


def _kinds(kinds: list[dict[str, Any]]) -> str:
    return "".join(
        f"<tr><th>{escape(row['kind'])}</th><td>{row['operators']:,}</td>"
        f"<td>{short(row['macs']) if row['macs'] else '–'}</td>"
        f"<td>{row['macs_share']:.1%}</td>"
        f"<td>{short(row['bytes'], 'B')}</td></tr>"
        for row in kinds
    )


def _picture(layers: list[Layer], runs: list[Run]) -> str:
    """Boxes in the order of computation; a frame around what repeats."""
    most = max((layer.macs for layer in layers), default=0.0) or 1.0
    place: dict[int, float] = {}
    drawn: list[str] = []
    y, boxes, left_out = float(_GAP), 0, 0
    for run in runs:
        if boxes + run.length > _MOST_BOXES:
            left_out += run.length * run.times
            continue
        if run.times > 1:
            y += 16
            height = run.length * (_BOX + _GAP) + 14
            drawn.append(_frame(y - 14, height, run.times))
        for i in range(run.start, run.start + run.length):
            place[i] = y
            for time in range(1, run.times):
                place[i + time * run.length] = y
            drawn.append(_box(layers[i], y, most))
            y += _BOX + _GAP
            boxes += 1
        y += 8 if run.times > 1 else 0
    if left_out:
        drawn.append(f'<text x="{_LEFT}" y="{y + 16}">… {left_out:,} more layers</text>')
        y += 30
    inside = "".join([*_lines(layers, place), *drawn])
    size = f"{_LEFT + _WIDE + 100} {y + _GAP:.0f}"
    wide, high = size.split()
    return (
        f'<svg viewBox="0 0 {size}" width="{wide}" height="{high}" role="img" '
        f'aria-label="Layers of the model">{inside}</svg>'
    )


def _lines(layers: list[Layer], place: dict[int, float]) -> list[str]:
    """An arrow to the next box, a bow on the right for what skips some."""
    lines = set()
    for i, layer in enumerate(layers):
        for source in layer.before:
            if source not in place or i not in place or place[i] <= place[source]:
                continue
            top, bottom = place[source] + _BOX, place[i]
            if bottom - top < _BOX:
                x = _LEFT + 40
                lines.add(f'<path class="flow" d="M{x} {top}V{bottom}"/>')
                continue
            x, out = _LEFT + _WIDE, min(90.0, 18 + (bottom - top) / 12)
            middle, end = place[source] + _BOX / 2, place[i] + _BOX / 2
            bow = f"C{x + out} {middle} {x + out} {end} {x} {end}"
            lines.add(f'<path class="skip" d="M{x} {middle}{bow}"/>')
    return sorted(lines)


def _frame(y: float, height: float, times: int) -> str:
    return (
        f'<rect class="frame" x="{_LEFT - 12}" y="{y}" width="{_WIDE + 24}" height="{height}" '
        f'rx="8"/><text class="times" x="{_LEFT + _WIDE - 2}" y="{y + 11}">× {times}</text>'
    )


def _box(layer: Layer, y: float, most: float) -> str:
    size = "×".join(str(n) if n > 0 else ("N" if n == -1 else f"{-n}N") for n in layer.shape)
    name = f"{layer.kind} → {size}" if size else layer.kind
    also = f" + {', '.join(layer.also)}" if layer.also else ""
    amounts = {"MACs": layer.macs, "weights": layer.weights}
    figures = " · ".join(f"{short(n)} {what}" for what, n in amounts.items() if n)
    colour = _COLOURS.get(layer.kind, "#67717c")
    text = escape(_cut(f"{name}{also}", 58))
    return (
        f"<g><title>{escape(f'{name}{also}; {figures}')}</title>"
        f'<rect class="box" x="{_LEFT}" y="{y}" width="{_WIDE}" height="{_BOX}" rx="5"/>'
        f'<rect x="{_LEFT}" y="{y}" width="6" height="{_BOX}" fill="{colour}"/>'
        f'<rect x="{_LEFT + 6}" y="{y + _BOX - 4}" height="4" fill="{colour}" opacity=".55" '
        f'width="{(_WIDE - 6) * layer.macs / most:.1f}"/>'
        f'<text x="{_LEFT + 14}" y="{y + 20}">{text}</text>'
        f'<text class="figures" x="{_LEFT + _WIDE - 8}" y="{y + 20}">{figures}</text></g>'
    )


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>$title</title>
<style>
:root { --page: #f6f7f9; --card: #fff; --ink: #16202c; --soft: #5b6875; --rule: #cfd6de; }
@media (prefers-color-scheme: dark) {
  :root { --page: #0f141a; --card: #171e26; --ink: #e7ecf2; --soft: #9aa7b4; --rule: #35414d; }
}
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1300px; margin: 0 auto; padding: 24px 20px 48px; }
h1 { font-size: 1.6rem; margin: 0 0 4px; overflow-wrap: anywhere; }
p { color: var(--soft); font-size: .92rem; margin: 0 0 10px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 14px; margin: 10px 0 18px; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
.both { display: flex; flex-wrap: wrap; gap: 16px; align-items: flex-start; }
section { background: var(--card); border: 1px solid var(--rule); border-radius: 10px;
  padding: 14px 16px; overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { padding: 4px 10px; text-align: right; white-space: nowrap; }
th:first-child { text-align: left; padding-left: 0; font-weight: 400; color: var(--soft); }
tbody tr > * { border-top: 1px solid var(--rule); }
svg text { fill: var(--ink); font-size: 13px; }
svg .figures, svg .times { text-anchor: end; fill: var(--soft); font-size: 12px; }
svg .times { font-weight: 600; fill: var(--ink); }
svg .box { fill: var(--card); stroke: var(--rule); }
svg .frame { fill: none; stroke: var(--soft); stroke-dasharray: 4 3; }
svg .flow { stroke: var(--soft); fill: none; }
svg .skip { stroke: var(--soft); fill: none; opacity: .6; }
</style>
</head>
<body>
<main>
<h1>$heading</h1>
<dl>$facts</dl>
<div class="both">
<section>
<p>The forward pass from top to bottom; N is the batch. The bar in a box is its share of the
largest.</p>
$picture
</section>
<section>
<p>All operators of the step by kind</p>
<table><thead><tr><th>kind</th><th>operators</th><th>MACs</th><th>share</th><th>moved</th></tr>
</thead><tbody>$kinds</tbody></table>
</section>
</div>
</main>
</body>
</html>
""")
