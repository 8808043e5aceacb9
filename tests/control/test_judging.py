"""Who of a guarded policy and its fallback decides on a server: read from its journal, judged on a
copy of its state, told as a fact."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from presage.control.advisors.judging import Judging
from presage.control.deciding import Deciders
from presage.control.measured import StoredTelemetry
from presage.core.engine import Engine
from presage.core.guard import trusted
from presage.core.state import State
from presage.layout import Layout
from presage.model import event as ev
from presage.model.errors import ConfigError
from presage.policy import registry
from presage.policy.config import ConfigFile, GuardSection, PolicyConfig
from presage.store import open_store
from presage.store.sql import SqlStore
from tests.scenario import job, nodes

SECTION = GuardSection.model_validate({"draws": 3, "ahead": "1h", "margin": 0.2, "margin_p99": 9})
UP = [ev.NodeUp(node) for node in nodes(2)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    opened = open_store(f"sqlite:///{tmp_path / 'journal.db'}")
    yield opened
    opened.close()


class Cluster:
    """A state that is decided about and journaled as on a server."""

    def __init__(self, store: SqlStore, deciders: Deciders) -> None:
        self.store, self.deciders = store, deciders
        decider = deciders.now
        self.engine = Engine(decider.make(), decider.predict, State())
        self.tell(0.0, decider.rules(), *UP)
        self.telemetry = StoredTelemetry(Layout(Path("nowhere")))
        self.judge = Judging(store, lambda: deciders.now)

    def tell(self, now: float, *facts: ev.Fact) -> None:
        self.store.append(now, facts, self.engine.handle(now, list(facts)))

    def run(self, name: str, now: float, lasts: float) -> None:
        self.tell(now, ev.JobSubmitted(job(name)))
        self.tell(now, ev.JobStarted(name, 1))
        self.tell(now + lasts, ev.JobExited(name, 1, ev.Outcome.SUCCEEDED))

    def look(self, now: float) -> list[ev.Fact]:
        return list(self.judge.look(now, lambda ask: ask(self.engine.state), self.telemetry))


def deciders(name: str) -> Deciders:
    return Deciders(name, registry.policy_config(name, section=SECTION), nodes=nodes(2))


def test_it_is_judged_before_it_decides_and_every_hour_since(store: SqlStore) -> None:
    cluster = Cluster(store, deciders("sjf@fifo"))
    assert cluster.look(1.0) == []  # nobody is there to decide about
    cluster.tell(2.0, ev.JobSubmitted(job("a")))
    (first,) = cluster.look(2.0)
    assert isinstance(first, ev.PolicyJudged)
    assert (first.trusted, first.candidate, first.fallback) == (False, "sjf", "fifo")
    assert "too few to foresee" in first.text
    cluster.tell(3.0, first)
    assert cluster.look(4.0) == []  # an hour has not passed
    for number in range(24):
        cluster.run(f"r{number}", 10.0 + 100 * number, 50.0 + number)
    assert cluster.look(3700.0) != []
    (second,) = cluster.look(7400.0)
    assert isinstance(second, ev.PolicyJudged)
    assert second.trusted, second.text
    assert second.rules == cluster.deciders.now.rules().digest
    cluster.tell(7400.0, second)
    assert trusted(cluster.engine.state)
    assert cluster.look(11_100.0) == []  # judged again, and nothing is different

    # another server takes over: it reads the journal, and judges at once
    state = State()
    for now, event in store.read():
        state.apply(now, event)
    assert trusted(state)
    again = Judging(store, lambda: cluster.deciders.now)
    list(again.look(11_200.0, lambda ask: ask(state), cluster.telemetry))
    assert again._trial is not None
    assert len(again._trial.learner.history) == 24
    assert again._trial.looks == 1


def test_without_a_guard_there_is_nothing_to_judge(store: SqlStore) -> None:
    cluster = Cluster(store, deciders("sjf"))
    cluster.tell(2.0, ev.JobSubmitted(job("a")))
    assert cluster.look(2.0) == []
    cluster.deciders.now = deciders("sjf@fifo").now
    assert len(cluster.look(3.0)) == 1  # since another policy was chosen
    cluster.judge.not_leading()
    assert len(cluster.look(4.0)) == 1  # it begins anew


def test_a_policy_that_came_from_elsewhere_names_no_bundle() -> None:
    there = deciders("fifo")
    about = {"bundle": "/etc/hostname", "digest": "0" * 64}
    text = ConfigFile(policies={"it": PolicyConfig.model_validate({"learned": about})})
    for name, file in (("learned:/etc/hostname", None), ("it", text)):
        with pytest.raises(ConfigError, match="bundles are read only by the server's own"):
            there.choice(name, file)
