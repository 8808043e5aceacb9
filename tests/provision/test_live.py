"""Right-sizing while a job runs: what a run of known phases gets, and what it never gets."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from presage.model.cluster import Resources
from presage.observe.phases import PhaseModel
from presage.provision.live import NewLimits, Sizer, SizingRules, series_of

ASK = Resources(cpu_milli=4000, memory_mib=2048)
PHASES = ((20, 0.3, 200), (60, 3.0, 900), (25, 1.5, 600), (15, 0.1, 650))
"""Load, train, evaluate, save: seconds, cores, MiB."""


def run(seed: int, rounds: int = 3) -> list[tuple[float, float, float]]:
    """A training whose phases repeat: (time, cores, MiB) each second."""
    random = np.random.default_rng(seed)
    samples: list[tuple[float, float, float]] = []
    for _ in range(rounds):
        for length, cores, memory in PHASES:
            for _ in range(length + int(random.integers(-3, 4))):
                noise = random.normal(1.0, 0.03, 2)
                samples.append((float(len(samples)), cores * noise[0], memory * noise[1]))
    return samples


@pytest.fixture(scope="module")
def model() -> PhaseModel:
    return PhaseModel.fit([series_of(f"past{k}", run(k)) for k in range(4)], every=1.0, seed=0)


def follow(sizer: Sizer, samples: list[tuple[float, float, float]]) -> list[Resources]:
    """The limits that were in force at each sample."""
    sizer.begin("now", ASK)
    limits, found = ASK, []
    for at, cores, memory in samples:
        found.append(limits)
        seen = min(cores, limits.cpu_milli / 1000)  # a limited run cannot use more
        advice = sizer.see("now", at, seen, memory)
        if advice is not None:
            assert advice.limits.memory_mib >= min(memory, ASK.memory_mib)
            limits = advice.limits
    return found


def test_a_known_kind_of_run_gets_much_less_and_lacks_little(model: PhaseModel) -> None:
    samples = run(99)
    limits = follow(Sizer(model), samples)
    cpu = np.array([one.cpu_milli / 1000 for one in limits])
    memory = np.array([one.memory_mib for one in limits])
    wanted = np.array(samples)
    assert np.mean(wanted[:, 1] <= cpu) >= 0.95
    assert (wanted[:, 2] <= memory).all()
    assert cpu.mean() < 0.8 * ASK.cpu_milli / 1000
    assert memory.mean() < 0.7 * ASK.memory_mib
    resizes = sum(one != other for one, other in pairwise(limits))
    assert 4 <= resizes <= len(samples) / 8


def test_room_is_there_before_the_phase_that_needs_it(model: PhaseModel) -> None:
    samples = run(7)
    sizer = Sizer(model)
    ahead = follow(sizer, samples)
    late = follow(Sizer(None), samples)
    wanted = np.array(samples)[:, 1]

    def short(limits: list[Resources]) -> int:
        return int(
            sum(want > one.cpu_milli / 1000 for want, one in zip(wanted, limits, strict=True))
        )

    assert short(ahead) < short(late)


def test_less_takes_patience_and_more_does_not() -> None:
    sizer = Sizer(None, SizingRules(patience=3))
    sizer.begin("r", ASK)
    advice: list[NewLimits | None] = [sizer.see("r", at, 1.0, 100.0) for at in range(3)]
    assert advice[:2] == [None, None]
    assert advice[2] is not None
    # Of memory it keeps all it asked for: what it will hold later only earlier runs can tell.
    assert advice[2].limits == Resources(cpu_milli=1151, memory_mib=ASK.memory_mib)
    assert advice[2].why == "what it used of late"
    more = sizer.see("r", 3.0, 1.05, 1000.0)
    assert more is not None
    assert more.limits.cpu_milli == 1266


def test_a_run_that_meets_its_limit_gets_all_it_asked_for() -> None:
    sizer = Sizer(None, SizingRules(patience=1))
    sizer.begin("r", ASK, given=Resources(cpu_milli=1000, memory_mib=500))
    advice = sizer.see("r", 0.0, 0.99, 100.0)
    assert advice is not None
    assert advice.limits.cpu_milli == ASK.cpu_milli
    assert "met its CPU limit" in advice.why


def test_what_was_not_asked_for_is_not_limited_and_old_samples_are_ignored() -> None:
    sizer = Sizer(None, SizingRules(patience=1))
    sizer.begin("r", Resources(cpu_milli=2000))
    advice = sizer.see("r", 5.0, 1.0, 100.0)
    assert advice is not None
    assert advice.limits == Resources(cpu_milli=1151)
    assert sizer.see("r", 5.0, 1.9, 100.0) is None
    sizer.end("r")
    assert "r" not in sizer
