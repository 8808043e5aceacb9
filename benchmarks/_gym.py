"""What the benchmarks of learned policies have in common: bundles and results are kept in a
folder, so that a benchmark can run in pieces, and a table of ratios is printed."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import process_time

import numpy as np

from benchmarks._data import shared
from presage.core.ports import Policy
from presage.gym.evaluate import BASELINES, Figures, interval, policy_of, run_scene
from presage.gym.tasks import layout_of, rules_of
from presage.gym.teachers import TEACHERS, ByTeacher
from presage.gym.training import ALGORITHMS, Recipe, train_policy
from presage.gym.worlds import Scene, Worlds, weeks_of
from presage.policy.learned.net import Task, read_bundle, write_bundle
from presage.policy.registry import build
from presage.sim.traces import Trace, read_trace

PHILLY_TRAINED = 6
"""Weeks with jobs enough, of which the first so many train."""
ITP_TRAINED = ("cluster02", "cluster03", "cluster05", "cluster06")


COLUMNS: Mapping[str, Callable[[Figures], float]] = {
    "jct": lambda one: one.avg_jct_s,
    "makespan": lambda one: one.makespan_s,
    "p99": lambda one: one.p99_jct_s,
    "wait": lambda one: one.avg_wait_s,
}


def compare(
    task: Task,
    about: str | None,
    most_jobs: int,
    worlds: Callable[[], Worlds],
    data: str,
    scenes: Mapping[str, Callable[[int], list[Scene]]],
    against: str,
    *,
    columns: Mapping[str, Callable[[Figures], float]] = COLUMNS,
    teachers: Sequence[str] = (),
) -> None:
    """A benchmark: train a bundle for each seed, run it, the heuristics and these teachers in the
    scenes of each part (with so many jobs of a week of ITP at most), and print the table."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--algo", choices=ALGORITHMS, default="imitate")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--part", choices=[*scenes], action="append")
    parser.add_argument("--most-jobs", type=int, default=most_jobs, help="of a week of ITP")
    parser.add_argument("--out", type=Path, default=Path(f"gym-{task}"))
    parser.add_argument("--only", choices=("train", "heuristics", "test", "report"))
    given = parser.parse_args()
    given.out.mkdir(exist_ok=True)
    bundles = {int(seed): f"{given.algo}-{seed}" for seed in given.seeds.split(",")}
    paths = {seed: given.out / f"{name}.npz" for seed, name in bundles.items()}
    if given.only in (None, "train"):
        for seed, path in paths.items():
            train(path, Recipe(task, given.algo, seed, choices=3000), worlds(), data)
    makers = {name: partial(build, config) for name, config in BASELINES[task].items()}
    makers |= {name: partial(taught, task, name) for name in teachers}
    for part in given.part or scenes:
        begin = f"{part}-{given.most_jobs}"
        told = {name: [given.out / f"{begin}-{name}.json"] for name in makers}
        told["learned"] = [given.out / f"{begin}-{name}.json" for name in bundles.values()]
        if given.only in (None, "heuristics"):
            for name, make in makers.items():
                test(told[name][0], scenes[part](given.most_jobs), make)
        if given.only in (None, "test"):
            for path, result in zip(paths.values(), told["learned"], strict=True):
                test(result, scenes[part](given.most_jobs), partial(bundled, path))
        if given.only in (None, "report"):
            print(f"\n{part}: {len(scenes[part](given.most_jobs))} scenes")
            report(told, against, columns)


def philly_weeks() -> list[Trace]:
    return weeks_of(read_trace(shared("traces/philly_jobs.parquet")))


def itp_weeks(*, trained: bool) -> list[Trace]:
    """Of the clusters that were trained on, or of the others."""
    trace = read_trace(shared("traces/itp_jobs.parquet"))
    names = sorted(set(trace.jobs["queue"]))
    return [
        week
        for name in names
        if (name in ITP_TRAINED) == trained
        for week in weeks_of(trace, name)
    ]


def train(path: Path, recipe: Recipe, worlds: Worlds, data: str) -> None:
    """One bundle, unless it is there."""
    if path.exists():
        return
    began = process_time()
    state = path.with_suffix(".state")
    trained = train_policy(recipe, worlds, state=state)
    cpu_s = process_time() - began
    card = {
        "name": f"{recipe.task}-{recipe.algorithm}",
        "version": "1",
        "date": "",
        "data": data,
        "licence": "that of the data",
        "splits": f"seed {recipe.seed}",
        "errors": {},
        "training": {**trained.about, "cpu_s": round(cpu_s, 1)},
    }
    layout = layout_of(recipe.task, recipe.slots)
    write_bundle(path, recipe.task, trained.net, layout, trained.rules, card)
    state.unlink(missing_ok=True)
    about = {key: trained.about[key] for key in trained.about if key != "recipe"}
    print(f"{path}: {path.stat().st_size:,} bytes, {cpu_s:.1f} s of CPU time, {about}", flush=True)


def bundled(path: Path) -> Policy:
    """The policy of a bundle."""
    bundle = read_bundle(path)
    return policy_of(bundle.task, bundle.net, bundle.layout.slots, bundle.rules)


def taught(task: Task, name: str, slots: int = 16) -> Policy:
    """The policy of a teacher, choosing in the place of a network."""
    teacher = ByTeacher(TEACHERS[task][name], layout_of(task, slots))
    return policy_of(task, teacher, slots, rules_of(task))


def test(path: Path, scenes: Sequence[Scene], make: Callable[[], Policy]) -> None:
    """One policy in all scenes, unless that was done."""
    if path.exists():
        return
    began = process_time()
    rows = [{"scene": one.trace.name, **asdict(run_scene(one, make()))} for one in scenes]
    path.write_text(json.dumps(rows))
    print(f"{path.stem}: {len(rows)} scenes, {process_time() - began:.1f} s of CPU", flush=True)


def report(
    paths: Mapping[str, Sequence[Path]],
    against: str,
    columns: Mapping[str, Callable[[Figures], float]],
) -> None:
    """Every policy over one of them: ratios of means over its seeds, scene by scene, with 95 %
    intervals over scenes; then how many scenes are worse by more than half a percent."""
    told = {
        name: [[_figures(row) for row in json.loads(path.read_text())] for path in members]
        for name, members in paths.items()
        if all(path.exists() for path in members)
    }
    base = told[against][0]
    names = [row["scene"] for row in json.loads(paths[against][0].read_text())]
    heads = "".join(f"{title:>20}" for title in columns)
    print(f"{'of ' + against:14}{heads}   worse in   jct_h")
    ratios: dict[str, list[float]] = {}
    for name, seeds in told.items():
        line = f"{name:14}"
        for title, get in columns.items():
            found = [
                float(np.mean([get(one[k]) for one in seeds])) / max(get(base[k]), 1e-9)
                for k in range(len(base))
                if get(base[k]) > 0
            ]
            mean, half = interval(found)
            line += f"{mean:12.3f} ± {half:.3f}"
            if title == "jct":
                ratios[name] = found
        worse = sum(one > 1.005 for one in ratios[name])
        hours = np.mean([one.avg_jct_s for seed in seeds for one in seed]) / 3600
        print(f"{line}   {worse:3} of {len(base):3} {hours:7.2f}")
        if len(seeds) > 1:
            each = [
                np.mean([a.avg_jct_s / b.avg_jct_s for a, b in zip(one, base, strict=True)])
                for one in seeds
            ]
            mean, half = interval([float(one) for one in each])
            print(f"{'':14}jct by seed: {mean:.3f} ± {half:.3f} (95 % over {len(seeds)} seeds)")
    for name in paths:
        if name in ratios and len(told[name]) > 1:
            for scene, ratio in zip(names, ratios[name], strict=True):
                print(f"  {scene:44} jct {ratio:.3f}")


def _figures(row: Mapping[str, float]) -> Figures:
    return Figures(**{key: value for key, value in row.items() if key != "scene"})
