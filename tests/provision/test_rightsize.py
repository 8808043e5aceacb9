from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from presage.model.errors import ProvisionError
from presage.provision.recommend import kubernetes_patch, recommend
from presage.provision.rightsize import POLICIES, RightsizeResult, rightsize
from tests.provision.fleet import TwoPhases, fleet, series

KEYS = {"alloc_over_use", "fulfilment_pct", "oom", "throttled", "resizes", "margin"}


@pytest.fixture(scope="module")
def outcome() -> RightsizeResult:
    return rightsize(fleet(20, seed=1), POLICIES, 120.0, model=TwoPhases(), target_pct=95.0)


def test_every_policy_reports_every_resource(outcome: RightsizeResult) -> None:
    found = json.loads(json.dumps(outcome.to_json(), allow_nan=False))
    assert list(found) == list(POLICIES)
    assert all(set(found[policy]) == {"cpu", "memory"} for policy in POLICIES)
    assert all(set(one) == KEYS for by in found.values() for one in by.values())


@pytest.mark.parametrize("resource", ["cpu", "memory"])
def test_the_forecast_needs_less_than_adaptive_at_the_same_service(
    outcome: RightsizeResult, resource: str
) -> None:
    found = outcome.to_json()
    forecast, adaptive = found["forecast"][resource], found["adaptive"][resource]
    assert forecast["fulfilment_pct"] > 93  # type: ignore[operator]
    assert forecast["alloc_over_use"] < adaptive["alloc_over_use"]  # type: ignore[operator]


def test_the_same_seed_gives_the_same_answer() -> None:
    runs = [rightsize(fleet(9), ["forecast"], 120.0, model=TwoPhases(fleet(12))) for _ in range(2)]
    assert runs[0].to_json() == runs[1].to_json()


def test_a_trace_has_a_pods_samples_with_their_allocation(outcome: RightsizeResult) -> None:
    sized = outcome.sized["adaptive"]["cpu"]
    trace = sized.trace("pod3")
    assert trace.use.tolist() == fleet(20, seed=1)[3].column("cpu").tolist()
    assert np.isnan(trace.allocation[:12]).all()
    assert np.isfinite(trace.allocation[12:]).all()
    with pytest.raises(ProvisionError, match="pod x has no cpu"):
        sized.trace("x")


def test_a_given_margin_is_used_as_it_is() -> None:
    plain = rightsize(fleet(3), ["adaptive"], 120.0).sized["adaptive"]["cpu"]
    more = rightsize(fleet(3), ["adaptive"], 120.0, margin=0.5).sized["adaptive"]["cpu"]
    np.testing.assert_allclose(more.allocation, 1.5 * plain.allocation)
    assert more.score.margin == 0.5


def test_pods_that_are_too_short_do_not_count() -> None:
    short = series("short", cpu=[1.0, 2.0], memory=[1.0, 2.0])
    alone = rightsize(fleet(3), ["adaptive"], 120.0)
    both = rightsize([*fleet(3), short], ["adaptive"], 120.0)
    assert both.to_json() == alone.to_json()
    with pytest.raises(ProvisionError, match="no pod is longer than one window of 120 s"):
        rightsize([short], ["adaptive"], 120.0)


def test_a_constant_pod_needs_what_it_uses() -> None:
    found = rightsize([series(cpu=np.full(60, 2.0))], ["adaptive", "dynamic"], 60.0).to_json()
    assert found["adaptive"]["cpu"]["alloc_over_use"] == pytest.approx(1.0)
    assert found["adaptive"]["cpu"]["resizes"] == 0


def test_resources_that_the_training_lacks_are_left_out() -> None:
    model = TwoPhases([series(f"p{pod}", cpu=np.arange(60.0) % 7) for pod in range(9)])
    found = rightsize(fleet(3), ["adaptive", "phase"], 60.0, model=model)
    assert set(found.to_json()["phase"]) == {"cpu"}
    with pytest.raises(ProvisionError, match="the bundle was fitted on cpu"):
        rightsize([series(memory=np.ones(60))], ["adaptive"], 60.0, model=model)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"policies": ["nonsense"]}, "there is no policy 'nonsense'; there are dynamic, adaptive"),
        ({"policies": []}, "name at least one policy"),
        ({"policies": ["phase"]}, "the policy 'phase' needs phases: give --bundle"),
        ({"policies": ["forecast"]}, "give --bundle"),
        ({"target_pct": 95.0}, "--target-fulfilment sets margins on the telemetry of a bundle"),
        ({"target_pct": 0.0}, "--target-fulfilment is a percentage"),
        ({"margin": -1.0}, "--margin is a share"),
        ({"window_s": 0.0}, "--window must be longer than nothing"),
        ({"slow_reduction": 2.0}, "slow reduction is a share"),
        ({"value": "median"}, "there is no value 'median'"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(
    settings: dict[str, object], says: str
) -> None:
    given = {"policies": ["adaptive"], "window_s": 60.0} | settings
    with pytest.raises(ProvisionError, match=says) as error:
        rightsize(fleet(2), **given)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


def test_with_too_little_training_for_a_forecast_phases_decide() -> None:
    model = TwoPhases(fleet(1, samples=30))
    found = rightsize(fleet(3), ["forecast", "phase"], 120.0, model=model, target_pct=90.0)
    forecast, phase = (found.sized[policy]["cpu"] for policy in ("forecast", "phase"))
    assert np.array_equal(forecast.allocation, phase.allocation, equal_nan=True)


def test_one_pod_is_enough_training_if_it_is_long() -> None:
    model = TwoPhases(fleet(1, samples=1200))
    found = rightsize(fleet(2, seed=3), ["forecast"], 120.0, model=model, target_pct=90.0)
    score = found.sized["forecast"]["cpu"].score
    assert score.fulfilment_pct > 80
    assert score.margin >= 0


def test_the_next_window_is_recommended_with_its_reason() -> None:
    one = series(cpu=[1, 1, 5, 5], memory=[2 << 30, 2 << 30, 3 << 30, 3 << 30])
    one = replace(one, units=("cores", "bytes"))
    found = recommend([one], "adaptive", 20.0, margin=0.1)
    assert [item.resource for item in found] == ["cpu", "memory"]
    assert [item.amount for item in found] == pytest.approx([5.5, 3.3 * (1 << 30)])
    assert found[0].reason == (
        "the mean + 2 sd of the last window; windows of 20 s, margin +10.0%; "
        "so sized, it fell short in 1 of 1 windows before"
    )
    sizes = {"cpu": "5500m", "memory": "3380Mi"}
    assert kubernetes_patch(found, "a", "main") == {
        "spec": {
            "containers": [
                {"name": "main", "resources": dict.fromkeys(("requests", "limits"), sizes)}
            ]
        }
    }


def test_a_recommendation_tells_the_phase() -> None:
    found = recommend(fleet(3), "forecast", 120.0, model=TwoPhases(), target_pct=95.0)
    assert len(found) == 6
    assert "it is in phase" in found[0].reason
    assert "which ends within the window with 0%" in found[0].reason
    assert "(for 95 % of samples)" in found[0].reason


def test_percentages_make_no_patch() -> None:
    found = recommend([series(cpu=[1, 1, 5, 5], unit="%")], "adaptive", 20.0)
    with pytest.raises(ProvisionError, match="measured as cpu in %"):
        kubernetes_patch(found, "a", "main")
    with pytest.raises(ProvisionError, match="nothing to recommend for pod b"):
        kubernetes_patch(found, "b", "main")
    with pytest.raises(ProvisionError, match="knows the future"):
        recommend([series(cpu=[1, 1, 5, 5])], "dynamic", 20.0)
