"""Bundles of the tasks scale and share: they decide the same every time,
and on a server they are guarded by the policy in whose pass they choose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from presage.gym.jobs import scene_for
from presage.gym.worlds import Scene
from presage.model.errors import BundleError
from presage.model.event import Resize
from presage.policy import registry
from presage.policy.learned.net import Net, Task, write_bundle
from presage.policy.learned.serve import LAYOUTS, NUMBERS
from presage.sim.clusters import Cluster
from presage.sim.generate import make_trace
from presage.sim.run import simulate
from presage.store.memory import MemoryStore

CARD = {"name": "mine", "version": "1", "date": "", "data": "", "licence": ""}
CARD |= {"splits": "", "errors": ""}
CLUSTER = Cluster("2x4")
BOTH = pytest.mark.parametrize("task", ["scale", "share"])


def bundle(folder: Path, task: Task, numbers: dict[str, float] | None = None) -> Path:
    path, layout = folder / f"{task}.npz", LAYOUTS[task](8)
    net = Net.random(layout, 6, np.random.default_rng(7))
    write_bundle(path, task, net, layout, {**NUMBERS[task], **(numbers or {})}, CARD)
    return path


@BOTH
def test_it_decides_the_same_every_time(task: Task, tmp_path: Path) -> None:
    config = registry.policy_config(f"learned:{bundle(tmp_path, task)}")
    trace = make_trace("poisson", 60, 2, CLUSTER.gpus, 0.9)
    short = trace.jobs.with_columns(pl.col("duration_s").clip(60.0, 7200.0))
    given = scene_for(task, Scene(replace(trace, jobs=short), CLUSTER), 1)
    assert given.foresee is not None
    journals = []
    for _ in range(2):
        store = MemoryStore()
        result = simulate(
            given.trace,
            given.nodes,
            registry.build(config),
            name="it",
            store=store,
            rules=given.rules,
            estimates=given.estimates,
            sharers=given.sharers,
            foresee=given.foresee,
            check_every=50,
        )
        assert set(result.jobs["status"]) == {"finished"}
        journals.append(list(store.steps()))
    assert journals[0] == journals[1]
    resized = [one for _, _, said in journals[0] for one in said if isinstance(one, Resize)]
    assert bool(resized) == (task == "scale")


@BOTH
def test_live_it_is_guarded_by_the_policy_in_whose_pass_it_chooses(
    task: Task, tmp_path: Path
) -> None:
    name = f"learned:{bundle(tmp_path, task)}"
    live = registry.live(name, registry.policy_config(name))
    assert live.guard is not None
    assert live.guard.name == {"scale": "elastic", "share": "colocate"}[task]
    registry.build(live)


def test_numbers_that_make_no_sense(tmp_path: Path) -> None:
    for numbers in ({"keep_s": -1.0}, {"luck": 1.0}):
        path = bundle(tmp_path, "scale", numbers)
        with pytest.raises(BundleError, match="has rules that this version has not"):
            registry.build(registry.policy_config(f"learned:{path}"))
