"""How a training should be run: which GPU, how many of them, sharding, checkpointing and
micro-batch, by time, money and the chance that it fits.

Thousands of ways are estimated roughly, and those that may be on the front of the best are asked
one after the other, each answer correcting the estimates of its kind (`_rough`). What is reported
was always asked. No clock: how many are asked is a number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from presage.foresee._layouts import Candidate, candidates, gpu_counts
from presage.foresee._rough import FirstEstimates, Seed, chances_of
from presage.foresee.answer import OnGpu, Prediction, Quantiles
from presage.foresee.goals import TrainingGoal
from presage.foresee.gpus import Gpu
from presage.foresee.graph.decoders import DecoderShape
from presage.foresee.planned import PlanOption, TrainingPlan, money_text
from presage.foresee.prices import price_of, price_source
from presage.learn import Floats
from presage.model.errors import UserError
from presage.model.setup import Parallelism, Setup
from presage.page import duration_text

__all__ = ["Ask", "pareto", "plan_training"]

Ask = Callable[[int, Sequence[Gpu], Setup], Prediction]
"""An answer for a batch on some GPUs in a set-up: `predict_model` of one model."""

_MOST_ASKED = 48
"""Ways that are asked, beside the first two of each GPU."""
_AT_ONCE = 8
"""Ways that are asked before the estimates are corrected."""
_NO_CHANCE = 0.1
"""To fit, by the first estimate: what has less is not asked."""
_LIKELY = 0.5
_LEVELS = (0.25, 0.5, 0.75, 0.9, 0.97)
"""Chances to fit that differ enough to matter: within two of them, time and money decide."""
_AS_GOOD = 1.005
"""Of time or money: what is less of a difference is none."""
_SECOND_BATCHES = (4, 256)
_STATES = ("device and driver", "weights", "gradients", "optimizer")
"""Parts of memory that do not grow with the batch."""
_TOO_LARGE = "needs more memory than the GPU has"
_BEATEN = "another is as fast, as cheap and as likely to fit"


def plan_training(
    ask: Ask,
    goal: TrainingGoal,
    gpus: Sequence[Gpu],
    base: Setup,
    *,
    decoder: DecoderShape | None = None,
    most_gpus: int = 64,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> TrainingPlan:
    """Ways to reach a goal with some kinds of GPUs; `base` says what all of them have in common.
    Raises a `UserError` that names the closest if none keeps the goal's limits."""
    left_out: Counter[str] = Counter()
    ways = list(candidates(base, goal, gpus, gpu_counts(most_gpus), decoder, left_out))
    if not ways:
        raise UserError(f"there is no way to divide the work: {_listed(left_out)}")
    alone = replace(base, gpus=1, parallel=Parallelism(), checkpoint="none", accumulate=1)
    one = ask(1, gpus, alone)
    larger = _second_batch(one, gpus)
    more = ask(larger, gpus, alone)
    seeds = {gpu.name: Seed.of(one.gpus[gpu.name], more.gpus[gpu.name], larger) for gpu in gpus}
    search = _Search(ask, goal, ways, FirstEstimates(ways, seeds), left_out)
    search.run(progress)
    plan = TrainingPlan(
        name=one.name,
        goal=goal,
        options=search.options(),
        left_out=dict(left_out.most_common()),
        assumptions=(*_assumed(goal, gpus), *one.assumptions),
    )
    _check(plan, gpus, search)
    return plan


def _second_batch(one: Prediction, gpus: Sequence[Gpu]) -> int:
    """A batch that shows how memory and time grow: about half of what the smallest card holds."""
    least, most = _SECOND_BATCHES
    card = min(gpus, key=lambda gpu: gpu.usable_mib)
    on = one.gpus[card.name]
    states = sum(on.breakdown.get(part, 0.0) for part in _STATES)
    sample = max(1.0, on.memory_mib.p50 - states)
    room = card.usable_mib - on.memory_mib.p50
    return int(np.clip(room / sample / 2, least, most))


class _Search:
    """Asks for the ways that may be among the best, until all that seem so were asked."""

    def __init__(
        self,
        ask: Ask,
        goal: TrainingGoal,
        ways: Sequence[Candidate],
        estimates: FirstEstimates,
        left_out: Counter[str],
    ) -> None:
        self._ask, self._goal, self._ways = ask, goal, ways
        self._estimates, self._left_out = estimates, left_out
        self._rooms: Floats = np.array([float(way.gpu.usable_mib) for way in ways])
        prices = [price_of(way.gpu) for way in ways]
        self._rates: Floats = np.array(
            [np.inf if price is None else price * way.setup.gpus
             for way, price in zip(ways, prices, strict=True)]
        )  # fmt: skip
        self._found: dict[int, PlanOption | None] = {}
        self._closest: tuple[float, str] = (np.inf, "")

    def run(self, progress: Callable[[int, int], None]) -> None:
        """Ask until the front is known, or enough was asked."""
        while len(self._found) < _MOST_ASKED:
            wanted = [place for place in self._front() if place not in self._found]
            wanted = wanted or self._of_each_count()
            if not wanted:
                break
            # From all along the front, so that every kind of way is corrected early.
            picked = np.linspace(0, len(wanted) - 1, min(_AT_ONCE, len(wanted)))
            self._ask_for([wanted[at] for at in np.unique(picked.round().astype(int))])
            progress(len(self._found), _MOST_ASKED)
        mib, _ = self._estimates.now()
        if not self._found:
            self._ask_for([int(np.argmin(mib / self._rooms))])
        progress(_MOST_ASKED, _MOST_ASKED)
        asked = np.isin(np.arange(len(self._ways)), list(self._found))
        unlikely = int(((chances_of(mib, self._rooms) < _NO_CHANCE) & ~asked).sum())
        self._left_out[_TOO_LARGE] += unlikely
        self._left_out[_BEATEN] += len(self._ways) - len(self._found) - unlikely
        self._left_out += Counter()  # without those that count nothing

    @property
    def closest(self) -> str:
        """Of those that do not fit, the one that lacks least, in words."""
        return self._closest[1]

    def options(self) -> tuple[PlanOption, ...]:
        """What was asked and can be, the fastest first; the front is marked."""
        options = [option for option in self._found.values() if option is not None]
        time = np.array([option.time_s.p50 for option in options])
        money = np.array([np.inf if option.usd is None else option.usd.p50 for option in options])
        best = set(pareto(time, money, np.array([option.chance_fits for option in options])))
        marked = [replace(option, on_front=at in best) for at, option in enumerate(options)]
        return tuple(sorted(marked, key=lambda option: option.time_s.p50))

    def _front(self) -> list[int]:
        """Places that would be on the front, by what is known now."""
        mib, ms = self._estimates.now()
        chances = chances_of(mib, self._rooms)
        for place, option in self._found.items():
            chances[place] = 0.0 if option is None else option.chance_fits
            ms[place] = ms[place] if option is None else option.step_ms.p50
        possible = np.flatnonzero(chances >= _NO_CHANCE)
        money = ms * self._rates
        kept = pareto(ms[possible], money[possible], chances[possible])
        return [int(possible[at]) for at in kept]

    def _of_each_count(self) -> list[int]:
        """The fastest that likely fits of each kind and number of GPUs that was not asked yet: a
        wrong estimate must not hide them all."""
        mib, ms = self._estimates.now()
        likely = np.flatnonzero(chances_of(mib, self._rooms) >= _LIKELY)
        asked = {self._ways[place].fleet for place in self._found}
        best: dict[tuple[str, int], int] = {}
        for place in likely[np.argsort(ms[likely], kind="stable")].tolist():
            best.setdefault(self._ways[place].fleet, place)
        return [place for fleet, place in best.items() if fleet not in asked]

    def _ask_for(self, places: Sequence[int]) -> None:
        """Ask for ways; those of one set-up at once."""
        together: dict[tuple[Setup, int], list[int]] = {}
        for place in places:
            way = self._ways[place]
            together.setdefault((way.setup, way.batch), []).append(place)
        for (setup, batch), mine in together.items():
            try:
                said = self._ask(batch, [self._ways[place].gpu for place in mine], setup).gpus
            except UserError as refused:
                self._left_out[f"no answer: {str(refused)[:120]}"] += len(mine)
                self._found |= dict.fromkeys(mine)
                continue
            for place in mine:
                self._take(place, said[self._ways[place].gpu.name])

    def _take(self, place: int, on: OnGpu) -> None:
        way = self._ways[place]
        self._estimates.learn(place, on)
        option = _option(way, on, self._goal)
        if on.memory_mib.p10 > way.gpu.usable_mib:
            self._left_out[_TOO_LARGE] += 1
            lacks = on.memory_mib.p50 / way.gpu.usable_mib
            need, room = on.memory_mib.p50 / 1024, way.gpu.usable_mib / 1024
            words = f"{option.label} needs {need:.1f} of {room:.1f} GiB"
            self._closest = min(self._closest, (lacks, words))
            self._found[place] = None
        else:
            self._found[place] = option


def pareto(time: Floats, money: Floats, chances: Floats) -> list[int]:
    """Places of those that no other beats in time, money and chance, the fastest first; of equals
    the first. Differences that nobody would see are none."""
    levels = np.searchsorted(_LEVELS, chances, side="right").tolist()
    prices = money.tolist()
    cheapest = [np.inf] * (len(_LEVELS) + 1)
    reached = [False] * (len(_LEVELS) + 1)
    kept = []
    for place in np.argsort(_rounded(time), kind="stable").tolist():
        level, price = levels[place], prices[place]
        if reached[level] and price * _AS_GOOD >= cheapest[level]:
            continue
        kept.append(place)
        for lower in range(level + 1):
            reached[lower] = True
            cheapest[lower] = min(cheapest[lower], price)
    return kept


def _rounded(values: Floats) -> Floats:
    """Logarithms in steps that matter."""
    steps: Floats = np.round(np.log(np.maximum(values, 1e-9)) / np.log(_AS_GOOD))
    return steps


def _option(way: Candidate, on: OnGpu, goal: TrainingGoal) -> PlanOption:
    step = on.step_ms
    seconds = [goal.steps * ms / 1000 for ms in (step.p10, step.p50, step.p90)]
    price = price_of(way.gpu)
    usd = None
    if price is not None:
        usd = Quantiles.of(np.array(seconds) / 3600 * price * way.setup.gpus, 2)
    per_step = goal.global_batch * (goal.seq or 1)
    return PlanOption(
        gpu=way.gpu.name,
        setup=way.setup,
        micro_batch=way.batch,
        memory_mib=on.memory_mib,
        room_mib=float(way.gpu.usable_mib),
        chance_fits=on.chance_fits,
        step_ms=step,
        time_s=Quantiles.of(np.array(seconds), 1),
        usd=usd,
        per_s=round(per_step / max(step.p50, 1e-6) * 1000, 2),
        domain=on.domain,
    )


def _assumed(goal: TrainingGoal, gpus: Sequence[Gpu]) -> list[str]:
    said = [f"a global batch of {goal.global_batch:,} samples, {goal.steps:,} steps"]
    if goal.seq is not None:
        said.append(f"{goal.seq:,} tokens a sample")
    said.append(price_source())
    free = [gpu.name for gpu in gpus if price_of(gpu) is None]
    if free:
        said.append(f"no price is known of {', '.join(free)}: their cost is left out")
    return said


def _check(plan: TrainingPlan, gpus: Sequence[Gpu], search: _Search) -> None:
    """Refuse a plan that cannot be kept, and say what comes closest."""
    goal = plan.goal
    if not plan.options:
        kinds = ", ".join(gpu.name for gpu in gpus)
        closest = f"; {search.closest} and comes closest" if search.closest else ""
        raise UserError(
            f"{plan.name} fits nowhere on {kinds}{closest}: name larger GPUs, allow more of them, "
            f"a shorter sequence, LoRA or a quantized base ({_listed(plan.left_out)})"
        )
    if goal.budget_usd is not None and all(option.usd is None for option in plan.options):
        raise UserError("a budget needs prices, and none of these GPUs has one: add them to "
                        "~/.config/presage/prices.yaml")  # fmt: skip
    if plan.best is not None or (goal.deadline_s is None and goal.budget_usd is None):
        return
    raise UserError(_closest_to_limits(plan))


def _closest_to_limits(plan: TrainingPlan) -> str:
    goal = plan.goal
    fast = min(plan.options, key=lambda option: option.time_s.p90)
    priced = [option for option in plan.options if option.usd is not None]
    words = []
    if goal.deadline_s is not None:
        words.append(
            f"{fast.label} comes closest to {duration_text(goal.deadline_s)} with "
            f"{duration_text(fast.time_s.p50)} ({duration_text(fast.time_s.p10)} to "
            f"{duration_text(fast.time_s.p90)})"
        )
    if goal.budget_usd is not None and priced:
        cheap = min(priced, key=lambda option: option.usd.p90 if option.usd else np.inf)
        assert cheap.usd is not None
        words.append(
            f"{cheap.label} comes closest to {money_text(goal.budget_usd)} with "
            f"{money_text(cheap.usd.p50)} ({money_text(cheap.usd.p10)} to "
            f"{money_text(cheap.usd.p90)})"
        )
    return (
        f"no way that likely fits keeps the limits in 9 of 10 cases: {'; '.join(words)}. Give a "
        "later deadline, a larger budget, more GPUs or other kinds"
    )


def _listed(left_out: Mapping[str, int]) -> str:
    return "; ".join(f"{why}: {count:,}" for why, count in list(left_out.items())[:4])
