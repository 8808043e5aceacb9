"""Co-location of jobs that cannot share: it decides, and costs, what its base order does, and says
so."""

from __future__ import annotations

from functools import partial

from presage.core.engine import Engine
from presage.model import event as ev
from presage.policy.config import PolicyConfig
from presage.policy.registry import build
from presage.sim.clusters import read_cluster
from presage.sim.generate import make_trace
from presage.sim.run import simulate
from presage.sim.whatif import export_trace, what_if
from presage.store.memory import MemoryStore
from tests.counting import opcodes
from tests.scenario import Known, job, nodes

BASE = PolicyConfig(order="qssf", mode="greedy")
CLUSTER = read_cluster("4x8")
TRACE = make_trace("poisson", 300, 7, gpus=32, load=2.0)


def test_it_decides_and_costs_what_its_base_order_does() -> None:
    stores = {"base": MemoryStore(), "colocate": MemoryStore()}
    costs = {
        name: opcodes(
            partial(simulate, TRACE, CLUSTER, build(policy), name=name, store=stores[name])
        )
        for name, policy in (("base", BASE), ("colocate", "colocate"))
    }
    assert list(stores["colocate"].read()) == list(stores["base"].read())
    assert costs["colocate"] < 1.05 * costs["base"]
    strict = opcodes(partial(simulate, TRACE, CLUSTER, build("sjf"), name="sjf"))
    assert costs["colocate"] < 2 * strict


def test_it_says_so() -> None:
    result = simulate(TRACE, CLUSTER, build("colocate"), name="colocate")
    (note,) = result.notes
    assert "no job asks for a part of a GPU" in note
    assert "order qssf, mode greedy" in note
    shared = simulate(TRACE, CLUSTER, build("colocate"), name="colocate", sharers=2)
    assert shared.notes == ()
    assert simulate(TRACE, CLUSTER, build(BASE), name="base").notes == ()
    store = MemoryStore()
    simulate(TRACE, CLUSTER, build("fifo"), name="fifo", store=store)
    export = export_trace(store.steps())
    assert what_if(export, {"colocate": lambda: build("colocate")})["colocate"].notes == (note,)


def test_a_job_of_whole_gpus_is_told_that_it_cannot_share() -> None:
    engine = Engine(build("colocate"), Known())
    engine.handle(0.0, [ev.NodeUp(node) for node in nodes(2)])
    specs = [job("a", 2), job("b", 2), job("c", 0.5)]
    for count in (2, 3):  # before and after somebody came who can
        engine.handle(float(count), [ev.JobSubmitted(spec) for spec in specs[:count]])
        told = engine.explain("b")
        assert told is not None
        assert told.text.endswith("; it asks for whole GPUs and can share none")
    shares = engine.explain("c")
    assert shares is not None
    assert "whole GPUs" not in shares.text


def test_the_first_that_can_share_finds_everybody_where_they_are() -> None:
    def lived(fresh: bool) -> list[list[ev.Decision]]:
        engine, made = Engine(build("colocate"), Known(), check_every=1), []
        facts: list[list[ev.Fact]] = [
            [ev.NodeUp(node) for node in nodes(2, 2)],
            [ev.JobSubmitted(job(f"w{k}", 2)) for k in range(4)],
            [ev.JobSubmitted(job(f"s{k}", 0.5)) for k in range(3)],
            [ev.JobExited("w0", 1, ev.Outcome.SUCCEEDED)],
            [ev.JobSubmitted(job("late", 1))],
            [ev.JobExited("w1", 1, ev.Outcome.SUCCEEDED)],
        ]
        for now, step in enumerate(facts):
            if fresh:
                engine = Engine(build("colocate"), Known(), engine.state, check_every=1)
            made.append(engine.handle(float(now), step))
            started = [
                ev.JobStarted(one.job, one.attempt)
                for one in made[-1]
                if isinstance(one, ev.Launch)
            ]
            engine.handle(float(now), started)
        return made

    made = lived(fresh=False)
    assert made == lived(fresh=True)
    launched = [one.job for step in made for one in step if isinstance(one, ev.Launch)]
    assert len(set(launched)) == len(launched) >= 4
