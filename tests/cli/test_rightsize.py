"""`presage rightsize` as people call it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml

from tests.cli.telemetry import as_rows, made, refused, run, written

KEYS = {"alloc_over_use", "fulfilment_pct", "oom", "throttled", "resizes", "margin"}
ALL = "forecast,phase,adaptive,dynamic,vpa,krr"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`pods.csv`, `later.csv` of other pods, and a bundle that was fitted on the former."""
    place = tmp_path_factory.mktemp("rightsize")
    telemetry = written(made(pods=8), place / "pods.csv")
    written(made(pods=3, seed=9), place / "later.csv")
    done = run("phases", "fit", telemetry, "--out", place / "pods.npz", "--every", "15s")
    assert done.exit_code == 0, done.output
    return place


def sized(*words: str | Path) -> Any:
    done = run("rightsize", *words, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def steps(path: Path, cpu: list[float], memory: list[float]) -> Path:
    """One pod with four samples in each window of a minute."""
    times = 15.0 * np.arange(4 * len(cpu))
    columns = {"cpu_cores": np.repeat(cpu, 4), "memory_bytes": np.repeat(memory, 4)}
    return written(pl.DataFrame({"time": times, **columns}), path)


def test_figures_by_hand(tmp_path: Path) -> None:
    """Windows that use 1, 2, 1: `adaptive` gives the second 1 and the third 2."""
    telemetry = steps(tmp_path / "pod.csv", [1, 2, 1], [1e9, 2e9, 1e9])
    found = sized(telemetry, "--policies", "adaptive,dynamic", "--window", "1m")
    assert list(found) == ["adaptive", "dynamic"]
    assert found["adaptive"]["cpu"] == {
        **{"alloc_over_use": 1.0, "fulfilment_pct": 50.0, "oom": 0, "throttled": 4},
        **{"resizes": 1, "margin": 0.0},
    }
    memory = found["adaptive"]["memory"]
    assert (memory["oom"], memory["throttled"], memory["fulfilment_pct"]) == (1, 0, 50.0)
    assert found["dynamic"]["cpu"]["alloc_over_use"] == pytest.approx(1.0)
    assert found["dynamic"]["cpu"]["fulfilment_pct"] == 100.0
    wider = sized(telemetry, "--policies", "adaptive,static", "--window", "60", "--margin", "0.05")
    assert wider["adaptive"]["cpu"]["alloc_over_use"] == pytest.approx(1.05)
    assert wider["adaptive"]["cpu"]["margin"] == 0.05
    assert wider["static"]["cpu"]["resizes"] == 0


def test_what_guardians_write_gives_the_same_figures(tmp_path: Path) -> None:
    table = made(pods=2).with_columns(pl.col("cpu_cores", "memory_bytes").round(0))
    words = ("--policies", "adaptive,dynamic,krr", "--window", "2m")
    lines = as_rows(table, tmp_path / "1.jsonl")
    same = sized(lines, *words)
    for name, figures in sized(written(table, tmp_path / "pods.csv"), *words).items():
        assert same[name]["cpu"] == pytest.approx(figures["cpu"])
        assert same[name]["memory"] == pytest.approx(figures["memory"], rel=1e-3)
    done = run("rightsize", lines, "--policies", "krr", "--patch")
    assert done.exit_code == 0, done.output
    for patch in yaml.safe_load_all(done.stdout):
        (container,) = patch["spec"]["containers"]
        assert container["resources"]["limits"]["memory"].endswith("Mi")


def test_every_policy_has_every_figure(folder: Path) -> None:
    words = ("--bundle", folder / "pods.npz", "--policies", ALL, "--window", "2m")
    found = sized(folder / "later.csv", *words)
    assert list(found) == ALL.split(",")
    for by_resource in found.values():
        assert list(by_resource) == ["cpu", "memory"]
        for figures in by_resource.values():
            assert set(figures) == KEYS
            assert figures["alloc_over_use"] > 0
            assert 0 <= figures["fulfilment_pct"] <= 100
    assert list(sized(folder / "later.csv", *words[:2])) == ALL.split(",")
    assert list(sized(folder / "later.csv")) == ["adaptive", "dynamic", "vpa", "krr"]


def test_the_margin_is_the_smallest_that_reaches_the_target(folder: Path) -> None:
    pods, words = folder / "pods.csv", ("--policies", "adaptive,vpa", "--window", "2m")
    found = sized(pods, *words, "--bundle", folder / "pods.npz", "--target-fulfilment", "97")
    for policy in ("adaptive", "vpa"):
        for resource in ("cpu", "memory"):
            figures = found[policy][resource]
            assert figures["fulfilment_pct"] >= 97 - 1e-6
            less = sized(pods, *words, "--margin", str(figures["margin"] - 0.002))
            assert less[policy][resource]["fulfilment_pct"] < 97


def test_slow_reduction_and_the_value(folder: Path) -> None:
    words = (folder / "later.csv", "--policies", "adaptive", "--window", "2m")
    plain, slow = sized(*words), sized(*words, "--slow-reduction", "0.1")
    highest = sized(*words, "--value", "max")
    for resource in ("cpu", "memory"):
        usual = plain["adaptive"][resource]
        assert slow["adaptive"][resource]["alloc_over_use"] > usual["alloc_over_use"]
        assert slow["adaptive"][resource]["fulfilment_pct"] >= usual["fulfilment_pct"]
    assert highest["adaptive"]["cpu"] != plain["adaptive"]["cpu"]


def test_the_table_reads_well(folder: Path) -> None:
    words = ("--bundle", folder / "pods.npz", "--window", "2m", "--target-fulfilment", "95")
    done = run("rightsize", folder / "later.csv", *words)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in done.stdout
    assert [line.split()[0] for line in lines if "forecast" in line] == ["cpu", "memory"]
    assert "of the gap between adaptive and dynamic" in done.stderr


def test_a_resource_that_the_bundle_does_not_know_is_left_out(
    folder: Path, tmp_path: Path
) -> None:
    more = made(pods=2).with_columns(gpu_util_pct=50.0)
    done = run(
        *("rightsize", written(more, tmp_path / "more.csv"), "--bundle", folder / "pods.npz"),
        *("--policies", "phase", "--window", "2m", "--json"),
    )
    assert list(json.loads(done.stdout)["phase"]) == ["cpu", "memory"]
    assert "left out: gpu" in done.stderr


def test_a_patch_says_what_to_give_and_why(folder: Path) -> None:
    words = (
        *("rightsize", folder / "later.csv", "--bundle", folder / "pods.npz"),
        *("--policies", "dynamic,phase", "--window", "2m", "--patch"),
    )
    done = run(*words, "--container", "trainer")
    assert done.exit_code == 0, done.output
    documents = list(yaml.safe_load_all(done.stdout))
    assert len(documents) == 3
    assert "&id" not in done.stdout
    for document in documents:
        (one,) = document["spec"]["containers"]
        assert one["name"] == "trainer"
        assert one["resources"]["requests"] == one["resources"]["limits"]
        assert re.fullmatch(r"\d+m", one["resources"]["limits"]["cpu"])
        assert 300 < int(one["resources"]["limits"]["memory"].removesuffix("Mi")) < 1200
    comments = [line for line in done.stdout.splitlines() if line.startswith("#")]
    assert sum("by the policy phase" in line for line in comments) == 3
    assert any("it is in phase" in line for line in comments)
    as_json = json.loads(run(*words, "--json").stdout)
    assert list(as_json) == ["worker-0", "worker-1", "worker-2"]
    assert set(as_json["worker-0"]["reasons"]) == {"cpu", "memory"}
    (one,) = as_json["worker-0"]["patch"]["spec"]["containers"]
    assert one["resources"] == documents[0]["spec"]["containers"][0]["resources"]


def test_percentages_cannot_be_asked_for(tmp_path: Path) -> None:
    table = made(pods=1).select("pod", "time", cpu_pct=25 * pl.col("cpu_cores"))
    telemetry = written(table, tmp_path / "percent.csv")
    words = ("rightsize", telemetry, "--window", "2m")
    assert "cpu in cores or memory in bytes" in refused(run(*words, "--patch"))
    assert run(*words).exit_code == 0


def test_the_page(folder: Path, tmp_path: Path) -> None:
    hostile = "</script><script>alert(1)</script>"
    table = pl.concat([made(pods=2), made(pods=1).with_columns(pod=pl.lit(hostile))])
    html = tmp_path / "page.html"
    done = run(
        *("rightsize", written(table, tmp_path / "pods.csv"), "--bundle", folder / "pods.npz"),
        *("--window", "2m", "--target-fulfilment", "95", "--html", html),
    )
    assert (done.exit_code, done.stdout) == (0, ""), done.output
    page = html.read_text()
    assert len(page) < 7_000_000
    assert "<script>alert" not in page
    found = re.search(r'<script id="figures" type="application/json">(.*?)</script>', page)
    assert found
    drawn = json.loads(found[1])["choices"]
    assert len(drawn["traces"]) == 2 * 3
    names = [trace["name"] for trace in drawn["traces"][0]["data"]]
    assert names == ["use", *ALL.split(",")]
    assert len(drawn["tradeoff"]) == 2
    for chart in drawn["tradeoff"]:
        for curve in chart["data"]:
            met = [value for value in curve["y"] if value is not None]
            assert met == sorted(met)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--policies", "adaptive,best"], "there is no policy 'best'; there are dynamic"),
        (["--policies", ","], "--policies names nothing"),
        (["--policies", "phase"], "give --bundle"),
        (["--policies", "forecast"], "give --bundle"),
        (["--target-fulfilment", "95"], "give --bundle"),
        (["--window", "soon"], "--window: write a time such as"),
        (["--window", "0m"], "--window: give a time above 0"),
        (["--window", "2d"], "choose a shorter --window"),
        (["--margin", "-1.5"], "--margin is a share"),
        (["--value", "median"], "choose mean+2sd, max"),
        (["--slow-reduction", "2"], "slow reduction is a share"),
        (["--bundle", "nowhere.npz"], "there is no bundle nowhere.npz"),
        (["--policies", "dynamic", "--patch"], "knows the future"),
        (["--patch", "--html", "x.html"], "one after the other"),
        (["--html", "nowhere/x.html"], "--html: the directory nowhere does not exist"),
    ],
)
def test_a_mistake_is_one_line(folder: Path, words: list[str], says: str) -> None:
    assert says in refused(run("rightsize", folder / "pods.csv", "--window", "2m", *words))


def test_telemetry_that_cannot_be_sized(folder: Path, tmp_path: Path) -> None:
    two = written(made(pods=1, samples=2), tmp_path / "two.csv")
    assert "choose a shorter --window" in refused(run("rightsize", two, "--window", "2m"))
    strange = made(pods=1).select("pod", "time", banana="cpu_cores")
    strange_csv = written(strange, tmp_path / "strange.csv")
    assert "no resource to size" in refused(run("rightsize", strange_csv))
    words = ("rightsize", strange_csv, "--bundle", folder / "pods.npz", "--window", "2m")
    assert "which this telemetry does not have" in refused(run(*words))


def test_nothing_used_is_no_ratio(tmp_path: Path) -> None:
    telemetry = steps(tmp_path / "idle.csv", [0, 0, 0], [0, 0, 0])
    found = sized(telemetry, "--policies", "adaptive", "--window", "1m")
    assert found["adaptive"]["cpu"]["alloc_over_use"] is None
