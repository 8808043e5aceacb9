"""From what a policy wants to what a pod gets, and how good that was.

The rules that hold for every policy are here: the margin, never below the memory in use at the
time of the resize, slow reduction, and what an OOM teaches. Scores follow the definitions of
`presage rightsize --json`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from presage.provision.usage import MEMORY, Floats, Ints, Usage

__all__ = ["AllocationRules", "AllocationScore", "Wish", "allocate", "margin_for", "score"]

_ROUNDING = 1e-9
"""A use this part above the allocation is not above it."""
_MARGIN_STEP = 0.001
_LEAST_MARGIN, _MOST_MARGIN = -0.95, 99.0


@dataclass(frozen=True, slots=True, eq=False)
class Wish:
    """What a policy wants each window to have, before rules and margin."""

    values: Floats
    """Per window; NaN for the first window of a pod."""
    bump: float | None = None
    """After an OOM: at least this times what was used; None if an OOM teaches nothing more than
    the use itself does."""
    bump_least: float = 0.0
    """After an OOM: at least this much more than what was used."""
    bump_gain: float = 1.0
    """What the policy adds to what it learned from an OOM."""
    fixed: bool = False
    """Only the margin and the ceiling apply: the bound, and what is never resized."""


@dataclass(frozen=True, slots=True)
class AllocationRules:
    """What holds for all policies alike."""

    slow_reduction: float | None = None
    """The most an allocation may fall from one window to the next, as a share; None: any."""
    ceiling: float | None = None
    """The most that is ever given; after an OOM, at most twice the pod's largest use as well."""


@dataclass(frozen=True, slots=True)
class AllocationScore:
    """How a policy did on one resource; the first window of each pod is excluded throughout."""

    alloc_over_use: float | None
    """Allocation ÷ use, both summed over samples; None when nothing was used."""
    fulfilment_pct: float
    """The share of samples that used no more than the allocation."""
    oom: int
    """Windows in which memory passed the allocation."""
    throttled: int
    """Samples in which anything but memory passed the allocation."""
    resizes: int
    margin: float
    worst_pod_pct: float
    """The fulfilment that 1 % of the pods do not reach (of few pods, of the worst)."""

    def to_json(self) -> dict[str, float | int | None]:
        """What `presage rightsize --json` prints."""
        return {
            "alloc_over_use": self.alloc_over_use,
            "fulfilment_pct": self.fulfilment_pct,
            "oom": self.oom,
            "throttled": self.throttled,
            "resizes": self.resizes,
            "margin": self.margin,
        }


def allocate(usage: Usage, wish: Wish, margin: float, rules: AllocationRules) -> Floats:
    """Per window, what the pod gets; NaN in its first window."""
    wanted = wish.values * (1 + margin)
    if wish.fixed:
        return _at_most(wanted, rules.ceiling)
    is_memory = usage.resource in MEMORY
    learns = wish.bump is not None and is_memory
    if is_memory:
        wanted = np.fmax(wanted, usage.before(usage.last))
    wanted = _at_most(wanted, rules.ceiling)
    if rules.slow_reduction is None and not learns:
        return wanted
    given = np.full(len(usage), np.nan)
    previous, learned = np.zeros(len(usage.pods)), np.zeros(len(usage.pods))
    most = _at_most(2 * usage.so_far(usage.maximum), rules.ceiling)
    for rows, pods in usage.steps():
        now = wanted[rows]
        if learns:
            now = np.maximum(now, wish.bump_gain * learned[pods] * (1 + margin))
            now = _at_most(now, rules.ceiling)
        if rules.slow_reduction is not None:
            now = np.maximum(now, (1 - rules.slow_reduction) * previous[pods])
        given[rows] = now
        previous[pods] = np.nan_to_num(now)
        if learns:
            used = usage.maximum[rows]
            killed = used > now * (1 + _ROUNDING)
            needs = np.maximum((wish.bump or 1.0) * used, used + wish.bump_least)
            needs = np.where(killed, np.minimum(needs, most[rows]), 0.0)
            learned[pods] = np.maximum(learned[pods], needs)
    return given


def score(usage: Usage, given: Floats, margin: float) -> AllocationScore:
    """Compare an allocation with the use."""
    counted = ~usage.first
    sample = np.repeat(counted, usage.counts)
    use, allocation = usage.use[sample], usage.spread(given)[sample]
    over = use > allocation * (1 + _ROUNDING)
    window = np.repeat(np.arange(len(usage)), usage.counts)[sample]
    pod = usage.pod[window]
    sizes = np.bincount(pod, minlength=len(usage.pods))
    missed = np.bincount(pod, over, len(usage.pods))[sizes > 0] / sizes[sizes > 0]
    is_memory = usage.resource in MEMORY
    both = counted & ~np.isnan(usage.before(given))
    before = usage.before(given)[both]
    changed = np.abs(given[both] - before) > _ROUNDING * np.abs(before)
    total = float(use.sum())
    return AllocationScore(
        float(allocation.sum()) / total if total > 0 else None,
        100 * float(1 - over.mean()),
        int(np.unique(window[over]).size) if is_memory else 0,
        0 if is_memory else int(over.sum()),
        int(changed.sum()),
        margin,
        100 * float(1 - np.quantile(missed, 0.99, method="higher")),
    )


def margin_for(
    usage: Usage,
    wish: Wish,
    rules: AllocationRules,
    target_pct: float,
    least: float = _LEAST_MARGIN,
    kin: Ints | None = None,
) -> float:
    """The smallest margin, in steps of a tenth of a percent, that fulfils the target here. It may
    be negative, down to `least`, so that all policies are compared at equal service. If none does
    (a wish for nothing stays nothing), the smallest of those that come closest. With `kin`, the
    workload of each pod, the target is met with the standard error over workloads to spare: new
    telemetry is of a workload that is not among them."""
    counted = ~usage.first
    sample = np.repeat(counted, usage.counts)
    use, size = usage.use[sample], int(sample.sum())
    group = None if kin is None else kin[np.repeat(usage.pod, usage.counts)[sample]]

    def met(step: int) -> float:
        given = allocate(usage, wish, step * _MARGIN_STEP, rules)
        good = use <= usage.spread(given)[sample] * (1 + _ROUNDING)
        total = float(good.sum())
        if group is None or step == most:
            return total
        away = np.bincount(group, good - total / size)
        return total - float(np.sqrt((away**2).sum()))

    low, high = round(least / _MARGIN_STEP), round(_MOST_MARGIN / _MARGIN_STEP)
    most = high
    needed = min(int(np.ceil(size * target_pct / 100 - _ROUNDING)), met(high))
    if met(low) >= needed:
        return low * _MARGIN_STEP
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if met(middle) >= needed else (middle, high)
    return round(high * _MARGIN_STEP, 3)


def _at_most(values: Floats, ceiling: float | None) -> Floats:
    return values if ceiling is None else np.minimum(values, ceiling)
