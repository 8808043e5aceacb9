"""Training: what is imitated is learned, a seed trains one policy, a stopped training goes on, and
what the commands say."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from presage.cli.main import app
from presage.gym.evaluate import Figures, best_of, interval, run_scene
from presage.gym.imitate import gather, imitate
from presage.gym.search import NetSearch, cost
from presage.gym.tasks import layout_of, rules_of
from presage.gym.teachers import TEACHERS, choice
from presage.gym.training import Recipe, best_teacher, train_policy
from presage.gym.worlds import Generated, Scene
from presage.model.errors import BundleError, MissingExtra
from presage.policy import registry
from presage.policy.learned.net import Net, read_bundle
from presage.sim.clusters import Cluster
from presage.sim.generate import make_trace

SMALL = Generated(jobs=(60, 100), nodes=(1, 2), load=(1.2, 1.5))
LAYOUT = layout_of("order", 8)


def test_what_is_imitated_is_learned() -> None:
    rng = np.random.default_rng(0)
    seen, chosen = gather("order", TEACHERS["order"]["sjf"], SMALL, 400, rng, slots=8)
    assert seen.shape == (400, LAYOUT.size)
    begin = Net.random(LAYOUT, 8, rng)
    before = np.mean([begin.choose(one, LAYOUT) == a for one, a in zip(seen, chosen, strict=True)])
    net, agrees = imitate(begin, 1, 8, seen, chosen, rng, epochs=300)
    assert agrees > max(0.9, before)
    empty = np.zeros(LAYOUT.size)
    empty[1] = 1.0  # unlike anything seen: something is done all the same
    assert net.choose(empty, LAYOUT) == 0


@pytest.mark.parametrize(
    ("name", "first"), [("fifo", 0), ("sjf", 1), ("qssf", 1), ("least-attained", 2)]
)
def test_teachers_choose_as_they_are_called(name: str, first: int) -> None:
    seen = np.zeros(LAYOUT.size)
    rows = seen[: 8 * len(LAYOUT.slot_fields)].reshape(8, -1)
    field = LAYOUT.slot_fields.index
    rows[:3, field("present")] = rows[:3, field("startable")] = 1.0
    rows[:3, field("age")] = 0.9, 0.5, 0.1
    rows[:3, field("estimate")] = 0.5, 0.1, 0.9
    rows[:3, field("gpus")] = 0.3, 0.3, 0.3
    rows[:3, field("level")] = 0.3, 0.2, 0.1
    choose = choice(TEACHERS["order"][name], LAYOUT)
    assert choose(seen) == first
    rows[first, field("startable")] = 0.0
    assert choose(seen) != first


def test_a_recipe_makes_one_policy() -> None:
    recipe = Recipe(choices=150, hidden=4, slots=8)
    first, again = (train_policy(recipe, SMALL) for _ in range(2))
    assert (first.net.flat() == again.net.flat()).all()
    assert first.about["teacher"] in TEACHERS["order"]


def test_the_best_teacher_is_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Cluster("1x8")
    scenes = [Scene(make_trace("poisson", 80, 3, nodes.gpus, 1.5), nodes)]
    two = {name: TEACHERS["order"][name] for name in ("fifo", "sjf")}
    monkeypatch.setitem(TEACHERS, "order", two)
    assert best_teacher("order", scenes, 8) == "sjf"


def test_a_search_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    nodes = Cluster("1x8")
    scenes = [Scene(make_trace("poisson", 60, 1, nodes.gpus, 1.5), nodes)]
    best = [run_scene(scenes[0], registry.build("sjf"))]

    def new() -> NetSearch:
        net = Net.random(LAYOUT, 4, np.random.default_rng(0))
        return NetSearch("order", net, rules_of("order"), 8, population=5, width=0.5)

    whole = new()
    costs = [whole.step(scenes, best) for _ in range(2)]
    assert costs == whole.curve
    assert costs[1] <= costs[0]  # the best so far is among those that are drawn
    stopped = new()
    stopped.step(scenes, best)
    stopped.save(tmp_path / "state")
    goes_on = new()
    goes_on.load(tmp_path / "state")
    goes_on.step(scenes, best)
    assert (goes_on.net.flat() == whole.net.flat()).all()
    assert goes_on.rules == whole.rules
    other = NetSearch("order", Net.zero(layout_of("order", 4), 3), rules_of("order"), 4)
    with pytest.raises(BundleError, match="the state of another training"):
        other.load(tmp_path / "state")
    (tmp_path / "state").write_text("{")
    with pytest.raises(BundleError, match="cannot be read; remove it to start over"):
        new().load(tmp_path / "state")


def test_costs_and_intervals() -> None:
    def one(jct: float, p99: float) -> Figures:
        return Figures(jct, p99, 0.0, 0.0, 0.0, 0.0, 0.0)

    assert cost(one(100, 10), one(100, 20)) == 0.0  # a shorter tail is no merit
    assert cost(one(100, 20), one(100, 10)) == pytest.approx(np.log(2))
    assert best_of({"a": one(3, 1), "b": one(2, 9)}, ["a", "b"]) == "b"
    mean, half = interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(4.303 / np.sqrt(3))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "dqn"])
def test_reinforcement_learning_starts_from_what_was_imitated(
    algorithm: str, tmp_path: Path
) -> None:
    from presage.gym.reinforce import train

    net = Net.random(LAYOUT, 4, np.random.default_rng(0))
    state = tmp_path / "state"

    def go(steps: int) -> int:
        done = train(
            "order",
            algorithm,  # type: ignore[arg-type]
            net,
            SMALL,
            steps=steps,
            slots=8,
            envs=2,
            state=state,
        )
        assert done.net.flat().shape == net.flat().shape
        assert np.isfinite(done.net.flat()).all()
        return done.steps

    some = go(64)
    assert some >= 64
    assert state.exists()
    assert go(64) == some  # nothing is left to do
    state.write_bytes(b"nonsense")
    with pytest.raises(BundleError, match="the state of another training"):
        go(64)


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = CliRunner()
    usual = ["--choices", "100", "--jobs", "50"]
    done = run.invoke(app, ["gym", "train", "--out", "a.npz", *usual, "--json"])
    assert done.exit_code == 0, done.output
    made = json.loads(done.stdout)
    bundle = read_bundle(tmp_path / "a.npz")
    assert (made["digest"], made["name"]) == (bundle.digest, "a")
    run.invoke(app, ["gym", "train", "--out", "b.npz", *usual])
    assert read_bundle(tmp_path / "b.npz").digest == bundle.digest
    make = ["trace", "make", "--out", "t.csv", "--kind", "poisson", "--jobs", "80"]
    assert run.invoke(app, [*make, "--cluster", "1x8", "--load", "1.2"]).exit_code == 0
    compare = ["gym", "evaluate", "a.npz", "--trace", "t.csv", "--cluster", "1x8"]
    told = json.loads(run.invoke(app, [*compare, "--against", "fifo,sjf", "--json"]).stdout)
    rows = {row["policy"]: row for row in told["policies"]}
    assert list(rows) == ["learned:a.npz", "fifo", "sjf"]
    assert min(rows["fifo"]["jct_of_best"], rows["sjf"]["jct_of_best"]) == 1.0
    assert run.invoke(app, [*compare, "--weeks"]).exit_code == 0
    both = ["simulate", "t.csv", "--cluster", "1x8", "--policy"]
    done = run.invoke(app, [*both, "learned:a.npz,learned:a.npz@sjf", "--json"])
    assert done.exit_code == 0, done.output
    assert "looks ahead took" in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", "--out", "a.npz", "--algo", "guess"], "there is no --algo guess; there are:"),
        (["train", "--out", "a.npz", "--task", "fly"], "there is no --task fly; there are: order"),
        (["train", "--out", "none/a.npz"], "the directory none does not exist"),
        (["train", "--out", "a.npz", "--trace", "none.csv"], "none.csv"),
        (["evaluate", "none.npz", "--trace", "none.csv"], "there is no bundle"),
    ],
)
def test_what_users_get_wrong_is_one_line(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["gym", *words])
    assert done.exit_code == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    with pytest.raises(MissingExtra, match=r"needs the extra 'gym': pip install 'presage\[gym\]'"):
        train_policy(Recipe(algorithm="ppo"), SMALL)
