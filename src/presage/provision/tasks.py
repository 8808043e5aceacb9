"""How much memory a task that was run before should get: the quantile of its history that costs
least, failures included.

A task that gets too much wastes the rest for as long as it runs; one that gets too little runs
out, has wasted all it had, and runs again with more. A rule is a quantile of the runs that are
known and a margin on top. Each run that ends scores every rule by what it would have wasted and
whether it would have failed; a task gets what the cheapest rule gives. What a failure costs beside
its waste is one amount for all tasks, so small and short ones are given plenty and large ones what
they need. As long as its own runs are few, those of all tasks with as short a history speak for
it.

Values in, values out: no clock, and no I/O.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from presage.learn import Floats
from presage.model.errors import ProvisionError

__all__ = ["SizingCost", "TaskSize", "TaskSizer"]

_QUANTILES = (0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
_MARGINS = (0.0, 0.01, 0.03, 0.06, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
_RULES = tuple(product(_QUANTILES, _MARGINS))
_FACTORS = 1 + np.array(_MARGINS)
_GENEROUS = np.array([quantile + margin for quantile, margin in _RULES])
"""Of rules that cost the same, the one that gives more is taken."""
_LENGTHS = (2, 4, 8, 16, 32)
"""Where a history is called longer."""


@dataclass(frozen=True, slots=True)
class SizingCost:
    """What counts how much. Amounts are in MiB."""

    failure_mib_h: float = 16_384.0
    """What a failure costs beside what it wastes: so much memory held for an hour."""
    belief: float = 3.0
    """Runs of all tasks count as much as so many of a task's own."""
    least_runs: int = 2
    """With fewer runs known there is no answer."""
    again: float = 2.0
    """After a failure a task gets at least so many times what it had."""


@dataclass(frozen=True, slots=True)
class TaskSize:
    """What a task should get, and why."""

    amount_mib: float
    runs: int
    """Runs of it that are known."""
    quantile: float
    margin: float
    failed: int
    """Of its known runs, those that would have run out, each sized by those before it."""

    @property
    def reason(self) -> str:
        """In words."""
        of = "the largest" if self.quantile == 1 else f"the {self.quantile:.0%} quantile"
        return (
            f"{of} of {self.runs} runs and {self.margin:.0%} more; so sized, {self.failed} of them"
            " would have run out of memory"
        )


@dataclass(slots=True)
class _RuleRecord:
    """How each rule did: its waste, and its failures."""

    waste: Floats = field(default_factory=lambda: np.zeros(len(_RULES)))
    failed: Floats = field(default_factory=lambda: np.zeros(len(_RULES)))
    runs: int = 0

    def add(self, waste: Floats, failed: Floats) -> None:
        self.waste += waste
        self.failed += failed
        self.runs += 1


@dataclass(slots=True)
class _TaskPast:
    peaks: list[float] = field(default_factory=list)
    hours: float = 0.0
    scores: _RuleRecord = field(default_factory=_RuleRecord)
    """Waste in MiB hours."""


class TaskSizer:
    """Sizes tasks by their history, and learns from each run that ends."""

    def __init__(self, cost: SizingCost | None = None) -> None:
        self.cost = cost or SizingCost()
        self._tasks: dict[str, _TaskPast] = {}
        self._all = [_RuleRecord() for _ in range(len(_LENGTHS) + 1)]
        """By the length of a history; waste as a multiple of what is usually held."""

    def size(self, task: str) -> TaskSize | None:
        """What the next run of a task should get; None where too little is known."""
        known = self._tasks.get(task)
        if known is None or len(known.peaks) < self.cost.least_runs:
            return None
        own, others = known.scores, self._all[_length(known.peaks)]
        believed = self.cost.belief / max(others.runs, 1)
        usual_mib_h = float(np.mean(known.peaks)) * known.hours / len(known.peaks)
        waste = own.waste + believed * usual_mib_h * others.waste
        cost = waste + self.cost.failure_mib_h * (own.failed + believed * others.failed)
        rule = int(np.argmin(cost - 1e-9 * _GENEROUS))
        amount = float(_given(known.peaks)[rule])
        return TaskSize(amount, len(known.peaks), *_RULES[rule], int(own.failed[rule]))

    def after_failure(self, task: str, had_mib: float) -> float:
        """What a run gets that ran out of memory with so much."""
        known = self._tasks.get(task)
        return max(self.cost.again * had_mib, known.peaks[-1] if known else 0.0)

    def learn(self, task: str, peak_mib: float, hours: float = 1.0) -> None:
        """A run ended by itself after so many hours and held so much at most."""
        if not 0 < peak_mib < np.inf or not 0 <= hours < np.inf:
            raise ProvisionError(
                f"task {task}: a run of {hours:g} hours with {peak_mib:g} MiB teaches nothing"
            )
        known = self._tasks.setdefault(task, _TaskPast())
        if known.peaks:
            waste, failed = self._outcome(_given(known.peaks), peak_mib, known.peaks[-1])
            usual_mib = max(peak_mib, float(np.mean(known.peaks)))
            known.scores.add(waste * hours, failed)
            self._all[_length(known.peaks)].add(waste / usual_mib, failed)
        insort(known.peaks, peak_mib)
        known.hours += hours

    def _outcome(self, given: Floats, peak: float, largest: float) -> tuple[Floats, Floats]:
        """What each rule would have wasted, in MiB, and how often it would have failed."""
        last, lost, failed = given, np.zeros_like(given), np.zeros_like(given)
        while (short := last < peak).any():
            lost = lost + np.where(short, last, 0.0)
            failed = failed + short
            last = np.where(short, np.maximum(last * self.cost.again, largest), last)
        return lost + last - peak, failed


def _given(peaks: Sequence[float]) -> Floats:
    """What each rule gives after these runs, which ascend."""
    places = [-(-round(100 * quantile) * len(peaks) // 100) - 1 for quantile in _QUANTILES]
    given: Floats = np.outer([peaks[place] for place in places], _FACTORS).ravel()
    return given


def _length(peaks: Sequence[float]) -> int:
    return int(np.searchsorted(_LENGTHS, len(peaks), side="right"))
