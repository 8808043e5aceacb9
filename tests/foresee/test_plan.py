"""Plans of trainings: the search finds what asking for everything would, limits are kept or said
to be impossible, and what is left out is counted.

The answers come from a small world of our own that differs from the search's first estimates, so
that nothing here depends on fitted models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from presage.foresee._layouts import candidates, gpu_counts
from presage.foresee.answer import Prediction, Quantiles
from presage.foresee.goals import TrainingGoal, amount_of, usual_global_batch
from presage.foresee.gpus import Gpu, find
from presage.foresee.graph.decoders import DecoderShape
from presage.foresee.plan import pareto, plan_training
from presage.foresee.planned import TrainingPlan, money_span, time_span
from presage.model.errors import UserError
from presage.model.setup import Setup
from tests.trainings import SHAPE, World

KINDS = [find(name) for name in ("a100-80g", "h100-80g", "l40s", "rtx4090")]
BASE = Setup(optimizer="adamw", precision="amp-bf16", seq=4096)
GOAL = TrainingGoal(samples=2_000_000_000 // 4096, global_batch=128, seq=4096)


@pytest.fixture(autouse=True)
def _no_files_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PRESAGE_PRICES", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def made(goal: TrainingGoal = GOAL, world: World | None = None, most: int = 64) -> TrainingPlan:
    """A plan in a world."""
    return plan_training(world or World(), goal, KINDS, BASE, decoder=SHAPE, most_gpus=most)


def test_the_search_finds_what_asking_for_everything_would() -> None:
    world = World()
    plan = made(world=world)
    assert world.asked <= 60
    ways = list(candidates(BASE, GOAL, KINDS, gpu_counts(64), SHAPE, Counter()))
    assert len(ways) > 5000
    every = [world(way.batch, [way.gpu], way.setup).gpus[way.gpu.name] for way in ways]
    fits = [(w, on) for w, on in zip(ways, every, strict=True) if on.chance_fits >= 0.8]
    prices = {"a100-80g": 1.89, "h100-80g": 2.99, "l40s": 0.86, "rtx4090": 0.69}
    cheapest = min(on.step_ms.p50 * way.setup.gpus * prices[way.gpu.name] for way, on in fits)
    fastest = min(on.step_ms.p50 for _, on in fits)
    assert plan.cheapest is not None
    assert plan.fastest is not None
    assert plan.cheapest.usd is not None
    hours = GOAL.steps / 3.6e6
    assert plan.cheapest.usd.p50 <= 1.03 * cheapest * hours
    assert plan.fastest.step_ms.p50 <= 1.03 * fastest


def test_the_front_is_not_beaten_and_everything_is_accounted_for() -> None:
    plan = made()
    for one in plan.front:
        assert one.usd is not None
        for other in plan.options:
            assert other.usd is not None
            better = (
                other.time_s.p50 < 0.99 * one.time_s.p50
                and other.usd.p50 < 0.99 * one.usd.p50
                and other.chance_fits >= one.chance_fits
            )
            assert not better
    assert len(plan.front) >= 4
    ways = len(list(candidates(BASE, GOAL, KINDS, gpu_counts(64), SHAPE, Counter())))
    inside = sum(
        count
        for why, count in plan.left_out.items()
        if why.startswith(("another", "needs more", "no answer"))
    )
    assert inside + len(plan.options) == ways
    assert all(option.memory_mib.p10 <= option.room_mib for option in plan.options)


def test_limits_choose_and_are_kept() -> None:
    free = made()
    assert free.best == free.cheapest
    assert free.best is not None
    day = made(TrainingGoal(GOAL.samples, 128, 4096, deadline_s=12 * 3600.0))
    assert day.best is not None
    assert day.best.time_s.p90 <= 12 * 3600
    assert free.best.time_s.p50 > day.best.time_s.p50
    assert day.best.usd is not None
    few = made(TrainingGoal(GOAL.samples, 128, 4096, budget_usd=1.1 * day.best.usd.p90))
    assert few.best is not None
    assert few.best == few.fastest
    assert few.best.usd is not None
    assert few.best.usd.p90 <= 1.1 * day.best.usd.p90


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"deadline_s": 600.0}, r"64 × h100-80g.* comes closest to 10 min with \d"),
        ({"budget_usd": 5.0}, r"comes closest to \$5.00 with \$\d+"),
        ({"deadline_s": 12 * 3600.0, "budget_usd": 5.0}, r"closest to 12 h .*closest to \$5"),
    ],
)
def test_limits_that_nothing_keeps_name_the_closest(limits: dict[str, float], says: str) -> None:
    with pytest.raises(UserError, match=says):
        made(TrainingGoal(GOAL.samples, 128, 4096, **limits))


def test_a_model_that_fits_nowhere_says_what_lacks_least() -> None:
    with pytest.raises(UserError, match=r"fits nowhere on .* needs .* GiB and comes closest"):
        made(world=World(400), most=2)


def test_a_gpu_without_a_price_is_planned_without_a_cost() -> None:
    card = find("rtx2080ti")
    plan = plan_training(World(0.1), GOAL, [card], BASE, decoder=SHAPE, most_gpus=8)
    assert plan.best is not None
    assert plan.best.usd is None
    assert plan.cheapest is None
    assert plan.best == plan.fastest
    assert any("no price is known of rtx2080ti" in line for line in plan.assumptions)
    assert plan.table["usd_p50"].null_count() == plan.table.height
    with pytest.raises(UserError, match="budget needs prices"):
        plan_training(
            World(0.1), TrainingGoal(1000, 8, 4096, budget_usd=5.0), [card], BASE, most_gpus=1
        )


def test_ways_that_the_estimators_refuse_are_counted_by_their_reason() -> None:
    world = World()

    def no_split(batch: int, gpus: Sequence[Gpu], setup: Setup) -> Prediction:
        if setup.parallel.tensor > 1:
            raise UserError("adapters are not split")
        return world(batch, gpus, setup)

    plan = plan_training(no_split, GOAL, KINDS, BASE, decoder=SHAPE, most_gpus=16)
    assert plan.left_out["no answer: adapters are not split"] > 0
    assert not [option for option in plan.options if "tp=" in option.spread]


def test_only_decoders_are_split_and_only_where_it_divides() -> None:
    left: Counter[str] = Counter()
    odd = DecoderShape("odd", 30, 3584, 28, 4, 128, 14336, 128_256)
    ways = list(candidates(BASE, GOAL, KINDS[:1], [64], odd, left))
    splits = {(way.setup.parallel.tensor, way.setup.parallel.pipeline) for way in ways}
    assert splits == {(1, 1), (1, 2), (2, 1), (2, 2), (4, 1), (4, 2)}
    assert left["tp=8 does not divide the 28 heads"] == 4
    assert left["pp=4 does not divide the 30 layers"] == 3
    for way in ways:
        setup = way.setup
        assert way.batch * setup.accumulate * setup.data_parallel == GOAL.global_batch
        assert setup.accumulate >= setup.parallel.pipeline
    plain = candidates(BASE, GOAL, KINDS[:1], [8], None, Counter())
    assert {way.setup.parallel.tensor for way in plain} == {1}


def test_a_batch_that_cannot_be_divided() -> None:
    left: Counter[str] = Counter()
    goal = TrainingGoal(10_000, 6)
    ways = list(candidates(BASE, goal, KINDS[:1], gpu_counts(8), None, left))
    assert {(way.setup.gpus, way.batch) for way in ways} == {
        *((1, 1), (1, 2), (1, 6)),
        *((2, 1), (2, 3)),
    }
    assert left["4 replicas do not divide a global batch of 6"] == 5


def test_the_plan_shows_itself() -> None:
    plan = made()
    assert plan.table.height == len(plan.options)
    assert set(plan.table["on_front"]) <= {True, False}
    figure = plan.plot()
    assert figure.layout.xaxis.type == "log"
    assert {trace.name for trace in figure.data} == {option.gpu for option in plan.options}
    page = plan._repr_html_()
    assert page.count("<tr>") == len(plan.front) + 1
    said = plan.to_dict()
    assert said["best"]["gpu"] == (plan.best and plan.best.gpu)
    assert said["goal"]["unit"] == "tokens"


def test_pareto_takes_the_first_of_equals_and_keeps_what_is_surer() -> None:
    time = np.array([1.0, 1.0, 2.0, 2.0, 3.0])
    money = np.array([5.0, 5.0, 4.0, 6.0, 9.0])
    assert pareto(time, money, np.array([0.8, 0.8, 0.8, 0.99, 0.8])) == [0, 2, 3]
    unpriced = np.full(5, np.inf)
    assert pareto(time, unpriced, np.array([0.8, 0.8, 0.8, 0.99, 0.99])) == [0, 3]


@pytest.mark.parametrize(
    ("text", "amount"),
    [("2B", 2 * 10**9), ("1.5k", 1500), ("1e9", 10**9), ("50_000", 50_000), (12, 12)],
)
def test_amounts(text: str | int, amount: int) -> None:
    assert amount_of(text, "--tokens") == amount


@pytest.mark.parametrize("text", ["", "B", "-3", "0", "two", "1e99", "nan", "inf", "0.2"])
def test_amounts_that_are_none(text: str) -> None:
    with pytest.raises(UserError, match="--tokens"):
        amount_of(text, "--tokens")


def test_the_usual_batch_leaves_steps_to_do() -> None:
    assert usual_global_batch(2_000_000_000 // 4096, 4096) == 128
    assert usual_global_batch(50_000, 512) == 32
    assert usual_global_batch(10, None) == 1
    assert usual_global_batch(10**8, None) == 1024


def test_counts_of_gpus() -> None:
    assert gpu_counts(6) == [1, 2, 4, 6]
    assert gpu_counts(64) == [1, 2, 4, 8, 16, 32, 64]


def test_spans_are_short() -> None:
    assert time_span(Quantiles(9700, 11520, 13700)) == "3.2 h (2.7–3.8)"
    assert time_span(Quantiles(20, 31.4, 300)) == "31 s (20–300)"
    assert time_span(Quantiles(86_400, 9e6, 2e7)) == "100 d (1–230)"
    assert money_span(Quantiles(163, 192.4, 231)) == "$192 ($163–231)"
    assert money_span(Quantiles(0.4, 0.456, 12_345)) == "$0.46 ($0.40–12,300)"


def test_long_samples_and_experts_are_divided_too() -> None:
    long = replace(GOAL, seq=32_768)
    base = replace(BASE, seq=32_768)
    ways = list(candidates(base, long, KINDS[:1], [16], SHAPE, Counter()))
    cut = {way.setup.parallel for way in ways}
    assert {p.context for p in cut} == {1, 2, 4, 8}
    assert all(way.setup.data_parallel * way.setup.model_parallel == 16 for way in ways)
    assert all(
        way.batch * way.setup.accumulate * way.setup.data_parallel == long.global_batch
        for way in ways
    )
    plain = candidates(BASE, GOAL, KINDS[:1], [16], SHAPE, Counter())
    assert {way.setup.parallel.context for way in plain} == {1}
    routed = replace(SHAPE, experts=8, experts_per_token=2, expert_inner=SHAPE.inner)
    ways = list(candidates(BASE, GOAL, KINDS[:1], [8], routed, Counter()))
    assert {way.setup.parallel.expert for way in ways} == {1, 2, 4, 8}
