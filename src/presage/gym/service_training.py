"""Learn how many replicas a service needs: the best rule is imitated, then improved by search.

The same two steps as for policies: the rule (and its setting) that costs least in the training's
own scenes is the teacher; the cross-entropy method improves the network and its two numbers,
judged by what is reported, the cost of a whole scene against the teacher's. What was improved is
kept only if it is better in scenes that neither has seen. All randomness is in the seed; no clock
is read here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import exp, log
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from presage.gym.imitate import imitate
from presage.gym.service_learned import (
    SERVICE_RULES,
    LearnedReplicas,
    ServiceView,
    service_layout,
)
from presage.gym.service_loads import ServiceWorlds
from presage.gym.service_rules import RULES, rule_of
from presage.gym.services import (
    Floats,
    ReplicaRule,
    ServiceParts,
    ServicePrices,
    ServiceRun,
    ServiceScene,
    play,
)
from presage.model.errors import BundleError
from presage.policy.learned.net import Net
from presage.sim._files import replacing

__all__ = [
    "SERVICE_ALGORITHMS",
    "ServiceAlgorithm",
    "ServiceRecipe",
    "TrainedService",
    "scene_cost",
    "train_service",
]

ServiceAlgorithm = Literal["imitate", "search"]
SERVICE_ALGORITHMS: tuple[ServiceAlgorithm, ...] = get_args(ServiceAlgorithm)
Report = Callable[[str, int, int], None]
_TEACHER_SCENES = 6
_EPOCHS, _MANY = 30, 3_000
"""Times that each choice is shown when there are so many; fewer are shown more often."""
_CHECK_SCENES = 16
_ELITE = 4


@dataclass(frozen=True, slots=True)
class ServiceRecipe:
    """How to train; the same recipe in the same worlds makes the same arrays."""

    algorithm: ServiceAlgorithm = "search"
    seed: int = 0
    hidden: int = 8
    choices: int = 3_000
    generations: int = 10
    population: int = 12
    scenes: int = 12
    prices: ServicePrices = field(default_factory=ServicePrices)


@dataclass(frozen=True, slots=True)
class TrainedService:
    """What came out."""

    net: Net
    rules: Mapping[str, float]
    about: Mapping[str, Any]
    """For the card: the recipe, the teacher, the costs, and the curve."""


def scene_cost(scene: ServiceScene, rule: ReplicaRule, prices: ServicePrices) -> float:
    """GPU seconds that a scene under a rule is worth, per GPU second of work."""
    parts, requests = play(scene, rule)
    return prices.cost(parts.minus(ServiceParts())) / max(requests * scene.setting.service_s, 1.0)


def train_service(
    recipe: ServiceRecipe,
    worlds: ServiceWorlds,
    *,
    state: Path | None = None,
    report: Report = lambda what, done, total: None,
) -> TrainedService:
    """Train; `state` is a file in which progress is kept and from which it goes on."""
    rng = np.random.default_rng((recipe.seed, 0))
    first_scenes = [worlds.draw(rng) for _ in range(_TEACHER_SCENES)]
    name, knob = _best_rule(first_scenes, recipe.prices, report)
    seen, chosen = _gather(name, knob, worlds, recipe.choices, rng)
    layout = service_layout()
    begin = Net.random(layout, recipe.hidden, rng)
    epochs = max(_EPOCHS, min(_EPOCHS * _MANY // recipe.choices, 10 * _EPOCHS))
    net, agrees = imitate(begin, layout.actions, layout.slots, seen, chosen, rng, epochs=epochs)
    rules = dict(SERVICE_RULES)
    about: dict[str, Any] = {
        "recipe": asdict(recipe),
        "teacher": name,
        "setting": knob,
        "agrees": agrees,
    }
    if recipe.algorithm == "imitate":
        return TrainedService(net, rules, about)
    search = _ServiceSearch(recipe, net, rules, (name, knob))
    if state is not None and state.exists():
        search.load(state)
    drawn = np.random.default_rng((recipe.seed, 2))
    scenes = [worlds.draw(drawn) for _ in range(recipe.scenes)]
    while search.generation < recipe.generations:
        search.step(scenes)
        if state is not None:
            search.save(state)
        report("generations", search.generation, recipe.generations)
    unseen = np.random.default_rng((recipe.seed, 1))
    scenes = [worlds.draw(unseen) for _ in range(_CHECK_SCENES)]
    base = search.base(scenes)
    tries = {
        "imitated": (net, rules),
        "numbers": (net, search.numbers),
        "network": (search.net, search.rules),
    }
    costs = {name: search.judge(*one, scenes, base) for name, one in tries.items()}
    kept = min(costs, key=lambda name: costs[name])
    about |= {"costs": costs, "kept": kept, "curve": search.curve}
    return TrainedService(*tries[kept], about)


def _best_rule(
    scenes: Sequence[ServiceScene], prices: ServicePrices, report: Report
) -> tuple[str, float]:
    """The rule and the setting that cost least."""
    tried = [(name, knob) for name, (_, knobs) in RULES.items() for knob in knobs]
    scores = []
    for number, (name, knob) in enumerate(tried):
        report("rules", number, len(tried))
        costs = [scene_cost(scene, rule_of(name, knob), prices) for scene in scenes]
        scores.append(float(np.mean(np.log(costs))))
    return tried[int(np.argmin(scores))]


def _gather(
    name: str, knob: float, worlds: ServiceWorlds, choices: int, rng: np.random.Generator
) -> tuple[Floats, npt.NDArray[np.int64]]:
    """What there was to see, and the choice that is nearest to what the rule would like."""
    seen, chosen = list[Floats](), list[int]()
    while len(seen) < choices:
        service, rule, view = ServiceRun(worlds.draw(rng)), rule_of(name, knob), ServiceView()
        step = 0
        while not service.over and len(seen) < choices:
            if service.seen.busy and step % _EVERY == 0:
                seen.append(view.observe(service.seen))
                chosen.append(view.nearest(rule.desired(service.seen), service.seen))
            service.advance(rule.wanted(service.seen))
            step += 1
    return np.array(seen), np.array(chosen)


_EVERY = 4
"""Steps between two choices that are imitated; those in between are much the same."""


class _ServiceSearch:
    """One search by the cross-entropy method; all its randomness is in the seed and the number of
    the generation."""

    def __init__(
        self,
        recipe: ServiceRecipe,
        net: Net,
        rules: dict[str, float],
        teacher: tuple[str, float],
    ) -> None:
        self.net, self.rules = net, rules
        self.numbers = rules
        """The best before the network was drawn, too."""
        self.generation = 0
        self.curve: list[float] = []
        """The best cost of each generation against the teacher's, in logarithms."""
        self._recipe, self._teacher = recipe, teacher

    def judge(
        self,
        net: Net,
        rules: Mapping[str, float],
        scenes: Sequence[ServiceScene],
        base: Sequence[float],
    ) -> float:
        """How much worse than the teacher, in logarithms; below 0 is better."""
        prices = self._recipe.prices
        costs = [scene_cost(scene, LearnedReplicas(net, rules), prices) for scene in scenes]
        return float(np.mean(np.log(costs) - np.log(base)))

    def base(self, scenes: Sequence[ServiceScene]) -> list[float]:
        """What the teacher costs."""
        prices = self._recipe.prices
        return [scene_cost(one, rule_of(*self._teacher), prices) for one in scenes]

    def step(self, scenes: Sequence[ServiceScene]) -> None:
        """One generation in these scenes: the best of all that were drawn and the mean of the best
        few is the next middle. At first only the two numbers are drawn, since they matter most."""
        recipe, middle = self._recipe, self._packed()
        rng = np.random.default_rng((recipe.seed, 3, self.generation))
        both = self.generation >= _NUMBERS_FIRST
        width = np.full(middle.size, _WIDTH if both else 0.0)
        width[-len(_SEARCHED) :] = _NUMBERS_WIDTH * 0.8**self.generation
        noise = rng.normal(size=(recipe.population // 2, middle.size)) * width
        drawn = [middle, *(middle + noise), *(middle - noise)]
        base = self.base(scenes)
        costs = [self.judge(*self._unpacked(flat), scenes, base) for flat in drawn]
        best = np.argsort(costs, kind="stable")[:_ELITE]
        drawn.append(np.mean([drawn[k] for k in best], axis=0))
        costs.append(self.judge(*self._unpacked(drawn[-1]), scenes, base))
        self.net, self.rules = self._unpacked(drawn[int(np.argmin(costs))])
        if not both:
            self.numbers = self.rules
        self.curve.append(min(costs))
        self.generation += 1

    def save(self, path: Path) -> None:
        """Where it is, to go on from."""
        about = {"generation": self.generation, "curve": self.curve}
        about |= {"rules": self.rules, "numbers": self.numbers}
        kept = {**about, "recipe": self._mark(), "flat": self.net.flat().tolist()}
        with replacing(path) as draft:
            draft.write_text(json.dumps(kept))

    def load(self, path: Path) -> None:
        """Go on where another one of the same recipe was stopped."""
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            flat = np.asarray(kept["flat"], np.float64)
            if kept["recipe"] != self._mark() or flat.size != self.net.flat().size:
                raise BundleError(f"{path} is the state of another training; choose another --out")
            self.net, self.rules = self.net.like(flat), dict(kept["rules"])
            self.numbers = dict(kept["numbers"])
            self.generation, self.curve = int(kept["generation"]), list(kept["curve"])
        except (OSError, ValueError, KeyError, TypeError):
            raise BundleError(f"{path} cannot be read; remove it to start over") from None

    def _mark(self) -> dict[str, Any]:
        """What has to be the same to go on, the number of generations aside."""
        mark = asdict(self._recipe)
        del mark["generations"]
        return mark

    def _packed(self) -> Floats:
        return np.concatenate([self.net.flat(), [log(self.rules[name]) for name in _SEARCHED]])

    def _unpacked(self, flat: Floats) -> tuple[Net, dict[str, float]]:
        size = self.net.flat().size
        numbers = zip(_SEARCHED, (exp(x) for x in flat[size:]), strict=True)
        rules = {name: float(np.clip(x, *_BOUNDS[name])) for name, x in numbers}
        return self.net.like(flat[:size]), rules


_SEARCHED = ("hold_s", "lean")
_BOUNDS = {"hold_s": (15.0, 1800.0), "lean": (0.5, 2.0)}
_WIDTH, _NUMBERS_WIDTH = 0.03, 0.4
"""Standard deviations of what is drawn: of the network, and of the logarithms of the numbers."""
_NUMBERS_FIRST = 5
"""Generations in which only the numbers are drawn."""
