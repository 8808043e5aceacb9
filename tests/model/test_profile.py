"""Profiles as values: what they refuse, and that JSON gives back what it was given."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.model.errors import UserError
from presage.model.profile import Distribution, Profile, profile_from_json, profile_to_json
from tests.profiles import PROFILE, SPREAD

FULL = replace(
    PROFILE,
    device="NVIDIA A100-SXM4-40GB",
    gpus=2,
    gpu_util_pct=SPREAD,
    gpu_memory_mib=SPREAD,
    step_ms=SPREAD,
    batch=32,
    graph_signature="g:1",
    other_cores=0.5,
    alone=False,
    versions={"presage": "1"},
)


@pytest.mark.parametrize("profile", [PROFILE, FULL], ids=["small", "full"])
def test_json_gives_back_the_profile(profile: Profile) -> None:
    text = json.dumps(profile_to_json(profile), allow_nan=False)
    assert profile_from_json(json.loads(text)) == profile


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"format": 2}, "format 2, and this Presage reads format 1"),
        ({"format": None}, "format None"),
        ({"colour": 1}, "no field 'colour'"),
        ({"hz": "fast"}, "expected float"),
        ({"hz": float("nan")}, "hz must be a finite number"),
        ({"duration_s": -1.0}, "duration_s must be"),
        ({"samples": 1.5}, "expected int"),
        ({"batch": 0}, "nor batch 0"),
        ({"command": []}, "needs the command"),
        ({"command": "ls"}, "expected tuple"),
        ({"signature": "../x"}, "signature '../x' is none"),
        ({"cpu_cores": {"mean": 1, "p50": 2, "p95": 1, "max": 3}}, "p50 ≤ p95 ≤ max"),
        ({"cpu_cores": {"mean": -1, "p50": 0, "p95": 0, "max": 0}}, "finite numbers from 0 on"),
        ({"alone": 1}, "expected bool"),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        profile_from_json(profile_to_json(PROFILE) | change)


def test_what_is_missing_is_named() -> None:
    data = profile_to_json(PROFILE)
    del data["rss_mib"]
    with pytest.raises(UserError, match="rss_mib"):
        profile_from_json(data)
    with pytest.raises(UserError, match="a JSON object, not list"):
        profile_from_json([data])


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=50))
def test_a_spread_agrees_with_numpy(values: list[float]) -> None:
    spread = Distribution.of(values)
    assert spread.mean == pytest.approx(np.mean(values))
    assert spread.p50 == pytest.approx(np.quantile(values, 0.5))
    assert spread.p95 == pytest.approx(np.quantile(values, 0.95))
    assert spread.max == max(values)
