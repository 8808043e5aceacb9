from __future__ import annotations

import numpy as np
import pytest

from presage.provision.policies import (
    ExpectedPhases,
    PhaseTable,
    adaptive,
    by_phase,
    dynamic,
    krr,
    static,
    vpa,
)
from presage.provision.usage import Usage, Value
from tests.provision.fleet import TwoPhases, fleet, series


def test_dynamic_knows_the_window_and_adaptive_the_one_before() -> None:
    usage = Usage.of([series(cpu=[1, 1, 5, 5, 2, 2])], "cpu", 20.0)
    assert dynamic(usage, Value()).values[1:].tolist() == [5, 2]
    assert adaptive(usage, Value()).values[1:].tolist() == [1, 5]
    assert static(usage, 7.0).values[1:].tolist() == [7, 7]


def test_phase_gives_what_the_phase_uses_and_without_a_phase_repeats() -> None:
    usage = Usage.of([series(cpu=[1, 1, 5, 5, 2, 2])], "cpu", 20.0)
    phase = np.array([0, 0, 1, -1, 0, 0])
    outlook = ExpectedPhases(phase, np.eye(2)[np.maximum(phase, 0)], np.zeros(6)).before(usage)
    table = PhaseTable.measured(np.array([2.0, 4.0, 9.0]), np.array([0, 0, 1]), 3)
    assert table.value[:2].tolist() == [3 + 2 * 1, 9]
    assert np.isnan(table.value[2])
    assert by_phase(usage, Value(), outlook, [table]).values[1:].tolist() == [5, 5]


def test_policies_do_not_look_ahead() -> None:
    before = fleet(5)
    usage = Usage.of(before, "cpu", 120.0)
    changed = [
        series(one.pod, cpu=one.column("cpu"), memory=one.column("memory")) for one in before
    ]
    for one in changed:
        one.values[120:] *= 3
    other = Usage.of(changed, "cpu", 120.0)
    same = usage.index <= 10  # sample 120 begins window 10, which is sized before it
    for policy in (krr, vpa, lambda one: adaptive(one, Value())):
        np.testing.assert_array_equal(policy(usage).values[same], policy(other).values[same])
        assert not np.array_equal(policy(usage).values[~same], policy(other).values[~same])


def test_krr_is_the_p95_of_everything_so_far_and_memory_the_peak() -> None:
    random = np.random.default_rng(0)
    use = random.random(200)
    usage = Usage.of([series(cpu=use, memory=use)], "cpu", 200.0)
    wanted = [np.quantile(use[:end], 0.95, method="inverted_cdf") for end in range(20, 200, 20)]
    assert krr(usage).values[1:] == pytest.approx(wanted)
    memory = Usage.of([series(memory=use)], "memory", 200.0)
    assert krr(memory).values[1:] == pytest.approx(
        [1.15 * use[:end].max() for end in range(20, 200, 20)]
    )


def test_vpa_reads_p90_at_the_end_of_its_bucket() -> None:
    use = np.tile(np.r_[np.full(8, 0.3), np.full(2, 0.8)], 20)
    usage = Usage.of([series(cpu=use, unit="cores")], "cpu", 100.0)
    ends = 0.01 * (1.05 ** np.arange(1, 60) - 1) / 0.05
    assert vpa(usage).values[-1] == pytest.approx(1.15 * ends[ends > 0.8][0])
    rare = np.tile(np.r_[np.full(19, 0.3), 0.8], 10)
    rarely = Usage.of([series(cpu=rare, unit="cores")], "cpu", 200.0)
    assert vpa(rarely).values[-1] == pytest.approx(1.15 * ends[ends > 0.3][0])


def test_vpa_forgets_cpu_by_half_in_a_day_and_memory_peaks_after_eight() -> None:
    hours = 24 * 12
    cpu = np.r_[np.full(24, 2.0), np.full(hours - 24, 0.1)]
    usage = Usage.of([series(every=3600.0, cpu=cpu, unit="cores")], "cpu", 3600.0)
    found = vpa(usage).values
    assert found[30] > 2
    assert found[-1] < 0.2
    memory = np.r_[np.full(24, 8e9), np.full(hours - 24, 1e9)]
    usage = Usage.of([series(every=3600.0, memory=memory, unit="bytes")], "memory", 3600.0)
    wish = vpa(usage)
    assert wish.values[-1] == pytest.approx(1.15e9, rel=0.06)
    assert wish.bump_least == 100 << 20


def test_an_outlook_is_taken_at_the_last_sample_before_a_window() -> None:
    model = TwoPhases()
    outlook = ExpectedPhases.of(model, model.training, 120.0)
    usage = Usage.of(model.training, "cpu", 120.0)
    now = outlook.before(usage)
    phases = np.concatenate(model.predict_many(model.training))
    row = int(np.flatnonzero(usage.order == 3)[4])
    assert now.phase[row] == phases[usage.places[usage.starts[row]] - 1]
    assert (now.phase[usage.first] == -1).all()
