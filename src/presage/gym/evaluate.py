"""How good a policy is beside others: the same scenes, the same knowledge, no look at the truth.

Every policy gets what is foreseen of a job from the runs that had ended (`sim.foreseen`), whether
it uses that or not. Means come with a 95 % interval over the scenes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from presage.core.ports import Policy
from presage.gym.tasks import layout_of
from presage.gym.worlds import Scene
from presage.policy.config import PolicyConfig
from presage.policy.learned.net import Decides, Task
from presage.policy.learned.scale import SCALE_RULES
from presage.policy.learned.serve import BASES, learned_parts
from presage.policy.pipeline import Pipeline
from presage.policy.registry import NAMED, pipeline
from presage.sim.foreseen import FromHistory
from presage.sim.run import simulate

__all__ = ["BASELINES", "Figures", "best_of", "interval", "policy_of", "run_scene"]

_ELASTIC = BASES["scale"]
BASELINES: dict[Task, dict[str, PolicyConfig]] = {
    "order": {name: NAMED[name] for name in ("fifo", "sjf", "tiresias", "qssf")},
    "scale": {
        "gain": _ELASTIC.model_copy(update={"resize_cost_s": SCALE_RULES["resize_cost_s"]}),
        "triggers": _ELASTIC.model_copy(
            update={"grow_by": "fewest", "shrink_after_s": 30.0, "grow_after_s": 60.0}
        ),
    },
    "share": {
        "colocate": NAMED["colocate"],
        "alone": NAMED["colocate"].model_copy(update={"max_jobs_per_gpu": 1}),
    },
}
"""What a task is compared with: for scale the policy `elastic`, which knows what a resize costs,
and the published triggers; for share one job a GPU, too."""

FIGURES = ("avg_jct_s", "p99_jct_s", "avg_wait_s", "makespan_s", "gpu_utilization", "preemptions")


@dataclass(frozen=True, slots=True)
class Figures:
    """What one policy did in one scene."""

    avg_jct_s: float
    p99_jct_s: float
    avg_wait_s: float
    makespan_s: float
    gpu_utilization: float
    preemptions: float
    cpu_s: float


def run_scene(scene: Scene, policy: Policy, name: str = "policy", seed: int = 0) -> Figures:
    """A whole scene under one policy."""
    history = FromHistory() if scene.foresee is None else None
    result = simulate(
        scene.trace,
        scene.nodes,
        policy,
        name=name,
        rules=scene.rules,
        seed=seed,
        models=scene.models,
        estimates=scene.estimates,
        sharers=scene.sharers,
        advise=history,
        foresee=scene.foresee if history is None else history.predictor,
    )
    told = result.summary
    return Figures(*(float(told[name] or 0.0) for name in (*FIGURES, "cpu_s")))


def policy_of(task: Task, net: Decides, slots: int, rules: Mapping[str, float]) -> Pipeline:
    """The policy that a network makes, or a teacher (`ByTeacher`)."""
    base = pipeline(BASES[task]).rules
    return Pipeline(learned_parts(task, layout_of(task, slots), rules, net, base))


def best_of(found: Mapping[str, Figures], names: Sequence[str]) -> str:
    """Which of these had the lowest average completion time."""
    return min(names, key=lambda name: found[name].avg_jct_s)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half of its 95 % interval (Student's t)."""
    array = np.asarray(values, np.float64)
    if len(array) < 2:
        return float(array.mean()), float("nan")
    t = _T95[min(len(array) - 2, len(_T95) - 1)]
    return float(array.mean()), float(t * array.std(ddof=1) / sqrt(len(array)))


_T95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042, 1.96),
)
"""By degrees of freedom, from 1."""
