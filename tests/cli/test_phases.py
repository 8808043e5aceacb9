"""`presage phases` as people call it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from presage.observe.phases import PhaseModel
from tests.cli.telemetry import EVERY_S, as_rows, made, refused, run, written
from tests.waiting import PATIENCE_S

HOSTILE = "</script><script>alert('x')</script>"
WARM_UP = 3
LIMIT = 7_000_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`pods.csv` and the bundle that was fitted on it."""
    place = tmp_path_factory.mktemp("phases")
    telemetry = written(made(), place / "pods.csv")
    done = run("phases", "fit", telemetry, "--out", place / "pods.npz", "--every", "15s", "--json")
    assert done.exit_code == 0, done.output
    (place / "fit.json").write_text(done.stdout)
    return place


def shown(folder: Path, telemetry: Path) -> Any:
    done = run("phases", "show", folder / "pods.npz", telemetry, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_fit_says_what_it_found(folder: Path) -> None:
    found = json.loads((folder / "fit.json").read_text())
    assert found["written"] == str(folder / "pods.npz")
    assert found["every_s"] == EVERY_S
    assert found["features"] == ["cpu", "memory"]
    assert (found["pods"], found["samples"]) == (6, 1200)
    assert found["phases"] == len(found["statistics"]) >= 2
    assert found["cohesion"]["1"] > found["cohesion"][str(found["phases"])]
    idle, busy = found["statistics"][0]["use"], found["statistics"][-1]["use"]
    assert idle["cpu"]["mean"] < 0.5 < 2.5 < busy["cpu"]["mean"]


def test_what_guardians_write_is_telemetry_too(folder: Path, tmp_path: Path) -> None:
    lines = as_rows(made(), tmp_path / "1.jsonl")
    words = ("--out", tmp_path / "own.npz", "--every", "15s", "--json")
    done = run("phases", "fit", lines, *words)
    assert done.exit_code == 0, done.output
    found, before = json.loads(done.stdout), json.loads((folder / "fit.json").read_text())
    for key in ("features", "phases", "pods", "samples"):
        assert found[key] == before[key]
    done = run("phases", "show", tmp_path / "own.npz", lines, "--json")
    assert json.loads(done.stdout) == shown(folder, folder / "pods.csv")


@pytest.mark.parametrize("k", ["2", "3"])
def test_the_number_of_phases_and_the_features_can_be_given(
    folder: Path, tmp_path: Path, k: str
) -> None:
    out = tmp_path / "own.npz"
    words = ("--k", k, "--features", "memory,cpu_cores", "--every", "1m", "--method", "windows")
    done = run("phases", "fit", folder / "pods.csv", "--out", out, *words)
    assert done.exit_code == 0, done.output
    model = PhaseModel.load(out)
    assert (model.n_phases, model.features) == (int(k), ("memory", "cpu_cores"))
    assert (model.every, model.method) == (60.0, "windows")
    assert f"{k} phases" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_show_has_a_phase_for_every_input_row_in_order(folder: Path, tmp_path: Path) -> None:
    table = made(pods=2, samples=60, seed=1)
    answer = shown(folder, written(table, tmp_path / "rows.csv"))
    assert list(answer) == ["worker-0", "worker-1"]
    assert [len(each) for each in answer.values()] == [60, 60]
    for each in answer.values():
        assert each[:WARM_UP] == [None] * WARM_UP
        assert all(isinstance(phase, int) for phase in each[WARM_UP:])
    mixed = table.sample(fraction=1.0, shuffle=True, seed=3)
    again = shown(folder, written(mixed, tmp_path / "mixed.csv"))
    for pod, times in mixed.group_by("pod", maintain_order=True).agg("time").iter_rows():
        rows = (np.array(times) / EVERY_S).astype(int)
        assert again[pod] == [answer[pod][row] for row in rows]


def test_phases_follow_the_work(folder: Path, tmp_path: Path) -> None:
    table = made(pods=1, samples=100, seed=5)
    (phases,) = shown(folder, written(table, tmp_path / "one.csv")).values()
    works = table["cpu_cores"].to_numpy() > 1
    settled = np.arange(100) >= 8
    settled[1:] &= works[1:] == works[:-1]
    same: list[set[int]] = [set(), set()]
    for phase, busy, steady in zip(phases, works, settled, strict=True):
        if steady and phase is not None:
            same[int(busy)].add(phase)
    assert same[0]
    assert same[1]
    assert not same[0] & same[1]


def test_rows_of_one_time_get_one_answer_and_gaps_warm_up_again(
    folder: Path, tmp_path: Path
) -> None:
    table = made(pods=1, samples=40)
    twice = pl.concat([table, table.head(10)])
    (phases,) = shown(folder, written(twice, tmp_path / "twice.csv")).values()
    assert phases[40:] == phases[:10]
    gap = table.with_columns(time=pl.col("time") + 86_400.0 * (pl.col("time") >= 20 * EVERY_S))
    (phases,) = shown(folder, written(gap, tmp_path / "gap.csv")).values()
    assert [at for at, phase in enumerate(phases) if phase is None] == [0, 1, 2, 20, 21, 22]
    holes = table.with_columns(
        cpu_cores=pl.when(pl.col("time") == 30 * EVERY_S).then(None).otherwise("cpu_cores")
    )
    (phases,) = shown(folder, written(holes, tmp_path / "holes.csv")).values()
    assert len(phases) == 40
    assert None not in phases[WARM_UP:]


def test_short_and_constant_pods_are_answered(folder: Path, tmp_path: Path) -> None:
    two = made(pods=1, samples=2)
    assert shown(folder, written(two, tmp_path / "two.csv")) == {"worker-0": [None, None]}
    still = made(pods=1, samples=30).with_columns(cpu_cores=1.0, memory_bytes=1e9)
    (phases,) = shown(folder, written(still, tmp_path / "still.csv")).values()
    assert len(set(phases[WARM_UP:])) == 1


def test_show_reads_well(folder: Path) -> None:
    done = run("phases", "show", folder / "pods.npz", folder / "pods.csv")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "cpu" in lines[0]
    assert any(re.match(r"worker-0: \d+ ×\d+, ", line) for line in lines)
    assert "the model fits" in done.stderr


def test_expand_splits_one_phase_and_keeps_the_others(folder: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "pods.npz"
    shutil.copy(folder / "pods.npz", bundle)
    before = shown(folder, folder / "pods.csv")
    count = PhaseModel.load(bundle).n_phases
    done = run("phases", "expand", bundle, folder / "pods.csv", "--phase", "1", "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert said["written"] == str(bundle)
    assert said["parts"] == list(range(count, said["phases"]))
    after = shown(tmp_path, folder / "pods.csv")
    for pod, phases in before.items():
        for old, new in zip(phases, after[pod], strict=True):
            assert new in said["parts"] if old == 1 else new == old
    line = refused(run("phases", "expand", bundle, folder / "pods.csv", "--phase", "1"))
    assert "there is no phase 1 to expand" in line


def test_forecast_gives_probabilities(folder: Path, tmp_path: Path) -> None:
    both = pl.concat([made(pods=1), made(pods=1, samples=2).with_columns(pod=pl.lit("new"))])
    telemetry = written(both, tmp_path / "both.csv")
    done = run("phases", "forecast", folder / "pods.npz", telemetry, "--json", "--horizon", "5m")
    found = json.loads(done.stdout)
    assert found["new"]["phase"] is None
    pod = found["worker-0"]
    assert pod["phase"] == shown(folder, telemetry)["worker-0"][-1]
    assert pod["horizon_s"] == 300.0
    assert sum(pod["at"].values()) == pytest.approx(1)
    assert sum(pod["next"].values()) == pytest.approx(1)
    assert pod["next"][str(pod["phase"])] == 0
    assert 0 <= pod["change"] <= 1
    assert 0 < pod["wait_s"] < 25 * EVERY_S
    table = run("phases", "forecast", folder / "pods.npz", telemetry).stdout
    assert "no phase" in table
    assert max(map(len, table.splitlines())) <= 80


def test_graph_has_moves_and_prototypes(folder: Path) -> None:
    words = ("phases", "graph", folder / "pods.npz", folder / "pods.csv")
    found = json.loads(run(*words, "--json", "--memory", "2").stdout)
    assert set(found) == {"semi_markov", "markov", "prototypes", "tree"}
    leaving: dict[str, float] = {}
    for edge in found["semi_markov"]["edges"]:
        leaving[edge["from"]] = leaving.get(edge["from"], 0) + edge["probability"]
    assert leaving
    assert all(total == pytest.approx(1) for total in leaving.values())
    assert found["tree"]["count"] == 6
    assert sum(way["share"] for way in found["prototypes"]) >= 0.9
    assert "--html FILE" in refused(run(*words))


def charts(page: str) -> Any:
    found = re.search(r'<script id="figures" type="application/json">(.*?)</script>', page)
    assert found
    return json.loads(found[1])


def test_pages_stand_alone_and_escape_names(folder: Path, tmp_path: Path) -> None:
    table = pl.concat([made(), made(pods=1).with_columns(pod=pl.lit(HOSTILE))])
    telemetry = written(table, tmp_path / "pods.csv")
    for command, places in (("show", {"tree", "curve"}), ("graph", {"tree", "moves"})):
        html = tmp_path / f"{command}.html"
        done = run("phases", command, folder / "pods.npz", telemetry, "--html", html)
        assert (done.exit_code, done.stdout) == (0, "")
        page = html.read_text()
        assert len(page) < LIMIT
        assert "<script>alert" not in page
        markup = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
        for word in ("http", "src=", "<link"):
            assert word not in markup
        assert "<svg" in markup
        assert set(charts(page)["charts"]) == places
    drawn = charts((tmp_path / "show.html").read_text())["choices"]["usage"]
    assert len(drawn) == 7
    names = {trace["name"] for trace in drawn[0]["data"] if "name" in trace}
    assert {"no phase", "phase 0", "phase 1"} <= names


@pytest.mark.engine
def test_a_browser_draws_the_pages(
    folder: Path, tmp_path: Path, program: Callable[..., str]
) -> None:
    browser = program("chromium-headless-shell", "chromium", "google-chrome")
    html = tmp_path / "show.html"
    run("phases", "show", folder / "pods.npz", folder / "pods.csv", "--html", html)
    done = subprocess.run(
        [
            *(browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom"),
            *("--disable-background-networking", "--virtual-time-budget=10000"),
            *(f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr"),
            html.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr, done.stderr
    assert done.stdout.count("js-plotly-plot") >= 3


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--every", "0s"], "--every"),
        (["--every", "soon"], "such as 90s, 10m"),
        (["--k", "0"], "--k is auto or a number"),
        (["--k", "many"], "--k is auto or a number"),
        (["--features", "cpu,nope"], "no feature 'nope'; it has cpu_cores"),
        (["--features", ","], "--features names nothing"),
        (["--method", "magic"], "there are crbm, hmm"),
        (["--every", "1h"], "too few to learn phases from"),
    ],
)
def test_a_fit_that_cannot_be(folder: Path, tmp_path: Path, words: list[str], says: str) -> None:
    out = tmp_path / "x.npz"
    assert says in refused(run("phases", "fit", folder / "pods.csv", "--out", out, *words))
    assert not out.exists()


def test_telemetry_that_cannot_be_read(folder: Path, tmp_path: Path) -> None:
    table = made(pods=1, samples=30)
    cases = {
        "no such file": tmp_path / "nowhere.csv",
        "no feature 'memory'": written(table.drop("memory_bytes"), tmp_path / "less.csv"),
        "no column of times": written(table.rename({"time": "when"}), tmp_path / "when.csv"),
        "is empty": written(table.head(0), tmp_path / "empty.csv"),
        "cannot be read": tmp_path / "fake.parquet",
        "'noon' is not a time": tmp_path / "noon.csv",
        "'much' is not a number": tmp_path / "much.csv",
    }
    (tmp_path / "fake.parquet").write_text("nothing")
    text = table.write_csv()
    (tmp_path / "noon.csv").write_text(text.replace("worker-0,15.0,", "worker-0,noon,"))
    (tmp_path / "much.csv").write_text(re.sub(r"(worker-0,15.0,)[^,]+", r"\1much", text))
    for says, telemetry in cases.items():
        for command in ("show", "forecast"):
            line = refused(run("phases", command, folder / "pods.npz", telemetry))
            assert says in line
    two = written(made(pods=1, samples=2), tmp_path / "two.csv")
    assert "too few" in refused(run("phases", "fit", two, "--out", tmp_path / "x.npz"))


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        ("version", "this program reads version"),
        ("format", "this program reads format"),
        ("name", "holds no phases"),
        ("shape", "was changed"),
        ("nan", "was changed"),
        ("bits", "damaged"),
        ("text", "no bundle"),
        ("absent", "fit one first"),
    ],
)
def test_bundles_that_are_refused(folder: Path, tmp_path: Path, harm: str, says: str) -> None:
    bundle = tmp_path / "bad.npz"
    with np.load(folder / "pods.npz", allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    card = json.loads(arrays["card"].tobytes())
    if harm in card:
        card[harm] = 99
    arrays["card"] = np.frombuffer(json.dumps(card).encode(), np.uint8)
    if harm == "shape":
        arrays["centres"] = arrays["centres"][:, :-1]
    if harm == "nan":
        arrays["mean"] = arrays["mean"] * np.nan
    with bundle.open("wb") as out:
        np.savez(out, allow_pickle=False, **arrays)
    raw = bytearray(bundle.read_bytes())
    if harm == "bits":
        raw[len(raw) // 2] ^= 0xFF
        bundle.write_bytes(raw)
    if harm == "text":
        bundle.write_text("hello")
    if harm == "absent":
        bundle.unlink()
    for command in ("show", "forecast"):
        assert says in refused(run("phases", command, bundle, folder / "pods.csv", "--json"))


@pytest.mark.parametrize("name", ["ai4dl_dlaas.csv", "ai4dl_vr.csv"])
def test_public_telemetry_goes_through(shared_data: Path, tmp_path: Path, name: str) -> None:
    telemetry = shared_data / "telemetry" / name
    bundle = tmp_path / "x.npz"
    done = run("phases", "fit", telemetry, "--out", bundle, "--k", "4", "--every", "15s")
    assert done.exit_code == 0, done.output
    done = run("phases", "show", bundle, telemetry, "--json")
    answer = json.loads(done.stdout)
    text = telemetry.read_text().splitlines()[1:]
    assert sum(map(len, answer.values())) == len(text)
    assert {phase for each in answer.values() for phase in each} == {None, 0, 1, 2, 3}
