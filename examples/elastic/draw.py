"""Draw the curve that `train.py` wrote: python draw.py results/curve.jsonl curve.svg"""

from __future__ import annotations

import json
import math
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

WIDTH, HEIGHT, MARGIN = 760, 320, 48
COLOURS = {1: "#0b7285", 2: "#5f3dc4", 3: "#2b8a3e", 4: "#d9480f"}


def draw(curve: list[dict[str, Any]]) -> str:
    """The loss of each step as a line, in a colour for each number of workers."""
    logs = [math.log10(point["loss"]) for point in curve]
    low, high = math.floor(min(logs)), math.ceil(max(logs))

    def x(step: int) -> float:
        return MARGIN + (WIDTH - 2 * MARGIN) * (step - 1) / max(1, len(curve) - 1)

    def y(log: float) -> float:
        return HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * (log - low) / (high - low)

    def text(left: float, top: float, words: str, anchor: str = "middle") -> str:
        return f'<text x="{left:.0f}" y="{top:.0f}" text-anchor="{anchor}">{words}</text>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'font-family="sans-serif" font-size="12" fill="#495057">',
        "<title>Loss of a training whose number of workers changed</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    for power in range(low, high + 1):
        line = f'x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{y(power):.0f}" y2="{y(power):.0f}"'
        parts.append(f'<line {line} stroke="#dee2e6"/>')
        parts.append(text(MARGIN - 6, y(power) + 4, f"{10**power:g}", "end"))
    changes = [(a, b) for a, b in pairwise(curve) if a["workers"] != b["workers"]]
    starts = [curve[0]] + [after for _, after in changes]
    for start, end in pairwise([*starts, None]):
        assert start is not None
        last = end["step"] if end is not None else len(curve)
        some = list(range(start["step"], last + 1))
        points = " ".join(f"{x(step):.1f},{y(logs[step - 1]):.1f}" for step in some)
        colour = COLOURS.get(start["workers"], "#868e96")
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
        label = f"{start['workers']} worker{'s' if start['workers'] > 1 else ''}"
        parts.append(text((x(some[0]) + x(some[-1])) / 2, MARGIN - 10, label))
    for before, after in changes:
        line = f'x1="{x(after["step"]):.1f}" x2="{x(after["step"]):.1f}" y1="{MARGIN}"'
        parts.append(f'<line {line} y2="{HEIGHT - MARGIN}" stroke="#adb5bd"/>')
        pause = f"{after['at'] - before['at']:.1f} s"
        parts.append(text(x(after["step"]), HEIGHT - MARGIN + 16, pause))
    parts.append(text(WIDTH / 2, HEIGHT - 10, f"{len(curve)} steps; loss on a logarithmic scale"))
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    lines = Path(sys.argv[1]).read_text().splitlines()
    Path(sys.argv[2]).write_text(draw([json.loads(line) for line in lines]))
