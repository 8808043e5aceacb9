"""For how much of a step links are loaded: bytes by hand, and where nothing is said."""

from __future__ import annotations

import numpy as np
import pytest

from presage.foresee.answer import Quantiles
from presage.foresee.bursts.settings import Setting
from presage.foresee.bursts.shares import MOST_SHARE, foreseen_share, is_measured, within_reach
from presage.foresee.bursts.steps import TERMS, DistributedSteps, wire_ms
from presage.learn.groups import GroupConformal

SLOPES = 12.5e6
"""100 ms on 1 Gbit/s."""
COMPUTE = Quantiles(90.0, 100.0, 120.0)
PLAIN = dict.fromkeys(TERMS, 0.0) | {"turns": 1.0, "wire": 1.0, "wire_servers": 2.0}
SPREAD = GroupConformal(
    0.0, {"family": -0.1, "setting": -0.4}, {"family": 0.2, "setting": 0.7}, "log"
)


def model(*settings: str) -> DistributedSteps:
    """A step is computing and bytes, and these settings were measured."""
    weights = np.array([PLAIN[name] for name in TERMS])
    return DistributedSteps(weights, SPREAD, {"settings": list(settings)})


def share(known: DistributedSteps, setting: str) -> Quantiles | None:
    return foreseen_share(known, COMPUTE, SLOPES, Setting.parse(setting))


@pytest.mark.parametrize(
    ("setting", "ms"),
    [
        ("W2/1gbit", 100.0),
        ("W4/1gbit", 150.0),
        ("W4/10gbit", 15.0),
        ("P1W2/1gbit", 200.0),  # its server hears of two workers
        ("P2W2/1gbit", 100.0),
        ("P4W2/1gbit", 100.0),  # a worker sends all there is, to however many
        ("W1/1gbit", 0.0),
        ("W2/none", 0.0),
    ],
)
def test_bytes_on_the_narrowest_link_by_hand(setting: str, ms: float) -> None:
    assert wire_ms(SLOPES, Setting.parse(setting)) == pytest.approx(ms)


def test_the_share_is_bytes_over_the_step() -> None:
    known = model("W2/1gbit", "P1W2/1gbit")
    found = share(known, "W2/1gbit")
    assert found is not None
    assert found.p50 == pytest.approx(100 / 200)  # computing, and bytes
    assert found.p10 < found.p50 < found.p90
    served = share(known, "P1W2/1gbit")
    assert served is not None
    assert served.p50 == pytest.approx(200 / 500)  # there and back, and the link is loaded one way


def test_what_nobody_measured_is_wider_and_what_is_far_is_not_said() -> None:
    known = model("W2/1gbit", "W3/1gbit")
    here, near = share(known, "W3/1gbit"), share(known, "W4/1gbit")
    assert here is not None
    assert near is not None
    assert near.p90 - near.p10 > 1.5 * (here.p90 - here.p10)
    assert is_measured(known, Setting.parse("W3/1gbit"))
    assert not is_measured(known, Setting.parse("W4/1gbit"))
    for far in ("W7/1gbit", "P1W2/1gbit", "P1W2/1gbit/async", "W2/none"):
        assert share(known, far) is None, far
    assert not within_reach(known, Setting.parse("W2/none"))
    for in_reach in ("W6/1gbit", "W6/10gbit", "W2/100mbit"):
        assert share(known, in_reach) is not None, in_reach
    assert share(model("W2/100mbit"), "W2/10gbit") is None
    assert share(DistributedSteps(known.weights), "W2/1gbit") is None  # it tells no settings


def test_servers_are_within_reach_of_servers_alone() -> None:
    known = model("P1W2/1gbit")
    assert share(known, "P2W4/10gbit") is not None
    assert share(known, "P3W2/1gbit") is None
    assert share(known, "W2/1gbit") is None


def test_a_link_is_never_loaded_all_the_time() -> None:
    found = foreseen_share(
        model("W2/1gbit"), Quantiles(0.1, 0.1, 0.1), 1e12, Setting.parse("W2/1gbit")
    )
    assert found is not None
    assert found.p90 == MOST_SHARE
    assert found.p50 <= found.p90
