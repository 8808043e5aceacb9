"""`presage health`: one row out for each row in, labels kept out, one line for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from presage.cli.main import app

run = CliRunner()


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Two machines by turns, with a label that would tell all."""
    random = np.random.default_rng(0)
    rows = pl.DataFrame(
        {
            "machine": ["one", "two"] * 300,
            "t": np.repeat(np.arange(300), 2),
            "x": random.normal(size=600),
            "y": random.normal(size=600),
            "label": [0, 1] * 300,
        }
    )
    file = tmp_path / "t.parquet"
    rows.write_parquet(file)
    return file


def call(*words: object) -> str:
    done = run.invoke(app, ["health", *map(str, words)])
    assert done.exit_code == 0, done.output
    return done.stdout


def refused(*words: object) -> str:
    done = run.invoke(app, ["health", *map(str, words)])
    assert done.exit_code == 2
    assert done.output.count("error:") == 1
    return done.output


NAMED = ("--id", "machine", "--time", "t")


def test_fit_and_score(table: Path, tmp_path: Path) -> None:
    bundle, out = tmp_path / "b.npz", tmp_path / "s.csv"
    told = json.loads(call("fit", table, "--out", bundle, *NAMED, "--json"))
    assert told["metrics"] == ["x", "y"]
    assert told["left_out"] == ["label"]
    assert told["every_s"] == 60.0
    told = json.loads(call("score", table, "--bundle", bundle, "--out", out, *NAMED, "--json"))
    assert told["rows"] == 600
    scores, rows = pl.read_csv(out), pl.read_parquet(table)
    assert scores.columns == ["id", "time", "score", "alarm", "metric_1", "metric_2", "metric_3"]
    assert scores["id"].to_list() == rows["machine"].to_list()
    assert scores["time"].to_list() == rows["t"].to_list()
    assert scores["score"].is_between(0, 1).all()
    turned = tmp_path / "r.parquet"
    rows.reverse().write_parquet(turned)
    call("score", turned, "--bundle", bundle, "--out", out, *NAMED)
    assert pl.read_csv(out)["score"].to_list() == scores["score"].reverse().to_list()


def test_long_telemetry_has_an_answer_for_each_value(table: Path, tmp_path: Path) -> None:
    wide = pl.read_parquet(table).drop("label")
    long = wide.unpivot(["x", "y"], index=["machine", "t"], variable_name="metric")
    file = tmp_path / "long.csv"
    long.write_csv(file)
    call("fit", file, "--out", tmp_path / "b.npz", *NAMED)
    call("score", file, "--bundle", tmp_path / "b.npz", "--out", tmp_path / "s.parquet", *NAMED)
    assert len(pl.read_parquet(tmp_path / "s.parquet")) == 1200


def test_causes(table: Path) -> None:
    told = json.loads(call("causes", table, "--from", 200, "--to", 210, *NAMED, "--json"))
    assert isinstance(told["causes"], list)


def test_mistakes_are_one_line(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "b.npz"
    assert "no column 'host'" in refused("fit", table, "--out", out, "--id", "host")
    assert "no column 'z'" in refused("fit", table, "--out", out, *NAMED, "--ignore", "z")
    assert "fit" in refused("score", table, "--bundle", out, "--out", tmp_path / "s.csv", *NAMED)
    timeless = tmp_path / "when.parquet"
    pl.read_parquet(table).rename({"t": "when"}).write_parquet(timeless)
    assert "--time which it is: machine, when" in refused("fit", timeless, "--out", out)
    assert "is no time" in refused("causes", table, "--from", "x", "--to", "9", *NAMED)


def test_a_column_without_numbers_is_named(table: Path, tmp_path: Path) -> None:
    words = tmp_path / "words.parquet"
    pl.read_parquet(table).with_columns(y=pl.lit("busy")).write_parquet(words)
    done = run.invoke(app, ["health", "fit", str(words), "--out", str(tmp_path / "b.npz"), *NAMED])
    assert "holds no numbers: y" in done.output
    assert "1 metric," in done.stdout
    nothing = tmp_path / "other.parquet"
    pl.read_parquet(table).rename({"x": "u", "y": "v"}).write_parquet(nothing)
    out = ("--bundle", tmp_path / "b.npz", "--out", tmp_path / "s.csv")
    assert refused("score", nothing, *out, *NAMED).splitlines()[-1].startswith("error: ")


def test_rows_of_one_time_are_not_mixed_when_nothing_names_the_series(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    rows = [f"{name},{t},{t % 7}" for t in range(60) for name in ("one", "two")]
    file.write_text("\n".join(["whose,t,x", *rows]))
    said = refused("fit", file, "--out", tmp_path / "b.npz")
    assert "--id" in said
    assert "whose" in said
    assert '"series": 2' in call(
        "fit", file, "--out", tmp_path / "b.npz", "--id", "whose", "--json"
    )
    known = tmp_path / "known.csv"
    known.write_text("\n".join(["PodName,t,x", *rows]))
    assert '"series": 2' in call("fit", known, "--out", tmp_path / "b.npz", "--json")
