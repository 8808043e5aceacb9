"""What a reproduction found, as JSON, as a page and on the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import typer
from typer.testing import CliRunner

from presage.cli.reproduce import reproduce as command
from presage.model.errors import UserError
from presage.reproduce import EXPERIMENTS, data_directory, reproduce
from presage.reproduce.result import (
    Chart,
    Progress,
    ReproducedFigure,
    Reproduction,
    reproduction_page,
)

FOUND = Reproduction(
    "toy",
    "A <toy>",
    "Nobody, 2020",
    (
        ReproducedFigure.at_least("gain", 1.7, 1.6, paper=1.61),
        ReproducedFigure.at_most("wait", 1500.0, 1000.0, paper=1280.0, unit="s"),
        ReproducedFigure("jobs", 100.0),
    ),
    ("It is <not> real.",),
    (Chart("Curve", "Up is better.", {"data": [{"x": [1], "y": [2]}], "layout": {}}),),
)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """An experiment that is there at once."""
    module = ModuleType("presage.reproduce.toy")

    def run(data: Path, *, seeds: int, progress: Progress) -> Reproduction:
        progress(1, 1)
        return FOUND

    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "presage.reproduce.toy", module)
    monkeypatch.setitem(EXPERIMENTS, "toy", "toy")


def invoke(*arguments: str) -> str:
    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_targets_say_whether_they_were_met() -> None:
    assert [line.met for line in FOUND.lines] == [True, False, None]
    assert [line.target for line in FOUND.lines] == ["≥ 1.6", "≤ 1,000", ""]
    assert not FOUND.met


def test_the_page_escapes_what_it_is_given() -> None:
    page = reproduction_page(FOUND)
    assert "A &lt;toy&gt;" in page
    assert "It is &lt;not&gt; real." in page
    assert "1,280 s" in page
    assert 'id="chart0"' in page


@pytest.mark.usefixtures("toy")
def test_the_command_prints_a_table_or_json(tmp_path: Path) -> None:
    text = invoke("toy", "--data", str(tmp_path))
    assert "1,500 s" in text
    assert "missed" in text
    assert "- It is <not> real." in text
    found = json.loads(invoke("toy", "--data", str(tmp_path), "--json"))
    assert found["met"] is False
    assert found["lines"][0] == {
        "what": "gain",
        "unit": "",
        "paper": 1.61,
        "ours": 1.7,
        "target": "≥ 1.6",
        "met": True,
    }
    page = tmp_path / "page.html"
    assert invoke("toy", "--data", str(tmp_path), "--html", str(page)) == ""
    assert "<h2>Curve</h2>" in page.read_text(encoding="utf-8")


def test_mistakes_are_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown experiment 'hotcloud'; there are: hotcloud20"):
        reproduce("hotcloud", tmp_path)
    with pytest.raises(UserError, match="1 seed or more, not 0"):
        reproduce("hotcloud20", tmp_path, seeds=0)
    with pytest.raises(UserError, match="is not a directory"):
        data_directory(tmp_path / "none")
    monkeypatch.delenv("PRESAGE_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="--data or in PRESAGE_DATA"):
        data_directory()
    with pytest.raises(UserError, match="is missing; --data names"):
        reproduce("hotcloud20", tmp_path)
