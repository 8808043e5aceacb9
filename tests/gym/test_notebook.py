"""The notebook that trains: it runs from nothing, and shows what it gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "train_a_policy.ipynb"
SMALL = 40_000


def cells() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in found if cell["cell_type"] == "code"]


def drawn(cell: dict[str, Any]) -> list[dict[str, Any]]:
    """The traces of a cell's figure."""
    found: list[dict[str, Any]] = cell["outputs"][0]["data"]["application/vnd.plotly.v1+json"][
        "data"
    ]
    return found


def test_its_outputs_are_there_and_small() -> None:
    assert NOTEBOOK.stat().st_size < SMALL
    with_output = [cell["id"] for cell in cells() if cell["outputs"]]
    assert with_output == ["curve", "compare", "service", "frontier"]
    assert [one["name"] for one in drawn(cells()[-1])] == ["autoscaler", "learned"]


@pytest.mark.slow
def test_it_trains_and_compares() -> None:
    """Its code without a kernel. The lines of services are those that it shows."""
    names: dict[str, Any] = {}
    for cell in cells():
        exec("".join(cell["source"]), names)
    assert len(names["trained"].about["curve"]) == names["recipe"].generations
    rows = names["rows"]
    assert [set(row) for row in rows] == [{"fifo", "sjf", "tiresias", "qssf", "mine"}] * 6
    mine, fifo = (float(np.mean([row[name] for row in rows])) for name in ("mine", "fifo"))
    assert mine < fifo
    for name, shown in zip(names["lines"], drawn(cells()[-1]), strict=True):
        assert names["lines"][name] == [
            (pytest.approx(x), pytest.approx(y))
            for x, y in zip(shown["x"], shown["y"], strict=True)
        ]
