"""How much each policy gives and how well that serves, on telemetry that nobody has learned from.

Scout is split by workload (runs of at least 24 samples, windows of 1 minute), VR by time (the last
30 %, windows of 2 minutes), GenAI by pod (windows of 10 minutes; one resource a file). A phase
model is fitted on the training part, and margins are set there for several targets: so every
policy has a curve of allocation against fulfilment on the held-out part. Policies are compared
where their curves reach 95 % there. Beside that: OOM windows and the worst pods (1 %) with margins
for 95 %.
"Closes" is the part of the gap between a baseline and the bound (dynamic) that forecast saves;
a gap below 3 % of the use is printed and not judged. Needs the shared data and scikit-learn.

`--unseen` asks another question: are margins for 95 % met on workloads that nobody has seen? Scout
is split by workload into three parts, each held out once (up to 12 runs of a workload), GenAI by
pod; margins are set with pods as if they were not kin, with those that are alike as kin, which is
what happens where nobody names workloads, and by workload.

    python -m benchmarks.provisioning [--only scout,vr,genai] [--unseen] [--json] [--html FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks._data import data_dir
from presage.observe.phases import PhaseModel
from presage.provision.rightsize import POLICIES, rightsize
from presage.reproduce.ai4dl import GENAI, TARGET, measure, splits
from presage.telemetry.readers import read_telemetry
from presage.telemetry.series import Series

PARTS, MOST_RUNS, MOST_PODS = 3, 12, 60
LEAST_GAP = 0.03
BASELINES = ("adaptive", "vpa", "krr")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what was asked for and print it."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--only", default="scout,vr,genai", help="data sets, with commas")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--html", type=Path, help="draw the curves into this file")
    parser.add_argument("--unseen", action="store_true", help="margins on unseen workloads")
    options = parser.parse_args(argv)
    if options.unseen:
        told = [row for name in options.only.split(",") for row in unseen(name)]
        for row in told:
            print(
                json.dumps(row) if options.json else "  ".join(f"{k} {v}" for k, v in row.items())
            )
        return 0
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


def unseen(name: str) -> list[dict[str, Any]]:
    """What margins for 95 % meet and give on workloads (GenAI: pods) held out in turn."""
    if name == "scout":
        runs = pl.read_parquet(data_dir() / "runtime/scout_runs.parquet")
        workload = {str(run): str(of) for run, of in runs.select("run", "workload").rows()}
        pods = read_telemetry(data_dir() / "telemetry/scout_runs_5s.parquet")
        pods = _some([pod for pod in pods if len(pod) >= 24], workload)
        return _in_turn("scout", 60.0, pods, workload)
    if name != "genai":
        return []
    rows = []
    for kind in GENAI:
        pods = read_telemetry(data_dir() / f"telemetry/genai_pod_{kind}.parquet")
        pods = pods[:: max(1, len(pods) // MOST_PODS)]
        rows += _in_turn(f"genai {kind}", 600.0, pods, {pod.pod: pod.pod for pod in pods})
    return rows


def _some(pods: list[Series], workload: dict[str, str]) -> list[Series]:
    """At most so many runs of each workload, evenly from all."""
    by_name: dict[str, list[Series]] = {}
    for pod in pods:
        by_name.setdefault(workload[pod.pod], []).append(pod)
    return [
        pod
        for runs in by_name.values()
        for pod in runs[:: max(1, len(runs) // MOST_RUNS)][:MOST_RUNS]
    ]


def _in_turn(
    name: str, window_s: float, pods: list[Series], kin: dict[str, str]
) -> list[dict[str, Any]]:
    known = sorted({kin[pod.pod] for pod in pods})
    part = {one: place % PARTS for place, one in enumerate(known)}
    found: dict[tuple[str, str, str], list[tuple[float, float, int]]] = {}
    for held in range(PARTS):
        training = [pod for pod in pods if part[kin[pod.pod]] != held]
        test = [pod for pod in pods if part[kin[pod.pod]] == held]
        model = PhaseModel.fit(training)
        for by, names in (("pod", {}), ("likeness", None), ("workload", kin)):
            told = rightsize(
                test,
                ("adaptive", "forecast"),
                window_s,
                model=model,
                target_pct=TARGET,
                kin=names,
            )
            for policy, resources in told.sized.items():
                for resource, sized in resources.items():
                    size = int(sized.usage.counts[~sized.usage.first].sum())
                    score = sized.score
                    found.setdefault((policy, resource, by), []).append(
                        (score.fulfilment_pct, score.alloc_over_use or np.nan, size)
                    )
            print(f"{name}: part {held + 1} of {PARTS}", file=sys.stderr)
    rows = []
    for (policy, resource, by), parts in sorted(found.items()):
        met, given, sizes = np.array(parts).T
        rows.append(
            {
                "data": name,
                "resource": resource,
                "policy": policy,
                "margins by": by,
                "met %": round(float(np.average(met, weights=sizes)), 2),
                "parts %": [round(float(value), 1) for value in met],
                "given ÷ use": round(float(np.average(given, weights=sizes)), 3),
            }
        )
    return rows


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
