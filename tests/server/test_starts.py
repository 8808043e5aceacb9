"""When jobs start, why they wait, what a new one would meet, other policies: on real servers."""

from __future__ import annotations

import os
import pty
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import polars as pl
import pytest

from presage.control.advisors.starts import Declared, _Pace, eta_view
from presage.model.event import RulesChanged
from presage.policy.registry import build
from presage.sim.ahead import Start
from presage.sim.whatif import replay
from presage.store import open_store
from tests.server.kit import PATIENCE_S, Done, Server, eventually

WIDTHS = {"p10", "p50", "p90", "age_s"}
FULL = {"gpus": 4}


@pytest.fixture(autouse=True)
def calm(server: Server) -> Iterator[None]:
    """Nothing goes on running between the tests."""
    yield
    server.stop_everything()


@pytest.fixture
def busy(server: Server) -> list[str]:
    """Both nodes are taken."""
    jobs = [server.submit("sleep 1200", resources=FULL) for _ in range(2)]
    for job in jobs:
        server.wait(job, "PROCESSING")
    return jobs


def manifest(tmp_path: Path, **asked: Any) -> Path:
    lines = {"name": "new", "command": "sleep 600", **asked}
    path = tmp_path / "new" / "presage.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))
    return path


def foreseen(server: Server, job: str) -> dict[str, Any]:
    """The estimate of a job that waits."""
    return eventually(lambda: server.job(job)["eta_s"])


def test_a_job_that_waits_has_an_estimate_with_its_age(server: Server, busy: list[str]) -> None:
    first = server.submit("true", resources=FULL)
    second = server.submit("true", resources=FULL)
    told = foreseen(server, second)
    assert told.keys() == WIDTHS
    assert 0 <= told["p10"] <= told["p50"] <= told["p90"]
    assert 0 <= told["age_s"] < 30
    assert foreseen(server, first)["p50"] <= foreseen(server, second)["p50"]
    assert server.job(busy[0])["eta_s"] is None
    listed = server.http.get("/api/v1/jobs", params={"status": "QUEUED"}).json()["jobs"]
    assert {job["id"]: job["eta_s"].keys() for job in listed} == {first: WIDTHS, second: WIDTHS}
    server.tell(second, "stop")
    assert server.wait(second)["eta_s"] is None


def test_time_limits_are_believed(server: Server) -> None:
    for _ in range(2):
        server.wait(server.submit("sleep 1200", resources=FULL, time_limit="10m"), "PROCESSING")
    told = foreseen(server, server.submit("true", resources=FULL))
    assert told["p10"] < 600
    assert told["p50"] < 800  # the calibration may add to what the limit allows


def test_commands_tell_when_it_starts(server: Server, busy: list[str], tmp_path: Path) -> None:
    waits = manifest(tmp_path, resources="{gpus: 4}")

    def submitted() -> Any:
        """A submission waits two seconds to be told, which may be too short for this machine."""
        body = server.presage("submit", str(waits), "--json").json
        assert body.keys() == {"id", "status", "eta_s"}
        if body["eta_s"] is None:
            server.tell(body["id"], "stop")
        return body["eta_s"] and body

    body = eventually(submitted)
    assert body["eta_s"].keys() == WIDTHS
    job = body["id"]
    assert server.presage("status", job, "--json").json["eta_s"].keys() == WIDTHS
    text = " ".join(server.presage("status", job).out.split())
    assert "starts in " in text
    assert " (most likely " in text
    assert ", estimated " in text
    assert "STARTS" in server.presage("ps").out


def test_a_job_that_starts_at_once_does_not_wait_for_an_estimate(
    server: Server, tmp_path: Path
) -> None:
    submitted = server.presage("submit", str(manifest(tmp_path)), "--json")
    assert submitted.json["eta_s"] is None


def test_explain_says_who_is_ahead_and_what_helps(server: Server) -> None:
    over = server.submit("true")
    server.wait(over)
    assert server.http.get(f"/api/v1/jobs/{over}/explain").json()["helps"] == []
    server.wait(server.submit("sleep 1200", resources=FULL), "PROCESSING")
    server.wait(server.submit("sleep 1200", resources={"gpus": 2}), "PROCESSING")
    wide = server.submit("true", resources=FULL)
    behind = server.submit("true", resources=FULL)

    def explained() -> Any:
        """What would help is worked out for ten seconds at most, and then asked for again."""
        body = server.http.get(f"/api/v1/jobs/{wide}/explain").json()
        return body if body["helps"] is not None else None

    body = eventually(explained)
    assert (body["reason"]["code"], body["ahead"], body["ahead_jobs"]) == ("no_room", 0, [])
    assert [item["change"] for item in body["helps"]] == [
        "with 2 instead of 4 GPUs for each worker"
    ]
    assert body["helps"][0]["eta_s"]["p50"] == 0
    foreseen(server, behind)
    told = server.presage("explain", behind, "--json").json
    assert told.keys() == {
        *("id", "status", "reason", "ahead", "ahead_jobs", "eta_s", "helps", "estimates")
    }
    assert (told["ahead"], told["ahead_jobs"]) == (1, [wide])
    assert told["eta_s"].keys() == WIDTHS
    text = server.presage("explain", wide).out
    assert "with 2 instead of 4 GPUs for each worker it starts in a moment" in text


def test_a_dry_run_tells_and_keeps_nothing(
    server: Server, busy: list[str], tmp_path: Path
) -> None:
    before = [job["id"] for job in server.http.get("/api/v1/jobs").json()["jobs"]]
    done = server.presage(
        "submit", str(manifest(tmp_path, resources="{gpus: 2}")), "--dry-run", "--json"
    )
    assert done.code == 0, done.err
    assert done.json["valid"]
    assert (done.json["name"], done.json["starts_now"]) == ("new", False)
    assert done.json["eta_s"].keys() == WIDTHS
    assert set(done.json["nodes"]) <= {"node-0", "node-1"}
    assert done.json["notes"]
    now = server.presage("submit", str(manifest(tmp_path)), "--dry-run")
    assert now.out.startswith("new starts now on node-")
    assert [job["id"] for job in server.http.get("/api/v1/jobs").json()["jobs"]] == before


@pytest.mark.parametrize(
    ("asked", "code", "says"),
    [
        ({"resources": "{gpus: 4}", "workers": 3}, "never_fits", "larger than the cluster"),
        ({"resources": "{gpus: 5}"}, "never_fits", "needs 5 GPUs"),
        ({"comand": "x"}, "bad_manifest", "comand"),
    ],
)
def test_a_dry_run_refuses_what_could_never_run(
    server: Server, tmp_path: Path, asked: Any, code: str, says: str
) -> None:
    path = manifest(tmp_path, **asked)
    done = server.presage("submit", str(path), "--dry-run")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert says in done.err
    answer = server.http.post(
        "/api/v1/jobs/dry-run",
        content=path.read_bytes(),
        headers={"Content-Type": "application/yaml"},
    )
    assert 400 <= answer.status_code < 500
    assert answer.json()["error"]["code"] == code


def test_top(server: Server, busy: list[str]) -> None:
    waits = server.submit("true", resources=FULL)
    foreseen(server, waits)
    seen = server.presage("top", "--once", "--json").json
    assert (seen["jobs_running"], seen["jobs_waiting"]) == (2, 1)
    assert {job["id"] for job in seen["running"]} == set(busy)
    (queued,) = seen["waiting"]
    assert queued["id"] == waits
    assert queued["eta_s"].keys() == WIDTHS
    assert queued["reason"]["text"].startswith("needs 4 GPUs")
    terminal = {"TTY_COMPATIBLE": "1", "NO_COLOR": "1", "COLUMNS": "80", "TERM": "dumb"}
    text = server.presage("top", "--once", env=terminal).out
    assert max(map(len, text.splitlines())) <= 80
    assert "8 of 8 GPUs held (100%)" in text
    assert all(job in text for job in (*busy, waits))
    alone = server.presage("top", "--json")
    assert (alone.code, alone.err.count("\n")) == (2, 1)


@pytest.mark.slow
def test_top_goes_on_until_q(server: Server) -> None:
    """In a terminal of its own."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [Path(sys.executable).with_name("presage"), "top"],
        env={"PRESAGE_URL": server.url, "PATH": "/usr/bin:/bin", "TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    try:
        shown = b""
        while b"nodes up" not in shown:
            shown += os.read(ours, 4096)
        os.write(ours, b"q")
        while process.poll() is None:
            with suppress(OSError):  # its end of the terminal is closed
                os.read(ours, 4096)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)


# -- other policies -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lived(server: Server) -> Server:
    """A server that has seen long and short jobs, too many at once, and a stop and a failure."""
    lengths = [0.6, 0.1, 0.5, 0.2, 0.4, 0.1, 0.3, 0.2]
    sizes = [4, 2, 4, 4, 2, 4, 2, 4]
    jobs = [
        server.submit(f"sleep {s}", name=f"j{k}", resources={"gpus": n})
        for k, (s, n) in enumerate(zip(lengths, sizes, strict=True))
    ]
    jobs.append(server.submit("exit 3", resources=FULL))
    stopped = server.submit("sleep 600", resources=FULL)
    for job in jobs:
        server.wait(job)
    server.tell(stopped, "stop")
    server.wait(stopped)
    server.stop_everything()
    return server


def test_the_same_policy_decides_a_live_journal_the_same(lived: Server) -> None:
    store = open_store(f"sqlite:///{lived.data / 'presage.db'}")
    try:
        found = replay(store.read_steps(), build("fifo"), Declared())
        other = replay(store.read_steps(), build("sjf"), Declared())
    finally:
        store.close()
    assert found.difference is None
    assert found.decisions >= 10
    assert other.decisions <= found.decisions
    body = lived.http.post("/api/v1/what-if", json={"policies": ["fifo"]}).json()
    assert body["audit"]["same"]
    assert body["audit"]["decisions"] >= found.decisions


def test_another_policy_agrees_with_a_simulation_of_the_exported_trace(
    lived: Server, tmp_path: Path
) -> None:
    path = tmp_path / "journal.parquet"
    asked = ("what-if", "--policy", "fifo,sjf", "--export", str(path), "--json")
    done: Done = lived.presage(*asked)
    assert done.code == 0, done.err
    told = done.json
    assert told["export"]["jobs"] == told["recorded"]["jobs"] == pl.read_parquet(path).height
    cluster = told["export"]["cluster"]
    again = lived.presage(
        "simulate", str(path), "--cluster", cluster, "--policy", "fifo,sjf", "--json"
    ).json["policies"]
    for name, figures in told["policies"].items():
        for key in again[name].keys() - {"cpu_s"}:
            assert figures[key] == pytest.approx(again[name][key]), (name, key)
    assert told["policies"]["sjf"]["avg_wait_s"] < told["policies"]["fifo"]["avg_wait_s"]
    assert 0 < told["recorded"]["fairness"] <= 1
    # What happened is what the same policy would do, but for the time that starting takes.
    happened, simulated = told["recorded"], told["policies"]["fifo"]
    assert happened["finished"] == simulated["finished"]
    longer = happened["avg_wait_s"] - simulated["avg_wait_s"]
    assert -0.05 <= longer <= _starting_s(lived)
    table = lived.presage("what-if", "--policy", "sjf", "--since", "1h").out
    assert "as_it_happened" in table
    assert max(map(len, table.splitlines())) <= 80


def _starting_s(server: Server) -> float:
    """Seconds that all jobs together took to start."""
    with server.client() as client:
        histories = [server.job(job.id)["history"] for job in client.jobs()]
    times = [{item["status"]: item["at"] for item in history} for history in histories]
    return float(sum(at["PROCESSING"] - at["DOWNLOADING"] for at in times if "PROCESSING" in at))


def test_a_configuration_of_ones_own(lived: Server, tmp_path: Path) -> None:
    config = tmp_path / "policies.yaml"
    config.write_text("policies:\n  mine: {order: sjf, mode: greedy}\n")
    done = lived.presage("what-if", "--policy", "mine", "--config", str(config), "--json")
    assert done.json["policies"].keys() == {"mine"}


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--policy", "none"], "unknown policy 'none'"),
        ([], "name policies"),
        (["--policy", ","], "names nothing"),
        (["--policy", "sjf", "--since", "soon"], "--since"),
        (["--policy", "sjf", "--config", "missing.yaml"], "missing.yaml"),
        (["--policy", "sjf", "--since", "1ms"], "no job ran in that time"),
        (["--export", "/nowhere/at/all.parquet"], "does not exist"),
    ],
)
def test_what_if_refuses_in_one_line(lived: Server, argv: list[str], says: str) -> None:
    done = lived.presage("what-if", *argv)
    assert (done.code, done.out) == (2, "")
    assert says in done.err
    assert done.err.count("\n") == 1


def test_one_replay_at_a_time_and_the_server_goes_on(lived: Server) -> None:
    answers: list[httpx.Response] = []

    def ask() -> None:
        body = {"policies": ["fifo", "sjf", "backfill"]}
        answers.append(lived.stranger.post("/api/v1/what-if", json=body))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    eventually(lambda: answers)
    assert answers[0].status_code == 409
    assert "a what-if is being worked out" in answers[0].json()["error"]["text"]
    lived.wait(lived.submit("true"))
    assert len(answers) == 1  # a job came and went meanwhile
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(answers[1].json()["policies"]) == 3


# -- what it learns -------------------------------------------------------------------------------


def test_a_server_learns_from_what_ended_also_before_it_started(
    serve: Callable[..., Server],
) -> None:
    server = serve(nodes="1x4").start()
    for _ in range(3):
        server.wait(server.submit("sleep 0.1", resources=FULL))
    server.tell(stopped := server.submit("sleep 600", resources=FULL), "stop")
    server.wait(stopped)
    eventually(lambda: server.metric("presage_history_runs") == 3)
    server.stop()
    server.start()
    eventually(lambda: server.metric("presage_history_runs") == 3)
    server.wait(server.submit("sleep 600", resources=FULL), "PROCESSING")
    short = server.submit("sleep 0.1", resources=FULL)
    told = foreseen(server, short)
    assert told["p50"] < 3600
    assert server.metric("presage_forecasts_total") > 0
    assert server.metric("presage_forecast_samples") == 24


HALFWAY = """python -c "
import os, time
from presage import job
while not os.path.exists('{gate}'): time.sleep(0.01)
job.progress(done=0.5)
time.sleep({after})
" """


@pytest.mark.slow
def test_progress_tells_more_than_a_history_of_hours(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    server = serve(nodes="1x4").start()
    for _ in range(3):
        server.wait(server.submit(HALFWAY.format(gate="/", after=0)))
    server.stop()
    with sqlite3.connect(server.data / "presage.db") as database:
        database.execute("update jobs set started_at = started_at - 18000")
    database.close()
    server.start()
    eventually(lambda: server.metric("presage_history_runs") == 3)
    runs = server.submit(HALFWAY.format(gate=tmp_path / "gate", after=1200), resources=FULL)
    server.wait(runs, "PROCESSING")
    waits = server.submit("true", resources=FULL)
    assert foreseen(server, waits)["p50"] > 600
    (tmp_path / "gate").touch()
    eventually(lambda: (server.job(runs)["progress"] or {}).get("done") == 0.5)
    # A change in the queue lets the server look again at once.
    server.tell(waits, "stop")
    told = foreseen(server, server.submit("true", resources=FULL))
    # As long again as it took until now, however slow this machine is; not the five hours before.
    assert 0 < told["p50"] < 1800
    assert told["p90"] < 3600


def test_who_looks_ahead_rests_three_times_as_long_as_it_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Throttling, with a clock of its own: at most a quarter of a core on any machine."""
    clock = SimpleNamespace(worked=0.0, rested=0.0)

    class Rest(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            clock.rested += timeout or 0.0
            return False

    ours = SimpleNamespace(thread_time=lambda: clock.worked)
    monkeypatch.setattr("presage.control.advisors.starts.time", ours)
    pace = _Pace(Rest(), lambda: 0)
    pace.begin()
    for _ in range(5000):
        clock.worked += 0.0011
        pace()
    assert clock.rested >= 3 * (clock.worked - 0.1)


@pytest.mark.soak
def test_forecasts_take_a_bounded_part_of_a_core(serve: Callable[..., Server]) -> None:
    server = serve("--policy", "backfill", nodes="20x4").start()
    bodies = [server.submit("sleep 1200", resources={"gpus": 4}) for _ in range(20)]
    for body in bodies[:1]:
        server.wait(body, "PROCESSING", "DOWNLOADING")
    waiting = [server.submit("true", resources={"gpus": 1 + k % 4}) for k in range(60)]
    foreseen(server, waiting[-1])
    began, before = time.monotonic(), server.metric("presage_forecast_cpu_seconds_total")
    made = server.metric("presage_forecasts_total")
    while server.metric("presage_forecasts_total") < made + 3:  # the queue changes all the time
        server.submit("true", resources={"gpus": 1})
        time.sleep(0.2)
    spent = server.metric("presage_forecast_cpu_seconds_total") - before
    one = spent / 3  # what it had done when we began to look may be one forecast
    assert spent <= 0.25 * (time.monotonic() - began) + one + 0.5


def test_an_estimate_counts_from_now_and_does_not_get_too_old() -> None:
    start = Start(60.0, 120.0, None, ())
    told = {"p10": 30.0, "p50": 90.0, "p90": None, "age_s": 30.0}
    assert eta_view(start, 100.0, 130.0) == told
    late = eta_view(start, 100.0, 190.0)
    assert late is not None
    assert (late["p10"], late["p50"]) == (0.0, 30.0)
    assert eta_view(start, 100.0, 1000.0) is None
    assert eta_view(Start(None, None, None, ()), 100.0, 100.0) is None


def test_an_audit_knows_which_policy_decided_when(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    """One server packs, the next one on its journal spreads."""
    spread = tmp_path / "spread.yaml"
    spread.write_text("policies: {apart: {placement: spread}}\n")
    for options in (("--policy", "fifo"), ("--policy", "apart", "--config", str(spread))):
        server = serve(*options, nodes="2x4").start()
        jobs = [server.submit("sleep 600", resources={"gpus": 1}) for _ in range(4)]
        for job in jobs:
            server.wait(job, "PROCESSING")
        server.stop_everything()
        if options[1] == "apart":
            body = server.http.post("/api/v1/what-if", json={"policies": ["fifo"]}).json()
            assert body["audit"]["same"], body
            assert body["audit"]["decisions"] >= 8
        server.stop()
    store = open_store(f"sqlite:///{server.data / 'presage.db'}")
    try:
        facts = [fact for _, fact in store.read() if isinstance(fact, RulesChanged)]
        one_rule = replay(store.read_steps(), build("fifo"), Declared())
    finally:
        store.close()
    assert ['"placement":"pack"' in fact.policy for fact in facts] == [True, False]
    assert one_rule.difference is not None
