"""`presage gpus`: the table fits a terminal, JSON holds all, additions show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from presage.cli.main import app
from presage.foresee.gpus import catalogue


@pytest.fixture(autouse=True)
def _no_files_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PRESAGE_GPUS", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def presage(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_the_table_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = presage("gpus")
    lines = done.stdout.splitlines()
    assert done.exit_code == 0
    assert {line.split()[0] for line in lines[1:]} == set(catalogue())
    assert max(map(len, lines)) <= 80
    assert "…" not in done.stdout


def test_json_holds_every_figure() -> None:
    rows = json.loads(presage("gpus", "--json").stdout)["gpus"]
    assert [row["name"] for row in rows] == list(catalogue())
    (a100,) = [row for row in rows if row["name"] == "a100-40g"]
    assert (a100["memory_mib"], a100["fp16_tflops"], a100["sms"]) == (40960, 312, 108)
    assert "a100" in a100["aliases"]


def test_additions_show(tmp_path: Path) -> None:
    file = tmp_path / "more.yaml"
    file.write_text(
        "gpus:\n  mine: {memory_mib: 1024, sms: 1, bandwidth_gbs: 9, tflops: {fp32: 1}}\n"
    )
    done = presage("gpus", "--gpus", file)
    assert done.stdout.splitlines()[-1].split()[0] == "mine"
    assert f"with the entries of {file}" in done.stderr
    file.write_text("gpus:\n  mine: {memory_mib: 1024}\n")
    done = presage("gpus", "--gpus", file)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: {file} line 2: gpus.mine.")
