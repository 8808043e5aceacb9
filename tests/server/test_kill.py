"""Nothing is lost, nothing runs twice, nothing ends without a status: whatever is killed.

Workers write to files when they start and end, and look whether another process is doing the same
work at that moment. The files are the witness, not the server.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from presage.client import to_json
from presage.executors.node.processes import all_pids, environment
from presage.layout import Layout
from presage.testing.stores import PostgresCluster
from tests.server.kit import ENDED, PATIENCE_S, Server, eventually

WORKER = """
me=$WITNESS/$PRESAGE_JOB_ID.$PRESAGE_RANK
for other in $me.*; do
    [ -e "$other" ] && kill -0 "${other##*.}" 2>/dev/null && echo "twice $me" >> $WITNESS.log
done
: > $me.$$
echo "start $PRESAGE_JOB_ID $PRESAGE_RANK $PRESAGE_ATTEMPT" >> $WITNESS.log
trap 'rm -f $me.$$; exit 143' TERM
sleep $LONG & wait $!
echo "end $PRESAGE_JOB_ID $PRESAGE_RANK $PRESAGE_ATTEMPT" >> $WITNESS.log
rm -f $me.$$
"""


class Witness:
    """What workers wrote."""

    def __init__(self, home: Path) -> None:
        self.directory = home / "witness"
        self.directory.mkdir()
        self._log = home / "witness.log"

    def manifest(self, name: str, long_s: float, **more: Any) -> dict[str, Any]:
        """A job that is watched."""
        env = {"WITNESS": str(self.directory), "LONG": f"{long_s:.3f}"}
        return {"name": name, "command": WORKER, "env": env, "grace": "5s", **more}

    def lines(self, kind: str) -> list[str]:
        """The lines of one kind, without the kind."""
        text = self._log.read_text() if self._log.exists() else ""
        return [
            rest
            for first, _, rest in (line.partition(" ") for line in text.splitlines())
            if first == kind
        ]

    def check(self, jobs: dict[str, dict[str, Any]]) -> None:
        """Every job that is COMPLETED was done by each of its workers, and none twice at once."""
        assert self.lines("twice") == []
        starts = Counter(self.lines("start"))
        assert not [line for line, times in starts.items() if times > 1]
        ends = {line.split()[0] for line in self.lines("end")}
        for job_id, job in jobs.items():
            assert job["status"] in ENDED, job
            if job["status"] == "COMPLETED":
                assert job_id in ends, f"{job_id} was never done"


class Users(threading.Thread):
    """Submit jobs without pause, now and then halt, resume or stop one, whatever the server is
    doing; remember what it promised."""

    def __init__(self, server: Server, witness: Witness, seed: int) -> None:
        super().__init__()
        self.accepted: dict[str, str] = {}
        self.names: list[str] = []
        self.errors: list[str] = []
        self.stopped = threading.Event()
        self._server, self._witness = server, witness
        self._random = random.Random(seed)
        self._http = httpx.Client(base_url=server.url, timeout=PATIENCE_S)

    def run(self) -> None:
        number = 0
        while not self.stopped.is_set():
            number += 1
            name = f"j{number}"
            self.names.append(name)
            manifest = self._witness.manifest(
                name,
                self._random.choice([0.02, 0.1, 0.3]),
                workers=self._random.choice([1, 1, 2]),
                resources={"gpus": 1},
            )
            found = self._insist("/api/v1/jobs", json=manifest, headers={"Idempotency-Key": name})
            if found is None:
                continue
            self.accepted[found["id"]] = name
            if self._random.random() < 0.3:
                known = self._random.choice(list(self.accepted))
                what = self._random.choice(["halt", "halt", "resume", "stop"])
                self._try(f"/api/v1/jobs/{known}/{what}")
            self.pause(0.03)
        self._http.close()

    def pause(self, seconds: float) -> None:
        """Let some time pass; less when all is over."""
        self.stopped.wait(seconds)

    def get_on(self, more: int) -> None:
        """Wait until so many more jobs were accepted: however slow the machine is, something is
        lost if the server forgets."""
        wanted = len(self.accepted) + more
        eventually(lambda: len(self.accepted) >= wanted)

    def _insist(self, path: str, **rest: Any) -> dict[str, Any] | None:
        """Ask until there is an answer: the same request each time."""
        while True:
            answer = self._try(path, **rest)
            if answer is not None and answer.status_code == 201:
                body: dict[str, Any] = answer.json()
                return body
            if self.stopped.is_set():
                return None
            self.pause(0.02)

    def _try(self, path: str, **rest: Any) -> httpx.Response | None:
        with suppress(httpx.TransportError):
            answer = self._http.post(path, **rest)
            if answer.status_code >= 500 and answer.status_code != 503:
                self.errors.append(answer.text)
            return answer
        return None


def settle(server: Server, witness: Witness, users: Users) -> None:
    """Let everything end, and look whether all is as promised."""
    users.stopped.set()
    users.join(PATIENCE_S)
    assert not users.is_alive()
    server.wait_ready()

    def over() -> bool:
        alive = server.alive()
        for job in alive:
            if job["status"] == "HALTED":
                server.tell(job["id"], "resume")
        return not alive

    eventually(over)
    with server.client() as client:
        jobs = {job.id: to_json(job.summary) for job in client.jobs()}
    missing = users.accepted.keys() - jobs.keys()
    assert not missing, f"accepted and lost: {missing}"
    names = Counter(job["name"] for job in jobs.values())
    assert not [name for name, times in names.items() if times > 1]
    assert not users.errors
    witness.check(jobs)
    for job_id in jobs:
        history = server.job(job_id)["history"]
        assert history[0]["status"] == "QUEUED"
        assert [item["status"] in ENDED for item in history].count(True) == 1
    mark = f"PRESAGE_RUN={server.data}/".encode()
    eventually(lambda: not any((server.data / "runs").iterdir()))
    eventually(lambda: not [pid for pid in all_pids() if mark in environment(pid)])


def _kill_rounds(server: Server, home: Path, rounds: int, seed: int) -> int:
    witness = Witness(home)
    chance = random.Random(seed)
    server.start()
    users = Users(server, witness, seed)
    users.start()
    try:
        for _ in range(rounds):
            users.pause(chance.uniform(0.0, 0.5))
            server.kill()
            server.start(ready=False)
            if chance.random() < 0.7:
                users.get_on(chance.randint(1, 5))
        server.wait_ready()
    finally:
        users.stopped.set()
    settle(server, witness, users)
    return len(users.accepted)


@pytest.mark.slow
def test_eight_kills_of_the_server_lose_nothing(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    assert _kill_rounds(serve(), tmp_path, 8, seed=1) >= 8


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_two_hundred_kills_of_the_server_lose_nothing(
    serve: Callable[..., Server], tmp_path: Path, seed: int
) -> None:
    assert _kill_rounds(serve(), tmp_path, 20, seed=100 + seed) >= 20


@pytest.mark.slow
def test_the_other_server_takes_over(serve: Callable[..., Server], tmp_path: Path) -> None:
    witness = Witness(tmp_path)
    first, second = serve("--lease", "3"), serve("--lease", "3")
    first.start()
    second.start()
    assert (first.leads(), second.leads()) == (True, False)
    assert second.http.get("/readyz").json()["leader"] == first.url
    refused = second.http.post("/api/v1/jobs", json=witness.manifest("no", 1))
    assert (refused.status_code, refused.json()["error"]["code"]) == (307, "not_leading")
    assert refused.headers["location"] == f"{first.url}/api/v1/jobs"
    assert second.http.get("/api/v1/jobs").json()["jobs"] == []

    running = [first.submit(**witness.manifest(f"run-{i}", 4)) for i in range(3)]
    for job in running:
        first.wait(job, "PROCESSING")
    first.kill()
    eventually(second.leads)
    after = second.submit(**witness.manifest("after", 0.1))
    second.wait(after, "PROCESSING", "COMPLETED")
    jobs = {job: second.wait(job) for job in [*running, after]}
    assert {job["status"] for job in jobs.values()} == {"COMPLETED"}
    assert {job["attempt"] for job in jobs.values()} == {1}
    witness.check(jobs)

    first.start()
    assert (first.leads(), second.leads()) == (False, True)


def put_to_sleep(server: Server) -> bool:
    """Stop a server; whether it sleeps outside a transaction. In one it holds the lock of SQLite,
    and nobody else can write for as long as it sleeps: it goes on."""
    os.kill(server.pid, signal.SIGSTOP)
    database = sqlite3.connect(Layout(server.data).database, timeout=1, isolation_level=None)
    with closing(database), suppress(sqlite3.OperationalError):
        database.execute("BEGIN IMMEDIATE")
        return True
    os.kill(server.pid, signal.SIGCONT)
    return False


@pytest.mark.slow
def test_a_leader_that_slept_is_fenced_off(serve: Callable[..., Server], tmp_path: Path) -> None:
    """It holds the lock of the data directory all the time: the lease decides, not the lock."""
    witness = Witness(tmp_path)
    first, second = serve("--lease", "3"), serve("--lease", "3")
    first.start()
    second.start()
    try:
        eventually(lambda: put_to_sleep(first))
        eventually(second.leads)
        job = second.submit(**witness.manifest("new", 0.5))
        second.wait(job, "PROCESSING", "STORING", "COMPLETED")
    finally:
        os.kill(first.pid, signal.SIGCONT)
    eventually(lambda: not first.leads())
    late = first.http.post("/api/v1/jobs", json=witness.manifest("late", 0.1))
    assert (late.status_code, late.headers["location"]) == (307, f"{second.url}/api/v1/jobs")
    assert second.leads()
    second.wait(job)
    witness.check({job: second.job(job)})


@pytest.mark.engine
@pytest.mark.slow
def test_postgres_restarted_under_load_loses_nothing(
    serve: Callable[..., Server], tmp_path: Path, postgres: PostgresCluster
) -> None:
    witness = Witness(tmp_path)
    server = serve("--db", postgres.new_database()).start()
    users = Users(server, witness, seed=3)
    users.start()
    try:
        for how in ("fast", "immediate"):
            users.get_on(5)
            postgres.stop(how=how)
            users.pause(0.5)
            postgres.start()
            eventually(server.leads)
        users.get_on(5)
    finally:
        users.stopped.set()
    settle(server, witness, users)
    assert len(users.accepted) > 10


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    if os.geteuid() != 0 or mount is None:
        pytest.skip("mounting needs root")
    command = [mount, "-t", "tmpfs", "-o", "size=12m", "presage", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine allows no mounts")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.slow
def test_a_full_disk_is_a_clear_error_and_no_damage(
    serve: Callable[..., Server], tmp_path: Path, small_disk: Path
) -> None:
    witness = Witness(tmp_path)
    server = serve(data=small_disk / "data").start()
    before = server.submit(**witness.manifest("before", 0.1))
    server.wait(before)
    fill = small_disk / "fill"
    with fill.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    refused = None
    accepted = [before]
    for number in range(200):
        answer = server.http.post(
            "/api/v1/jobs", json=witness.manifest(f"full-{number}", 0.1, labels={"x": "y" * 4000})
        )
        if answer.status_code != 201:
            refused = answer
            break
        accepted.append(answer.json()["id"])
    assert refused is not None
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] in ("store_unavailable", "not_leading")
    upload = server.http.put(f"/api/v1/folders/{'0' * 64}", content=b"x" * 100_000)
    assert (upload.status_code, upload.json()["error"]["code"]) == (507, "no_space")
    assert server.http.get("/healthz").status_code == 200
    assert server.job(before)["status"] == "COMPLETED"

    fill.unlink()
    eventually(server.leads)
    accepted.append(server.submit(**witness.manifest("after", 0.1)))
    jobs = {job: server.wait(job) for job in accepted}
    assert {job["status"] for job in jobs.values()} == {"COMPLETED"}
    witness.check(jobs)
    server.stop()
    database = sqlite3.connect(server.data / "presage.db")
    try:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    finally:
        database.close()
    server.start()
    assert {job["status"] for job in map(server.job, accepted)} == {"COMPLETED"}
