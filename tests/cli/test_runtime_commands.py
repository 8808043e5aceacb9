"""`presage runtime` and `presage tune` as people call them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from presage.cli.main import app
from tests.foresee.runtime.test_search import measured
from tests.foresee.runtime.test_spark_log import write_query
from tests.foresee.runtime.test_tables import runs


def said(*words: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.stdout, done.stderr


def test_tune_chooses_from_a_table_and_says_why_it_stopped(tmp_path: Path) -> None:
    measured(1, seed=9).write_csv(tmp_path / "mine.csv")
    measured(2).write_parquet(tmp_path / "known.parquet")
    code, out, _ = said(
        "tune",
        tmp_path / "mine.csv",
        *("--known", tmp_path / "known.parquet", "--runs", 4, "--workload", "workload", "--json"),
    )
    assert code == 0
    answer = json.loads(out)
    assert 1 <= len(answer["picks"]) <= 4
    assert answer["took"] == min(pick["took"] for pick in answer["picks"])
    assert answer["chosen"] in [pick["config"] for pick in answer["picks"]]
    assert answer["stopped"]


def test_tune_says_what_each_trial_may_gain_and_which_rows_it_does_not_use(tmp_path: Path) -> None:
    ended = pl.when(pl.col("vm_no") != 3).then(pl.col("elapsed_time"))
    measured(1, seed=9).with_columns(elapsed_time=ended).write_csv(tmp_path / "mine.csv")
    measured(3).with_columns(pl.col("cores").cast(pl.Float64)).write_csv(tmp_path / "known.csv")
    words = ("tune", tmp_path / "mine.csv", "--known", tmp_path / "known.csv")
    code, out, err = said(*words, "--workload", "workload", "--json")
    assert code == 0, err
    assert "2 rows of" in err
    for pick in json.loads(out)["picks"]:
        assert 0 <= pick["gain_low_pct"] <= pick["gain_high_pct"] < 100
        assert type(pick["config"]["cores"]) is int
    measured(3).with_columns(cores=pl.lit("many")).write_csv(tmp_path / "known.csv")
    code, _, err = said(*words, "--workload", "workload")
    assert (code, err.count("\n")) == (2, 1)
    assert "column cores" in err


def test_predict_adds_three_columns_and_refuses_what_is_no_number(tmp_path: Path) -> None:
    table, bundle, out = runs(4, 12), tmp_path / "b.npz", tmp_path / "out.csv"
    table.write_csv(tmp_path / "runs.csv")
    asked = ("--target", "seconds", "--group", "cluster", "--out", bundle)
    assert said("runtime", "fit", tmp_path / "runs.csv", *asked)[0] == 0
    rows = table[::-7].with_columns(
        nodes=pl.when(pl.int_range(pl.len()) > 1).then(pl.col("nodes"))
    )
    rows.write_csv(tmp_path / "new.csv")
    words = ("runtime", "predict", tmp_path / "new.csv", "--bundle", bundle, "--out")
    code, _, err = said(*words, out)
    assert code == 0, err
    assert "nodes is missing in 2 of the rows" in err
    answered = pl.read_csv(out)
    assert answered.columns == [*rows.columns, "p10", "p50", "p90"]
    assert answered.drop("p10", "p50", "p90").equals(pl.read_csv(tmp_path / "new.csv"))
    for bad in (tmp_path / "new.csv", tmp_path / "out.xlsx"):
        assert said(*words, bad)[0] == 2
    rows.with_columns(nodes=pl.lit(float("inf"))).write_csv(tmp_path / "new.csv")
    code, _, err = said(*words, out)
    assert (code, err.count("\n")) == (2, 1)
    assert "row 1 has inf" in err


@pytest.mark.parametrize(
    ("table", "words", "line"),
    [
        (measured(1).drop("elapsed_time"), ["tune"], "--target"),
        (runs()[:1], ["runtime", "fit", "--target", "seconds", "--group", "cluster"], "too few"),
        (runs(), ["runtime", "fit", "--target", "second", "--group", "cluster"], "no column"),
        (runs(), ["runtime", "fit"], "--target and --group"),
        (
            runs().with_columns(
                gb=pl.when(pl.col("id") != 3).then(pl.col("gb")).otherwise(np.inf)
            ),
            ["runtime", "fit", "--target", "seconds", "--group", "cluster"],
            "must be a number",
        ),
    ],
)
def test_a_mistake_is_one_line(
    tmp_path: Path, table: pl.DataFrame, words: list[str], line: str
) -> None:
    table.write_parquet(tmp_path / "t.parquet")
    out = ["--out", tmp_path / "b.npz"] if words[0] == "runtime" else []
    code, _, err = said(*words, tmp_path / "t.parquet", *out)
    assert code == 2
    assert line in err
    assert err.count("\n") == 1


def test_a_cycle_of_stages_is_one_line(tmp_path: Path) -> None:
    stages = pl.DataFrame({"stage": [0, 1], "tasks": [2, 2], "mean_ms": [1.0, 1.0]})
    stages.write_csv(tmp_path / "s.csv")
    edges = pl.DataFrame({"from_stage": [0, 1], "to_stage": [1, 0]})
    edges.write_csv(tmp_path / "e.csv")
    code, _, err = said(
        *("runtime", "fit", tmp_path / "s.csv", "--edges", tmp_path / "e.csv"),
        *("--out", tmp_path / "b.npz"),
    )
    assert code == 2
    assert "cycle: 0 → 1 → 0" in err


def test_logs_of_spark_become_tables_that_fit_and_query_take(tmp_path: Path) -> None:
    tables: dict[str, list[pl.DataFrame]] = {"stages": [], "edges": []}
    for scale in (1, 2, 4):
        log = write_query(tmp_path / f"log{scale}", ("a", "b", "c", "d x"), tasks=3 * scale)
        files = [tmp_path / f"{name}{scale}.parquet" for name in tables]
        words = ("runtime", "stages", log, "--out", files[0], "--edges", files[1])
        code, out, err = said(*words, "--scale-gb", scale, "--json")
        assert code == 0, err
        assert [query["query"] for query in json.loads(out)["queries"]] == ["a", "b", "c", "d x"]
        for rows, file in zip(tables.values(), files, strict=True):
            rows.append(pl.read_parquet(file))
    for name, rows in tables.items():
        pl.concat(rows).write_csv(tmp_path / f"{name}.csv")
    both = (tmp_path / "stages.csv", "--edges", tmp_path / "edges.csv")
    bundle = tmp_path / "b.npz"
    assert said("runtime", "fit", *both, "--out", bundle)[0] == 0
    one = ("--executors", 2, "--scale-gb", 3, "--bundle", bundle, "--json")
    code, out, err = said("runtime", "query", *both, *one)
    assert code == 0, err
    answers = {one["query"]: one for one in json.loads(out)["queries"]}
    # 9 tasks of 60 ms after each other on 2 cores, then one of 60 ms
    assert answers["d x"]["total_s"]["p50"] == pytest.approx(0.36, rel=0.15)
    assert answers["a"]["n_stages"] == 2
    assert "measured were" not in answers["a"]["why"]
    code, out, err = said("runtime", "query", *both, *one[:2], *("--scale-gb", 9, *one[4:]))
    assert code == 0, err
    assert json.loads(out)["queries"][0]["why"].endswith("measured were 1 to 4 GB")
    code, _, err = said("runtime", "query", *both, *one[:2], *("--scale-gb", "inf", *one[4:]))
    assert (code, err.count("\n")) == (2, 1)
    (tmp_path / "e.csv").write_text("from_stage,to_stage\n")
    (tmp_path / "one.csv").write_text("stage,tasks\n0,9\n")
    alone = (tmp_path / "one.csv", "--edges", tmp_path / "e.csv", *one)
    code, out, err = said("runtime", "query", *alone)
    assert code == 0, err
    (answer,) = json.loads(out)["queries"]
    assert 0.05 < answer["total_s"]["p50"] < 5  # no query of the fit had one stage


def test_stages_says_what_it_read_and_refuses_what_makes_no_sense(tmp_path: Path) -> None:
    log = write_query(tmp_path / "log", ("first one",), tasks=3)
    words = ("runtime", "stages", log, "--out", tmp_path / "s.csv", "--edges")
    code, out, err = said(*words, tmp_path / "e.csv")
    assert code == 0, err
    assert out.splitlines()[1].split(maxsplit=3)[::3] == ["2", "first one"]
    for bad in ([tmp_path / "s.csv"], [tmp_path / "e.csv", "--scale-gb", 0]):
        code, _, err = said(*words, *bad)
        assert code == 2
        assert err.count("\n") == 1


def test_tasks_says_what_repeated_tasks_should_get(tmp_path: Path) -> None:
    rows = [(f"t{n % 2}", 1000.0 * (1 + n % 2) + n, 8192, 60.0) for n in range(20)]
    table = pl.DataFrame(
        [*rows, ("once", 5.0, 100, 1.0)], ["name", "held", "asked", "s"], orient="row"
    )
    table.write_csv(tmp_path / "t.csv")
    columns = ("--task", "name", "--peak", "held", "--asked", "asked", "--seconds", "s")
    code, out, err = said("runtime", "tasks", tmp_path / "t.csv", *columns, "--json")
    assert code == 0, err
    answer = json.loads(out)
    assert answer["wasted_gib_h"] < answer["asked_wasted_gib_h"]
    sizes = {one["task"]: one.get("size") for one in answer["next"]}
    assert sizes["once"] is None
    assert sizes["t0"]["amount_mib"] > 1018
    code, out, err = said("runtime", "tasks", tmp_path / "t.csv", *columns)
    assert code == 0
    assert len(out.splitlines()) == 1 + 3
    assert max(map(len, out.splitlines())) <= 80
    assert "GiB h" in err
    code, _, err = said("runtime", "tasks", tmp_path / "t.csv")
    assert (code, err.count("\n")) == (2, 1)
    assert "--task" in err
