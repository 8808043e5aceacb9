"""What pages work out from answers of the API."""

from __future__ import annotations

from typing import Any

import pytest

from presage.control.comparing import differences
from presage.web.elements import map_changes
from presage.web.missing import near_names
from presage.web.sign_in import _own
from presage.web.words import (
    amount,
    asked_text,
    duration,
    eta_age,
    eta_text,
    gpu_figures,
    outlook_lines,
    why,
    worker_bounds,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 s"), (45, "45 s"), (95, "1.6 min"), (3600 * 3.5, "3.5 h"), (86_400 * 40, "40 d")],
)
def test_a_duration_has_the_unit_that_suits_it(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_amounts() -> None:
    assert [amount(value) for value in (0, 0.5, 12.25, 12_345)] == ["0", "0.5", "12.2", "12,345"]


JOB: dict[str, Any] = {
    "status": "QUEUED",
    "stage": "",
    "reason": {"code": "ok", "text": ""},
    "nodes": ["a", "b", "c", "d", "e"],
}


def test_an_estimate_is_shown_where_there_is_one() -> None:
    eta = {"p10": 60.0, "p50": 600.0, "p90": 7200.0, "age_s": 3.0}
    assert eta_text({**JOB, "eta_s": eta}) == "10 min (60 s to 2 h)"
    assert eta_text({**JOB, "eta_s": eta, "status": "PROCESSING"}) == ""
    assert eta_text({**JOB, "eta_s": None}) == eta_text(JOB) == ""
    assert eta_age({**JOB, "eta_s": eta}) == "estimated 3 s ago"
    assert eta_age(JOB) == ""
    open_end = {**eta, "p90": None}
    told = eta_text({**JOB, "eta_s": open_end})
    assert told == "10 min (60 s to later than can be foreseen)"


def test_what_would_help_is_said_in_lines() -> None:
    eta = {"p10": 60.0, "p50": 600.0, "p90": 7200.0, "age_s": 0.0}
    found = {"status": "QUEUED", "ahead": 1, "helps": [{"change": "in queue b", "eta_s": eta}]}
    assert outlook_lines(found) == [
        "1 job of its queue waits before it.",
        "Starts in 10 min (60 s to 2 h) in queue b.",
    ]
    assert "Nothing that was tried" in outlook_lines({**found, "helps": []})[1]
    assert "ask again" in outlook_lines({**found, "helps": None})[1]
    assert outlook_lines({**found, "status": "PROCESSING"}) == ["It does not wait any more."]


@pytest.mark.parametrize(
    ("manifest", "bounds"),
    [
        ({"workers": "2..8"}, (2, 8)),
        ({"workers": 4}, None),
        ({}, None),
        ({"roles": {"worker": {"workers": "1..3"}, "ps": {"workers": 2}}}, (1, 3)),
    ],
)
def test_only_a_range_of_workers_can_be_scaled(manifest: Any, bounds: Any) -> None:
    assert worker_bounds(manifest) == bounds


def test_why() -> None:
    waits = {"reason": {"text": "needs 2 GPUs"}, "ahead": 3}
    assert why(JOB, waits) == "needs 2 GPUs"
    assert (
        why({**JOB, "status": "PROCESSING", "stage": "storing"}) == "storing · a, b, c and 2 more"
    )


def test_idle_gpus_count_while_jobs_wait() -> None:
    series: dict[str, list[float]] = {
        "at": [0.0, 600.0, 1200.0, 90_000.0],
        "gpus": [4.0] * 4,
        "gpus_held": [4.0, 1.0, 0.0, 0.0],
        "pending": [5.0, 2.0, 0.0, 0.0],
        "cpus_asked": [10.0, 10.0, 0.0, 0.0],
        "cpus_used": [5.0, 12.0, 0.0, 0.0],
        "memory_asked_mib": [0.0] * 4,
        "memory_used_mib": [0.0] * 4,
    }
    figures = gpu_figures(series)
    # 600 s with 4, 600 s with 1, then a gap of which 900 s count
    assert figures["held"] == pytest.approx((4 * 600 + 600) / (4 * 2100))
    assert figures["idle_h"] == pytest.approx(3 * 600 / 3600)
    assert figures["cpus_unused"] == pytest.approx(0.25)
    assert figures["memory_unused"] == 0.0
    assert gpu_figures({name: [] for name in series})["held"] == 0.0


def _map(*devices: tuple[str, int]) -> dict[str, Any]:
    jobs = [{"number": n, "id": f"j{n}"} for n in dict.fromkeys(n for _, n in devices)]
    return {"jobs": jobs, "nodes": [{"name": name, "jobs": [n]} for name, n in devices]}


def test_only_what_changed_on_the_map_is_sent() -> None:
    old, new = _map(("a", 1), ("b", 2)), _map(("a", 1), ("b", 3))
    assert map_changes(old, new) == (
        [{"number": 3, "id": "j3"}],
        [2],
        {1: {"name": "b", "jobs": [3]}},
    )
    assert map_changes(old, new) is map_changes(old, new)
    assert map_changes(old, _map(("a", 1))) is None


@pytest.mark.parametrize(
    ("address", "kept"),
    [
        ("/ui/jobs/a?x=1", True),
        ("", False),
        ("/api/v1/jobs", False),
        ("//evil.example/ui/", False),
        ("/ui/\\evil.example", False),
        ("/ui/\n", False),
    ],
)
def test_only_own_addresses_are_gone_to(address: str, kept: bool) -> None:
    assert _own(address) == (address if kept else "/ui/")


def test_names_that_may_be_meant() -> None:
    assert near_names("there is no job a; did you mean ab or ac-1?") == ["ab", "ac-1"]
    several = "2 jobs begin with a: ab-1 (QUEUED), ac-2 (FAILED); give more of the id"
    assert near_names(several) == ["ab-1", "ac-2"]
    assert near_names("there is no job a") == []


def test_what_was_asked_for() -> None:
    assert asked_text({"resources": {"gpus": 1, "cpus": 2.0, "memory": "1Gi"}}) == (
        "1 GPU, 2 CPUs, 1Gi"
    )
    assert asked_text({"workers": "2..4", "resources": {"gpus": 4}}) == "2–4 × (4 GPUs)"


def test_only_what_differs_is_compared() -> None:
    one = {"name": "a", "env": {"LR": "1"}, "resources": {"gpus": 1}, "labels": {}}
    other = {"name": "b", "env": {"LR": "2"}, "resources": {"gpus": 1, "cpus": 2}}
    assert differences([one, other]) == [
        {"key": "env.LR", "values": ["1", "2"]},
        {"key": "resources.cpus", "values": [None, "2"]},
    ]
