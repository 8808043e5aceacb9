"""The series type: what it refuses, and how features become resources."""

from __future__ import annotations

import numpy as np
import pytest

from presage.model.errors import TelemetryError
from presage.telemetry.series import RESOURCES, Series, resources_of, stack, unit_of


def test_a_resource_is_the_sum_of_its_features() -> None:
    features = ("cpu_usr_pct", "cpu_sys_pct", "mem_anon_kb")
    pod = Series("p", np.array([0.0, 5]), np.array([[1.0, 2, 3], [4, np.nan, 6]]), features)
    pod = Series("p", pod.times, pod.values, features, (), resources_of(features))
    np.testing.assert_array_equal(pod.column("cpu"), [3, np.nan])
    np.testing.assert_array_equal(pod.matrix(["memory", "cpu_usr_pct"]), [[3, 1], [6, 4]])
    with pytest.raises(TelemetryError, match=r"no feature 'gpu'; it has cpu_usr_pct, .*, memory"):
        pod.column("gpu")


@pytest.mark.parametrize("times", [[0.0, 0.0], [1.0, 0.0], [0.0, np.inf]])
def test_times_must_rise(times: list[float]) -> None:
    with pytest.raises(TelemetryError, match="strictly rise"):
        Series("p", np.array(times), np.zeros((2, 1)), ("x",))


def test_shapes_must_fit() -> None:
    with pytest.raises(TelemetryError, match="shape"):
        Series("p", np.array([0.0]), np.zeros((2, 1)), ("x",))
    with pytest.raises(TelemetryError, match="one unit for each feature"):
        Series("p", np.array([0.0]), np.zeros((1, 1)), ("x",), ("s", "s"))


def test_every_resource_is_known_by_its_own_name() -> None:
    assert tuple(resources_of(RESOURCES)) == RESOURCES
    assert resources_of(["CPU_Cores", "cpu_usr_pct"]) == {"cpu": ("CPU_Cores",)}
    assert resources_of(["cpu_usr_pct"]) == {}  # half of it is not it


def test_units_come_from_names() -> None:
    names = ["net_tx_kb_s", "mem_anon_kb", "mem.usage.pct", "mem.working.set", "rss_mib", "runq"]
    assert [unit_of(name) for name in names] == ["kB/s", "kB", "%", "bytes", "MiB", ""]


def test_stacking_pods_of_different_sources() -> None:
    one = Series("a", np.array([0.0]), np.array([[1.0, 2]]), ("x", "y"))
    two = Series("b", np.array([0.0, 1]), np.array([[3.0], [4]]), ("y",))
    np.testing.assert_array_equal(stack([one, two], ["y"]), [[2], [3], [4]])
    np.testing.assert_array_equal(stack([one, one], ["y", "x"]), [[2, 1], [2, 1]])
    assert stack([], ["y"]).shape == (0, 1)
    with pytest.raises(TelemetryError, match="pod b has no feature 'x'"):
        stack([one, two], ["x"])


def test_measured_leaves_out_what_was_never_measured() -> None:
    values = np.array([[np.nan, 1.0], [np.nan, np.nan]])
    pod = Series("p", np.array([0.0, 1]), values, ("cpu", "memory"), ("cores", "bytes"))
    measured = pod.measured()
    assert (measured.features, measured.units) == (("memory",), ("bytes",))
    assert measured.resources == {"memory": ("memory",)}
    assert len(measured) == 2
