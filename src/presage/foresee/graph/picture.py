"""A graph as one HTML page that needs nothing else: layers from top to bottom, repeated blocks
drawn once, and lines for what skips layers.

A layer is an operator that computes (a convolution, a product, an embedding …) with the cheap ones
that follow it. It writes nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from presage.foresee.graph.opgraph import CONVOLUTIONS, KINDS, OpGraph
from presage.foresee.graph.summary import short, summarize
from presage.page import render

__all__ = ["Layer", "Repeat", "condense", "page"]

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
_BOX, _GAP = 34.0, 10.0


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
class Repeat:
    """Layers `start` to `start + length`, `times` times in a row."""

    start: int
    length: int
    times: int


def condense(graph: OpGraph) -> tuple[list[Layer], list[Repeat]]:
    """The layers of the forward pass, and the runs of equal blocks that they fall into."""
    layers = _layers(graph)
    runs: list[Repeat] = []
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


def _runs(signs: Sequence[Hashable]) -> list[Repeat]:
    """Blocks that repeat in a row, longest saving first at each place."""
    numbers = {sign: i for i, sign in enumerate(dict.fromkeys(signs))}
    row = np.array([numbers[sign] for sign in signs], np.int64)
    runs: list[Repeat] = []
    at, count = 0, len(row)
    while at < count:
        best = Repeat(at, 1, 1)
        for length in range(1, min(_LONGEST_BLOCK, (count - at) // 2) + 1):
            block, times = row[at : at + length], 1
            while np.array_equal(row[at + times * length : at + (times + 1) * length], block):
                times += 1
            if (times - 1) * length > max(1, (best.times - 1) * best.length):
                best = Repeat(at, length, times)
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
    kinds = [
        (
            kind["kind"],
            (
                f"{kind['operators']:,}",
                short(kind["macs"]) if kind["macs"] else "–",
                f"{kind['macs_share']:.1%}",
                short(kind["bytes"], "B"),
            ),
        )
        for kind in facts["kinds"]
    ]
    picture = _picture(layers, runs)
    return render("model.html", title=graph.name, facts=rows, picture=picture, kinds=kinds)


@dataclass(slots=True)
class _Picture:
    """What `model.html` draws. Boxes are 640 × 34, 20 from the left."""

    lines: list[tuple[str, str]] = field(default_factory=list)
    frames: list[tuple[float, float, int]] = field(default_factory=list)
    boxes: list[tuple[float, str, str, str, float]] = field(default_factory=list)
    left_out: int = 0
    height: float = 0.0


def _picture(layers: list[Layer], runs: list[Repeat]) -> _Picture:
    """Boxes in the order of computation; a frame around what repeats."""
    most = max((layer.macs for layer in layers), default=0.0) or 1.0
    place: dict[int, float] = {}
    picture = _Picture()
    y = _GAP
    for run in runs:
        if len(picture.boxes) + run.length > _MOST_BOXES:
            picture.left_out += run.length * run.times
            continue
        if run.times > 1:
            y += 16
            picture.frames.append((y - 14, run.length * (_BOX + _GAP) + 14, run.times))
        for i in range(run.start, run.start + run.length):
            for time in range(run.times):
                place[i + time * run.length] = y
            picture.boxes.append(_box(layers[i], y, most))
            y += _BOX + _GAP
        y += 8 if run.times > 1 else 0
    picture.lines = _lines(layers, place)
    picture.height = y + _GAP + (30 if picture.left_out else 0)
    return picture


def _lines(layers: list[Layer], place: dict[int, float]) -> list[tuple[str, str]]:
    """An arrow to the next box, a bow on the right for what skips some."""
    lines = set()
    for i, layer in enumerate(layers):
        for source in layer.before:
            if source not in place or i not in place or place[i] <= place[source]:
                continue
            top, bottom = place[source] + _BOX, place[i]
            if bottom - top < _BOX:
                lines.add(("flow", f"M60 {top}V{bottom}"))
                continue
            x = 660 + min(90.0, 18 + (bottom - top) / 12)
            middle, end = place[source] + _BOX / 2, place[i] + _BOX / 2
            lines.add(("skip", f"M660 {middle}C{x} {middle} {x} {end} 660 {end}"))
    return sorted(lines)


def _box(layer: Layer, y: float, most: float) -> tuple[float, str, str, str, float]:
    size = "×".join(str(n) if n > 0 else ("N" if n == -1 else f"{-n}N") for n in layer.shape)
    name = f"{layer.kind} → {size}" if size else layer.kind
    also = f" + {', '.join(layer.also)}" if layer.also else ""
    amounts = {"MACs": layer.macs, "weights": layer.weights}
    figures = " · ".join(f"{short(n)} {what}" for what, n in amounts.items() if n)
    colour = _COLOURS.get(layer.kind, "#67717c")
    return y, f"{name}{also}", figures, colour, layer.macs / most
