"""`presage graph` from outside: what it prints, what it writes, and how it says no."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from presage.cli.main import app


def run(*args: str) -> Result:
    return CliRunner().invoke(app, ["graph", *args])


def test_the_table_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = run("zoo:resnet50", "--batch", "32")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert any("4.089 G" in line for line in lines)
    assert any("25,557,032" in line for line in lines)
    kinds = {line.split()[0] for line in lines if line.strip()}
    assert {"conv", "pointwise", "norm", "update"} <= kinds


def test_json_is_all_that_is_printed() -> None:
    done = run("zoo:gpt2", "--json", "--inference")
    facts = json.loads(done.stdout)
    assert facts["params"] == 124_439_808
    assert facts["phases"]["backward"]["operators"] == 0
    assert facts["per_sample"]["macs"] == pytest.approx(145.8e9, rel=0.001)


def test_the_batch_scales_a_step() -> None:
    one, eight = (
        json.loads(run("zoo:vgg11", "--json", "--batch", n).stdout)["macs"] for n in ("1", "8")
    )
    assert eight == pytest.approx(8 * one)


def test_a_picture_is_written(tmp_path: Path) -> None:
    path = tmp_path / "graph.html"
    done = run("zoo:bert", "--html", str(path))
    assert done.exit_code == 0
    text = path.read_text(encoding="utf-8")
    assert "<svg" in text
    assert "× 12" in text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["zoo:resnet5"], "did you mean"),
        (["resnet50"], "did you mean zoo:resnet50"),
        (["gone.py:model"], "does not exist"),
        (["zoo:mlp", "--input", "3xa"], "is not an input shape"),
        (["zoo:mlp", "--html", "gone/graph.html"], "make it first"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    args: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*args)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())
