"""Reports: the table, the JSON, the job tables and the page, from results that were made up."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from rich.console import Console

from presage.model.errors import UserError
from presage.sim._charts import GANTT_JOBS, charts
from presage.sim._compare import FIGURES, best
from presage.sim.clusters import read_cluster
from presage.sim.generate import make_trace
from presage.sim.report import jobs_file, table, to_json, write_all, write_html, write_jobs
from presage.sim.result import SimResult
from presage.sim.traces import Trace
from tests.sim.results import made_up
from tests.waiting import PATIENCE_S

NODES = read_cluster("30x8")
HOSTILE = "</script><script>alert('x')</script>"
LIMIT = 8_000_000


@pytest.fixture(scope="module")
def trace() -> Trace:
    return make_trace("diurnal", 500, 0, 240)


@pytest.fixture(scope="module")
def results(trace: Trace) -> list[SimResult]:
    names = ("fifo", "sjf", "srtf", "tiresias", "qssf")
    return [made_up(name, trace, wait_s=600.0 / (i + 1)) for i, name in enumerate(names)]


def printed(results: list[SimResult], width: int = 80) -> str:
    console = Console(file=StringIO(), width=width)
    console.print(table(results))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_the_table_fits_80_columns(trace: Trace, results: list[SimResult]) -> None:
    text = printed([*results, made_up("backfill", trace, rejected=7)])
    lines = text.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert "…" not in text
    assert [line.split()[0] for line in lines[4:]] == [
        *("fifo", "sjf", "srtf", "tiresias", "qssf", "backfill"),
    ]
    assert "493" in lines[-1]
    head = " ".join(lines[:3])
    for word in ("policy", "done", "JCT", "wait", "GPU", "CPU", "p99"):
        assert word in head


def test_rejected_is_a_column_only_when_there_are_some(
    trace: Trace, results: list[SimResult]
) -> None:
    assert "jected" not in printed(results)
    assert "jected" in printed([made_up("x", trace, rejected=1)])


def test_the_best_figures_are_those_people_see_as_best() -> None:
    jct = next(figure for figure in FIGURES if figure.key == "avg_jct_s")
    use = next(figure for figure in FIGURES if figure.key == "gpu_utilization")
    assert best(jct, [7200.0, 3600.0, 3600.01]) == {1, 2}
    assert best(use, [0.5, 0.9, None]) == {1}
    assert best(use, [0.5, 0.5]) == best(use, [0.5]) == best(use, [None, None]) == set()


def test_json_has_exactly_the_agreed_keys(results: list[SimResult]) -> None:
    report = to_json(results)
    assert list(report) == ["policies"]
    assert list(report["policies"]) == ["fifo", "sjf", "srtf", "tiresias", "qssf"]
    assert set(report["policies"]["sjf"]) == {
        *("jobs", "finished", "rejected", "avg_jct_s", "p50_jct_s", "p99_jct_s", "avg_wait_s"),
        *("p99_wait_s", "makespan_s", "gpu_utilization", "preemptions", "cpu_s"),
    }
    assert report["policies"]["sjf"] == results[1].summary


def test_json_has_no_nan(trace: Trace) -> None:
    nothing = made_up("none", trace, rejected=trace.jobs.height)
    odd = replace(nothing, makespan_s=float("nan"))
    figures = to_json([odd])["policies"]["none"]
    assert figures["avg_jct_s"] is None
    assert figures["makespan_s"] is None
    json.dumps(figures, allow_nan=False)


@pytest.mark.parametrize(("integer_ids", "dtype"), [(True, pl.Int64), (False, pl.String)])
def test_job_tables(
    tmp_path: Path, trace: Trace, integer_ids: bool, dtype: type[pl.DataType]
) -> None:
    result = made_up("fifo", trace, rejected=2)
    path = write_jobs(result, tmp_path, integer_ids=integer_ids)
    assert path == tmp_path / "fifo.parquet"
    jobs = pl.read_parquet(path)
    assert jobs.columns == ["job_id", "submit_s", "start_s", "end_s", "wait_s", "jct_s", "nodes"]
    assert jobs.schema["job_id"] == dtype
    assert jobs.schema["nodes"] == pl.List(pl.String)
    assert jobs.height == trace.jobs.height
    assert jobs.get_column("start_s").null_count() == 2
    assert [file.name for file in tmp_path.iterdir()] == ["fifo.parquet"]


@pytest.mark.parametrize("policy", ["a/b", "../up", "..", "a b", "naïve", "a%2Fb"])
def test_a_policy_name_cannot_leave_the_directory(policy: str) -> None:
    name = jobs_file(policy)
    assert "/" not in name
    assert name.endswith(".parquet")
    assert name != jobs_file(policy + "x")
    assert jobs_file("a/b") != jobs_file("a%2Fb")


def test_the_page_stands_alone(tmp_path: Path, trace: Trace, results: list[SimResult]) -> None:
    path = tmp_path / "report.html"
    write_html(results, trace, NODES, path)
    page = path.read_text(encoding="utf-8")
    assert path.stat().st_size < LIMIT
    markup = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert "http" not in markup
    assert "src=" not in markup
    assert "<link" not in markup
    for text in (
        "diurnal-500-seed0",
        "30 nodes, 240 GPUs",
        "tiresias",
        'class="best"',
        "viewport",
    ):
        assert text in markup
    assert page.count("plotly.js v") == 1
    assert "prefers-color-scheme: dark" in markup
    assert 'data-chart="gantt"' not in markup
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def embedded(page: str) -> dict[str, Any]:
    found = re.search(r'<script id="figures" type="application/json">(.*?)</script>', page)
    assert found
    data = json.loads(found[1])
    assert isinstance(data, dict)
    return data


def test_a_gantt_for_small_runs_only(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    for jobs, drawn in ((GANTT_JOBS, 2), (GANTT_JOBS + 1, 0)):
        small = make_trace("dlaas", jobs, 0, 240)
        both = [made_up(name, small) for name in ("fifo", "sjf")]
        write_html(both, small, NODES, path)
        assert len(embedded(path.read_text(encoding="utf-8"))["choices"]["gantt"]) == drawn


def test_long_runs_and_many_policies_stay_small(tmp_path: Path) -> None:
    large = make_trace("poisson", 30_000, 0, 10_000)
    path = tmp_path / "report.html"
    write_html([made_up(f"p{i}", large, held=True) for i in range(2)], large, NODES, path)
    assert path.stat().st_size < LIMIT
    small = make_trace("poisson", GANTT_JOBS, 0, 240)
    write_html([made_up(f"p{i}", small) for i in range(60)], small, NODES, path)
    assert path.stat().st_size < LIMIT


def test_thinning_keeps_the_peak_of_the_queue_and_the_mean_of_the_use() -> None:
    large = make_trace("poisson", 20_000, 0, 400)
    result = made_up("fifo", large, gpus=400, wait_s=6000.0)
    drawn = charts([result])
    queue = drawn["queue"]["data"][0]
    assert len(queue["x"]) <= 800
    assert max(queue["y"]) == result.series.get_column("queued").max()
    use = drawn["utilization"]["data"][0]["y"]
    mean = result.gpu_seconds / 400 / result.makespan_s
    assert sum(use) / len(use) == pytest.approx(mean, rel=1e-3)


def test_a_run_in_which_nothing_ran(tmp_path: Path) -> None:
    small = make_trace("dlaas", 5, 0, 240)
    nothing = made_up("none", small, rejected=5)
    nothing = replace(nothing, series=nothing.series.clear(), makespan_s=0.0, gpu_seconds=0.0)
    write_html([nothing], small, NODES, tmp_path / "report.html")
    assert "–" in printed([nothing])


def test_either_all_files_appear_or_none(tmp_path: Path, trace: Trace) -> None:
    both = [made_up(name, trace) for name in ("fifo", "sjf")]
    report = tmp_path / "missing" / "report.html"
    with pytest.raises(UserError, match="cannot write"):
        write_all(both, trace, NODES, jobs_out=tmp_path / "jobs", report=report)
    assert list((tmp_path / "jobs").iterdir()) == []
    report = tmp_path / "report.html"
    write_all(both, trace, NODES, jobs_out=tmp_path / "jobs", report=report)
    written = {path.name for path in tmp_path.rglob("*.*")}
    assert written == {"fifo.parquet", "sjf.parquet", "report.html"}
    assert pl.read_parquet(tmp_path / "jobs/sjf.parquet").schema["job_id"] == pl.Int64


@pytest.mark.engine
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_draws_the_page(
    tmp_path: Path, program: Callable[..., str], scheme: str
) -> None:
    browser = program("chromium-headless-shell", "chromium", "google-chrome")
    small = make_trace("dlaas", 40, 0, 240)
    results = [made_up("fifo", small, held=True), made_up(HOSTILE, small, rejected=1)]
    path = tmp_path / "report.html"
    write_html(results, small, NODES, path)
    done = subprocess.run(
        [
            *(browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom"),
            *("--disable-background-networking", "--virtual-time-budget=10000"),
            *(f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr"),
            f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}",
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr, done.stderr  # neither errors nor warnings of the page
    for chart in ("jct", "wait", "queue", "utilization", "gantt"):
        assert re.search(
            rf'id="{chart}"[^>]*class="[^"]*js-plotly-plot|'
            rf'class="[^"]*js-plotly-plot[^"]*"[^>]*id="{chart}"',
            done.stdout,
        ), chart
    ink = "rgb(231, 236, 242)" if scheme == "dark" else "rgb(22, 32, 44)"
    assert ink in done.stdout
