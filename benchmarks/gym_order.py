"""Learned orders against heuristics on ITP and Philly weeks that they were not trained on.

Trains on made traces, the first six weeks of Philly and four clusters of ITP; tests on the other
weeks of Philly and the weeks of the other four clusters of ITP that have 500 jobs or more, each on
a cluster of its own size (`--load`); beside them the levels of service alone, without a network:
who had least first, in the order of submission. Nobody knows true run times; a run that is stopped
loses 40 s. What is done already (files in `--out`) is not done again, so that it can run in
pieces.

    PRESAGE_DATA=... python -m benchmarks.gym_order [--algo search] [--seeds 0,1,2,3,4]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from time import process_time

import numpy as np

from benchmarks._data import shared
from presage.gym.evaluate import BASELINES, Figures, best_of, interval, policy_of, run_scene
from presage.gym.tasks import layout_of, rules_of
from presage.gym.training import ALGORITHMS, Recipe, train_policy
from presage.gym.worlds import Generated, Mixed, Scene, Weeks, Worlds, sized, weeks_of
from presage.policy.learned.net import Net, read_bundle, write_bundle
from presage.policy.registry import build
from presage.sim.traces import Trace, read_trace

PHILLY_TRAINED = 6
"""Weeks with jobs enough, of which the first so many train."""
LEVELS = "levels"
ITP_TRAINED = ("cluster02", "cluster03", "cluster05", "cluster06")
FEWEST = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algo", choices=ALGORITHMS, default="imitate")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--part", choices=("philly", "itp", "both"), default="both")
    parser.add_argument("--load", type=float, default=1.0)
    parser.add_argument("--out", type=Path, default=Path("gym-order"))
    parser.add_argument("--only", choices=("train", "heuristics", "test", "report"))
    given = parser.parse_args()
    given.out.mkdir(exist_ok=True)
    seeds = [int(one) for one in given.seeds.split(",")]
    parts = ("philly", "itp") if given.part == "both" else (given.part,)
    names = list(BASELINES["order"])
    if given.only in (None, "train"):
        for seed in seeds:
            train(given.out, given.algo, seed)
    for part in parts:
        if given.only in (None, "heuristics"):
            for name in (*names, LEVELS):
                test(given.out, part, given.load, name)
        if given.only in (None, "test"):
            for seed in seeds:
                test(given.out, part, given.load, f"{given.algo}-{seed}")
        if given.only in (None, "report"):
            report(given.out, part, given.load, names, [f"{given.algo}-{seed}" for seed in seeds])


def train(out: Path, algorithm: str, seed: int) -> None:
    """One bundle, unless it is there."""
    path = out / f"{algorithm}-{seed}.npz"
    if path.exists():
        return
    began = process_time()
    recipe = Recipe("order", algorithm, seed)  # type: ignore[arg-type]
    trained = train_policy(recipe, worlds(), state=path.with_suffix(".state"))
    cpu_s = process_time() - began
    card = {
        "name": f"order-{algorithm}",
        "version": "1",
        "date": "",
        "data": "made traces, Philly (CC-BY-4.0), ITP (MIT)",
        "licence": "CC-BY-4.0",
        "splits": f"seed {seed}; Philly's first {PHILLY_TRAINED} weeks, {', '.join(ITP_TRAINED)}",
        "errors": {},
        "training": {**trained.about, "cpu_s": round(cpu_s, 1)},
    }
    write_bundle(path, "order", trained.net, layout_of("order", recipe.slots), trained.rules, card)
    path.with_suffix(".state").unlink(missing_ok=True)
    about = {key: trained.about[key] for key in trained.about if key != "recipe"}
    print(f"{path}: {path.stat().st_size:,} bytes, {cpu_s:.1f} s of CPU time, {about}")


def worlds() -> Worlds:
    """What is trained on."""
    philly = philly_weeks()[:PHILLY_TRAINED]
    itp = [week for name in ITP_TRAINED for week in weeks_of(itp_trace(), name)]
    made = Generated(jobs=(200, 800), nodes=(1, 24))
    return Mixed((made, Weeks(tuple(philly), 800), Weeks(tuple(itp), 800)))


def scenes(part: str, load: float) -> Iterator[Scene]:
    """What is tested on."""
    if part == "philly":
        found = philly_weeks()[PHILLY_TRAINED:]
    else:
        names = sorted(set(itp_trace().jobs["queue"]) - set(ITP_TRAINED))
        weeks = [week for name in names for week in weeks_of(itp_trace(), name)]
        found = [week for week in weeks if week.jobs.height >= FEWEST]
    return (sized(week, load) for week in found)


def philly_weeks() -> list[Trace]:
    return weeks_of(read_trace(shared("traces/philly_jobs.parquet")))


def itp_trace() -> Trace:
    return read_trace(shared("traces/itp_jobs.parquet"))


def results(out: Path, part: str, load: float, name: str) -> Path:
    return out / f"{part}-{load:g}-{name}.json"


def test(out: Path, part: str, load: float, name: str) -> None:
    """One policy in all scenes, unless that was done."""
    path = results(out, part, load, name)
    if path.exists():
        return
    began, rows = process_time(), []
    for scene in scenes(part, load):
        if name in BASELINES["order"]:
            policy = build(name)
        elif name == LEVELS:
            layout = layout_of("order")
            policy = policy_of("order", Net.zero(layout, 1), layout.slots, rules_of("order"))
        else:
            bundle = read_bundle(out / f"{name}.npz")
            policy = policy_of("order", bundle.net, bundle.layout.slots, bundle.rules)
        told = asdict(run_scene(scene, policy, name))
        rows.append({"scene": scene.trace.name, "jobs": scene.trace.jobs.height, **told})
    path.write_text(json.dumps(rows))
    print(f"{part} {name}: {len(rows)} weeks, {process_time() - began:.1f} s of CPU time")


def report(out: Path, part: str, load: float, names: list[str], mine: list[str]) -> None:
    """Each policy against the best heuristic of each week; seeds of one week are averaged."""
    paths = {name: results(out, part, load, name) for name in (*names, LEVELS, *mine)}
    rows = {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}
    mine = [name for name in mine if name in rows]
    weeks = len(rows[names[0]])

    def figures(name: str, week: int) -> Figures:
        return Figures(**{k: v for k, v in rows[name][week].items() if k not in ("scene", "jobs")})

    best = [figures(best_of({n: figures(n, w) for n in names}, names), w) for w in range(weeks)]
    print(f"\n{part}, load {load:g}: {weeks} weeks, {len(mine)} seeds")
    print("policy        mean jct_h  jct/best (95 % over weeks)   p99/best   stops")
    groups = {**{name: [name] for name in (*names, LEVELS) if name in rows}, "learned": mine}
    ratios = {}
    for title, members in groups.items():
        if not members:
            continue
        told = [[figures(name, w) for name in members] for w in range(weeks)]
        both = list(zip(told, best, strict=True))
        jct = [np.mean([f.avg_jct_s for f in of]) / b.avg_jct_s for of, b in both]
        p99 = [np.mean([f.p99_jct_s for f in of]) / b.p99_jct_s for of, b in both]
        ratios[title] = jct, p99
        mean, half = interval([float(x) for x in jct])
        hours = np.mean([f.avg_jct_s for of in told for f in of]) / 3600
        stops = np.mean([f.preemptions for of in told for f in of])
        tail = float(np.mean(p99))
        print(f"{title:12} {hours:10.2f}   {mean:.3f} ± {half:.3f} {tail:18.3f} {stops:9.0f}")
    if not mine:
        return
    by_seed = [
        float(np.mean([figures(n, w).avg_jct_s / best[w].avg_jct_s for w in range(weeks)]))
        for n in mine
    ]
    mean, half = interval(by_seed)
    print(f"learned by seed: {mean:.3f} ± {half:.3f} (95 % over {len(mine)} seeds)")
    jct, p99 = ratios["learned"]
    for w in range(weeks):
        row = rows[mine[0]][w]
        mark = "" if jct[w] <= 0.95 and p99[w] <= 1.1 else "  misses"
        print(
            f"  {row['scene']:40} {row['jobs']:6} jobs  jct {jct[w]:.3f}  p99 {p99[w]:.3f}{mark}"
        )


if __name__ == "__main__":
    main()
