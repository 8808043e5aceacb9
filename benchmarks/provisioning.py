"""How much each policy gives and how well that serves, on telemetry that nobody has learned from.

Scout is split by workload (runs of at least 24 samples, windows of 1 minute), VR by time (the last
30 %, windows of 2 minutes), GenAI by pod (windows of 10 minutes; one resource a file). A phase
model is fitted on the training part, and margins are set there for several targets: so every
policy has a curve of allocation against fulfilment on the held-out part. Policies are compared
where their curves reach 95 % there. Beside that: OOM windows and the worst pods (1 %) with margins
for 95 %.
"Closes" is the part of the gap between a baseline and the bound (dynamic) that forecast saves;
a gap below 3 % of the use is printed and not judged. Needs the shared data and scikit-learn.

    python -m benchmarks.provisioning [--only scout,vr,genai] [--json] [--html FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._data import data_dir
from presage.provision.rightsize import POLICIES
from presage.reproduce.ai4dl import measure, splits

LEAST_GAP = 0.03
BASELINES = ("adaptive", "vpa", "krr")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what was asked for and print it."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--only", default="scout,vr,genai", help="data sets, with commas")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--html", type=Path, help="draw the curves into this file")
    options = parser.parse_args(argv)
    rows = [
        row
        for split in splits(data_dir(), options.only.split(","))
        for row in measure(*split, POLICIES)
    ]
    if options.html is not None:
        draw(rows, options.html)
    if options.json:
        print(json.dumps(rows, indent=2))
        return 0
    for row in rows:
        show(row)
    return 0


def show(row: dict[str, Any]) -> None:
    """A table for one resource, and what it says."""
    equal, scores = row["equal"], row["scores"]
    print(f"\n{row['data']}: {row['resource']}")
    print("  policy     at 95 % held out |  margin for 95 %: given  met %   OOM  throttled  worst")
    for policy in POLICIES:
        one = scores[policy]
        level = "-" if equal[policy] is None else f"{equal[policy]:.3f}"
        print(
            f"  {policy:9} {level:>17} | {one['margin']:+15.3f} {one['alloc_over_use']:10.3f} "
            f"{one['fulfilment_pct']:6.1f} {one['oom']:5} {one['throttled']:10} "
            f"{one['worst_pod_pct']:6.1f}"
        )
    for baseline in BASELINES:
        print(f"  {verdict(row, baseline)}")
    known = {policy: level for policy, level in equal.items() if level is not None}
    simple = {policy: known[policy] for policy in known if policy not in ("dynamic", "forecast")}
    best = min(simple, key=lambda policy: simple[policy], default=None)
    if best is not None and simple[best] < known.get("forecast", -np.inf):
        print(f"  a simpler policy wins: {best} needs {simple[best]:.3f} at 95 %")


def verdict(row: dict[str, Any], baseline: str) -> str:
    """How much of the gap to the bound is closed, in one line."""
    base, bound, mine = (row["equal"][name] for name in (baseline, "dynamic", "forecast"))
    if base is None or bound is None or mine is None:
        return f"{baseline}: no comparison, a curve does not reach 95 %"
    gap = base - bound
    if gap < LEAST_GAP:
        return f"{baseline}: the gap to the bound is {gap:.1%} of use, nothing to close"
    ooms = row["scores"]["forecast"]["oom"], row["scores"][baseline]["oom"]
    return (
        f"{baseline}: forecast closes {(base - mine) / gap:.0%} of a gap of {gap:.1%} of use "
        f"(target 50 %), {ooms[0]} OOM windows against {ooms[1]}"
    )


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Allocation against fulfilment, a picture for each resource."""
    from plotly.subplots import make_subplots

    titles = [f"{row['data']}: {row['resource']}" for row in rows]
    columns = 2
    lines = -(-len(rows) // columns)
    figure = make_subplots(lines, columns, subplot_titles=titles)
    for place, row in enumerate(rows):
        for colour, policy in enumerate(POLICIES):
            met, given = zip(*row["curves"][policy], strict=True)
            figure.add_scatter(
                x=met,
                y=given,
                name=policy,
                legendgroup=policy,
                showlegend=place == 0,
                line={"color": f"hsl({360 * colour // len(POLICIES)}, 60%, 45%)"},
                row=place // columns + 1,
                col=place % columns + 1,
            )
    figure.update_xaxes(title="samples met, %")
    figure.update_yaxes(title="allocation ÷ use", type="log")
    figure.update_layout(height=400 * lines)
    figure.write_html(path)


if __name__ == "__main__":
    sys.exit(main())
