"""Kin in a training: pods that are alike where nobody names workloads."""

from __future__ import annotations

import numpy as np

from presage.provision.allocate import AllocationRules, Wish, margin_for
from presage.provision.kin import alike
from presage.provision.usage import Usage
from presage.telemetry.series import Series


def pods(count: int, levels: tuple[float, ...], noise: float = 0.05) -> list[Series]:
    chance = np.random.default_rng(0)
    made = []
    for at in range(count):
        level = levels[at % len(levels)]
        use = level * np.exp(chance.normal(0, noise, 60))
        made.append(
            Series(f"p{at}", np.arange(60.0), use[:, None], ("cpu",), resources={"cpu": ("cpu",)})
        )
    return made


def test_pods_of_one_level_are_kin_and_few_pods_have_none() -> None:
    found = alike(pods(128, (1.0, 1000.0)))
    assert len(set(found.values())) == 16
    low = {found[f"p{at}"] for at in range(0, 128, 2)}
    high = {found[f"p{at}"] for at in range(1, 128, 2)}
    assert not low & high
    assert alike(pods(20, (1.0, 1000.0))) == {}


def test_margins_are_larger_the_more_workloads_differ() -> None:
    series = pods(64, (1.0,), 0.2)
    usage = Usage.of(series, "cpu", 10.0)
    wish, rules = Wish(usage.before(usage.mean)), AllocationRules()
    alone = margin_for(usage, wish, rules, 95.0)
    each = margin_for(usage, wish, rules, 95.0, kin=np.arange(64))
    few = margin_for(usage, wish, rules, 95.0, kin=np.arange(64) % 2)
    assert alone < each
    assert alone < few
    # One workload of four is twice as wild: what suits the others does not suit the next one.
    wild = [
        Series(one.pod, one.times, one.values ** (3.0 if at % 4 == 0 else 1.0), one.features,
               resources=one.resources)
        for at, one in enumerate(series)
    ]  # fmt: skip
    usage = Usage.of(wild, "cpu", 10.0)
    wish = Wish(usage.before(usage.mean))
    by_pod = margin_for(usage, wish, rules, 95.0, kin=np.arange(64))
    by_workload = margin_for(usage, wish, rules, 95.0, kin=np.arange(64) % 4)
    assert by_workload > by_pod
