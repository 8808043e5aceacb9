"""What a process holds before its first tensor."""

from __future__ import annotations

import pytest

from presage.foresee.floors import FRAMEWORKS, floor_mib, own_floor_mib
from presage.foresee.gpus import catalogue, find
from presage.model.errors import UserError


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_gpu_has_a_floor_within_what_was_measured(framework: str) -> None:
    for gpu in catalogue().values():
        low, middle, high = floor_mib(gpu, framework)
        assert 0 <= low < middle < high
        assert high < 2600


@pytest.mark.parametrize(
    ("device", "framework", "seen"),
    [
        ("rtx3090", "cuda", 256),
        ("rtx3090", "pytorch-eager", 1001),
        ("rtx2080ti", "pytorch-eager", 878),
        ("a100-40g", "pytorch-eager", 1443),
        ("v100-16g", "pytorch", 400),
    ],
)
def test_published_floors_are_inside(device: str, framework: str, seen: float) -> None:
    low, _, high = floor_mib(find(device), framework)
    assert low <= seen <= high


def test_more_multiprocessors_take_more_and_lazy_kernels_less() -> None:
    small, large = find("t4"), find("h100-80g")
    assert floor_mib(small).p50 < floor_mib(large).p50
    assert floor_mib(large).p50 < floor_mib(large, "pytorch-eager").p50


def test_own_runs_replace_the_table() -> None:
    gpu = find("a100-40g")
    assert floor_mib(gpu, measured=[900.0]) == own_floor_mib([900.0])
    low, middle, high = own_floor_mib([900.0])
    assert low < middle == 900.0 < high
    assert high - low < floor_mib(gpu).p90 - floor_mib(gpu).p10
    low, _, high = own_floor_mib([500.0, 520.0, 900.0, 510.0])
    assert low <= 500.0
    assert high >= 780.0


def test_mistakes_are_one_line() -> None:
    with pytest.raises(UserError, match="unknown framework 'caffe': one of"):
        floor_mib(find("t4"), "caffe")
    with pytest.raises(UserError, match="one at least"):
        own_floor_mib([])
    with pytest.raises(UserError, match="MiB from 0 up"):
        own_floor_mib([-1.0])
