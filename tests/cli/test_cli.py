"""The command line: its contract, its exit codes, and that nothing is left half-written."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner, Result

from presage import __version__
from presage._api import simulation
from presage.cli.main import app
from presage.model.errors import InternalError
from presage.policy import registry
from presage.sim.traces import read_trace
from tests.waiting import PATIENCE_S

FIGURES = {
    *("jobs", "finished", "rejected", "avg_jct_s", "p50_jct_s", "p99_jct_s", "avg_wait_s"),
    *("p99_wait_s", "makespan_s", "gpu_utilization", "preemptions", "cpu_s"),
}
# On one node of 8 GPUs, fifo: 1 runs at once, 2 waits for it, 3 is too large, 4 stands behind 2.
JOBS = "job_id,submit_s,duration_s,gpus\n1,100,50,8\n2,110,10,4\n3,111,10,99\n4,112,5,8\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "in" / "trace.csv"
    path.parent.mkdir()
    path.write_text(JOBS)
    return path


def presage(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def run(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    code = "from presage.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        **options,
    )


def test_version_and_help() -> None:
    assert presage("--version").stdout == f"presage {__version__}\n"
    for words in (["--help"], ["simulate", "--help"], ["trace", "-h"], ["trace", "make", "-h"]):
        assert presage(*words).exit_code == 0


def test_json_is_one_object_and_nothing_else_on_stdout(trace: Path) -> None:
    done = run("simulate", trace, "--cluster", "1x8", "--policy", "fifo,sjf", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert list(report) == ["policies"]
    assert list(report["policies"]) == ["fifo", "sjf"]
    for figures in report["policies"].values():
        assert set(figures) == FIGURES
    fifo = report["policies"]["fifo"]
    assert (fifo["jobs"], fifo["finished"], fifo["rejected"]) == (4, 3, 1)
    assert fifo["makespan_s"] == 65
    assert fifo["avg_jct_s"] == pytest.approx((50 + 50 + 53) / 3)
    assert fifo["avg_wait_s"] == pytest.approx((0 + 40 + 48) / 3)
    assert fifo["gpu_utilization"] == pytest.approx((50 * 8 + 10 * 4 + 5 * 8) / (65 * 8))
    lines = done.stderr.splitlines()
    assert [line.split(":")[0] for line in lines[:2]] == ["fifo", "sjf"]
    assert lines[2].startswith("every policy rejected job 3: ")
    assert len(lines) == 3


def test_a_table_without_json(trace: Path) -> None:
    done = presage("simulate", trace, "--cluster", "1x8", "--policy", "fifo,sjf")
    assert done.exit_code == 0
    assert "policy" in done.stdout
    assert [line.split()[0] for line in done.stdout.splitlines()[-2:]] == ["fifo", "sjf"]
    assert "rejected job 3" in done.stderr


def test_the_job_table(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "jobs"
    done = presage("simulate", trace, "--cluster", "1x8", "--jobs-out", out, "--json")
    assert done.exit_code == 0, done.stderr
    assert [path.name for path in out.iterdir()] == ["fifo.parquet"]
    jobs = pl.read_parquet(out / "fifo.parquet")
    assert jobs.rows() == [
        (1, 0.0, 0.0, 50.0, 0.0, 50.0, ["node-0"]),
        (2, 10.0, 50.0, 60.0, 40.0, 50.0, ["node-0"]),
        (3, 11.0, None, None, jobs["wait_s"][2], None, []),
        (4, 12.0, 60.0, 65.0, 48.0, 53.0, ["node-0"]),
    ]
    assert jobs.columns == ["job_id", "submit_s", "start_s", "end_s", "wait_s", "jct_s", "nodes"]
    assert jobs.schema["job_id"] == pl.Int64


def test_the_report(trace: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    done = presage("simulate", trace, "--cluster", "1x8", "--policy", "fifo,sjf", "--report", page)
    assert done.exit_code == 0, done.stderr
    text = page.read_text(encoding="utf-8")
    assert "Simulation of trace.csv" in text
    assert 'data-chart="gantt"' in text


def test_policies_of_a_file(trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "policies.yaml"
    file.write_text("policies:\n  mine: {order: sjf, placement: spread}\n  other: {order: fifo}\n")
    common = ("simulate", trace, "--cluster", "1x8", "--config", file, "--json")
    assert list(json.loads(presage(*common).stdout)["policies"]) == ["mine", "other"]
    chosen = presage(*common, "--policy", "fifo, mine,fifo")
    assert list(json.loads(chosen.stdout)["policies"]) == ["fifo", "mine"]


def test_estimates_replace_true_durations(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = "1,0,10,8,1\n2,1,5,8,900\n3,1,6,8,800\n"
    path.write_text("job_id,submit_s,duration_s,gpus,guess\n" + rows)
    common = ("simulate", path, "--cluster", "1x8", "--policy", "sjf", "--jobs-out", tmp_path)
    assert presage(*common).exit_code == 0
    assert pl.read_parquet(tmp_path / "sjf.parquet")["start_s"].to_list() == [0, 10, 15]
    assert presage(*common, "--estimates", "guess").exit_code == 0
    assert pl.read_parquet(tmp_path / "sjf.parquet")["start_s"].to_list() == [0, 16, 10]


@pytest.mark.parametrize("policy", ["fifo", "srtf"])
def test_the_same_seed_gives_the_same_result(tmp_path: Path, policy: str) -> None:
    path = tmp_path / "trace.parquet"
    presage("trace", "make", "--kind", "poisson", "--jobs", 200, "--cluster", "2x8", "--out", path)
    common = ("simulate", path, "--cluster", "2x8", "--policy", policy, "--placement", "random")
    runs = []
    for out in (tmp_path / "a", tmp_path / "b"):
        assert presage(*common, "--seed", 5, "--jobs-out", out).exit_code == 0
        runs.append(pl.read_parquet(out / f"{policy}.parquet"))
    assert runs[0].equals(runs[1])


BAD_INPUT = [
    (["gone.csv"], "error: trace {dir}/gone.csv does not exist"),
    (["empty.csv"], "error: trace empty.csv is empty"),
    (["header.csv"], "error: trace header.csv has no jobs"),
    (["junk.parquet"], "error: trace junk.parquet cannot be read as Parquet"),
    (["columns.csv"], "error: trace columns.csv matches no format"),
    (["negative.csv"], "error: trace negative.csv: row 2 (job b): duration_s is negative"),
    (["trace.csv", "--cluster", "8"], "error: cluster '8' is neither a size"),
    (["trace.csv", "--cluster", "broken.yaml"], "broken.yaml line 2: broken YAML"),
    (["trace.csv", "--policy", "fifo,best"], "error: unknown policy 'best'; there are: fifo, sjf"),
    (["trace.csv", "--policy", ","], "error: --policy is empty"),
    (["trace.csv", "--placement", "tetris"], "error: unknown placement 'tetris'"),
    (["trace.csv", "--config", "broken.yaml"], "line 2"),
    (["trace.csv", "--config", "gone.yaml"], "error: "),
    (["trace.csv", "--estimates", "guess"], "error: trace trace.csv has no column 'guess'"),
    (["trace.csv", "--format", "swf"], "error: unknown trace format 'swf'"),
    (["trace.csv", "--restart-cost", "inf"], "error: --restart-cost must be"),
    (["trace.csv", "--report", "no/where.html"], "error: --report: the directory {dir}/no does"),
    (["trace.csv", "--report", "."], "is a directory; name a file"),
    (["trace.csv", "--jobs-out", "trace.csv"], "is not a directory"),
    (["trace.csv", "--jobs-out", "no/where"], "error: --jobs-out: the directory {dir}/no does"),
]


@pytest.fixture
def bad(trace: Path) -> Path:
    directory = trace.parent
    (directory / "empty.csv").write_text("")
    (directory / "header.csv").write_text(JOBS.splitlines()[0] + "\n")
    (directory / "junk.parquet").write_bytes(b"junk" * 20)
    (directory / "columns.csv").write_text("x,y\n1,2\n")
    (directory / "negative.csv").write_text("job_id,submit_s,duration_s,gpus\na,0,1,1\nb,0,-1,1\n")
    (directory / "broken.yaml").write_text("policies: [\nnodes: }\n")
    return directory


@pytest.mark.parametrize(("words", "says"), BAD_INPUT, ids=lambda value: str(value)[-40:])
def test_bad_input_is_one_line_and_writes_nothing(
    bad: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], says: str
) -> None:
    def never(*args: object, **options: object) -> None:
        pytest.fail("simulated before everything was checked")

    monkeypatch.setattr(simulation, "run", never)
    before = {path: path.stat().st_mtime_ns for path in bad.rglob("*")}
    words = [
        str(bad / word) if word == "." or "." in word or "/" in word else word for word in words
    ]
    given = {word for word in words if word.startswith("--")}
    rest = [] if "--cluster" in given else ["--cluster", "1x8"]
    if not given & {"--report", "--jobs-out"}:
        rest += ["--report", str(bad / "report.html"), "--jobs-out", str(bad / "jobs")]
    done = presage("simulate", *words, *rest, "--json")
    assert done.exit_code == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert says.format(dir=bad) in done.stderr
    assert {path: path.stat().st_mtime_ns for path in bad.rglob("*")} == before


def test_an_unknown_policy_lists_all_there_are(trace: Path) -> None:
    done = run("simulate", trace, "--cluster", "1x8", "--policy", "nope")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    for name in registry.names():
        assert name in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["simulate", "trace.csv"],
        ["simulate", "trace.csv", "--cluster", "1x8", "--seed", "-1"],
        ["simulate", "trace.csv", "--cluster", "1x8", "--restart-cost", "-1"],
        ["simulate", "trace.csv", "--cluster", "1x8", "--nonsense"],
        ["nonsense"],
    ],
)
def test_wrong_usage_exits_with_2(words: list[str]) -> None:
    done = presage(*words)
    assert done.exit_code == 2
    assert "Traceback" not in done.output


def test_a_broken_rule_of_our_own_is_one_line_too(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object, **options: object) -> None:
        raise InternalError("two jobs\non one GPU")

    monkeypatch.setattr(simulation, "run", broken)
    done = presage("simulate", trace, "--cluster", "1x8")
    assert done.exit_code == 70
    assert done.stderr == "error: two jobs on one GPU\n"


def test_an_interrupt_exits_with_130(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(simulation, "run", interrupted)
    done = presage("simulate", trace, "--cluster", "1x8", "--report", trace.parent / "report.html")
    assert done.exit_code == 130
    assert done.stderr == "interrupted\n"
    assert [path.name for path in trace.parent.iterdir()] == ["trace.csv"]


def test_trace_show(trace: Path) -> None:
    done = presage("trace", "show", trace, "--json")
    facts = json.loads(done.stdout)
    assert facts["format"] == "native"
    assert facts["jobs"] == 4
    assert facts["span_s"] == 12
    assert facts["jobs_by_gpus"] == {"4": 1, "8": 2, "99": 1}
    assert facts["duration_s"]["p50"] == 10
    assert facts["gpu_hours"] == pytest.approx((400 + 40 + 990 + 40) / 3600)
    text = presage("trace", "show", trace)
    assert text.exit_code == 0
    assert "native" in text.stdout
    bad = presage("trace", "show", trace, "--format", "philly")
    assert (bad.exit_code, bad.stdout) == (2, "")


def test_trace_make(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    common = ("trace", "make", "--kind", "dlaas", "--jobs", 50, "--seed", 4, "--out")
    done = presage(*common, path)
    assert done.exit_code == 0
    assert done.stdout.startswith("wrote 50 jobs for 100 nodes, 400 GPUs to ")
    first = read_trace(path)
    facts = json.loads(presage(*common, path, "--json").stdout)
    assert facts["path"] == str(path)
    assert facts["jobs"] == 50
    assert read_trace(path).jobs.equals(first.jobs)
    busier = ("--load", 2.2, "--cluster", "200x4")
    assert presage(*common, path, *busier).exit_code == 0
    last = read_trace(path).jobs["submit_s"][-1]
    assert last == pytest.approx(first.jobs["submit_s"][-1] / 4, abs=1)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--kind", "odd", "--out", "a.csv"], "unknown kind of trace 'odd'"),
        (["--jobs", "0", "--out", "a.csv"], "cannot make 0 jobs"),
        (["--load", "0", "--out", "a.csv"], "load must be above 0"),
        (["--cluster", "x", "--out", "a.csv"], "cluster 'x' is neither"),
        (["--cluster", "3x0", "--out", "a.csv"], "a cluster without GPUs"),
        (["--out", "a.txt"], "end the name in .parquet or .csv"),
        (["--out", "no/a.csv"], "--out: the directory no does not exist"),
    ],
)
def test_trace_make_refuses_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = presage("trace", "make", *words)
    assert done.exit_code == 2
    assert says in done.stderr
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_notes_of_a_trace_are_said(tmp_path: Path) -> None:
    path = tmp_path / "pods.csv"
    head = "name,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time\n"
    path.write_text(head + "a,1,500,0,5,1\nb,1,500,0,5,\n")
    done = presage("simulate", path, "--cluster", "1x8", "--json")
    assert json.loads(done.stdout)["policies"]["fifo"]["jobs"] == 1
    assert "note: skipped as never scheduled: 1\n" in done.stderr


@pytest.mark.slow
def test_a_real_interrupt_leaves_nothing_half_written(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    presage("trace", "make", "--kind", "poisson", "--jobs", 30_000, "--out", path)
    code = "from presage.cli.main import main; main()"
    page = tmp_path / "report.html"
    words = ["simulate", path, "--cluster", "30x8", "--policy", "fifo,sjf,qssf", "--report", page]
    with subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("fifo: ")  # so it is busy with sjf
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == "interrupted"
    assert "Traceback" not in err
    assert out == ""
    assert [file.name for file in tmp_path.iterdir()] == ["trace.parquet"]


def test_a_terminal_shows_a_bar_and_stdout_stays_json(trace: Path) -> None:
    reader, terminal = pty.openpty()
    words = ("simulate", trace, "--cluster", "1x8", "--policy", "fifo,sjf", "--json")
    code = "from presage.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=terminal,
        timeout=PATIENCE_S,
        check=False,
        env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "80"},
    )
    os.close(terminal)
    shown = os.read(reader, 1 << 16).decode()
    os.close(reader)
    assert done.returncode == 0, shown
    assert set(json.loads(done.stdout)["policies"]) == {"fifo", "sjf"}
    assert "\x1b[?25l" in shown  # the bar hides the cursor while it is drawn
    assert "fifo: 4 jobs simulated" in shown


def test_the_peers_week_to_the_second(shared_data: Path, tmp_path: Path) -> None:
    path = shared_data / "peers/lucid_sim_philly_week_240gpu.parquet"
    common = ("simulate", path, "--cluster", "30x8", "--policy", "fifo,sjf,qssf", "--json")
    done = presage(*common, "--jobs-out", tmp_path)
    assert done.exit_code == 0, done.stderr
    peer = pl.read_parquet(path)
    for policy in ("fifo", "sjf", "qssf"):
        both = pl.read_parquet(tmp_path / f"{policy}.parquet").join(peer, on="job_id")
        assert both.height == peer.height
        for mine, theirs in (("start_s", "start_time"), ("end_s", "end_time")):
            assert (both[mine] == both[f"{policy}_{theirs}"]).all(), (policy, mine)
