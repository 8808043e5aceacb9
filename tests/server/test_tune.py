"""`presage tune` where nothing was measured: its trials are jobs of a real server."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from tests.server.kit import Server

REPORTS = (
    "from presage import job; import sys; b, w = map(int, sys.argv[1:]);"
    " job.progress(step=1, steps=1, metrics={'ms': 10 + abs(b - 64) + 5 * abs(w - 2)})"
)

SWEEP = """\
name: train
command: ["python", "-c", "from presage import job; p = job.params(); job.progress(step=1, steps=1,
  metrics={'speed': 100 / p['batch']})"]
resources: {cpus: 0.1}
env: {BATCH: "${batch}"}
sweep: {grid: {batch: [8, 4, 2]}}
objective: {metric: speed, mode: max}
"""


def test_a_command_is_tuned_by_jobs_and_its_trials_teach_the_next_search(
    server: Server, tmp_path: Path
) -> None:
    asked = ("tune", "--try", "batch=32,64,128", "--try", "workers=1..2", "--metric", "ms")
    command = (
        "--no-folder",
        "--cpus",
        "0.1",
        "--",
        "python",
        "-c",
        REPORTS,
        "{batch}",
        "{workers}",
    )
    done = server.presage(
        *asked, "--keep", str(tmp_path / "t.csv"), "--runs", "4", "--json", *command
    )
    assert done.code == 0, done.err
    said = done.json
    assert said["unit"] == "ms"
    assert len(said["jobs"]) == len(said["picks"]) == 4
    first = said["picks"][0]
    assert first["config"] == {"batch": 32, "workers": 1}  # what is usual comes first
    assert (first["took"], first["expected"]) == (10 + 32 + 5, None)
    for job, pick in zip(said["jobs"], said["picks"], strict=True):
        info = server.job(job)
        assert info["status"] == "COMPLETED"
        assert info["params"] == pick["config"]
        assert pick["took"] == info["progress"]["ms"]
    assert said["took"] == min(pick["took"] for pick in said["picks"])
    kept = pl.read_csv(tmp_path / "t.csv")
    assert kept["elapsed_time"].to_list() == [pick["took"] for pick in said["picks"]]

    rows = [
        f"{n},{b},{w},{n * (10 + abs(b - 64) + 5 * abs(w - 2))}"
        for n in (1, 2, 3, 4)
        for b in (32, 64, 128)
        for w in (1, 2)
    ]
    (tmp_path / "known.csv").write_text("\n".join(["workload,batch,workers,elapsed_time", *rows]))
    known = pl.concat([pl.read_csv(tmp_path / "known.csv"), kept], how="vertical_relaxed")
    known.write_csv(tmp_path / "known.csv")
    taught = server.presage(
        *asked, "--known", str(tmp_path / "known.csv"), "--runs", "1", "--json", *command
    )
    assert taught.code == 0, taught.err
    assert taught.json["taught_by"] == 4 + 1
    assert taught.json["chosen"] == {"batch": 64, "workers": 2}


def test_the_points_of_a_sweep_are_tried_one_by_one(server: Server, tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text(SWEEP)
    done = server.presage("tune", str(tmp_path / "train.yaml"), "--runs", "3", "--json")
    assert done.code == 0, done.err
    assert done.json["chosen"] == {"batch": 2}
    assert {pick["took"] for pick in done.json["picks"]} >= {8 / 100, 2 / 100}


def test_trials_are_timed_by_their_runs_and_a_failed_one_is_passed_over(server: Server) -> None:
    done = server.presage(
        *("tune", "--no-folder", "--cpus", "0.1", "--runs", "3", "--try", "how=0,1", "--json"),
        *("--", "sh", "-c", "exit {how}"),
    )
    assert done.code == 0, done.err
    took = [pick["took"] for pick in done.json["picks"]]
    assert took[1] is None
    history = server.job(done.json["jobs"][0])["history"]
    (began,) = [one["at"] for one in history if one["status"] == "PROCESSING"]
    assert 0 < took[0] <= history[-1]["at"] - began
    assert done.json["chosen"] == {"how": 0}
    assert f"{done.json['jobs'][1]} is FAILED" in done.err

    none = server.presage(
        "tune", "--no-folder", "--try", "how=1,2,3", "--", "sh", "-c", "exit {how}"
    )
    assert none.code == 2
    assert "the first two trials failed" in none.err.splitlines()[-1]


def test_what_makes_no_sense_is_one_line_and_no_job(server: Server, tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("name: a\ncommand: 'true'\n")
    before = len(server.http.get("/api/v1/jobs", params={"limit": 1000}).json()["jobs"])
    for words, says in (
        (("--", "python", "train.py"), "say what to vary"),
        (("--try", "batch=1,2", "--", "python", "train.py"), "has no {batch}"),
        (("--try", "batch", "--", "run", "{batch}"), "NAME=A,B,C"),
        (("--try", "b=1,1", "--", "run", "{b}"), "twice"),
        (("--try", "spark.x=1,2", "--", "run", "it"), "no spark-submit"),
        ((str(tmp_path / "one.yaml"),), "no sweep"),
        (("--try", "b=1,2", "--workload", "w", "--", "run", "{b}"), "--workload"),
    ):
        done = server.presage("tune", *words)
        assert done.code == 2, words
        assert says in done.err
        assert done.err.count("\n") == 1
    after = len(server.http.get("/api/v1/jobs", params={"limit": 1000}).json()["jobs"])
    assert after == before
