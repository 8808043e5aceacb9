"""Guarded policies in the simulator: a bad one hardly costs anything, a good one comes to decide,
and who decided is in the journal."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from presage.core.engine import Engine
from presage.core.guard import GuardedPolicy, GuardRules, judged, trusted
from presage.core.plan import Plan
from presage.core.ports import Predictor, SortKey
from presage.core.state import State
from presage.model import event as ev
from presage.model.errors import ConfigError
from presage.model.job import Job
from presage.policy import registry
from presage.policy.config import GuardSection, PolicyConfig
from presage.policy.order import Order
from presage.policy.pipeline import Pipeline
from presage.sim.clusters import Cluster
from presage.sim.generate import make_trace
from presage.sim.result import SimResult
from presage.sim.run import simulate
from presage.sim.traces import Trace
from presage.sim.trial import Trial
from presage.sim.whatif import replay
from presage.store.memory import MemoryStore
from tests.scenario import Known, job, nodes

CLUSTER = Cluster("1x8")
RULES = GuardRules(draws=3, ahead_s=12 * 3600.0, every_s=7200.0)


def at_random(job: Job, plan: Plan, predict: Predictor) -> SortKey:
    return (zlib.crc32(job.id.encode()), job.seq)


def longest_first(job: Job, plan: Plan, predict: Predictor) -> SortKey:
    return (-predict.runtime(job).p50, job.seq)


def sjf() -> Pipeline:
    return registry.pipeline(registry.NAMED["sjf"])


def by(order: Order) -> Callable[[], Pipeline]:
    return lambda: Pipeline(replace(sjf().rules, order=order))


@pytest.fixture(scope="module")
def trace() -> Trace:
    return make_trace("poisson", 150, 3, CLUSTER.gpus, 1.3)


@pytest.fixture(scope="module")
def fallback_jct(trace: Trace) -> float:
    return jct_of(simulate(trace, CLUSTER, sjf(), name="sjf"))


def jct_of(result: SimResult) -> float:
    jct = result.summary["avg_jct_s"]
    assert jct is not None
    return jct


@pytest.mark.parametrize("bad", [at_random, longest_first])
def test_a_bad_policy_is_hardly_worse_than_its_fallback(
    trace: Trace, fallback_jct: float, bad: Order
) -> None:
    alone = jct_of(simulate(trace, CLUSTER, by(bad)(), name="bad"))
    assert alone > 1.5 * fallback_jct  # it is bad
    store = MemoryStore()
    policy = GuardedPolicy(by(bad), sjf, ("bad", "sjf"), RULES)
    result = simulate(trace, CLUSTER, policy, name="bad@sjf", store=store, check_every=50)
    assert jct_of(result) <= 1.03 * fallback_jct
    assert len(result.jobs) == trace.jobs.height
    said = [fact for _, fact in store.read() if isinstance(fact, ev.PolicyJudged)]
    assert said
    assert not said[0].trusted  # nobody is trusted before anything is known
    assert said[0].text == "only 0 jobs ended so far: too few to foresee what it would do"
    assert [a.trusted for a in said[1:]] == [not a.trusted for a in said[:-1]]  # switches alone
    assert any("bad decided" in note for note in result.notes)


def test_a_good_policy_comes_to_decide_each_time_alike() -> None:
    trace = make_trace("poisson", 90, 3, CLUSTER.gpus, 1.3)

    def fifo() -> Pipeline:
        return registry.pipeline(registry.NAMED["fifo"])

    alone = jct_of(simulate(trace, CLUSTER, fifo(), name="fifo"))
    store = MemoryStore()
    made = GuardedPolicy(sjf, fifo, ("sjf", "fifo"), RULES)
    result = simulate(trace, CLUSTER, made, name="sjf@fifo", store=store, use_estimates=True)
    said = [fact for _, fact in store.read() if isinstance(fact, ev.PolicyJudged)]
    assert any(fact.trusted for fact in said)
    assert jct_of(result) < alone
    again = GuardedPolicy(sjf, fifo, ("sjf", "fifo"), RULES)
    once_more = simulate(
        trace, CLUSTER, again, name="again", store=(second := MemoryStore()), use_estimates=True
    )
    assert list(second.read()) == list(store.read())
    assert jct_of(once_more) == jct_of(result)


def test_who_decides_is_what_the_journal_says() -> None:
    """`PolicyJudged` is a fact: a replay has the same decisions, whoever judged."""

    def policy() -> GuardedPolicy:
        return GuardedPolicy(by(longest_first), sjf, ("longest", "sjf"), RULES)

    known = Known({"long": 900.0, "short": 10.0, "first": 50.0})
    rules = ev.RulesChanged("{}", "test")
    yes = ev.PolicyJudged("longest", "sjf", True, "it was tried out", rules.digest)
    steps = []
    state = State()
    engine = Engine(policy(), known, state)

    def tell(now: float, *facts: ev.Fact) -> list[str]:
        decisions = engine.handle(now, list(facts))
        steps.append((now, facts, tuple(decisions)))
        return [one.job for one in decisions if isinstance(one, ev.Launch)]

    up = [ev.NodeUp(node) for node in nodes(1)]
    assert tell(0.0, rules, *up, ev.JobSubmitted(job("first"))) == ["first"]
    assert tell(1.0, ev.JobSubmitted(job("long")), ev.JobSubmitted(job("short"))) == []
    waiting = engine.explain("long")
    assert waiting is not None
    assert "sjf decides: longest was not judged yet" in waiting.text
    tell(2.0, yes)
    assert judged(state) == yes
    assert trusted(state)
    assert engine.policy.status(state) == "longest decides: it was tried out"  # type: ignore[attr-defined]
    assert tell(3.0, ev.JobExited("first", 1, ev.Outcome.SUCCEEDED)) == ["long"]
    tell(4.0, ev.RulesChanged('{"order": "sjf"}', "test"))
    assert not trusted(state)  # it was judged under other rules
    assert tell(5.0, ev.JobExited("long", 1, ev.Outcome.SUCCEEDED)) == ["short"]
    assert replay(steps, policy(), known).difference is None
    assert State.restore(state.snapshot()).judged == yes


def test_more_jobs_that_wait_than_foreseen_are_looked_at_sooner() -> None:
    trial = Trial(GuardedPolicy(sjf, sjf, ("a", "b"), GuardRules()))
    state = State()
    assert trial.is_due(0.0, 0)
    assert trial.look(0.0, state) is not None
    assert not trial.is_due(3599.0, 10)
    assert trial.is_due(3600.0, 0)
    assert not trial.is_due(599.0, 11)
    assert trial.is_due(600.0, 11)
    assert trial.look(3600.0, state) is not None  # nobody wrote the first one down


def test_a_guard_has_a_name() -> None:
    section = GuardSection.model_validate({"every": "30m", "draws": 4})
    config = registry.policy_config("srtf@sjf", section=section)
    assert config.guard is not None
    assert (config.guard.candidate, config.guard.name) == ("srtf", "sjf")
    assert (config.guard.every, config.guard.draws) == (1800.0, 4)
    made = registry.build(config)
    assert isinstance(made, GuardedPolicy)
    assert made.rules.every_s == 1800.0
    assert PolicyConfig.model_validate_json(config.model_dump_json()) == config
    for name, says in (
        ("srtf@nobody", "'nobody' cannot be a fallback; there are: fifo"),
        ("nobody@sjf", "unknown policy 'nobody'"),
    ):
        with pytest.raises(ConfigError, match=says):
            registry.policy_config(name)
