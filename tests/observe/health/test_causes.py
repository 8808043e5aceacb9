"""Who is to blame for a window of time, with and without a graph, and that nobody may be."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from presage.model.errors import TelemetryError
from presage.observe.health.causes import find_causes, service_graph
from presage.telemetry.series import Floats, Series


def pods(**changes: dict[str, float]) -> list[Series]:
    """Three services, a sample a minute for twenty minutes; the last five are changed."""
    found = []
    for at, name in enumerate(("web", "cart", "db")):
        random = np.random.default_rng(at)
        values: Floats = random.normal([5.0, 100.0, 1.0], 0.05, (20, 3)).astype(np.float64)
        for metric, add in changes.get(name, {}).items():
            values[15:, ("cpu", "mem_mib", "latency_s").index(metric)] += add
        times = 60.0 * np.arange(20.0)
        found.append(Series(f"{name}-1", times, values, ("cpu", "mem_mib", "latency_s")))
    return found


def test_who_computes_more_leads_those_who_show_symptoms() -> None:
    series = pods(db={"cpu": 20.0}, web={"latency_s": 9.0})
    first = find_causes(series, 900, 1200).causes[0]
    assert (first.name, first.metric) == ("db-1", "cpu")
    assert first.probability > 0.5
    assert "before" in first.evidence


def test_with_a_graph_the_called_service_is_blamed() -> None:
    series = pods(db={"latency_s": 5.0}, web={"latency_s": 9.0})
    edges = service_graph(pl.DataFrame({"caller": ["web", "x"], "callee": ["db", "y"]}), series)
    assert edges == {"web-1": ["db-1"]}
    causes = find_causes(series, 900, 1200, edges).causes
    assert causes[0].name == "db-1"
    assert sum(cause.probability for cause in causes) == pytest.approx(1.0)


def test_nothing_stands_out_where_nothing_changed() -> None:
    assert find_causes(pods(), 900, 1200).causes == ()


def test_of_one_series_the_metrics_are_ranked() -> None:
    values = np.random.default_rng(0).normal(0, 0.1, (200, 3))
    values[150:155, 2] += [4, -4, 5, -5, 4]
    pod = Series("m", np.arange(200.0), values, ("a", "b", "c"))
    found = find_causes([pod], 150, 160)
    assert found.causes[0].metric == "c"
    assert found.to_json()["causes"][0]["name"] == "m"
    assert not found.notes
    (weak,) = find_causes([pod], 60, 63).notes
    assert weak.startswith("weak")


def test_of_one_series_a_metric_that_is_often_far_off_says_less() -> None:
    values = np.random.default_rng(0).normal(0, 0.02, (600, 2))
    values[::20, 0] += 3.0
    values[560, :] = 3.2, 2.6
    values[540, 0] = 0.0
    pod = Series("m", np.arange(600.0), values, ("restless", "calm"))
    calm, restless = find_causes([pod], 545, 575).causes
    assert (calm.metric, restless.metric) == ("calm", "restless")
    assert "seldom over" in calm.evidence


def test_what_makes_no_sense_is_one_line() -> None:
    series = pods()
    with pytest.raises(TelemetryError, match="--to must be after"):
        find_causes(series, 10, 10)
    with pytest.raises(TelemetryError, match="no sample is from"):
        find_causes(series, 9_000, 9_100)
    with pytest.raises(TelemetryError, match="before --from"):
        find_causes(series, 0, 100)
    with pytest.raises(TelemetryError, match="no service"):
        service_graph(pl.DataFrame({"caller": ["q"], "callee": ["r"]}), series)
    with pytest.raises(TelemetryError, match="caller and callee"):
        service_graph(pl.DataFrame({"a": ["q"], "b": ["r"]}), series)
    for pod in series:
        pod.values[15:] = np.nan
    with pytest.raises(TelemetryError, match="no metric was measured both from 900 to 1200"):
        find_causes(series, 900, 1200)
    with pytest.raises(TelemetryError, match="has nothing"):
        service_graph(pl.DataFrame(), series)
    with pytest.raises(TelemetryError, match=r"from 2023-11-14T22:13:20Z .* samples from 0 to "):
        find_causes(series, 1.7e9, 1.7e9 + 60)
