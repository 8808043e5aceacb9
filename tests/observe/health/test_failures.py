"""Chances of failure: history strictly by time, one estimator, reasons, and the same on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from presage.model.errors import NotFitted, UserError
from presage.observe.health.causes import Moved
from presage.observe.health.failures import FailureModel
from presage.observe.health.history import PastRun, RunRequest, at_submission, history_names
from presage.observe.health.kinds import FaultKinds, Method


def test_a_run_that_ends_later_says_nothing() -> None:
    def asked(when: float) -> RunRequest:
        return RunRequest("ann", when, "1 gpu", {"gpus": 1.0})

    early = PastRun(asked(0.0), 0.0, 50.0, failed=True)
    late = PastRun(asked(10.0), 10.0, 500.0, failed=True)
    names = history_names(["gpus"])
    (alone,) = at_submission([asked(100.0)], [early], ["gpus"])
    (both,) = at_submission([asked(100.0)], [early, late], ["gpus"])
    place = {name: at for at, name in enumerate(names)}
    assert alone[place["owner_ends"]] == both[place["owner_ends"]] == 1
    assert alone[place["owner_rate"]] == both[place["owner_rate"]] > 0.25
    assert both[place["unfinished"]] == 1
    (before,) = at_submission([asked(20.0)], [early, late], ["gpus"])
    assert before[place["owner_ends"]] == 0


def test_what_decides_speaks_and_a_bundle_answers_alike(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    random = np.random.default_rng(0)
    rows = random.normal(size=(600, 3))
    failed = (rows[:, 1] + 0.3 * random.normal(size=600) > 1.0).astype(int)
    model = FailureModel(iterations=30).fit(rows, failed, ["a", "b", "c"])
    bad, good = model.foresee(np.array([0.0, 2.5, 0.0])), model.foresee(np.array([0.0, -1.0, 0.0]))
    assert bad.estimate.p50 > 0.7 > 0.2 > good.estimate.p50
    assert bad.estimate.p10 <= bad.estimate.p50 <= bad.estimate.p90
    assert bad.reasons[0].feature == "b"
    assert bad.reasons[0].adds > 0.4
    model.save(tmp_path / "f.npz", date="2026-01-01", data="made up", licence="none")
    again = FailureModel.load(tmp_path / "f.npz")
    np.testing.assert_allclose(again.predict(rows), model.predict(rows))
    with pytest.raises(NotFitted):
        FailureModel().predict(rows)
    with pytest.raises(UserError):
        FailureModel().fit(rows, np.zeros(600), ["a", "b", "c"])


@pytest.mark.parametrize("method", ["tree", "network", "both"])
def test_kinds_of_fault_are_told_apart_and_can_be_read(method: Method) -> None:
    for needed in ("sklearn",) * (method != "network") + ("pgmpy",) * (method != "tree"):
        pytest.importorskip(needed)
    faults = [_moved(CpuUsage=6.0, latency=2.0)] * 8 + [_moved(CpuUsage=0.0, latency=5.0)] * 8
    model = FaultKinds(method)
    model.fit(faults, ["busy"] * 8 + ["slow network"] * 8)
    ranked = model.rank(_moved(cpu_cores=5.0, latency_s=3.0))
    assert ranked[0].kind == "busy"
    assert sum(each.probability for each in ranked) == pytest.approx(1.0)
    assert ("class: busy" in model.text()) == (method != "network")
    computing = (
        "computing\n  busy: down 9%, same 9%, up 82%\n  slow network: down 9%, same 82%, up 9%"
    )
    assert (computing in model.text()) == (method != "tree")


@pytest.mark.parametrize("limit", [100.0, 1.0])
@pytest.mark.parametrize("method", ["tree", "network"])
def test_kinds_are_told_apart_by_how_near_its_limit_a_metric_was(
    method: Method, limit: float
) -> None:
    pytest.importorskip("sklearn" if method == "tree" else "pgmpy")
    near, far = {"cpu_pct": Moved(6.0, 0.97 * limit)}, {"cpu_pct": Moved(6.0, 0.4 * limit)}
    model = FaultKinds(method).fit([near] * 8 + [far] * 8, ["starved"] * 8 + ["busy"] * 8)
    assert model.rank({"cpu_pct": Moved(6.0, 0.95 * limit)})[0].kind == "starved"
    assert model.rank({"cpu_pct": Moved(6.0, 0.35 * limit)})[0].kind == "busy"
    if method == "tree":  # the network has never seen what it takes an unknown height for
        assert model.rank({"cpu_pct": Moved(6.0, float("nan"))})[0].kind == "busy"


def _moved(**changes: float) -> dict[str, Moved]:
    return {name: Moved(change, 0.0) for name, change in changes.items()}
