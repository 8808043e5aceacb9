"""Learned scaling of elastic jobs against the policy `elastic` by gain and the 30 s / 60 s
triggers.

Trains on made traces, the first six weeks of Philly and four clusters of ITP, made elastic as
`presage.gym.jobs.elastic` says. Tests on made traces of other seeds (`made`), on the other four
clusters of ITP (`itp`), and on 60 trainings of measured families at measured step times (`mix`,
the workload of `presage reproduce elastic-kubeflow`), none of which was trained on. A resize and a
stop cost 40 s; run times are known with an error of e^±0.5. What is done already (files in
`--out`) is not done again.

    PRESAGE_DATA=... python -m benchmarks.gym_scale [--algo imitate] [--seeds 0,1,2,3,4]
"""

from __future__ import annotations

from functools import partial

import numpy as np

from benchmarks import _gym
from benchmarks._data import data_dir
from presage.gym.jobs import LOADS, as_submitted, elastic, for_task
from presage.gym.worlds import Generated, Scene, Worlds, sized
from presage.model.estimate import Estimate, Estimates
from presage.reproduce.elastic_kubeflow import RESIZE_S, Fitted, mix_setup
from presage.sim.clusters import Cluster
from presage.sim.speed import MeasuredSpeed
from presage.sim.world import WorldRules

PARTS = ("made", "itp", "mix")
MADE, MIXES = 20, 30
FEWEST = 300
"""Jobs of a week of ITP that is tested on."""
COLUMNS = {
    "jct": _gym.COLUMNS["jct"],
    "run": lambda one: one.avg_jct_s - one.avg_wait_s,
    **_gym.COLUMNS,
}


def main() -> None:
    parts = {name: partial(scenes, name) for name in PARTS}
    trained_on = "made traces, Philly, ITP"
    _gym.compare("scale", __doc__, 900, worlds, trained_on, parts, "gain", columns=COLUMNS)


def worlds() -> Worlds:
    """What is trained on."""
    weeks = (*_gym.philly_weeks()[: _gym.PHILLY_TRAINED], *_gym.itp_weeks(trained=True))
    return for_task("scale", Generated(jobs=(150, 500), nodes=(1, 16)), weeks, 400)


def scenes(part: str, most_jobs: int) -> list[Scene]:
    """What is tested on."""
    rng = np.random.default_rng(20261119)
    if part == "mix":
        return [mix(seed) for seed in range(100, 100 + MIXES)]
    if part == "made":
        made = Generated(jobs=(150, 800), nodes=(1, 24), load=LOADS["scale"])
        return [elastic(made.draw(rng), rng) for _ in range(MADE)]
    weeks = [
        week for week in _gym.itp_weeks(trained=False) if FEWEST <= week.jobs.height <= most_jobs
    ]
    return [elastic(sized(week, 0.8), rng) for week in weeks]


def mix(seed: int) -> Scene:
    """Trainings of measured families, at the step times that were measured."""
    setup = mix_setup(data_dir(), seed)
    steps = {job: one.true_s for job, one in setup.trainings.items()}
    speed = MeasuredSpeed(steps=steps, node_gpus=setup.node_gpus)
    told = tuple(
        Estimates("estimate_s", runtime_s=Estimate.exact(one, "s", "estimate_s"))
        for one in setup.trace.jobs["estimate_s"]
    )
    return Scene(
        setup.trace,
        Cluster(setup.cluster),
        WorldRules(restart_cost_s=RESIZE_S, resize_cost_s=RESIZE_S, speed=speed),
        estimates=told,
        foresee=lambda world: Fitted(as_submitted(world), setup.trainings, 0.0),
    )


if __name__ == "__main__":
    main()
