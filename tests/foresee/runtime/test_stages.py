"""Tables of stages as queries."""

from __future__ import annotations

import polars as pl

from presage.foresee.runtime.stages import MeasuredWave, read_queries

NO_EDGES = pl.DataFrame({"query": [], "from_stage": [], "to_stage": []})


def test_runs_of_a_query_at_one_place_count_as_their_median() -> None:
    runs = [(2, 3, 40.0, 10.0), (2, 3, 50.0, 90.0), (3, 2, 90.0, 20.0)]
    rows = [
        (1.0, "q", 0, 4, wave, tasks, ms)
        for first, rest, first_ms, rest_ms in runs
        for wave, tasks, ms in (("first_wave", first, first_ms), ("rest_wave", rest, rest_ms))
    ]
    names = ["scale_gb", "query", "stage", "executors", "wave", "tasks", "mean_ms"]
    query = read_queries(pl.DataFrame(rows, names, orient="row"), NO_EDGES)["q"]
    assert query.measured[0] == [
        MeasuredWave(1.0, 4, True, 2, 0.05),
        MeasuredWave(1.0, 4, False, 3, 0.02),
    ]
    assert query.tasks[0] == {1.0: 5}
