"""Totals of queries that nobody has measured."""

from __future__ import annotations

import numpy as np

from presage.foresee.runtime.totals import TotalProcess
from presage.learn import Floats


def shaped(queries: int, scales: tuple[float, ...]) -> tuple[Floats, Floats]:
    """Queries by scale, executors, tasks, and the length of the critical path."""
    rows, logs = [], []
    for query in range(queries):
        for scale in scales:
            for executors in (5.0, 20.0, 80.0):
                tasks = (4 + 3 * query) * scale
                depth = 2.0 + query % 3
                rows.append([np.log(scale), np.log(executors), np.log(tasks), 0.0, depth])
                logs.append(0.8 * np.log(tasks) - 0.6 * np.log(executors) + 0.3 * np.log1p(depth))
    return np.array(rows), np.array(logs)


def test_it_goes_on_between_scales_and_beyond_them() -> None:
    process = TotalProcess.fit(*shaped(8, (2.0, 10.0, 50.0)))
    between, logs = shaped(8, (5.0,))
    assert np.abs(process.predict(between) - logs).max() < 0.05
    beyond, logs = shaped(8, (100.0,))
    largest = shaped(8, (50.0,))[1]  # what trees would say
    assert np.abs(process.predict(beyond) - logs).mean() < 0.5 * np.abs(largest - logs).mean()


def test_it_is_the_same_from_its_arrays() -> None:
    rows, logs = shaped(4, (2.0, 10.0))
    process = TotalProcess.fit(rows, logs)
    again = TotalProcess.from_arrays(process.to_arrays())
    assert again.predict(rows).tolist() == process.predict(rows).tolist()


def test_a_column_that_was_always_alike_does_not_count() -> None:
    rows, logs = shaped(6, (2.0, 10.0))
    process = TotalProcess.fit(np.column_stack([rows, np.full(len(rows), 2.0)]), logs)
    said = [process.predict(np.column_stack([rows, np.full(len(rows), n)])) for n in (2.0, 1.0)]
    assert said[0].tolist() == said[1].tolist()


def test_it_does_not_go_on_for_ever() -> None:
    rows, logs = shaped(6, (2.0, 10.0))
    far = TotalProcess.fit(rows, logs).predict(1000.0 * rows)
    assert np.abs(far).max() < 10 * np.abs(logs).max()
