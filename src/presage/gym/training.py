"""From nothing to a policy: the best heuristic is imitated, and what came out is improved if that
was asked for, by searching or by reinforcement learning.

What was improved is kept only if it is better than what was imitated in scenes that neither has
seen. All randomness is in the seed of the recipe; no clock is read here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from math import log
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from presage.gym.episode import ClusterEpisode
from presage.gym.evaluate import policy_of, run_scene
from presage.gym.imitate import gather, imitate
from presage.gym.search import NetSearch, baselines, cost
from presage.gym.tasks import layout_of, maker, rules_of
from presage.gym.teachers import TEACHERS, choice
from presage.gym.worlds import Scene, Worlds
from presage.model.errors import MissingExtra
from presage.policy.learned.net import Net, Task

__all__ = ["ALGORITHMS", "Algorithm", "Recipe", "Trained", "best_teacher", "train_policy"]

Algorithm = Literal["imitate", "search", "ppo", "a2c", "dqn"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
Report = Callable[[str, int, int], None]
"""Is told what is being done, how much of it is done, and how much there is."""

_TEACHER_SCENES = 6
_CHECK_SCENES = 8
"""In which what was improved is compared with what was imitated."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to train; the same recipe in the same worlds makes the same arrays."""

    task: Task = "order"
    algorithm: Algorithm = "imitate"
    seed: int = 0
    slots: int = 16
    hidden: int = 16
    choices: int = 4_000
    """Of the heuristic, that are imitated."""
    generations: int = 8
    """Of a search."""
    population: int = 10
    scenes: int = 5
    """In which every network of a generation is tried."""
    steps: int = 50_000
    """Decisions, for ppo, a2c and dqn."""


@dataclass(frozen=True, slots=True)
class Trained:
    """What came out."""

    net: Net
    rules: Mapping[str, float]
    about: Mapping[str, Any]
    """For the card: the recipe, the teacher, the costs, and the curve."""


def train_policy(
    recipe: Recipe,
    worlds: Worlds,
    *,
    state: Path | None = None,
    tensorboard: Path | None = None,
    report: Report = lambda what, done, total: None,
) -> Trained:
    """Train; `state` is a file in which progress is kept and from which it goes on."""
    task, slots, seed = recipe.task, recipe.slots, recipe.seed
    if recipe.algorithm in ("ppo", "a2c", "dqn"):
        _check_extra(recipe.algorithm, tensorboard)  # before minutes are spent
    layout, rules = layout_of(task, slots), rules_of(task)
    rng = np.random.default_rng((seed, 0))
    teacher = best_teacher(task, [worlds.draw(rng) for _ in range(_TEACHER_SCENES)], slots)
    seen, chosen = gather(
        task,
        TEACHERS[task][teacher],
        worlds,
        recipe.choices,
        rng,
        slots=slots,
        progress=lambda done, total: report(f"choices of {teacher}", done, total),
    )
    begin = Net.random(layout, recipe.hidden, rng)
    first, agrees = imitate(begin, layout.actions, slots, seen, chosen, rng)
    about: dict[str, Any] = {"recipe": asdict(recipe), "teacher": teacher, "agrees": agrees}
    if recipe.algorithm == "imitate":
        return Trained(first, rules, about)
    if recipe.algorithm == "search":
        net, numbers, curve = _search(recipe, worlds, first, rules, state, report)
    else:
        numbers = rules
        net, curve = _reinforce(recipe, worlds, first, rules, state, tensorboard, report)
    fresh = np.random.default_rng((seed, 1))
    scenes = [worlds.draw(fresh) for _ in range(_CHECK_SCENES)]
    best = baselines(task, scenes)
    costs = []
    for number, (one, its) in enumerate(((first, rules), (net, numbers))):
        report("check in scenes not seen", number, 2)
        told = [run_scene(scene, policy_of(task, one, slots, its)) for scene in scenes]
        costs.append(float(np.mean([cost(a, b) for a, b in zip(told, best, strict=True)])))
    about |= {"cost_imitated": costs[0], "cost_improved": costs[1], "curve": curve}
    better = costs[1] < costs[0]
    return Trained(net if better else first, numbers if better else rules, about)


def best_teacher(task: Task, scenes: Sequence[Scene], slots: int = 16) -> str:
    """Whose choices have the shortest completion times in these scenes."""

    def spent(name: str) -> float:
        total = 0.0
        choose = choice(TEACHERS[task][name], layout_of(task, slots))
        for scene in scenes:
            episode = ClusterEpisode(scene, maker(task, slots))
            while episode.go_on():
                while episode.chooser.can_choose:
                    episode.chooser.choose(choose(episode.chooser.observation))
            total += log(max(episode.parts.jct, 1e-9))
        return total

    return min(TEACHERS[task], key=spent)


def _search(
    recipe: Recipe,
    worlds: Worlds,
    net: Net,
    rules: dict[str, float],
    state: Path | None,
    report: Report,
) -> tuple[Net, dict[str, float], list[float]]:
    search = NetSearch(
        recipe.task, net, rules, recipe.slots, population=recipe.population, seed=recipe.seed
    )
    if state is not None and state.exists():
        search.load(state)
    while search.generation < recipe.generations:
        rng = np.random.default_rng((recipe.seed, 2, search.generation))
        scenes = [worlds.draw(rng) for _ in range(recipe.scenes)]
        search.step(scenes, baselines(recipe.task, scenes))
        if state is not None:
            search.save(state)
        report("generations", search.generation, recipe.generations)
    return search.net, search.rules, search.curve


def _reinforce(
    recipe: Recipe,
    worlds: Worlds,
    net: Net,
    rules: dict[str, float],
    state: Path | None,
    tensorboard: Path | None,
    report: Report,
) -> tuple[Net, list[float]]:
    from presage.gym.reinforce import train

    assert recipe.algorithm != "imitate"
    assert recipe.algorithm != "search"
    done = train(
        recipe.task,
        recipe.algorithm,
        net,
        worlds,
        steps=recipe.steps,
        slots=recipe.slots,
        rules=rules,
        seed=recipe.seed,
        state=state,
        tensorboard=tensorboard,
        progress=lambda done, total: report("decisions", done, total),
    )
    return done.net, done.curve


def _check_extra(algorithm: str, tensorboard: Path | None) -> None:
    if tensorboard is not None and find_spec("tensorboard") is None:
        raise MissingExtra("tensorboard", "--tensorboard")
    try:
        import gymnasium  # noqa: F401
        import stable_baselines3  # noqa: F401
        import torch  # noqa: F401
    except ModuleNotFoundError:
        raise MissingExtra("gym", f"training with {algorithm}") from None
