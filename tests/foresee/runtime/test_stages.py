"""Tables of stages as queries."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from presage.foresee.runtime.query_known import known_schedules
from presage.foresee.runtime.stagelaws import START
from presage.foresee.runtime.stages import MeasuredWave, Query, read_queries
from presage.model.errors import UserError

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


GOOD = {"stage": [0, 1], "tasks": [2, 2], "mean_ms": [1.0, 1.0]}


@pytest.mark.parametrize(
    ("stages", "edges", "says"),
    [
        ({"tasks": [0.5, 1]}, {}, "tasks of the table of stages has 0.5 in row 1"),
        ({"tasks": ["4", "many"]}, {}, "tasks of the table of stages has many in row 2"),
        ({"mean_ms": [1.0, float("inf")]}, {}, "mean_ms of the table of stages has inf in row 2"),
        ({"mean_ms": [-1.0, 1.0]}, {}, "mean_ms of the table of stages has -1.0 in row 1"),
        ({"stage": [0, None]}, {}, "stage of the table of stages has nothing in row 2"),
        ({}, {"from_stage": ["a"]}, "from_stage of the table of edges has a in row 1"),
        ({}, {"to_stage": [7]}, "query q: edge 0 → 7 names stage 7"),
        ({}, {"to_stage": [0]}, "query q: the stages wait for one another in a cycle: 0 → 0"),
        ({}, {"query": ["other"]}, "the edges are of query other, the stages of q"),
    ],
)
def test_what_is_wrong_with_a_table_is_named(
    stages: dict[str, list[Any]], edges: dict[str, list[Any]], says: str
) -> None:
    table = pl.DataFrame({"query": ["q", "q"], **GOOD, **stages}, strict=False)
    said = {"query": ["q"], "from_stage": [0], "to_stage": [1], **edges}
    with pytest.raises(UserError, match=says) as refused:
        read_queries(table, pl.DataFrame(said, strict=False))
    assert "\n" not in str(refused.value)


def test_tasks_rise_from_the_least_number_in_proportion() -> None:
    query = Query("q", [], [0], tasks={0: {2.0: 2, 5.0: 2, 20.0: 4, 80.0: 15}})
    assert [query.tasks_at(0, scale) for scale in (3.0, 10.0, 12.0, 50.0, 100.0)] == [
        2,
        2,
        2,
        10,
        19,
    ]


def test_a_query_goes_on_to_a_size_that_nobody_measured() -> None:
    rows = [
        (size, "q", stage, cores, "first_wave", tasks, 1000.0 * size)
        for size in (1.0, 2.0, 8.0)
        for cores in (1, 2, 4)
        for stage, tasks in ((0, 1), (1, 1))
    ]
    names = ["scale_gb", "query", "stage", "executors", "wave", "tasks", "mean_ms"]
    edges = pl.DataFrame({"query": ["q"], "from_stage": [0], "to_stage": [1]})
    query = read_queries(pl.DataFrame(rows, names, orient="row"), edges)["q"]
    (new,) = known_schedules(query, [(4.0, 2)], START)
    assert new.total_s == pytest.approx(8.0, rel=0.05)
    assert new.start_s[1] == pytest.approx(new.end_s[0])
    assert new.end_s[1] == pytest.approx(new.total_s)
    assert np.isclose(new.end_s[0], new.total_s / 2)
