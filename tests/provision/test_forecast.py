from __future__ import annotations

import builtins
import sys
from typing import Any

import numpy as np
import pytest

from presage.model.errors import MissingExtra
from presage.provision.allocate import score
from presage.provision.forecast import UsageForecaster
from presage.provision.policies import ExpectedPhases, PhaseTable
from presage.provision.usage import Usage
from tests.provision.fleet import TwoPhases, fleet

MODEL = TwoPhases()
WINDOW_S = 120.0


def outlook_and_table(usage: Usage, pods: TwoPhases) -> tuple[ExpectedPhases, PhaseTable]:
    outlook = ExpectedPhases.of(pods, pods.training, WINDOW_S)
    table = PhaseTable.measured(usage.use, outlook.phase[usage.places], 2)
    return outlook.before(usage), table


def fitted(resource: str, target_pct: float = 95.0) -> tuple[Usage, UsageForecaster]:
    usage = Usage.of(MODEL.training, resource, WINDOW_S)
    return usage, UsageForecaster.fit(usage, *outlook_and_table(usage, MODEL), target_pct)


@pytest.mark.parametrize("resource", ["cpu", "memory"])
def test_pods_that_a_tree_has_not_seen_reach_the_target(resource: str) -> None:
    usage, forecaster = fitted(resource)
    found = score(usage, forecaster.own_wish().values, 0.0)
    assert found.fulfilment_pct >= 95
    if resource == "memory":
        assert found.oom <= 0.05 * (~usage.first).sum()


def test_a_higher_target_costs_more() -> None:
    given = []
    for target in (80.0, 95.0, 99.0):
        usage, forecaster = fitted("cpu", target)
        given.append(score(usage, forecaster.own_wish().values, 0.0).alloc_over_use or 0.0)
    assert given == sorted(given)
    assert given[0] < given[-1]


def test_the_forecast_does_not_look_ahead() -> None:
    _, forecaster = fitted("cpu")
    pods = TwoPhases(fleet(4, seed=5))
    changed = TwoPhases(fleet(4, seed=5))
    for one in changed.training:
        one.values[120:] *= 0.9  # keeps the largest, hence the phases
    wishes = []
    for these in (pods, changed):
        usage = Usage.of(these.training, "cpu", WINDOW_S)
        wishes.append(forecaster.wish(usage, outlook_and_table(usage, these)[0]).values)
    same = usage.index <= 10
    np.testing.assert_array_equal(wishes[0][same], wishes[1][same])
    assert not np.array_equal(wishes[0][~same], wishes[1][~same])


def test_fitting_needs_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("sklearn"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    for name in [name for name in sys.modules if name.startswith("sklearn")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=r"presage\[learn\]"):
        fitted("cpu")
