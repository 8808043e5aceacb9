"""Learning from own runs: what it gains, who answers, and challengers that are refused."""

from __future__ import annotations

import json
from math import exp

import numpy as np
import pytest

from presage.core.ports import Entry
from presage.foresee.champions import Champions, error_of
from presage.foresee.own import SIZES, OwnRun, OwnRuns
from presage.model.errors import StoreUnavailable, UserError
from presage.model.estimate import Estimate
from presage.store.memory import MemoryKnowledge


def runs(count: int, workloads: int = 12, seed: int = 0, device: str = "cpu") -> list[OwnRun]:
    """A machine on which everything takes some times longer than foreseen, large work more so,
    and each workload a bit of its own."""
    random = np.random.default_rng(seed)
    work = random.uniform(0, 6, workloads)
    own = random.normal(0, 0.3, workloads)
    found = []
    for k in range(count):
        w = int(random.integers(workloads))
        foreseen = exp(work[w])
        actual = foreseen * exp(1.0 + 0.2 * work[w] + own[w] + random.normal(0, 0.03))
        sizes = dict.fromkeys(SIZES, float(exp(work[w])))
        found.append(OwnRun(f"w{w}", device, float(k), float(actual), float(foreseen), sizes))
    return found


def test_own_runs_correct_the_estimators_for_workloads_seen_and_new() -> None:
    seen, later = runs(60)[:45], runs(60)[45:]
    model = OwnRuns.fit(seen, "ms")
    shipped = error_of(OwnRuns("ms"), later)
    learned = error_of(model, later)
    assert shipped is not None
    assert learned is not None
    assert learned < 0.1 * shipped
    errors = []
    for name in sorted({run.signature for run in seen}):
        without = OwnRuns.fit([run for run in seen if run.signature != name], "ms")
        errors.append(error_of(without, [run for run in seen if run.signature == name]))
    assert np.mean([error or 0.0 for error in errors]) < 0.4 * shipped


def test_intervals_are_wider_for_new_workloads_and_hold() -> None:
    model = OwnRuns.fit(runs(80), "ms")
    sizes = dict.fromkeys(SIZES, 20.0)
    known = model.predict("w0", "cpu", 20.0, sizes)
    new = model.predict("other", "cpu", 20.0, sizes)
    assert known is not None
    assert new is not None
    assert known.p90 / known.p10 < new.p90 / new.p10
    later = runs(200)[80:]
    answers = [model.predict(run.signature, "cpu", run.foreseen, run.sizes) for run in later]
    inside = [
        answer is not None and answer.p10 <= run.actual <= answer.p90
        for answer, run in zip(answers, later, strict=True)
    ]
    assert 0.6 <= np.mean(inside) <= 0.98


def test_nothing_is_said_where_nothing_is_known() -> None:
    model = OwnRuns.fit(runs(20), "ms")
    assert model.predict("w0", "tpu") is None
    guess = model.predict("w0", "tpu", 10.0)
    assert guess is not None
    assert (guess.p10, guess.p50, guess.p90) == pytest.approx((5.0, 10.0, 20.0))


def test_a_model_comes_back_from_json_as_it_was() -> None:
    model = OwnRuns.fit(runs(30), "ms")
    again = OwnRuns.from_json(json.loads(json.dumps(model.to_json(), allow_nan=False)))
    assert again.predict("w1", "cpu", 3.0, {}) == model.predict("w1", "cpu", 3.0, {})
    with pytest.raises(UserError, match="no model of own runs"):
        OwnRuns.from_json({"unit": "ms", "factors": {"cpu": {"intercept": 0, "weights": [1]}}})


def test_a_better_challenger_answers_and_a_bad_one_is_refused_and_kept() -> None:
    champions = Champions(MemoryKnowledge())
    assert champions.challenge("step_time", runs(8), 8.0) is None
    first = champions.challenge("step_time", runs(20), 20.0)
    assert first is not None
    assert first.accepted
    assert first.error is not None
    assert first.champion_error is not None
    assert first.error < first.champion_error
    assert champions.standing("step_time").champion == 1

    wrong = [
        OwnRun(run.signature, run.device, run.at, 50.0, run.foreseen, run.sizes)
        for run in runs(20)
    ]
    bad = champions.challenge("step_time", runs(40), 40.0, OwnRuns.fit(wrong, "ms"))
    assert bad is not None
    assert not bad.accepted
    standing = champions.standing("step_time")
    assert standing.champion == 1
    assert [one.number for one in standing.versions] == [1, 2]
    assert champions.model("step_time", 2).factors  # both are kept

    blind = champions.challenge(
        "step_time", runs(40), 41.0, OwnRuns.fit(runs(9, device="x"), "ms")
    )
    assert blind is not None
    assert not blind.accepted


def test_versions_are_pinned_and_rolled_back() -> None:
    champions = Champions(MemoryKnowledge())
    champions.challenge("memory", runs(20), 20.0)
    champions.pin("memory", 0)
    assert champions.model("memory") == OwnRuns("MiB")
    later = champions.challenge("memory", runs(60), 60.0)
    assert later is not None
    assert "pinned" in later.note
    assert champions.standing("memory").champion == 0
    champions.unpin("memory")
    champions.challenge("memory", runs(80), 80.0)
    assert champions.standing("memory").champion == 3
    assert champions.rollback("memory").champion == 0
    with pytest.raises(UserError, match="no version 9; there are 0, 1, 2, 3"):
        champions.pin("memory", 9)
    with pytest.raises(UserError, match="nothing is learned of 'joy'"):
        champions.standing("joy")


def test_a_damaged_index_is_one_clear_line() -> None:
    knowledge = MemoryKnowledge()
    champions = Champions(knowledge)
    champions.challenge("memory", runs(20), 20.0)
    knowledge.write(Entry("models/memory/index", b"{"))
    with pytest.raises(UserError, match="cannot be read"):
        champions.standing("memory")
    with pytest.raises(UserError, match="no other champion"):
        champions.rollback("step_time")


class Failing(MemoryKnowledge):
    """A store that is away from time to time."""

    away = False

    def write(self, *entries: Entry) -> None:
        if self.away:
            raise StoreUnavailable("it is away")
        super().write(*entries)


def test_a_lesson_is_kept_whole_or_learned_again() -> None:
    knowledge = Failing()
    champions = Champions(knowledge)
    first, *_ = runs(1)
    said = Estimate(90.0, 100.0, 110.0, "MiB", "")

    def lesson() -> None:
        with champions.lesson(7):
            champions.add("memory", first)
            champions.judge("memory", said, 100.0)
            champions.ran_out("w", 512.0)
            assert champions.runs("memory") == []  # not yet

    knowledge.away = True
    with pytest.raises(StoreUnavailable):
        lesson()
    assert champions.learned_until() == 0
    assert champions.not_enough("w") == 0.0
    knowledge.away = False
    lesson()
    for again in (champions, Champions(knowledge)):
        assert again.learned_until() == 7
        assert again.runs("memory") == [first]
        assert again.not_enough("w") == 512.0
        drift = again.drift("memory")
        assert drift is not None
        assert drift.judged == 1


def test_runs_that_no_version_has_seen_are_counted() -> None:
    champions = Champions(MemoryKnowledge())
    for run in runs(20):
        champions.add("memory", run)
    assert champions.unlearned("memory") == 20
    champions.challenge("memory", champions.runs("memory"), 20.0)
    for run in runs(24)[20:]:
        champions.add("memory", run)
    assert champions.unlearned("memory") == 3  # the version was fitted when the first was over


def _memory_runs(floor_mib: float, factor: float) -> list[OwnRun]:
    return [
        OwnRun(f"w{k % 6}", "gpu", float(k), floor_mib + factor * size, size)
        for k, size in enumerate(np.geomspace(500, 30_000, 24).tolist())
    ]


def test_the_floor_of_a_machine_is_learned_as_an_amount() -> None:
    model = OwnRuns.fit(_memory_runs(900.0, 1.0), "MiB")
    new = model.predict("never ran", "gpu", 700.0)
    assert new is not None
    assert new.p50 == pytest.approx(1600, rel=0.05)
    as_factor = OwnRuns.fit(_memory_runs(0.0, 1.3), "MiB").predict("never ran", "gpu", 700.0)
    assert as_factor is not None
    assert as_factor.p50 == pytest.approx(910, rel=0.05)


def test_a_model_of_an_earlier_release_is_read() -> None:
    body = OwnRuns.fit(runs(20), "ms").to_json()
    for factor in body["factors"].values():
        del factor["weights"][4:]
        factor.pop("floor", None)
    answer = OwnRuns.from_json(body).predict("w0", "gpu", 10.0, dict.fromkeys(SIZES, 20.0))
    assert answer is not None
    assert answer.p50 > 0
