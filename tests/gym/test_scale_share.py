"""The tasks scale and share: their worlds, their environments, teachers that do what they are
called after, and training them by command."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import polars as pl
import pytest
from gymnasium.utils.env_checker import check_env
from typer.testing import CliRunner

from presage.cli.main import app
from presage.gym.episode import ClusterEpisode
from presage.gym.evaluate import BASELINES, policy_of, run_scene
from presage.gym.jobs import ElasticJobs, SharingJobs, elastic, for_task, scene_for, sharing
from presage.gym.search import NetSearch, baselines
from presage.gym.tasks import layout_of, maker, rules_of
from presage.gym.teachers import TEACHERS, ByTeacher, choice
from presage.gym.training import Recipe, best_teacher, train_policy
from presage.gym.worlds import Generated, Scene, Worlds
from presage.model.errors import TraceError
from presage.policy.learned.net import Net, Task
from presage.policy.registry import build
from presage.sim.clusters import Cluster
from presage.sim.generate import make_trace

NODES = Cluster("2x8")
WORLDS: dict[Task, Worlds] = {
    "scale": ElasticJobs(Generated(jobs=(20, 30), nodes=(1, 1), load=(0.6, 0.9))),
    "share": SharingJobs(Generated(jobs=(30, 40), nodes=(1, 1), load=(1.2, 1.5))),
}
BOTH = pytest.mark.parametrize("task", ["scale", "share"])


def scene(task: Task, jobs: int = 70, seed: int = 3, load: float = 0.9) -> Scene:
    trace = make_trace("poisson", jobs, seed, NODES.gpus, load)
    clipped = pl.col("duration_s").clip(60.0, 7200.0)
    scale = clipped.mean() / pl.col("duration_s").mean()  # the load stays what it was
    short = trace.jobs.with_columns(duration_s=clipped, submit_s=pl.col("submit_s") * scale)
    return scene_for(task, Scene(replace(trace, jobs=short), NODES), seed)


def played(task: Task, given: Scene, name: str) -> ClusterEpisode:
    """A whole episode as a teacher chooses; states on the way are sound ones."""
    choose = choice(TEACHERS[task][name], layout_of(task))
    episode, passes = ClusterEpisode(given, maker(task)), 0
    while episode.go_on():
        while episode.chooser.can_choose:
            episode.chooser.choose(choose(episode.chooser.observation))
        passes += 1
        if passes % 20 == 0:
            episode.state.check()
    assert not episode.world.tasks
    return episode


@BOTH
def test_gymnasium_finds_nothing_wrong(task: Task) -> None:
    name = f"presage.gym.envs:presage/{task.capitalize()}-v0"
    made = gymnasium.make(name, worlds=WORLDS[task])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(made.unwrapped, skip_render_check=True)


@BOTH
def test_an_episode_is_a_simulation(task: Task) -> None:
    """Driven from outside by a network, jobs take as long as under the policy of that network."""
    given, layout = scene(task), layout_of(task)
    net = Net.random(layout, 5, np.random.default_rng(2))
    episode = ClusterEpisode(given, maker(task))
    asked = 0
    while episode.go_on():
        while episode.chooser.can_choose:
            seen = episode.chooser.observation
            assert (seen >= 0).all()
            asked += 1
            episode.chooser.choose(net.choose(seen, layout))
    done = run_scene(given, policy_of(task, net, layout.slots, rules_of(task)))
    assert asked > 30
    assert episode.parts.jct * 3600 / 70 == pytest.approx(done.avg_jct_s)
    assert episode.parts.wait * 3600 / 70 == pytest.approx(done.avg_wait_s, rel=1e-6, abs=1e-6)
    assert episode.parts.stops == done.preemptions


def test_choosing_by_cost_is_colocate() -> None:
    given = scene("share", jobs=120, load=1.4)
    episode = played("share", given, "colocate")
    known = run_scene(given, build(BASELINES["share"]["colocate"]))
    assert episode.parts.jct * 3600 / 120 == pytest.approx(known.avg_jct_s)
    assert known.avg_jct_s < run_scene(given, build(BASELINES["share"]["alone"])).avg_jct_s


def test_a_teacher_can_decide_in_the_place_of_a_network() -> None:
    given, layout = scene("share", jobs=60, load=1.4), layout_of("share")
    teacher = ByTeacher(TEACHERS["share"]["least-busy"], layout)
    done = run_scene(given, policy_of("share", teacher, layout.slots, rules_of("share")))
    episode = played("share", given, "least-busy")
    assert done.avg_jct_s == pytest.approx(episode.parts.jct * 3600 / 60)
    assert done.avg_jct_s != run_scene(given, build(BASELINES["share"]["colocate"])).avg_jct_s


def test_who_never_shares_shares_never() -> None:
    given = scene("share", jobs=60, load=1.4)
    choose = choice(TEACHERS["share"]["never"], layout_of("share"))
    episode = ClusterEpisode(given, maker("share"))
    waited = 0
    while episode.go_on():
        while episode.chooser.can_choose:
            action = choose(episode.chooser.observation)
            waited += action == layout_of("share").choices - 1
            episode.chooser.choose(action)
        spots = [
            (worker.node, worker.devices)
            for job in episode.state.active.values()
            for worker in job.allocation
        ]
        assert len(spots) == len(set(spots))
    assert waited
    assert not episode.world.tasks


def test_scaling_by_gain_is_about_as_good_as_elastic() -> None:
    scenes = [scene("scale", seed=seed) for seed in range(4)]
    ratios = []
    for given in scenes:
        known = run_scene(given, build(BASELINES["scale"]["gain"]))
        ratios.append(played("scale", given, "gain").parts.jct * 3600 / 70 / known.avg_jct_s)
    assert 0.93 < np.mean(ratios) < 1.07


def test_nothing_resizes_nobody() -> None:
    given = scene("scale")
    idle = played("scale", given, "nothing")
    assert idle.parts.resizes == 0
    busy = played("scale", given, "gain")
    assert busy.parts.resizes > 10
    assert busy.parts.jct < idle.parts.jct


def test_triggers_wait_as_long_as_they_say() -> None:
    """A job that nobody makes room for at once waits 30 s or more, unless somebody ends."""
    given = scene("scale", jobs=60)
    waits = {}
    for name in ("gain", "triggers"):
        waits[name] = played("scale", given, name).parts.wait
    assert waits["triggers"] > waits["gain"]


def test_a_recipe_trains_one_policy() -> None:
    recipe = Recipe("scale", choices=60, hidden=4)
    first, again = (train_policy(recipe, WORLDS["scale"]) for _ in range(2))
    assert (first.net.flat() == again.net.flat()).all()
    assert first.about["teacher"] in TEACHERS["scale"]


def test_the_worst_teacher_is_not_chosen() -> None:
    assert best_teacher("scale", [scene("scale", jobs=40)]) != "nothing"


@BOTH
def test_a_search_tries_numbers_that_are_allowed(task: Task) -> None:
    scenes = [scene(task, jobs=40)]
    net = Net.random(layout_of(task), 3, np.random.default_rng(0))
    search = NetSearch(task, net, rules_of(task), population=4, width=0.3)
    found = search.step(scenes, baselines(task, scenes))
    assert np.isfinite(found)
    assert search.rules.keys() == rules_of(task).keys()
    assert all(number >= 0 for number in search.rules.values())


# -- worlds -------------------------------------------------------------------------------------


def test_jobs_become_elastic_as_stated() -> None:
    trace = make_trace("poisson", 200, 1, 64, 1.0)
    jobs = trace.jobs.with_columns(
        gpu_milli=pl.when(pl.col("job_id") == "0").then(500).otherwise(pl.col("gpu_milli")),
        cpu_milli=pl.col("gpu_milli") * 4,
    )
    made = elastic(Scene(replace(trace, jobs=jobs), Cluster("8x8")), np.random.default_rng(0))
    rows = dict(zip(made.trace.jobs["job_id"], made.trace.jobs.iter_rows(named=True), strict=True))
    for row in jobs.iter_rows(named=True):
        new, gpus = rows[row["job_id"]], row["gpu_milli"] // 1000
        if row["job_id"] == "0":
            assert (new["workers"], new["gpu_milli"]) == (None, 500)
            continue
        assert new["workers"] == new["min_workers"] == gpus
        assert (new["max_workers"], new["gpu_milli"]) == (4 * gpus, 1000)
        assert new["cpu_milli"] == row["cpu_milli"] // gpus
    again = elastic(made, np.random.default_rng(1))
    assert again.trace.jobs.equals(made.trace.jobs)


def test_jobs_can_share_as_their_trace_says() -> None:
    trace = make_trace("poisson", 100, 1, 16, 1.0)
    said = pl.when(pl.col("job_id") == "7").then(0.25)
    jobs = trace.jobs.with_columns(utilization=said)
    made = sharing(Scene(replace(trace, jobs=jobs), NODES), np.random.default_rng(0))
    use = dict(made.trace.jobs.select("job_id", "utilization").rows())
    assert use["7"] == 0.25
    assert all(0 < value <= 1 for value in use.values())
    assert len(set(use.values())) > 90
    assert made.estimates is not None
    true = made.trace.jobs["duration_s"].to_list()
    told = [one.runtime_s.p50 for one in made.estimates if one.runtime_s is not None]
    assert 0.3 < np.std(np.log(np.array(told) / true)) < 0.7


@pytest.mark.parametrize(
    ("make", "change", "says"),
    [
        (elastic, {"gpu_milli": 500}, "so none can be elastic"),
        (sharing, {"workers": 1}, "can share a GPU"),
    ],
)
def test_traces_that_a_task_cannot_use(
    make: Callable[[Scene, np.random.Generator], Scene], change: dict[str, int], says: str
) -> None:
    trace = make_trace("poisson", 60, 1, 16, 1.0)
    jobs = trace.jobs.with_columns(
        pl.lit(value, pl.Int64).alias(name) for name, value in change.items()
    )
    with pytest.raises(TraceError, match=says):
        make(Scene(replace(trace, jobs=jobs), NODES), np.random.default_rng(0))


@BOTH
def test_worlds_of_a_task_have_weeks_too(task: Task) -> None:
    trace = make_trace("diurnal", 300, 1, 16, 1.0)
    worlds = for_task(task, Generated(jobs=(50, 60), nodes=(1, 1)), (trace,), 80)
    rng = np.random.default_rng(4)
    names = {worlds.draw(rng).trace.name for _ in range(12)}
    assert trace.name in names
    assert len(names) > 1


# -- commands -----------------------------------------------------------------------------------


@BOTH
def test_the_commands(task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = CliRunner()
    train = ["gym", "train", "--task", task, "--out", "a.npz", "--choices", "100", "--jobs", "50"]
    done = run.invoke(app, train)
    assert done.exit_code == 0, done.output
    make = ["trace", "make", "--out", "t.csv", "--kind", "poisson", "--jobs", "60"]
    assert run.invoke(app, [*make, "--cluster", "1x8", "--load", "0.9"]).exit_code == 0
    compare = ["gym", "evaluate", "a.npz", "--trace", "t.csv", "--cluster", "1x8", "--json"]
    done = run.invoke(app, compare)
    assert done.exit_code == 0, done.output
    rows = {row["policy"]: row for row in json.loads(done.stdout)["policies"]}
    assert list(rows) == ["learned:a.npz", *BASELINES[task]]
    both = ["simulate", "t.csv", "--cluster", "1x8", "--policy", "learned:a.npz", "--json"]
    assert run.invoke(app, both).exit_code == 0
    rigid = ["simulate", "t.csv", "--cluster", "1x8", "--policy"]
    done = run.invoke(app, [*rigid, "learned:a.npz@fifo", "--json"])
    assert done.exit_code == 0, done.output
