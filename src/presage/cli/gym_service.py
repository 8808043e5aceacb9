"""`presage gym train-service` and `evaluate-service`: how many replicas a service needs.

The commands read, compose and print; `presage.gym` trains and evaluates.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from presage.cli._output import check_file, print_json, progress, say
from presage.cli._tables import Column, show_table
from presage.model.errors import UserError

if TYPE_CHECKING:
    from presage.gym.service_loads import DutyPods, ServiceWorlds
    from presage.gym.services import ReplicaRule, ServiceScene

__all__ = ["evaluate_service", "train_service_rule"]

_KINDS = ("all", "light", "heavy")
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Telemetry = Annotated[
    Path | None,
    typer.Option(
        help="GPU use of serving pods; its shape is the load.", show_default="made loads"
    ),
]
Pods = Annotated[
    str, typer.Option(help="Which pods of it: all, light or heavy (busy for long stretches).")
]


def train_service_rule(
    out: Annotated[Path, typer.Option(help="The bundle to write: FILE.npz.")],
    telemetry: Telemetry = None,
    pods: Pods = "all",
    algo: Annotated[str, typer.Option(help="imitate or search; it imitates first.")] = "search",
    seed: Annotated[int, typer.Option(min=0, help="The same seed trains the same rule.")] = 0,
    choices: Annotated[
        int, typer.Option(min=100, help="Choices of the best rule to imitate.")
    ] = 3000,
    generations: Annotated[int, typer.Option(min=1, help="Of search.")] = 10,
    hours: Annotated[float, typer.Option(min=0.1, help="Length of one episode.")] = 3.0,
    late: Annotated[
        float, typer.Option(min=0, help="GPU seconds that one late request is worth.")
    ] = 300.0,
    version: Annotated[str, typer.Option(help="What this training is called.")] = "1",
    json: Json = False,
) -> None:
    """Train how many replicas a service needs, and write it as a bundle: arrays, no code.

    A training that was stopped goes on where it was when the command is given again.
    """
    from presage.gym.service_learned import read_service_bundle, write_service_bundle
    from presage.gym.service_training import SERVICE_ALGORITHMS, ServiceRecipe, train_service
    from presage.gym.services import ServicePrices

    check_file(out, "--out")
    chosen = next((one for one in SERVICE_ALGORITHMS if one == algo), None)
    if chosen is None:
        raise UserError(f"there is no --algo {algo}; there are: {', '.join(SERVICE_ALGORITHMS)}")
    prices = ServicePrices(late=late, unserved=2 * late)
    recipe = ServiceRecipe(chosen, seed, choices=choices, generations=generations, prices=prices)
    state = out.with_name(f"{out.name}.state")
    worlds = _worlds(telemetry, pods, hours)
    if state.exists() and algo == "search":
        say(f"{state} is there: going on where that training was stopped")
    began = time.process_time()
    with progress(f"train {algo}") as shown:
        trained = train_service(
            recipe,
            worlds,
            state=state if algo == "search" else None,
            report=lambda stage, done, total: shown(done, total),
        )
    cpu_s, about = time.process_time() - began, dict(trained.about)
    card = {
        "name": out.stem,
        "version": version,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "data": "made loads" if telemetry is None else f"{telemetry.name}, {pods} pods",
        "licence": "that of the telemetry it was trained on",
        "splits": f"scenes drawn with seed {seed}",
        "errors": about.get("costs", {}),
        "training": about,
    }
    write_service_bundle(out, trained.net, trained.rules, card)
    state.unlink(missing_ok=True)
    bundle = read_service_bundle(out)
    if json:
        made = {"bundle": str(out), "name": bundle.name, "version": version}
        print_json({**made, "digest": bundle.digest, "cpu_s": round(cpu_s, 1), **about})
        return
    typer.echo(f"wrote {out}: {out.stat().st_size:,} bytes, digest {bundle.digest[:12]}")
    taught = f"{about['teacher']} {about['setting']:g}"
    say(f"taught by {taught}, chooses as it does in {about['agrees']:.1%} of cases")
    if "costs" in about:
        costs = ", ".join(f"{name} {cost:+.3f}" for name, cost in about["costs"].items())
        say(f"against it in scenes not seen: {costs}; below 0 is better; kept: {about['kept']}")
    say(f"{cpu_s:.0f} s of CPU time; next: presage gym evaluate-service {out}")


def evaluate_service(
    bundle: Annotated[
        Path | None,
        typer.Argument(help="What `presage gym train-service` wrote.", show_default="rules alone"),
    ] = None,
    telemetry: Telemetry = None,
    pods: Pods = "all",
    services: Annotated[int, typer.Option(min=1, help="Services to draw.")] = 4,
    peak: Annotated[
        float | None,
        typer.Option(min=0.1, help="Replicas busy at its peak.", show_default="3 to 30"),
    ] = None,
    service_s: Annotated[
        float | None,
        typer.Option(min=0.01, help="Seconds that a request takes.", show_default="5 to 20"),
    ] = None,
    startup_s: Annotated[float, typer.Option(min=0, help="Start-up of a replica.")] = 120.0,
    targets: Annotated[
        str, typer.Option(help="Targets of utilization to compare with.")
    ] = "0.3,0.4,0.5,0.6,0.7,0.8",
    leans: Annotated[
        str, typer.Option(help="Factors on the load that the bundle sees.")
    ] = "0.8,1,1.25",
    seed: Annotated[int, typer.Option(min=0, help="Which services and requests.")] = 1000,
    json: Json = False,
) -> None:
    """How many replicas would have been needed: cost against late requests, for Kubernetes'
    autoscaler at several targets, and for a learned rule.

    The first row is the smallest number that, never changed, has at most one late request in 100.
    """
    from presage.gym.service_learned import LearnedReplicas, read_service_bundle
    from presage.gym.service_rules import FixedCount, TargetUse

    ranges = {"peak": peak, "service_s": service_s, "startup_s": startup_s}
    scenes = _scenes(_worlds(telemetry, pods, None, ranges), services, seed)
    rules: dict[str, Callable[[ServiceScene], ReplicaRule]] = {
        "fixed": lambda scene: FixedCount(_fewest(scene))
    }
    for target in _numbers(targets, "--targets"):
        rules[f"hpa:{target:g}"] = partial(_one_for_all, TargetUse, target)
    if bundle is not None:
        kept = read_service_bundle(bundle)
        for lean in _numbers(leans, "--leans"):
            own = {**kept.rules, "lean": kept.rules["lean"] * lean}
            name = kept.name if lean == 1 else f"{kept.name}×{lean:g}"
            rules[name] = partial(_one_for_all, LearnedReplicas, kept.net, own)
    rows = []
    with progress("evaluate") as shown:
        for number, (name, make) in enumerate(rules.items()):
            shown(number, len(rules))
            rows.append({"rule": name, **_row(scenes, make)})
    if json:
        print_json({"services": [one.curve.name for one in scenes], "rules": rows})
        return
    titles = ("GPU-HOURS", "REPLICAS", "LATE", "UNSERVED", "CHANGES/H")
    show_table(
        [Column("RULE"), *(Column(title, right=True) for title in titles)],
        [
            [
                row["rule"],
                f"{row['gpu_hours']:,.1f}",
                f"{row['replicas']:.1f}",
                f"{row['late']:.2%}",
                f"{row['unserved']:.2%}",
                f"{row['changes_an_hour']:.1f}",
            ]
            for row in rows
        ],
    )
    hours = sum(one.curve.length_s for one in scenes) / 3600
    say(f"{len(scenes)} services, {hours:.0f} hours; late is who waits for more than 10 s")


def _one_for_all(make: Callable[..., ReplicaRule], *given: Any) -> ReplicaRule:
    """A fresh rule; the last that is given is the scene, which it does not look at."""
    return make(*given[:-1])


def _row(
    scenes: list[ServiceScene], make: Callable[[ServiceScene], ReplicaRule]
) -> dict[str, Any]:
    from presage.gym.services import play

    told = [play(scene, make(scene)) for scene in scenes]
    hours = sum(one.curve.length_s for one in scenes) / 3600
    requests = max(sum(count for _, count in told), 1)
    gpu_hours = sum(parts.gpu_s for parts, _ in told) / 3600
    return {
        "gpu_hours": gpu_hours,
        "replicas": gpu_hours / hours,
        "late": sum(parts.late for parts, _ in told) / requests,
        "unserved": sum(parts.unserved for parts, _ in told) / requests,
        "changes_an_hour": sum(parts.changes for parts, _ in told) / hours,
    }


def _fewest(scene: ServiceScene) -> int:
    """The smallest fixed number with at most one request in 100 late or unserved."""
    from presage.gym.service_rules import FixedCount
    from presage.gym.services import play

    low, high = scene.setting.least, scene.setting.most
    while low < high:
        middle = (low + high) // 2
        parts, requests = play(scene, FixedCount(middle))
        if parts.late + parts.unserved <= requests / 100:
            high = middle
        else:
            low = middle + 1
    return low


def _numbers(text: str, option: str) -> list[float]:
    try:
        numbers = [float(one) for one in text.split(",") if one.strip()]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) <= 0 or max(numbers) > 10:
        raise UserError(f"{option} {text}: give numbers above 0, such as 0.5,0.7")
    return numbers


def _scenes(worlds: ServiceWorlds, count: int, seed: int) -> list[ServiceScene]:
    import numpy as np

    rng = np.random.default_rng(seed)
    return [worlds.draw(rng) for _ in range(count)]


def _worlds(
    telemetry: Path | None,
    pods: str,
    hours: float | None,
    ranges: dict[str, float | None] | None = None,
) -> ServiceWorlds:
    """Services like those in the telemetry, or made ones; `hours` of each, or all there is."""
    from presage.gym.service_loads import MadeLoads, PodLoads, duty_pods

    given: dict[str, Any] = {
        name: (one, one) for name, one in (ranges or {}).items() if one is not None
    }
    if telemetry is None:
        if pods != "all":
            raise UserError(f"--pods {pods} needs --telemetry")
        return MadeLoads(24.0 if hours is None else hours, **given)
    if pods not in _KINDS:
        raise UserError(f"there is no --pods {pods}; there are: {', '.join(_KINDS)}")
    return PodLoads(_pods_of(duty_pods(telemetry), pods, telemetry), hours, **given)


def _pods_of(pods: DutyPods, kind: str, path: Path) -> DutyPods:
    if kind == "all":
        return pods
    wanted = [heavy == (kind == "heavy") for heavy in pods.heavy()]
    if not any(wanted):
        raise UserError(f"{path} has no {kind} pods; leave --pods out")
    return pods.only(wanted)
