"""The recurrent network over the stages of queries: what it carries, learns and keeps."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from presage.foresee.runtime import recurrence
from presage.foresee.runtime.recurrence import StageRecurrence
from presage.foresee.runtime.stages import Query, read_queries
from presage.model.errors import BundleError

torch = pytest.importorskip("torch")


def queries(count: int = 6) -> dict[str, Query]:
    """Scans, each read by a stage that takes as long a task as the first of its scans had tasks,
    through a stage in between that looks the same everywhere."""
    stages, edges = [], []
    for number in range(count):
        tasks = 2 + 3 * number
        for scale in (1, 2):
            for executors in (2, 4):
                for stage, (n, ms) in enumerate(
                    ((tasks * scale, 100.0), (8, 50.0), (8, 40.0 * tasks * scale))
                ):
                    first = min(executors, n)
                    place = (scale, f"q{number}", stage, executors)
                    stages.append((*place, "first_wave", first, ms))
                    if n > first:
                        stages.append((*place, "rest_wave", n - first, ms))
        edges += [(f"q{number}", 0, 1), (f"q{number}", 1, 2)]
    names = ["scale_gb", "query", "stage", "executors", "wave", "tasks", "mean_ms"]
    return read_queries(
        pl.DataFrame(stages, names, orient="row"),
        pl.DataFrame(edges, ["query", "from_stage", "to_stage"], orient="row"),
    )


@pytest.fixture(scope="module")
def learned() -> StageRecurrence:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recurrence, "_UPDATES", 150)
        made = StageRecurrence.fit(queries(), ["q0", "q1", "q2", "q4", "q5"])
    assert made is not None
    return made


def test_it_foresees_a_query_that_it_has_not_seen(learned: StageRecurrence) -> None:
    query = queries()["q3"]
    works, truth = learned.works(query, 2.0, 4), query.works(2.0, 4)
    assert truth is not None
    for stage, work in works.items():
        assert (work.first_tasks, work.rest_tasks) == (
            truth[stage].first_tasks,
            truth[stage].rest_tasks,
        )
        assert work.first_s == pytest.approx(truth[stage].first_s, rel=0.35)


def test_what_came_before_a_stage_tells_on_it(learned: StageRecurrence) -> None:
    few, many = (learned.works(queries()[name], 2.0, 4)[2].first_s for name in ("q1", "q5"))
    assert many > 2 * few


def test_numpy_does_what_pytorch_does(learned: StageRecurrence) -> None:
    state, width = learned.carried.shape[1], len(learned.centre)
    cell = torch.nn.GRUCell(width, state).double()
    with torch.no_grad():
        cell.weight_ih.copy_(torch.tensor(learned.input))
        cell.weight_hh.copy_(torch.tensor(learned.carried))
        cell.bias_ih.copy_(torch.tensor(learned.offsets[0]))
        cell.bias_hh.copy_(torch.tensor(learned.offsets[1]))
    rng = np.random.default_rng(0)
    row, past = np.split(rng.normal(size=width + state), [width])
    with torch.no_grad():
        said = cell(torch.tensor(row)[None], torch.tensor(past)[None])[0].numpy()
    assert learned._next(row, past) == pytest.approx(said)


def test_it_is_kept_as_arrays(learned: StageRecurrence) -> None:
    arrays = learned.to_arrays()
    again = StageRecurrence.from_arrays(arrays)
    assert again is not None
    query = queries()["q3"]
    assert again.works(query, 1.0, 2) == learned.works(query, 1.0, 2)
    assert StageRecurrence.from_arrays({}) is None
    with pytest.raises(BundleError, match="shapes"):
        StageRecurrence.from_arrays({**arrays, "last": arrays["last"][:, 1:]})
    with pytest.raises(BundleError, match="no recurrent network"):
        StageRecurrence.from_arrays({"centre": arrays["centre"]})
