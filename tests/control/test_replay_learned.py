"""A bundle that a journal names decides the same again: the audit of a what-if builds it from the
journal, whatever the policy of the server is now."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from presage.control.advisors.needs import predictor
from presage.control.replay import answer
from presage.core.ports import Predictor
from presage.gym.jobs import scene_for
from presage.gym.worlds import Scene
from presage.model.event import Decision, Launch, Resize, RulesChanged
from presage.policy import registry
from presage.policy.learned import serve
from presage.policy.learned.net import Net, Task, write_bundle
from presage.policy.learned.serve import LAYOUTS, NUMBERS
from presage.sim.clusters import Cluster
from presage.sim.generate import make_trace
from presage.sim.run import simulate
from presage.sim.whatif import Step
from presage.store.memory import MemoryStore

CARD = {"name": "mine", "version": "1", "date": "", "data": "", "licence": ""}
CARD |= {"splits": "", "errors": ""}
CLUSTER = Cluster("2x4")
BOTH = pytest.mark.parametrize("task", ["scale", "share"])


def bundle(path: Path, task: Task, seed: int) -> Path:
    layout = LAYOUTS[task](8)
    net = Net.random(layout, 6, np.random.default_rng(seed))
    write_bundle(path, task, net, layout, NUMBERS[task], CARD)
    return path


def journal(task: Task, path: Path) -> list[Step]:
    """A cluster that a bundle decided about, knowing what a server knows; its name comes first."""
    config = registry.policy_config(f"learned:{path}")
    trace = make_trace("poisson", 60, 2, CLUSTER.gpus, 1.2)
    short = trace.jobs.with_columns(pl.col("duration_s").clip(60.0, 7200.0))
    given = scene_for(task, Scene(replace(trace, jobs=short), CLUSTER), 1)

    def known(truth: Predictor) -> Predictor:
        return predictor(CLUSTER, config.colocate)

    store = MemoryStore()
    simulate(
        given.trace,
        given.nodes,
        registry.build(config),
        name="it",
        store=store,
        rules=given.rules,
        estimates=given.estimates,
        sharers=given.sharers,
        foresee=known,
    )
    version = predictor(CLUSTER, config.colocate).version
    rules = RulesChanged(config.model_dump_json(), version)
    (now, facts, made), *rest = store.steps()
    return [(now, (rules, *facts), made), *rest]


def audit(steps: list[Step]) -> tuple[dict[str, object], list[str]]:
    """Asked on a server that decides by fifo now."""
    own = registry.NAMED["fifo"].model_dump(mode="json")
    told = answer({"since": None, "policies": {}, "own": own}, steps, steps)
    return told["audit"], told["notes"]


def decided(steps: list[Step]) -> list[Decision]:
    return [one for _, _, made in steps for one in made]


@BOTH
def test_a_journal_that_names_a_bundle_is_decided_the_same_again(
    task: Task, tmp_path: Path
) -> None:
    steps = journal(task, bundle(tmp_path / "a.npz", task, 7))
    made = decided(steps)
    told, notes = audit(steps)
    assert told == {"same": True, "decisions": len(made), "first_difference_at": None}, notes
    used = [one for one in made if isinstance(one, Resize if task == "scale" else Launch)]
    assert len(used) > 20


@BOTH
def test_another_bundle_decides_otherwise_and_an_exchanged_one_is_said(
    task: Task, tmp_path: Path
) -> None:
    """What is compared tells bundles apart: else that they agree would mean nothing."""
    steps = journal(task, bundle(tmp_path / "a.npz", task, 7))
    other = journal(task, bundle(tmp_path / "b.npz", task, 8))
    (now, facts, made), *rest = steps
    swapped = [(now, (other[0][1][0], *facts[1:]), made), *rest]
    assert not audit(swapped)[0]["same"]
    bundle(tmp_path / "a.npz", task, 9)
    serve._bundle.cache_clear()  # as in a process of its own
    told, notes = audit(steps)
    assert not told["same"]
    assert any("another bundle than the one that was chosen" in note for note in notes)
