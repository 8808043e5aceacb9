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
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import polars as pl

from benchmarks._data import shared
from presage.observe.phases.model import PhaseModel
from presage.observe.telemetry.readers import read_telemetry
from presage.observe.telemetry.series import Series
from presage.provision.rightsize import POLICIES, rightsize

Split = tuple[str, float, list[Series], list[Series]]
TARGETS = (85.0, 92.0, 95.0, 97.0, 99.0)
TARGET = 95.0
LEAST_GAP = 0.03
BASELINES = ("adaptive", "vpa", "krr")
GENAI = ("gpu_duty_cycle", "gpu_memory_used_bytes", "memory_util")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what was asked for and print it."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--only", default="scout,vr,genai", help="data sets, with commas")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--html", type=Path, help="draw the curves into this file")
    options = parser.parse_args(argv)
    rows = [
        row
        for name, window_s, training, held_out in splits(options.only.split(","))
        for row in measure(name, window_s, training, held_out)
    ]
    if options.html is not None:
        draw(rows, options.html)
    if options.json:
        print(json.dumps(rows, indent=2))
        return 0
    for row in rows:
        show(row)
    return 0


def splits(names: Sequence[str]) -> Iterator[Split]:
    """Training and held-out pods of each data set."""
    if "scout" in names:
        runs = pl.read_parquet(shared("runtime/scout_runs.parquet"))
        workload = dict(zip(runs["run"].cast(pl.String), runs["workload"], strict=True))
        pods = read_telemetry(shared("telemetry/scout_runs_5s.parquet"))
        long = [pod for pod in pods if len(pod) >= 24]
        yield "scout", 60.0, *by_key(long, [str(workload[pod.pod]) for pod in long])
    if "vr" in names:
        pod = read_telemetry(shared("telemetry/ai4dl_vr.csv"))[0]
        cut = int(np.searchsorted(pod.times, pod.times[0] + 0.7 * np.ptp(pod.times)))
        yield "vr", 120.0, [part(pod, 0, cut)], [part(pod, cut, len(pod))]
    if "genai" in names:
        for kind in GENAI:
            pods = read_telemetry(shared(f"telemetry/genai_pod_{kind}.parquet"))
            yield f"genai {kind}", 600.0, *by_key(pods, [pod.pod for pod in pods])


def by_key(pods: Sequence[Series], keys: Sequence[str]) -> tuple[list[Series], list[Series]]:
    """About three tenths of the keys are held out, by their checksum."""
    out = [crc32(f"{key}0".encode()) % 10 < 3 for key in keys]
    return (
        [pod for pod, held in zip(pods, out, strict=True) if not held],
        [pod for pod, held in zip(pods, out, strict=True) if held],
    )


def part(pod: Series, start: int, end: int) -> Series:
    """Some of a pod's samples."""
    return replace(pod, times=pod.times[start:end], values=pod.values[start:end], rows=None)


def measure(
    name: str, window_s: float, training: list[Series], held_out: list[Series]
) -> list[dict[str, Any]]:
    """A row for each resource."""
    began = time.perf_counter()
    model = PhaseModel.fit(training)
    fitted = time.perf_counter()
    found = {
        target: rightsize(held_out, POLICIES, window_s, model=model, target_pct=target)
        for target in TARGETS
    }
    ended = time.perf_counter()
    print(
        f"{name}: {len(training):,} pods to learn from, {len(held_out):,} held out; "
        f"phases {fitted - began:.0f} s, each target {(ended - fitted) / len(TARGETS):.0f} s",
        file=sys.stderr,
    )
    rows = []
    for resource in next(iter(found[TARGET].sized.values())):
        scores = {
            policy: [found[target].sized[policy][resource].score for target in TARGETS]
            for policy in POLICIES
        }
        at_target = {policy: of[TARGETS.index(TARGET)] for policy, of in scores.items()}
        curves = {
            policy: sorted((one.fulfilment_pct, one.alloc_over_use or np.nan) for one in of)
            for policy, of in scores.items()
        }
        rows.append(
            {
                "data": name,
                "resource": resource,
                "curves": curves,
                "equal": {policy: at_equal_service(curve) for policy, curve in curves.items()},
                "scores": {
                    policy: one.to_json() | {"worst_pod_pct": one.worst_pod_pct}
                    for policy, one in at_target.items()
                },
            }
        )
    return rows


def at_equal_service(curve: list[tuple[float, float]]) -> float | None:
    """The allocation at which a curve reaches 95 %, or where it begins if that is above already;
    None if it does not get there."""
    met, given = np.array(curve).T
    if met[-1] < TARGET:
        return None
    return float(np.interp(TARGET, met, given))


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
