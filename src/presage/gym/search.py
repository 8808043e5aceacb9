"""Improve a network by searching (the cross-entropy method): draw networks around the best so far,
run each in the same scenes, keep those that did best.

What is judged is what is reported: average completion time over a whole scene relative to the best
heuristic there, with a price on a long tail. Numbers of the task (where levels of service end, how
much a resize must save) are searched along with the network. State is kept after every generation,
so a search goes on where it was stopped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from math import exp, log
from pathlib import Path

import numpy as np

from presage.gym.evaluate import BASELINES, Figures, best_of, policy_of, run_scene
from presage.gym.worlds import Scene
from presage.model.errors import BundleError
from presage.policy.learned.net import Floats, Net, Task
from presage.policy.registry import build
from presage.sim._files import replacing

__all__ = ["BASELINES", "NetSearch", "baselines", "cost"]

_TAIL_FREE = 1.0
_TAIL_PRICE = 1.0
"""What a 99th percentile above the best heuristic's costs, in logarithms."""
_SEARCHED: dict[Task, tuple[str, ...]] = {
    "order": ("first_gpu_s", "factor"),
    "scale": ("pays", "keep_s"),
    "share": (),
}
_ELITE = 4


def baselines(task: Task, scenes: Sequence[Scene]) -> list[Figures]:
    """Of the best heuristic in each scene."""
    told = []
    for scene in scenes:
        kinds = BASELINES[task]
        figures = {name: run_scene(scene, build(one), name) for name, one in kinds.items()}
        told.append(figures[best_of(figures, list(kinds))])
    return told


def cost(mine: Figures, best: Figures) -> float:
    """How much worse than the best heuristic, in logarithms; below 0 is better."""
    tail = log(max(mine.p99_jct_s, 1.0) / max(best.p99_jct_s, 1.0) / _TAIL_FREE)
    return log(mine.avg_jct_s / best.avg_jct_s) + _TAIL_PRICE * max(tail, 0.0)


@dataclass(slots=True)
class NetSearch:
    """One search. All its randomness is in `seed` and the number of the generation."""

    task: Task
    net: Net
    rules: dict[str, float]
    slots: int = 16
    population: int = 12
    width: float = 0.1
    """Standard deviation around the best, at first."""
    seed: int = 0
    generation: int = 0
    curve: list[float] = field(default_factory=list)
    """The best cost of each generation."""

    def step(
        self, scenes: Sequence[Scene], best: Sequence[Figures], pool: Executor | None = None
    ) -> float:
        """One generation; the cost of what was found."""
        rng = np.random.default_rng((self.seed, self.generation))
        middle = _packed(self.task, self.net, self.rules)
        width = np.full(middle.size, self.width * 0.9**self.generation)
        width[self.net.flat().size :] *= 5
        drawn = [
            middle,
            *(middle + width * rng.normal(size=middle.size) for _ in range(self.population - 1)),
        ]
        tries = [_unpacked(self.task, self.net, self.rules, flat) for flat in drawn]
        jobs = [
            (self.task, net, self.slots, rules, scene, base)
            for net, rules in tries
            for scene, base in zip(scenes, best, strict=True)
        ]
        costs = np.array(list((pool.map if pool else map)(_judge, jobs))).reshape(len(tries), -1)
        means = costs.mean(axis=1)
        first = np.argsort(means, kind="stable")[:_ELITE]
        together = np.mean([drawn[k] for k in first], axis=0)
        chosen = drawn[int(first[0])]
        net, rules = _unpacked(self.task, self.net, self.rules, together)
        mixed = float(
            np.mean(
                [
                    _judge((self.task, net, self.slots, rules, s, b))
                    for s, b in zip(scenes, best, strict=True)
                ]
            )
        )
        if mixed < means[first[0]]:
            chosen = together
        self.net, self.rules = _unpacked(self.task, self.net, self.rules, chosen)
        self.generation += 1
        self.curve.append(min(mixed, float(means[first[0]])))
        return self.curve[-1]

    def save(self, path: Path) -> None:
        """Where it is, to go on from."""
        about: dict[str, object] = {"task": self.task, "rules": self.rules, "slots": self.slots}
        about |= {"generation": self.generation, "curve": self.curve, "seed": self.seed}
        with replacing(path) as draft:
            draft.write_text(json.dumps({**about, "flat": self.net.flat().tolist()}))

    def load(self, path: Path) -> None:
        """Go on where another one of the same kind was stopped."""
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            flat = np.asarray(kept["flat"], np.float64)
            mine = self.task, self.slots, self.seed, self.net.flat().size
            if (kept["task"], kept["slots"], kept["seed"], flat.size) != mine:
                raise BundleError(f"{path} is the state of another training; choose another --out")
            self.net, self.rules = self.net.like(flat), dict(kept["rules"])
            self.generation, self.curve = int(kept["generation"]), list(kept["curve"])
        except (OSError, ValueError, KeyError, TypeError):
            raise BundleError(f"{path} cannot be read; remove it to start over") from None


def _judge(job: tuple[Task, Net, int, Mapping[str, float], Scene, Figures]) -> float:
    task, net, slots, rules, scene, best = job
    return cost(run_scene(scene, policy_of(task, net, slots, rules)), best)


def _packed(task: Task, net: Net, rules: Mapping[str, float]) -> Floats:
    return np.concatenate([net.flat(), [log(rules[name]) for name in _SEARCHED[task]]])


def _unpacked(
    task: Task, net: Net, rules: Mapping[str, float], flat: Floats
) -> tuple[Net, dict[str, float]]:
    size = net.flat().size
    searched = dict(zip(_SEARCHED[task], (exp(x) for x in flat[size:]), strict=True))
    bounded = {name: float(np.clip(x, *_BOUNDS[name])) for name, x in searched.items()}
    return net.like(flat[:size]), {**rules, **bounded}


_BOUNDS = {
    "first_gpu_s": (60.0, 200_000.0),
    "factor": (1.5, 1000.0),
    "pays": (0.1, 50.0),
    "keep_s": (5.0, 5000.0),
}
Progress = Callable[[int, int], None]
