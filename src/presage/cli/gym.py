"""`presage gym`: train a policy in the simulator, and compare it with heuristics.

The commands read, compose and print; `presage.gym` trains and evaluates.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from presage.cli._input import listed
from presage.cli._output import check_file, print_json, progress, say
from presage.cli._tables import Column, show_table
from presage.cli.gym_service import evaluate_service, train_service_rule
from presage.model.errors import UserError
from presage.model.words import duration

if TYPE_CHECKING:
    from presage.gym.worlds import Scene, Worlds
    from presage.policy.learned.net import Task

__all__ = ["gym"]

gym = typer.Typer(help="Train policies in the simulator, and compare them.", no_args_is_help=True)
gym.command("train-service")(train_service_rule)
gym.command("evaluate-service")(evaluate_service)

_FEWEST_JOBS = 50
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


@gym.command()
def train(
    out: Annotated[Path, typer.Option(help="The bundle to write: FILE.npz.")],
    task: Annotated[
        str,
        typer.Option(
            help="What to decide: order (who starts next), scale (which elastic job gets or gives "
            "workers) or share (who goes with whom on a GPU)."
        ),
    ] = "order",
    algo: Annotated[
        str, typer.Option(help="imitate, search, ppo, a2c or dqn; each imitates first.")
    ] = "imitate",
    trace: Annotated[
        list[Path] | None,
        typer.Option(help="Train on its weeks, too; may be given again.", show_default="none"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed trains the same policy.")] = 0,
    choices: Annotated[
        int, typer.Option(min=100, help="Choices of the best heuristic to imitate.")
    ] = 4000,
    generations: Annotated[int, typer.Option(min=1, help="Of search.")] = 8,
    steps: Annotated[int, typer.Option(min=1, help="Decisions, for ppo, a2c and dqn.")] = 50_000,
    jobs: Annotated[
        int, typer.Option(min=_FEWEST_JOBS, help="Jobs of one episode at most.")
    ] = 800,
    version: Annotated[str, typer.Option(help="What this training is called.")] = "1",
    tensorboard: Annotated[
        Path | None, typer.Option(help="Directory for the curves of ppo, a2c and dqn.")
    ] = None,
    json: Json = False,
) -> None:
    """Train a policy and write it as a bundle: arrays, no code.

    A training that was stopped goes on where it was when the command is given again.
    """
    from presage.gym.training import ALGORITHMS, Recipe, train_policy
    from presage.policy.learned.net import TASKS, read_bundle, write_bundle

    check_file(out, "--out")
    chosen = next((one for one in ALGORITHMS if one == algo), None)
    if chosen is None:
        raise UserError(f"there is no --algo {algo}; there are: {', '.join(ALGORITHMS)}")
    what = next((one for one in TASKS if one == task), None)
    if what is None:
        raise UserError(f"there is no --task {task}; there are: {', '.join(TASKS)}")
    recipe = Recipe(what, chosen, seed, choices=choices, generations=generations, steps=steps)
    state = out.with_name(f"{out.name}.state")
    if state.exists():
        say(f"{state} is there: going on where that training was stopped")
    began = time.process_time()
    with progress(f"train {algo}") as shown:
        trained = train_policy(
            recipe,
            _worlds(what, trace or [], jobs),
            state=None if algo == "imitate" else state,
            tensorboard=tensorboard,
            report=lambda stage, done, total: shown(done, total),
        )
    cpu_s = time.process_time() - began
    about = dict(trained.about)
    data = ["made traces", *(path.name for path in trace or [])]
    card = {
        "name": out.stem,
        "version": version,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "data": ", ".join(data),
        "licence": "that of the traces it was trained on",
        "splits": f"scenes drawn with seed {seed}",
        "errors": {key: about[key] for key in about if key.startswith(("cost", "agrees"))},
        "training": about,
    }
    from presage.gym.tasks import layout_of

    write_bundle(out, what, trained.net, layout_of(what, recipe.slots), trained.rules, card)
    state.unlink(missing_ok=True)
    bundle = read_bundle(out)
    if json:
        made = {"bundle": str(out), "name": bundle.name, "version": version}
        print_json({**made, "digest": bundle.digest, "cpu_s": round(cpu_s, 1), **about})
        return
    typer.echo(f"wrote {out}: {out.stat().st_size:,} bytes, digest {bundle.digest[:12]}")
    say(f"taught by {about['teacher']}, chooses as it does in {about['agrees']:.1%} of cases")
    if "cost_improved" in about:
        kept = (
            "kept" if about["cost_improved"] < about["cost_imitated"] else "not better: left out"
        )
        say(
            f"against the best heuristic in scenes not seen: imitated "
            f"{about['cost_imitated']:+.3f}, improved {about['cost_improved']:+.3f} ({kept}); "
            "below 0 is better"
        )
    say(f"{cpu_s:.0f} s of CPU time; next: presage gym evaluate {out} --trace TRACE")


@gym.command()
def evaluate(
    bundle: Annotated[Path, typer.Argument(help="A bundle that `presage gym train` wrote.")],
    trace: Annotated[Path, typer.Option(help="A trace: Parquet, CSV or JSON lines.")],
    cluster: Annotated[
        str | None,
        typer.Option(help="30x8, or a file.", show_default="as large as --load says"),
    ] = None,
    load: Annotated[
        float,
        typer.Option(
            min=0.05, max=20, help="Work offered for each GPU second, without --cluster."
        ),
    ] = 1.0,
    weeks: Annotated[
        bool, typer.Option("--weeks", help="Each week of the trace by itself, with intervals.")
    ] = False,
    queue: Annotated[str | None, typer.Option(help="Jobs of one queue only.")] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="Policies to compare with.",
            show_default="fifo,sjf,tiresias,qssf; for scale gain,triggers; for share "
            "colocate,alone",
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Draws what scale and share need and a trace does not say.")
    ] = 0,
    json: Json = False,
) -> None:
    """Compare a trained policy with others on a trace; none of them knows true run times."""
    from presage.gym.evaluate import BASELINES, Figures, best_of, interval, run_scene
    from presage.gym.jobs import scene_for
    from presage.policy import registry
    from presage.policy.learned.net import read_bundle

    name, task = f"learned:{bundle}", read_bundle(bundle).task
    configs = {name: registry.policy_config(name)}
    others = list(BASELINES[task]) if against is None else listed(against, "--against")
    known = {**registry.NAMED, **BASELINES[task]}
    configs |= {one: registry.policy_config(one, known) for one in others}
    scenes = [scene_for(task, one, seed) for one in _scenes(trace, cluster, load, weeks, queue)]
    runs: list[dict[str, Figures]] = []
    with progress("evaluate") as shown:
        for number, scene in enumerate(scenes):
            shown(number, len(scenes))
            done = {
                key: run_scene(scene, registry.build(one), key) for key, one in configs.items()
            }
            runs.append(done)
    rows: list[dict[str, Any]] = []
    for key in configs:
        jct = interval([one[key].avg_jct_s / one[best_of(one, others)].avg_jct_s for one in runs])
        p99 = interval([one[key].p99_jct_s / one[best_of(one, others)].p99_jct_s for one in runs])
        rows.append(
            {
                "policy": key,
                "avg_jct_s": sum(one[key].avg_jct_s for one in runs) / len(runs),
                "p99_jct_s": sum(one[key].p99_jct_s for one in runs) / len(runs),
                "jct_of_best": jct[0],
                "jct_of_best_95": None if jct[1] != jct[1] else jct[1],
                "p99_of_best": p99[0],
                "avg_wait_s": sum(one[key].avg_wait_s for one in runs) / len(runs),
                "makespan_s": sum(one[key].makespan_s for one in runs) / len(runs),
                "stops": sum(one[key].preemptions for one in runs) / len(runs),
            }
        )
    if json:
        print_json({"scenes": [scene.trace.name for scene in scenes], "policies": rows})
        return
    columns = [
        Column("POLICY"),
        *(Column(title, right=True) for title in ("AVG-JCT", "P99-JCT", "JCT/BEST", "P99/BEST")),
        *(Column(title, right=True) for title in ("AVG-WAIT", "STOPS")),
    ]
    show_table(columns, [_row(row) for row in rows])
    one = scenes[0]
    about = f"{one.trace.jobs.height:,} jobs on {len(one.nodes)} nodes"
    say(f"{len(scenes)} weeks" if weeks else about)
    say("BEST is the lowest average completion time among the policies it is compared with")


def _row(row: dict[str, Any]) -> list[str]:
    off = row["jct_of_best_95"]
    return [
        row["policy"],
        duration(row["avg_jct_s"]),
        duration(row["p99_jct_s"]),
        f"{row['jct_of_best']:.3f}" + ("" if off is None else f" ± {off:.3f}"),
        f"{row['p99_of_best']:.3f}",
        duration(row["avg_wait_s"]),
        f"{row['stops']:,.0f}",
    ]


def _worlds(task: Task, traces: list[Path], jobs: int) -> Worlds:
    """Made traces, and the weeks of those that were given as often."""
    from presage.gym.jobs import for_task
    from presage.gym.worlds import Generated, weeks_of
    from presage.sim.traces import read_trace

    made = Generated(jobs=(max(jobs // 4, _FEWEST_JOBS), jobs), nodes=(1, 24))
    weeks = tuple(week for path in traces for week in weeks_of(read_trace(path)))
    if traces and not weeks:
        raise UserError(
            f"no trace has a week with {_FEWEST_JOBS} jobs or more; leave --trace out to train on "
            "made traces"
        )
    return for_task(task, made, weeks, jobs)


def _scenes(
    trace: Path, cluster: str | None, load: float, weeks: bool, queue: str | None
) -> list[Scene]:
    from presage.gym.worlds import Scene, of_queue, sized, weeks_of
    from presage.sim.clusters import Cluster
    from presage.sim.traces import read_trace

    whole = read_trace(trace)
    parts = weeks_of(whole, queue) if weeks else [of_queue(whole, queue)]
    if not parts:
        raise UserError(f"{trace} has no week with {_FEWEST_JOBS} jobs or more; leave --weeks out")
    if cluster is None:
        return [sized(part, load) for part in parts]
    nodes = Cluster(cluster)
    return [Scene(part, nodes) for part in parts]
