"""`presage health failures` and `kinds`: tables in, chances out, one line for each mistake."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.cli.telemetry import refused, run

pytest.importorskip("sklearn")
RUNS = 400


def runs_of(path: Path, last: int = 0) -> Path:
    """Two users: what ann runs on many GPUs fails, nearly all else is well. The last ones are not
    over."""
    random = np.random.default_rng(0)
    gpus = random.choice([1, 2, 8], RUNS)
    owner = random.choice(["ann", "bob"], RUNS)
    bad = (owner == "ann") & (gpus == 8)
    failed = random.random(RUNS) < np.where(bad, 0.9, 0.03)
    state = np.where(failed, "FAILED", "COMPLETED")
    state[::20] = "CANCELLED by 7"
    state[RUNS - last :] = "RUNNING"
    submitted = 1.7e9 + 600.0 * np.arange(RUNS)
    ended: list[float | None] = [float(at) for at in submitted + 300]
    ended[RUNS - last :] = [None] * last
    table = pl.DataFrame(
        {
            "job": [f"j{k}" for k in range(RUNS)],
            "user": owner,
            "submit_time": submitted,
            "start_time": submitted + 5,
            "end_time": ended,
            "state": state,
            "gpus": gpus,
            "partition": random.choice(["a", "b"], RUNS),
            "exit_code": failed.astype(int),
        }
    )
    table.write_csv(path)
    return path


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("failures")
    out = home / "f.npz"
    told = ok("failures", "fit", runs_of(home / "runs.csv"), "--out", out)
    assert "380 runs" in told
    assert "from: gpus, partition; the history of each user" in told  # and not the exit code
    return out


def ok(*words: object) -> str:
    done = run("health", *map(str, words))
    assert done.exit_code == 0, done.output
    return str(done.stdout)


def test_runs_to_come_are_judged_by_request_and_history(bundle: Path, tmp_path: Path) -> None:
    runs, out = runs_of(tmp_path / "now.csv", last=30), tmp_path / "s.csv"
    told = json.loads(ok("failures", "score", runs, "--bundle", bundle, "--out", out, "--json"))
    assert (told["rows"], told["known"]) == (RUNS, 351)
    assert told["brier"] < 0.1
    scores, table = pl.read_csv(out), pl.read_csv(runs)
    assert scores["run"].to_list() == table["job"].to_list()
    coming = scores.hstack(table.select("user", "gpus"))[-30:]
    bad = (pl.col("user") == "ann") & (pl.col("gpus") == 8)
    assert coming.filter(bad)["chance"].to_numpy().min() > 0.5
    assert coming.filter(~bad)["chance"].to_numpy().max() < 0.3
    likeliest = scores.sort("chance", descending=True)[0]
    assert likeliest["low"].item() <= likeliest["chance"].item() <= likeliest["high"].item()
    reasons = " ".join(likeliest.select("reason_1", "reason_2", "reason_3").row(0))
    assert "gpus: 8" in reasons or "of its owner's runs like it failed" in reasons
    shown = ok("failures", "score", runs, "--bundle", bundle, "--out", out)
    assert shown.splitlines()[0].split() == ["RUN", "CHANCE", "BECAUSE"]


def test_what_comes_later_changes_no_chance(bundle: Path, tmp_path: Path) -> None:
    whole = runs_of(tmp_path / "whole.csv")
    part = tmp_path / "part.csv"
    pl.read_csv(whole)[:250].write_csv(part)
    chances = []
    for table in (whole, part):
        ok("failures", "score", table, "--bundle", bundle, "--out", tmp_path / "s.csv")
        chances.append(pl.read_csv(tmp_path / "s.csv")["chance"].to_numpy()[:250])
    np.testing.assert_allclose(chances[0], chances[1], atol=1e-9)


def test_the_first_minute_is_what_is_looked_at(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    failed = random.random(120) < 0.4
    lines = ["run,t_s,mem"]
    for k in range(120):
        for at in range(0, 60 if k % 10 == 0 else 200, 20):
            early = 80 if failed[k] else 40
            # What is behind the landmark says the contrary, and must not be seen.
            lines.append(f"r{k},{at},{early + random.normal() if at <= 60 else 120 - early}")
    (tmp_path / "t.csv").write_text("\n".join(lines))
    runs = pl.DataFrame({"run": [f"r{k}" for k in range(120)], "gpus": 1, "failed": failed})
    runs.write_csv(tmp_path / "r.csv")
    words = ("failures", "fit", tmp_path / "r.csv", "--out", tmp_path / "b.npz")
    with_telemetry = ("--telemetry", tmp_path / "t.csv")
    told = json.loads(ok(*words, *with_telemetry, "--json"))
    assert (told["runs"], told["left_out"], told["landmark_s"]) == (108, 12, 60.0)
    out = tmp_path / "s.parquet"
    score = ("failures", "score", tmp_path / "r.csv", "--bundle", tmp_path / "b.npz", "--out", out)
    ok(*score, *with_telemetry)
    chance = pl.read_parquet(out)["chance"]
    assert chance.is_null().sum() == 12
    there = chance.is_not_null().to_numpy()
    told_apart = (chance.to_numpy()[there] > 0.5) == failed[there]
    assert told_apart.mean() > 0.95
    assert "needs --telemetry" in refused(run("health", *map(str, score)))


def test_mistakes_in_tables_of_runs_are_one_line(bundle: Path, tmp_path: Path) -> None:
    runs, out = runs_of(tmp_path / "r.csv"), tmp_path / "b.npz"

    def wrong(*words: object) -> str:
        return refused(run("health", "failures", *map(str, words)))

    assert "there is no file" in wrong("fit", tmp_path / "no.csv", "--out", out)
    assert "no column 'who'" in wrong("fit", runs, "--out", out, "--owner", "who")
    assert "no column 'ram'" in wrong("fit", runs, "--out", out, "--request", "ram")
    assert "--after belongs to --telemetry" in wrong("fit", runs, "--out", out, "--after", "9s")
    table = pl.read_csv(runs)
    table.drop("state").write_csv(tmp_path / "x.csv")
    assert "--state" in wrong("fit", tmp_path / "x.csv", "--out", out)
    table.drop("end_time").write_csv(tmp_path / "x.csv")
    assert "--ended" in wrong("fit", tmp_path / "x.csv", "--out", out)
    table.drop("gpus", "partition", "user").write_csv(tmp_path / "x.csv")
    assert "--request" in wrong("fit", tmp_path / "x.csv", "--out", out)
    table.with_columns(state=pl.lit("COMPLETED")).write_csv(tmp_path / "x.csv")
    assert "failures and successes are needed" in wrong("fit", tmp_path / "x.csv", "--out", out)
    table.with_columns(submit_time=pl.lit("soon")).write_csv(tmp_path / "x.csv")
    assert "is no time" in wrong("fit", tmp_path / "x.csv", "--out", out)
    score = ("--bundle", bundle, "--out", tmp_path / "s.csv")
    table.drop("gpus").write_csv(tmp_path / "x.csv")
    assert "no column 'gpus', which" in wrong("score", tmp_path / "x.csv", *score)
    table.with_columns(gpus=pl.lit("many")).write_csv(tmp_path / "x.csv")
    assert "holds words" in wrong("score", tmp_path / "x.csv", *score)
    assert "was fitted without --telemetry" in wrong("score", runs, *score, "--telemetry", runs)
    assert "must end in .csv" in wrong("score", runs, *score[:2], "--out", tmp_path / "s.txt")
    (tmp_path / "bad.npz").write_text("no")
    assert "bad.npz" in wrong("score", runs, "--bundle", tmp_path / "bad.npz", *score[2:])


# -- kinds of fault -------------------------------------------------------------------------------


@pytest.fixture
def faulty(tmp_path: Path) -> tuple[Path, Path]:
    """Three services over two hours; by turns one computes more, or its latency rises."""
    random = np.random.default_rng(0)
    pods, faults = ("web", "cart", "db"), []
    values = {pod: random.normal([5.0, 1.0], 0.05, (480, 2)) for pod in pods}
    for number in range(12):
        pod, begin = pods[number % 3], 30 + 36 * number
        kind = ("busy", "slow")[number % 2]
        values[pod][begin : begin + 10, number % 2] += 8.0
        faults.append(f"{pod},{60 * begin},{60 * (begin + 10)},{kind}")
    lines = ["pod,time,cpu_cores,latency_s"]
    for pod in pods:
        lines += [f"{pod},{60 * k},{v[0]:.3f},{v[1]:.3f}" for k, v in enumerate(values[pod])]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    (tmp_path / "f.csv").write_text("\n".join(["series,from,to,kind", *faults]))
    return tmp_path / "t.csv", tmp_path / "f.csv"


@pytest.mark.parametrize("by", ["tree", "network"])
def test_kinds_of_fault(faulty: tuple[Path, Path], tmp_path: Path, by: str) -> None:
    if by == "network":
        pytest.importorskip("pgmpy")
    (telemetry, faults), out = faulty, tmp_path / "k.npz"
    told = json.loads(
        ok("kinds", "fit", telemetry, "--faults", faults, "--out", out, "--by", by, "--json")
    )
    assert (told["faults"], told["kinds"]) == (12, ["busy", "slow"])
    assert told["right_on_series_left_out"] > 0.9
    when = ("--from", 60 * 66, "--to", 60 * 76)
    words = ("kinds", "score", telemetry, "--bundle", out, *when, "--by", by)
    answer = json.loads(ok(*words, "--of", "cart", "--json"))
    assert answer["kinds"][0]["kind"] == "slow"
    assert sum(one["probability"] for one in answer["kinds"]) == pytest.approx(1.0)
    assert json.loads(ok(*words, "--json"))["of"] == "cart"  # who is to blame is found
    assert ok("kinds", "show", "--bundle", out, "--by", by).strip()
    quiet = ("--from", 60 * 50, "--to", 60 * 55)
    assert ok("kinds", "score", telemetry, "--bundle", out, *quiet) == "nothing stands out\n"


def test_mistakes_about_kinds_are_one_line(faulty: tuple[Path, Path], tmp_path: Path) -> None:
    (telemetry, faults), out = faulty, tmp_path / "k.npz"

    def wrong(*words: object) -> str:
        return refused(run("health", "kinds", *map(str, words)))

    fit = ("fit", telemetry, "--out", out, "--faults")
    (tmp_path / "x.csv").write_text("series,from,to\nweb,1,2\n")
    assert "no column 'kind'" in wrong(*fit, tmp_path / "x.csv")
    (tmp_path / "x.csv").write_text("series,from,to,kind\nweb,then,2,busy\n")
    assert "is no time" in wrong(*fit, tmp_path / "x.csv")
    (tmp_path / "x.csv").write_text("series,from,to,kind\nnobody,600,700,busy\n")
    done = run("health", "kinds", *map(str, fit), tmp_path / "x.csv")
    assert done.exit_code == 2
    assert "no series has the name of: nobody" in done.stderr
    (tmp_path / "x.csv").write_text("series,from,to,kind\nweb,600,700,busy\n")
    assert "two kinds or more" in wrong(*fit, tmp_path / "x.csv")
    ok(*("kinds", *fit), faults)
    when = ("--from", 3960, "--to", 4560)
    assert "no series 'x'" in wrong("score", telemetry, "--bundle", out, *when, "--of", "x")
    (tmp_path / "bad.npz").write_text("no")
    assert "bad.npz" in wrong("show", "--bundle", tmp_path / "bad.npz")
