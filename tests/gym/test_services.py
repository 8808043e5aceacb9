"""Services: the queue is the textbook's, the autoscaler is Kubernetes', a learned rule is trained,
kept and read, the environment is what Gymnasium asks for, and what the commands say."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from math import factorial
from pathlib import Path

import gymnasium
import numpy as np
import polars as pl
import pytest
from gymnasium.utils.env_checker import check_env
from typer.testing import CliRunner

from presage.cli.main import app
from presage.gym.service_env import ServiceEnv
from presage.gym.service_learned import (
    CHANGES,
    SERVICE_RULES,
    LearnedReplicas,
    ServiceView,
    read_service_bundle,
    service_layout,
    write_service_bundle,
)
from presage.gym.service_loads import MadeLoads, PodLoads, duty_pods, made_curve
from presage.gym.service_rules import (
    RULES,
    FixedCount,
    InFlight,
    RootStaffing,
    Stabilized,
    TargetUse,
    ahead,
    rule_of,
)
from presage.gym.service_training import ServiceRecipe, scene_cost, train_service
from presage.gym.services import (
    LoadCurve,
    ReplicaRule,
    ServicePrices,
    ServiceRun,
    ServiceScene,
    ServiceSeen,
    ServiceSetting,
    play,
)
from presage.model.errors import BundleError, TelemetryError
from presage.policy.learned.net import Net, read_bundle

SHORT = MadeLoads(hours=0.5, peak=(3.0, 8.0))
CARD = {"name": "x", "version": "1", "date": "", "data": "", "licence": "", "splits": ""}


def steady(erlangs: float, hours: float, **settings: float) -> ServiceScene:
    curve = LoadCurve("steady", 60.0, np.full(round(hours * 60), erlangs))
    return ServiceScene(curve, replace(ServiceSetting(), **settings), 1)  # type: ignore[arg-type]


def erlang_c(servers: int, load: float) -> float:
    """The share of requests that wait."""
    last = load**servers / factorial(servers) * servers / (servers - load)
    return last / (sum(load**k / factorial(k) for k in range(servers)) + last)


@pytest.mark.parametrize(("servers", "load"), [(2, 1.2), (5, 4.0)])
def test_a_steady_service_is_the_queue_of_the_textbook(servers: int, load: float) -> None:
    scene = steady(load, 200, service_s=2.0, late_s=0.0, patience_s=1e9)
    parts, requests = play(scene, FixedCount(servers))
    assert requests == pytest.approx(200 * 3600 * load / 2, rel=0.01)
    assert parts.late / requests == pytest.approx(erlang_c(servers, load), rel=0.08)
    assert parts.gpu_s == pytest.approx(servers * 200 * 3600, rel=0.01)


def test_a_replica_costs_from_the_start_and_serves_later() -> None:
    service = ServiceRun(steady(1.0, 1, startup_s=60.0))
    first = service.seen.ready
    service.advance(first + 2)
    assert (service.seen.ready, service.seen.starting) == (first, 2)
    assert service.parts.gpu_s == (first + 2) * 15
    assert service.parts.changes == 2
    for _ in range(4):
        service.advance(first + 2)
    assert (service.seen.ready, service.seen.starting) == (first + 2, 0)
    service.advance(first + 3)
    service.advance(first + 2)  # one that has not started goes first
    assert (service.seen.ready, service.seen.starting) == (first + 2, 0)
    service.advance(-5)
    assert service.seen.replicas == service.setting.least


def test_who_waits_too_long_leaves() -> None:
    parts, requests = play(steady(6.0, 2, patience_s=60.0), FixedCount(3))
    assert parts.unserved / requests == pytest.approx(0.5, abs=0.05)  # three of six can be served
    assert parts.late + parts.unserved <= requests
    assert parts.late / requests > 0.4  # they wait nearly as long


def test_requests_are_the_same_for_every_rule() -> None:
    scene = SHORT.draw(np.random.default_rng(3))
    runs = [ServiceRun(scene) for _ in range(2)]
    for run, count in zip(runs, (2, 9), strict=True):
        while not run.over:
            run.advance(count)
    assert runs[0].seen.arrived == runs[1].seen.arrived
    assert sum(runs[0].seen.arrived) == runs[0].requests
    assert runs[0].parts.late > runs[1].parts.late
    other = ServiceRun(replace(scene, seed=scene.seed + 1))
    other.advance(2)
    other.advance(2)
    assert other.seen.arrived != runs[0].seen.arrived[:2]


def seen_with(ready: int, use: float, starting: int = 0, now: float = 1000.0) -> ServiceSeen:
    """A service whose replicas were so busy for a while."""
    return ServiceSeen(
        ServiceSetting(),
        now,
        ready,
        starting,
        busy=[ready * use] * 8,
        served_by=[ready] * 8,
        arrived=[0] * 8,
    )


@pytest.mark.parametrize(
    ("ready", "starting", "use", "wanted"),
    [
        (10, 0, 0.60, 10),  # at its target
        (10, 0, 0.65, 10),  # within a tenth
        (10, 0, 0.67, 12),  # ceil(10 × 0.67 / 0.6)
        (4, 0, 0.90, 6),
        (10, 5, 0.90, 15),  # those that start count as idle: (10 × 0.9) / 15 is the target
        (10, 2, 0.90, 15),  # 0.75 / 0.6 × 12
        (2, 0, 1.00, 4),  # ceil(3.33)
        (10, 0, 0.10, 10),  # fewer only when the window has passed
    ],
)
def test_the_autoscaler_is_kubernetes(ready: int, starting: int, use: float, wanted: int) -> None:
    rule = TargetUse(0.6)
    if use < 0.6:
        rule.wanted(seen_with(ready, 0.6, starting, 990.0))
    assert rule.wanted(seen_with(ready, use, starting)) == wanted


def test_it_gives_back_after_the_window_and_doubles_at_most() -> None:
    rule = TargetUse(0.5)
    assert rule.wanted(seen_with(10, 0.5, now=0.0)) == 10
    assert rule.wanted(seen_with(10, 0.1, now=300.0)) == 10
    assert rule.wanted(seen_with(10, 0.2, now=301.0)) == 4  # the most of the last five minutes
    stable = Stabilized()
    assert stable.settle(100, seen_with(3, 1.0)) == 7  # four more
    assert stable.settle(100, seen_with(20, 1.0)) == 40
    assert stable.settle(100, seen_with(40, 1.0)) == 64  # the most there may be


def test_rules_that_know_more() -> None:
    rising = seen_with(4, 1.0)
    rising.arrived = list(range(40))
    level = seen_with(4, 1.0)
    level.arrived = [39] * 40
    assert ahead(rising) > ahead(level) == pytest.approx(26.0)
    # 4 roots on top of 26, of which one step gives 4 more
    assert RootStaffing(1.0).desired(level) == 32
    waiting = seen_with(4, 1.0)
    waiting.queue = 5
    assert InFlight(0.5).desired(waiting) == 18
    assert TargetUse(0.5).desired(waiting) == 8  # utilization does not see who waits


def test_more_costs_less_lateness() -> None:
    scene = MadeLoads(hours=2.0).draw(np.random.default_rng(1))
    for name, (_, knobs) in RULES.items():
        ends = [play(scene, rule_of(name, knob))[0] for knob in (min(knobs), max(knobs))]
        few, many = sorted(ends, key=lambda parts: parts.gpu_s)
        assert few.gpu_s < many.gpu_s
        assert few.late + few.unserved > many.late + many.unserved


def test_gymnasium_finds_nothing_wrong() -> None:
    made = gymnasium.make("presage.gym.service_env:presage/Service-v0", worlds=SHORT)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(made.unwrapped, skip_render_check=True)


def test_an_episode_is_what_a_rule_would_have_done() -> None:
    """Driven from outside by the choices of a network, the parts are those of a run with it."""

    class EveryStep:
        def __init__(self) -> None:
            self.view, self.stable = ServiceView(), Stabilized()

        def wanted(self, seen: ServiceSeen) -> int:
            if not seen.busy:
                return seen.replicas
            choice = net.choose(self.view.observe(seen).astype(np.float32), self.view.layout)
            return self.stable.settle(seen.replicas + CHANGES[choice], seen)

    scene, layout = SHORT.draw(np.random.default_rng(2)), service_layout()
    net = Net.random(layout, 4, np.random.default_rng(0))
    rule: ReplicaRule = EveryStep()
    parts, requests = play(scene, rule)
    env = ServiceEnv(prices=ServicePrices(late=10.0, unserved=20.0, changes=5.0))
    seen, info = env.reset(seed=1, options={"scene": scene})
    assert info["requests"] == requests
    before, told, over = 0.0, 0.0, False
    while not over:
        assert env.action_masks()[-1]
        seen, reward, over, _, info = env.step(net.choose(seen, layout))
        told += float(reward)
        before += info["parts"]["gpu_s"]
    assert info["sum"] == parts.minus(type(parts)())
    work_s = requests * scene.setting.service_s
    first_s = parts.gpu_s - before  # of the step before the first choice
    whole = env.prices.cost(info["sum"]) - first_s
    assert -told * work_s == pytest.approx(whole, rel=1e-6)


def test_what_cannot_be_is_nothing() -> None:
    scene = steady(1.0, 0.5, least=2, most=3)
    env, other = ServiceEnv(), ServiceEnv()
    for one in (env, other):
        one.reset(seed=0, options={"scene": scene})
    wrong = CHANGES.index(16)
    assert not env.action_masks()[wrong]
    first, second = env.step(wrong), other.step(len(CHANGES))
    assert first[4].pop("invalid")
    assert not second[4].pop("invalid")
    assert first[0].tolist() == second[0].tolist()
    assert first[4] == second[4]


def test_a_recipe_makes_one_rule_that_goes_on(tmp_path: Path) -> None:
    recipe = ServiceRecipe(choices=200, hidden=4, generations=2, population=4, scenes=2)
    whole = train_service(recipe, SHORT)
    state = tmp_path / "state"
    train_service(replace(recipe, generations=1), SHORT, state=state)
    again = train_service(recipe, SHORT, state=state)
    assert (again.net.flat() == whole.net.flat()).all()
    assert again.rules == whole.rules
    assert again.about["costs"] == whole.about["costs"]
    assert min(whole.about["costs"].values()) == whole.about["costs"][whole.about["kept"]]
    with pytest.raises(BundleError, match="the state of another training"):
        train_service(replace(recipe, seed=1), SHORT, state=state)


def test_what_is_imitated_is_learned() -> None:
    recipe = ServiceRecipe("imitate", choices=600)
    trained = train_service(recipe, MadeLoads(hours=1.0))
    assert trained.about["agrees"] > 0.6
    teacher = trained.about["teacher"], trained.about["setting"]
    scenes = [MadeLoads(hours=2.0).draw(np.random.default_rng(k)) for k in range(3)]
    rule = [LearnedReplicas(trained.net, trained.rules) for _ in scenes]
    mine = [scene_cost(s, r, recipe.prices) for s, r in zip(scenes, rule, strict=True)]
    lazy = [scene_cost(one, FixedCount(3), recipe.prices) for one in scenes]
    best = [scene_cost(one, rule_of(*teacher), recipe.prices) for one in scenes]
    assert sum(mine) < 1.3 * sum(best)
    assert sum(mine) < sum(lazy)


def test_a_bundle_is_read_as_it_was_written(tmp_path: Path) -> None:
    net = Net.random(service_layout(), 3, np.random.default_rng(0))
    path = tmp_path / "a.npz"
    card = {**CARD, "errors": {}, "training": {}}
    write_service_bundle(path, net, SERVICE_RULES, card)
    kept = read_service_bundle(path)
    assert (kept.net.flat() == net.flat()).all()
    assert kept.rules == SERVICE_RULES
    with pytest.raises(BundleError):
        read_bundle(path)  # it is no policy
    write_service_bundle(path, net, {"hold_s": 1.0}, card)
    with pytest.raises(BundleError, match="made for another version"):
        read_service_bundle(path)
    write_service_bundle(path, net, {"hold_s": 300.0, "lean": -1.0}, card)
    with pytest.raises(BundleError, match="is damaged"):
        read_service_bundle(path)
    broken = replace(net, bias=np.zeros(5))
    write_service_bundle(path, broken, SERVICE_RULES, card)
    with pytest.raises(BundleError, match="is damaged"):
        read_service_bundle(path)


def telemetry(path: Path, samples: int = 700) -> Path:
    """Four pods: two that are a little busy, two that are very busy; one misses samples."""
    frames = []
    rng = np.random.default_rng(0)
    for pod in range(4):
        high = 90.0 if pod >= 2 else 20.0
        times = 1_600_000_000 + 60 * np.arange(samples)
        value = high * (0.6 + 0.4 * np.sin(np.arange(samples) / 100)) * rng.random(samples)
        frames.append(
            pl.DataFrame({"pod": [pod] * samples, "value": value, "timestamp_anon": times})
        )
    frames[1] = frames[1].filter(pl.int_range(pl.len()) % 7 != 3)
    pl.concat(frames).write_parquet(path / "genai_pod_gpu_duty_cycle.parquet")
    return path / "genai_pod_gpu_duty_cycle.parquet"


def test_telemetry_is_a_load(tmp_path: Path) -> None:
    pods = duty_pods(telemetry(tmp_path), least=500)
    assert pods.duty.shape == (4, 700)
    assert pods.heavy() == [False, False, True, True]
    assert np.isnan(pods.duty[1]).sum() == 100
    heavy = pods.only(pods.heavy())
    assert heavy.names == ("2", "3")
    curve = pods.curve([0, 1], 12.0, "x")
    assert np.quantile(curve.erlangs, 0.99) == pytest.approx(12.0)
    assert curve.length_s == pytest.approx(700 * 60)
    scene = PodLoads(heavy, hours=1.0).draw(np.random.default_rng(0))
    assert scene.curve.length_s == pytest.approx(3600)
    with pytest.raises(TelemetryError, match="has no pod with 800 samples"):
        duty_pods(tmp_path / "genai_pod_gpu_duty_cycle.parquet", least=800)
    made = made_curve(24.0, 10.0, np.random.default_rng(0))
    assert np.quantile(made.erlangs, 0.99) == pytest.approx(10.0)


def test_genai(shared_data: Path) -> None:
    pods = duty_pods(shared_data / "telemetry" / "genai_pod_gpu_duty_cycle.parquet")
    assert len(pods.names) > 50
    assert 10 < sum(pods.heavy()) < len(pods.names) / 2
    assert np.nanmax(pods.duty) <= 1.0


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = CliRunner()
    train = ["gym", "train-service", "--algo", "imitate", "--choices", "150", "--hours", "0.5"]
    done = run.invoke(app, [*train, "--out", "a.npz", "--json"])
    assert done.exit_code == 0, done.output
    made = json.loads(done.stdout)
    assert made["digest"] == read_service_bundle(tmp_path / "a.npz").digest
    few = ["--services", "1", "--peak", "4", "--service-s", "20", "--targets", "0.4,0.8"]
    told = run.invoke(app, ["gym", "evaluate-service", "a.npz", *few, "--leans", "1", "--json"])
    assert told.exit_code == 0, told.output
    rows = {row["rule"]: row for row in json.loads(told.stdout)["rules"]}
    assert list(rows) == ["fixed", "hpa:0.4", "hpa:0.8", "a"]
    assert rows["hpa:0.4"]["gpu_hours"] > rows["hpa:0.8"]["gpu_hours"]
    assert rows["hpa:0.4"]["late"] < rows["hpa:0.8"]["late"]
    assert rows["fixed"]["late"] + rows["fixed"]["unserved"] <= 0.01


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train-service", "--out", "a.npz", "--algo", "ppo"], "there is no --algo ppo"),
        (["train-service", "--out", "a.npz", "--pods", "heavy"], "needs --telemetry"),
        (["evaluate-service", "none.npz"], "there is no bundle"),
        (["evaluate-service", "--targets", "much"], "give numbers above 0, such as 0.5,0.7"),
        (["evaluate-service", "--telemetry", "none.csv"], "none.csv"),
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
