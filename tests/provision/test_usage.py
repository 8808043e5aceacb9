from __future__ import annotations

import numpy as np
import pytest

from presage.model.errors import ProvisionError
from presage.provision.usage import Usage, Value
from tests.provision.fleet import series


def test_windows_start_at_each_pods_first_sample() -> None:
    one = series("a", cpu=[1, 2, 3, 4, 5])
    two = series("b", cpu=[7, 8])
    usage = Usage.of([one, two], "cpu", 20.0)
    assert usage.counts.tolist() == [2, 2, 1, 2]
    assert usage.pod.tolist() == [0, 0, 0, 1]
    assert usage.first.tolist() == [True, False, False, True]
    assert usage.maximum.tolist() == [2, 4, 5, 8]
    assert usage.mean.tolist() == [1.5, 3.5, 5, 7.5]
    assert usage.sd.tolist() == [0.5, 0.5, 0, 0.5]


def test_unmeasured_samples_are_left_out_and_empty_windows_have_no_row() -> None:
    nan = float("nan")
    usage = Usage.of([series(cpu=[1, nan, nan, nan, 5, 6])], "cpu", 20.0)
    assert usage.index.tolist() == [0, 2]
    assert usage.counts.tolist() == [1, 2]
    assert usage.before(usage.maximum)[1] == 1  # the last window that has samples


def test_a_resource_that_nobody_has_is_refused() -> None:
    with pytest.raises(ProvisionError, match="no pod has any measured memory"):
        Usage.of([series(cpu=[1.0, 2.0])], "memory", 20.0)


def test_running_numbers_begin_anew_with_each_pod() -> None:
    usage = Usage.of([series("a", cpu=[3, 1, 2]), series("b", cpu=[1, 5])], "cpu", 10.0)
    assert usage.so_far(usage.maximum).tolist() == [3, 3, 3, 1, 5]
    assert usage.running_total(usage.mean).tolist() == [3, 4, 6, 1, 6]
    assert usage.so_far(usage.mean, keep=0.5).tolist() == [3, 2, 2, 1, 3]
    assert np.isnan(usage.before(usage.mean, 2)[[0, 1, 3, 4]]).all()


@pytest.mark.parametrize(
    ("text", "expected"), [("mean+2sd", 6 + 2 * np.sqrt(12)), ("max", 11.0), ("p50", 5.0)]
)
def test_what_a_window_stands_for(text: str, expected: float) -> None:
    usage = Usage.of([series(cpu=[2, 11, 5, 3, 9])], "cpu", 60.0)
    assert usage.value(Value.parse(text))[0] == pytest.approx(expected)


def test_an_unknown_value_is_refused() -> None:
    with pytest.raises(ProvisionError, match=r"choose mean\+2sd, max or e.g. p95"):
        Value.parse("median")
