"""`presage profile`: streams and exit codes stay the command's own, and profiles are kept."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner, Result

from presage.cli.main import app
from presage.telemetry.store import ProfileStore
from tests.waiting import PATIENCE_S

SCRIPT = "from presage.cli.main import main; main()"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PRESAGE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def profile(*words: object) -> Result:
    """In this process: `capfd` sees what the command prints, the result what we print."""
    return CliRunner().invoke(app, ["profile", *map(str, words)])


def test_streams_and_exit_code_are_the_commands_own(home: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "profile", "--", "sh", "-c", "read x; echo $x; exit 3"],
        input="hello\n",
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 3
    assert done.stdout == "hello\n"
    (kept,) = ProfileStore(home / "profiles").read_all()
    assert kept.exit_code == 3
    assert f"kept in {home}/profiles/{kept.signature}.jsonl" in done.stderr


def test_the_table_fits_80_columns() -> None:
    done = profile("--", "sleep", "0.1")
    lines = done.stderr.splitlines()
    assert done.exit_code == 0
    assert done.stdout == ""
    assert max(map(len, lines[:8])) <= 80
    names = {line.split("  ")[0] for line in lines}
    assert {"CPU, cores", "memory, MiB", "network sent, MiB/s"} <= names


def test_options_after_the_command_are_the_commands_own(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert profile("--hz", 50, "echo", "--json", "--hz", "1").exit_code == 0
    assert capfd.readouterr().out == "--json --hz 1\n"


def test_a_run_is_compared_with_the_last(home: Path) -> None:
    words = ("--", "sh", "-c", "true")
    assert "seen" not in profile(*words).stderr
    second = profile(*words).stderr
    assert "seen once before; the last run took" in second
    assert "last mean" in second
    assert "seen 2 times before" in profile(*words).stderr
    assert "seen" not in profile("--", "sh", "-c", "exit 0").stderr
    assert len(ProfileStore(home / "profiles").read_all()) == 4


def test_json_is_one_object_and_nothing_else_on_stdout(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    done = profile("--json", "--", "sh", "-c", "echo chatter; sleep 0.1; exit 4")
    assert done.exit_code == 4
    report = json.loads(done.stdout)
    assert set(report) == {"profile", "kept_in", "runs_before", "notes"}
    assert report["profile"]["exit_code"] == 4
    assert report["runs_before"] == 0
    assert Path(report["kept_in"]).is_file()
    assert capfd.readouterr() == ("", "chatter\n")


def test_the_samples_go_to_a_file(tmp_path: Path) -> None:
    out = tmp_path / "samples.parquet"
    done = profile("--hz", 50, "--out", out, "--json", "--", "sleep", "0.4")
    samples = pl.read_parquet(out)
    assert samples.height == json.loads(done.stdout)["profile"]["samples"] > 5
    assert samples.columns[:3] == ["t_s", "cpu_cores", "rss_mib"]
    assert samples["t_s"].is_sorted()
    assert {path.name for path in tmp_path.iterdir()} == {"home", "samples.parquet"}


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--", "no-such-program"], "error: cannot run 'no-such-program': there is no such"),
        (["--out", "nowhere/x", "--", "touch", "ran"], "error: --out: the directory nowhere"),
        (["--hz", "0", "--", "touch", "ran"], "--hz"),
        ([], "command"),
    ],
)
def test_a_mistake_ends_before_the_command_runs(
    home: Path, tmp_path: Path, words: list[str], problem: str
) -> None:
    done = profile(*words)
    assert done.exit_code == 2
    assert problem in done.stderr
    assert not (tmp_path / "ran").exists()
    assert ProfileStore(home / "profiles").read_all() == []


def test_a_store_that_cannot_be_used_stops_it_before_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PRESAGE_HOME", str(tmp_path / "file"))
    done = profile("--", "touch", "ran")
    assert done.exit_code == 2
    assert done.stderr.startswith("error: profiles cannot be kept in ")
    assert not (tmp_path / "ran").exists()


def test_an_interrupt_reaches_the_command_and_the_profile_is_kept(home: Path) -> None:
    code = "trap 'exit 9' INT; echo ready; while :; do sleep 0.05; done"
    words = [sys.executable, "-c", SCRIPT, "profile", "--", "sh", "-c", code]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 9
    (kept,) = ProfileStore(home / "profiles").read_all()
    assert kept.exit_code == 9
