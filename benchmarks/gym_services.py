"""Learned numbers of replicas against Kubernetes' autoscaler and simple rules, on services that
were not trained on.

The load comes from the GPU duty cycles of serving pods (one day, 79 pods of 600 samples or more).
Two kinds of pods are told apart by a stated rule (`DutyPods.heavy`); a rule is trained on services
of one kind and tested on those of the other, both ways, since pods of one kind follow one curve
and would give it away. Every rule sees the same requests. What is done already (files in `--out`)
is not done again.

    PRESAGE_DATA=... python -m benchmarks.gym_services [--seeds 0,1,2,3,4] [--services 8]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import process_time

import numpy as np

from benchmarks._data import shared
from presage.gym.evaluate import interval
from presage.gym.service_learned import (
    LearnedReplicas,
    read_service_bundle,
    write_service_bundle,
)
from presage.gym.service_loads import DutyPods, PodLoads, duty_pods
from presage.gym.service_rules import RULES, Stabilized, TargetUse, rule_of
from presage.gym.service_training import ServiceRecipe, train_service
from presage.gym.services import ReplicaRule, ServiceScene, play

FOLDS = (("light", "heavy"), ("heavy", "light"))
"""Trained on, tested on."""
LEANS = (0.85, 1.0, 1.15)
WINDOWS = (60.0, 150.0, 600.0)
"""Of an autoscaler that somebody tuned, beside the default of 300 s."""


@dataclass(frozen=True)
class Point:
    """One rule in all services: a number for each."""

    name: str
    gpu_h: np.ndarray
    late: np.ndarray
    """Requests that waited too long, whether they were served or not."""
    unserved: np.ndarray
    changes: np.ndarray
    requests: np.ndarray
    work_h: np.ndarray

    @property
    def hours(self) -> float:
        """GPU hours for each GPU hour of work."""
        return float(self.gpu_h.sum() / self.work_h.sum())

    @property
    def share(self) -> float:
        """Of all requests, the late ones."""
        return float(self.late.sum() / self.requests.sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--services", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("gym-services"))
    parser.add_argument("--only", choices=("train", "report"))
    given = parser.parse_args()
    given.out.mkdir(exist_ok=True)
    seeds = [int(one) for one in given.seeds.split(",")]
    pods = kinds()
    for trained, _ in FOLDS:
        for seed in seeds:
            train(given.out, pods, trained, seed)
    if given.only != "train":
        for trained, tested in FOLDS:
            report(given.out, pods, trained, tested, seeds, given.services)


def kinds() -> dict[str, DutyPods]:
    pods = duty_pods(shared("telemetry/genai_pod_gpu_duty_cycle.parquet"))
    heavy = pods.heavy()
    return {"heavy": pods.only(heavy), "light": pods.only([not one for one in heavy])}


def bundle_of(out: Path, kind: str, seed: int) -> Path:
    return out / f"{kind}-{seed}.npz"


def train(out: Path, pods: dict[str, DutyPods], kind: str, seed: int) -> None:
    """One bundle, unless it is there."""
    path = bundle_of(out, kind, seed)
    if path.exists():
        return
    began = process_time()
    trained = train_service(ServiceRecipe(seed=seed), PodLoads(pods[kind]))
    cpu_s = process_time() - began
    card = {
        "name": "service",
        "version": "1",
        "date": "",
        "data": f"duty cycles of {len(pods[kind].names)} serving pods ({kind})",
        "licence": "none stated: not shipped",
        "splits": f"seed {seed}; {kind} pods",
        "errors": {},
        "training": {**trained.about, "cpu_s": round(cpu_s, 1)},
    }
    write_service_bundle(path, trained.net, trained.rules, card)
    about = {key: value for key, value in trained.about.items() if key != "recipe"}
    about["curve"] = [round(one, 3) for one in about["curve"]]
    size = path.stat().st_size
    print(f"{path}: {size:,} bytes, {cpu_s:.0f} s of CPU time, {about}", flush=True)


def services(pods: DutyPods, count: int) -> list[ServiceScene]:
    """What is tested on: whole days."""
    worlds, rng = PodLoads(pods, hours=None, startup_s=(120.0, 120.0)), np.random.default_rng(1000)
    return [worlds.draw(rng) for _ in range(count)]


def point(name: str, scenes: list[ServiceScene], make: Callable[[], ReplicaRule]) -> Point:
    told = [play(scene, make()) for scene in scenes]
    work = [n * one.setting.service_s / 3600 for (_, n), one in zip(told, scenes, strict=True)]
    return Point(
        name,
        np.array([parts.gpu_s / 3600 for parts, _ in told]),
        np.array([parts.late + parts.unserved for parts, _ in told]),
        np.array([parts.unserved for parts, _ in told]),
        np.array([parts.changes for parts, _ in told]),
        np.array([requests for _, requests in told]),
        np.array(work),
    )


def tuned(target: float, window_s: float) -> ReplicaRule:
    rule = TargetUse(target)
    rule.stable = Stabilized(window_s)
    return rule


def report(
    out: Path, pods: dict[str, DutyPods], trained: str, tested: str, seeds: list[int], count: int
) -> None:
    scenes = services(pods[tested], count)
    print(
        f"\ntrained on {trained} pods, tested on {count} services of {tested} pods, one day each"
    )
    print(f"{'rule':22} GPU h per h of work   late %  unserved %  changes per service and hour")
    targets = RULES["hpa"][1]
    hpa = [point(f"hpa {k:g}", scenes, partial(TargetUse, k)) for k in targets]
    others: dict[str, list[Point]] = {"hpa": hpa}
    for w in WINDOWS:
        name = f"hpa, window {w:g} s"
        others[name] = [point(f"{name} {k:g}", scenes, partial(tuned, k, w)) for k in targets]
    for name in ("in-flight", "trend", "root"):
        knobs = RULES[name][1]
        others[name] = [point(f"{name} {k:g}", scenes, partial(rule_of, name, k)) for k in knobs]
    hours = sum(one.curve.length_s for one in scenes) / 3600
    for one in (*hpa[2:15:2], *others["root"]):
        line(one, hours)
    mine: dict[float, list[Point]] = {}
    for lean in LEANS:
        mine[lean] = []
        for seed in seeds:
            bundle = read_service_bundle(bundle_of(out, trained, seed))
            rules = {**bundle.rules, "lean": bundle.rules["lean"] * lean}
            made = point(
                f"learned {seed} × {lean:g}",
                scenes,
                partial(LearnedReplicas, bundle.net, rules),
            )
            mine[lean].append(made)
            if lean == 1.0:
                line(made, hours)
    for lean in LEANS:
        use = interval([one.hours for one in mine[lean]])
        late = interval([100 * one.share for one in mine[lean]])
        print(f"learned × {lean:g}: {use[0]:.2f} ± {use[1]:.2f} GPU h", end="")
        print(f", {late[0]:.2f} ± {late[1]:.2f} % late")
    for name, points in others.items():
        compare(name, points, mine[1.0])


def line(one: Point, hours: float) -> None:
    share = 100 * one.unserved.sum() / one.requests.sum()
    print(
        f"{one.name:22} {one.hours:12.2f} {100 * one.share:15.2f} {share:11.3f} "
        f"{one.changes.sum() / hours:9.1f}"
    )


def compare(name: str, points: list[Point], mine: list[Point]) -> None:
    """The learned rule against the line through the settings of another: as late at the same GPU
    hours, as many GPU hours at the same lateness, in all and by service."""
    rows = {}
    for title, of in (("all", slice(None)), *((f"{k}", slice(k, k + 1)) for k in range(8))):
        if title != "all" and int(title) >= len(mine[0].gpu_h):
            continue
        hours = np.array([np.log(one.gpu_h[of].sum()) for one in points])
        late = np.array([np.log(one.late[of].sum() + 0.5) for one in points])
        order, back = np.argsort(hours), np.argsort(late)
        at = [np.log(one.gpu_h[of].sum()) for one in mine]
        mine_late = [np.log(one.late[of].sum() + 0.5) for one in mine]
        rows[title] = (
            np.exp(np.array(mine_late) - np.interp(at, hours[order], late[order])),
            np.exp(np.array(at) - np.interp(mine_late, late[back], hours[back])),
            [bool(hours.min() <= x <= hours.max()) for x in at],
        )
    lateness, spent = interval(rows["all"][0].tolist()), interval(rows["all"][1].tolist())
    inside = all(all(one[2]) for one in rows.values())
    by = [key for key in rows if key != "all"]
    of_late = interval([float(np.log(rows[key][0]).mean()) for key in by])
    of_spent = interval([float(np.log(rows[key][1]).mean()) for key in by])
    print(
        f"against {name}: at equal GPU hours {lateness[0]:.2f} ± {lateness[1]:.2f} of its late "
        f"requests, at equal lateness {spent[0]:.3f} ± {spent[1]:.3f} of its GPU hours "
        "(95 % over seeds)" + ("" if inside else "; at the end of its line for some")
    )
    print(
        f"    by service: {np.exp(of_late[0]):.2f} (× {np.exp(of_late[1]):.2f} either way) and "
        f"{np.exp(of_spent[0]):.3f} (× {np.exp(of_spent[1]):.3f}; 95 % over {len(by)} services)"
    )


if __name__ == "__main__":
    main()
