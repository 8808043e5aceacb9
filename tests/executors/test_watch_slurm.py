"""A real Slurm, watched by somebody without any privilege, through kills on both sides."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from presage.layout import Layout
from presage.store import open_store
from tests.slurm_cluster import SlurmCluster, missing_engine
from tests.waiting import eventually
from tests.watched_slurm import (
    AS_NOBODY,
    NOBODY,
    Told,
    accounts_of,
    asked_by_nobody,
    journal_of,
)

pytestmark = pytest.mark.engine

PRESAGE = (sys.executable, "-m", "presage")
PARTITIONS = """
PartitionName=main Nodes=n1 Default=YES MaxTime=INFINITE DefaultTime=60 State=UP
PartitionName=other Nodes=n2 MaxTime=INFINITE DefaultTime=60 State=UP
"""


@contextmanager
def cluster() -> Iterator[SlurmCluster]:
    for version in ("22.05", "26.05"):  # the database is that of 26.05
        if (why := missing_engine(version)) is not None:
            if os.environ.get("CI") == "true":
                pytest.fail(why)
            pytest.skip(why)
    if os.getuid() != 0:
        pytest.skip("to run as somebody else takes root")
    # A directory that others may enter, unlike those that pytest makes.
    with TemporaryDirectory(prefix="presage-watched-", ignore_cleanup_errors=True) as place:
        Path(place).chmod(0o755)
        slurm = SlurmCluster(
            *("22.05", Path(place)),
            nodes=2,
            gpus=4,
            accounting=True,
            partitions=PARTITIONS,
            extra="SlurmctldDebug=debug2",
        )
        with slurm:
            yield slurm


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmCluster]:
    with cluster() as slurm:
        yield slurm


@pytest.fixture
def data(slurm: SlurmCluster, request: pytest.FixtureRequest) -> Path:
    return data_of_nobody(slurm, request.node.name)


def data_of_nobody(slurm: SlurmCluster, name: str) -> Path:
    made: Path = slurm.directory / name
    made.mkdir()
    os.chown(made, NOBODY, NOBODY)
    return made


def presage(slurm: SlurmCluster, *words: str, code: int = 0) -> str:
    """What a command says, run by nobody."""
    done = subprocess.run(
        [*AS_NOBODY, *PRESAGE, *words], env=slurm.env, capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def submit(slurm: SlurmCluster, *words: str, sleep: str = "2") -> str:
    script = ("--wrap", f"sleep {sleep}") if sleep != "fail" else ("--wrap", "exit 3")
    return slurm.run("sbatch", "-t", "5", "-o", "/dev/null", *words, *script).split()[-1]


def told(data: Path) -> dict[str, Told]:
    if not Layout(data).lock.exists():  # the database is the watcher's to make
        return {}
    store = open_store(f"sqlite:///{Layout(data).database}")
    try:
        return journal_of(store)
    finally:
        store.close()


Watch = Callable[[], "subprocess.Popen[bytes]"]


@pytest.fixture
def watch(slurm: SlurmCluster, data: Path) -> Iterator[Watch]:
    """Starts a watcher; none is left behind."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        command = [*AS_NOBODY, *PRESAGE, "watch", "--slurm", "--every", "1s", "--data", str(data)]
        with (slurm.directory / "watcher.out").open("ab") as said:
            started.append(subprocess.Popen(command, env=slurm.env, stderr=said))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_the_journal_is_what_happened_whoever_was_killed(
    slurm: SlurmCluster, data: Path, watch: Watch
) -> None:
    watcher = watch()
    jobs = [submit(slurm, "-J", "two", "--gres=gpu:2") for _ in range(4)]
    jobs += [submit(slurm, "-J", "wide", "-n3", "--gres=gpu:1", "-p", "other")]
    failed = submit(slurm, "--gres=gpu:1", "-p", "other", sleep="fail")
    waits = submit(slurm, "-H")
    runs = submit(slurm, "-p", "other", sleep="600")
    eventually(lambda: {*jobs, failed, waits, runs} <= told(data).keys())
    eventually(lambda: told(data)[runs].started)

    watcher.kill()
    watcher.wait()
    slurm.run("scancel", waits, runs)
    submit(slurm, "--array=0-2", "--gres=gpu:1", sleep="0.2")
    eventually(
        lambda: not slurm.run("squeue", "-h", "-t", "running,completing,pending", "-p", "main")
    )
    watcher = watch()
    # What it has not written yet when it is killed, it has forgotten, and takes minutes to notice.
    written = slurm.directory / "state" / "job_state"
    marker = submit(slurm, "-H", "-J", "written-by-now")
    eventually(lambda: written.exists() and b"written-by-now" in written.read_bytes())
    slurm.kill_controller()
    slurm.start_controller()
    slurm.run("scancel", marker)
    submit(slurm, "-J", "last", sleep="0.2")
    eventually(lambda: not slurm.run("squeue", "-h", "-t", "running,completing,pending"))

    def same() -> bool:
        ours = {job.partition("@")[0]: one for job, one in told(data).items()}
        truth = {job: one for job, one in accounts_of(slurm).items() if one.ended}
        return bool(truth) and truth.items() <= ours.items()

    eventually(same, 60.0)
    watcher.send_signal(signal.SIGTERM)
    assert watcher.wait() == 0
    ours = told(data)
    assert ours[failed].outcome == "failed"
    assert (ours[waits].started, ours[waits].outcome) == (0, "stopped")
    asked, writes = asked_by_nobody(slurm)
    assert asked["REQUEST_JOB_INFO"] > 0
    assert writes == []


def test_a_job_that_waits_is_explained() -> None:
    # What ran before tells how long jobs run: after many short ones nothing is worth changing.
    with cluster() as slurm:
        explained(slurm, data_of_nobody(slurm, "explained"))


def explained(slurm: SlurmCluster, data: Path) -> None:
    first = submit(slurm, "-J", "first", "--gres=gpu:4", sleep="600")
    eventually(lambda: slurm.run("squeue", "-h", "-j", first, "-o", "%T") == "RUNNING")
    ahead = submit(slurm, "-J", "ahead", "--gres=gpu:1")
    mine = submit(slurm, "-J", "mine", "--gres=gpu:2")
    try:
        where = ("--data", str(data))
        seen = json.loads(presage(slurm, "watch", "--slurm", "--once", "--json", *where))
        assert seen["gpus"]["held"] == 4
        assert [one["job"] for one in seen["waiting"]] == [ahead, mine]
        about = json.loads(presage(slurm, "explain", "--watch", str(data), "mine", "--json"))
        assert (about["id"], about["ahead_jobs"]) == (mine, [ahead])
        assert 0 < about["eta_s"]["p50"] <= 360  # five minutes, and what Slurm takes to kill
        assert "if it might run on any node" in [one["change"] for one in about["helps"]]
        text = presage(slurm, "explain", "--watch", str(data), "mine")
        assert text.startswith(f"{mine} is QUEUED: jobs with a higher priority wait\n")
        assert "it starts in " in text
        presage(slurm, "watch", "--report", *where)
        wrong = presage(slurm, "what-if", "--watch", str(data), "--policy", "nope", code=2)
        assert "unknown policy 'nope'" in wrong
    finally:
        slurm.run("scancel", first, ahead, mine)


def test_what_cannot_be_watched_is_said_in_one_line(slurm: SlurmCluster, data: Path) -> None:
    where = ("--data", str(data))
    text = presage(slurm, "watch", "--slurm", "--cluster", "nowhere", "--once", *where, code=2)
    assert "nowhere" in text
    assert text.count("\n") == 1
    nothing = subprocess.run(
        [*PRESAGE, "watch", "--slurm", "--once", *where],
        env={**os.environ, "PATH": "/nonexistent"},
        capture_output=True,
        text=True,
    )
    assert nothing.returncode == 2
    assert nothing.stderr.startswith("error: there is no Slurm here: sinfo is not on PATH")
    text = presage(slurm, "watch", "--status", "--data", str(data / "none"), code=2)
    assert "nothing is watched into" in text
    assert "say which cluster" in presage(slurm, "watch", code=2)
