"""Attacks of one user on another of the same server: the second table of
docs/reference/security.md (`test_attacks.py` holds the document and the tests together).

Each user's job is a real process. On a root server it runs as a Unix user of its own, on another
in a container; what it tries is a script that reports how each attempt ended.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest

import presage
from tests.forking import Forked
from tests.server.kit import PATIENCE_S, Command, Server, Zygote, eventually

ROOT_TOKEN = "presage_" + "r" * 43
SECRET = "what-only-ada-may-know"
ACCESS = """
access:
  run_as: {uids: 64500-64599}
  limits:
    roles: {user: {max_priority: 10}}
    teams: {blue: {queues: [default]}}
    users: {vip: {max_priority: 100}}
"""
UID = 64321
"""Of the server that is not root."""
IMAGE = "localhost/presage/shell:1"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it makes Unix users")
pytestmark = needs_root


class Two:
    """A server, ada of team red with a job that runs, and eve of team blue."""

    def __init__(self, server: Server, image: str | None = None) -> None:
        self.server, self.image = server, image
        self.latest: dict[str, Any] = {}
        with server.client() as client:
            self.ada = client.add_user("ada", "user", "red").token
            self.eve = client.add_user("eve", "user", "blue").token
        with server.client(self.ada) as client:
            client.set_secret("key", SECRET.encode())
            client.set_secret("shared", b"of-the-team", team="red")
        self.job = self.submit(
            self.ada,
            "echo $KEY > $PRESAGE_RESULT_DIR/out; echo $KEY > $PRESAGE_CHECKPOINT_DIR/c; "
            "echo $KEY > work.txt; echo printed $KEY; echo up > $PRESAGE_RESULT_DIR/up; "
            "sleep 600",
            secrets={"KEY": "key", "TEAM": "shared"},
        )
        eventually(lambda: self.home.joinpath("results", "up").exists() or self.ended())

    @property
    def home(self) -> Path:
        """Of ada's job."""
        return self.server.data / "jobs" / self.job

    def ended(self) -> bool:
        """Whether ada's job did, which it should not."""
        job = self.server.job(self.job)
        assert job["ended_at"] is None, (job, self.server.log())
        return False

    def ask(self, token: str, method: str, path: str, **rest: Any) -> httpx.Response:
        """As somebody."""
        headers = {"Authorization": f"Bearer {token}", **rest.pop("headers", {})}
        return self.server.stranger.request(method, f"/api/v1{path}", headers=headers, **rest)

    def submit(self, token: str, command: str | list[str], **manifest: Any) -> str:
        """Submit a job; its id."""
        answer = self.offer(token, command, **manifest)
        assert answer.status_code == 201, answer.text
        found: str = answer.json()["id"]
        return found

    def offer(self, token: str, command: str | list[str], **manifest: Any) -> httpx.Response:
        """Try to submit a job."""
        body = {"name": "job", "command": command, "resources": {"memory": "256Mi"}, **manifest}
        if self.image and isinstance(command, str):
            body["command"] = ["/bin/sh", "-c", command]
        if self.image:
            body["image"] = self.image
        return self.ask(token, "POST", "/jobs", json=body)

    def output(self, token: str, command: str | list[str], **manifest: Any) -> str:
        """What a job of somebody printed, once it is over."""
        job = self.submit(token, command, **manifest)
        self.latest = self.server.wait(job)
        said = self.ask(token, "GET", f"/jobs/{job}/logs").text
        assert said, (self.latest, self.server.log())
        return said


# -- a root server --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory that others may pass, unlike those that pytest makes."""
    with TemporaryDirectory(prefix="presage-two-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.fixture(scope="module")
def two(zygote: Zygote, place: Path) -> Iterator[Two]:
    """Two users of a server that is root."""
    access = place / "access.yaml"
    access.write_text(ACCESS)
    server = Server(
        zygote,
        place / "data",
        "--config",
        str(access),
        env={"PRESAGE_TOKEN": ROOT_TOKEN, "DB_URL": "postgresql://me:pw@h/x", "OTHER": "x"},
        token=ROOT_TOKEN,
    )
    server.start()
    yield Two(server)
    server.close()


def _tried(two: Two, *attempts: str) -> dict[str, str]:
    """What eve's job printed for each shell command that it tried, errors included."""
    lines = [f'echo "<{n}>$({attempt} 2>&1 && echo DONE)"' for n, attempt in enumerate(attempts)]
    said = two.output(two.eve, "\n".join(lines))
    parts = said.split("<")[1:]
    assert len(parts) == len(attempts), (said, two.latest, two.server.log())
    return {attempts[int(part.split(">")[0])]: part.partition(">")[2].strip() for part in parts}


def _all_refused(tried: dict[str, str]) -> None:
    for attempt, said in tried.items():
        assert "DONE" not in said, (attempt, said)
        assert SECRET not in said, attempt
        assert "denied" in said or "not permitted" in said or "No such" in said, (attempt, said)


def test_jobs_of_two_users_run_as_two_unix_users(two: Two) -> None:
    told = two.output(
        two.eve,
        "id -u; id -g; id -G; grep NoNewPrivs /proc/self/status; umask; pwd; "
        "touch $PRESAGE_RESULT_DIR/mine $PRESAGE_CHECKPOINT_DIR/mine /dev/stdout; echo $HOME",
    ).splitlines()
    pid = two.server.processes(two.job)[0]
    ada = Path(f"/proc/{pid}").stat().st_uid
    assert 64500 <= ada <= 64599
    assert 64500 <= int(told[0]) <= 64599
    assert int(told[0]) != ada
    assert told[1] == told[2] == told[0]
    assert told[3].split() == ["NoNewPrivs:", "1"]
    assert told[4] == "0077"
    assert told[5] == told[6]
    for path in ("results", "checkpoints", "results/out"):
        assert two.home.joinpath(path).stat().st_uid == ada, path
        assert two.home.joinpath(path).stat().st_mode & 0o077 == 0, path
    log = two.home / "logs" / "1" / "worker-0.log"
    assert (log.stat().st_uid, log.stat().st_mode & 0o777) == (ada, 0o600)


def test_another_users_files(two: Two) -> None:
    data, job = two.server.data, two.job
    _all_refused(
        _tried(
            two,
            *(f"ls {path}" for path in (data, f"{data}/jobs", f"{data}/runs")),
            *(
                f"cat {data}/jobs/{job}/{file}"
                for file in ("job.json", "results/out", "checkpoints/c", "logs/1/worker-0.log")
            ),
            *(
                f"cat {data}/runs/{job}/1/{file}"
                for file in ("plan.json", "work/work.txt", "events.jsonl", "lock")
            ),
            f"touch {data}/jobs/{job}/results/planted",
            f"rm {data}/jobs/{job}/checkpoints/c",
            f"touch {data}/runs/{job}/1/stop.json",
            f"ln -s / {data}/jobs/x",
        )
    )


def test_the_database_and_secrets_from_a_job(two: Two) -> None:
    data = two.server.data
    _all_refused(
        _tried(
            two,
            f"cat {data}/presage.db",
            f"sh -c 'echo x >> {data}/presage.db'",
            f"cat {data}/presage.db-wal",
            f"cat {data}/secrets/.users/ada/key",
            f"ls {data}/secrets",
            f"ls {data}/folders",
            f"sh -c 'echo x > {data}/wake'",
            f"cat {data}/uids.json",
        )
    )


def test_another_users_processes(two: Two) -> None:
    (pid, *_) = two.server.processes(two.job)
    _all_refused(
        _tried(
            two,
            f"cat /proc/{pid}/environ",
            f"kill -9 {pid}",
            f"ls /proc/{pid}/fd",
            f"cat /proc/{two.server.pid}/environ",
            f"kill {two.server.pid}",
            "kill -9 $PPID",  # the guardian of the run itself
            "cat /proc/$PPID/environ",
        )
    )
    assert two.server.leads()
    assert two.server.job(two.job)["status"] == "PROCESSING"


def test_the_servers_environment_from_a_job(two: Two) -> None:
    said = two.output(two.eve, "env")
    for name in ("PRESAGE_TOKEN", "DB_URL", "OTHER", ROOT_TOKEN, "postgresql://"):
        assert name not in said, name
    assert "PRESAGE_JOB_ID=" in said


def test_commands_beside_a_job(two: Two) -> None:
    """`presage exec` runs as the job's Unix user, for those who may change the job alone."""
    mine = ("exec", two.job, "--", "sh", "-c", "id -u; id -G; grep NoNewPrivs /proc/self/status")
    done = two.server.presage(*mine, token=two.ada)
    ada = Path(f"/proc/{two.server.processes(two.job)[0]}").stat().st_uid
    assert done.out.split() == [str(ada), str(ada), "NoNewPrivs:", "1"], done
    database = ("exec", two.job, "--", "cat", f"{two.server.data}/presage.db")
    assert "denied" in two.server.presage(*database, token=two.ada).err
    other = two.server.presage(*mine, token=two.eve)
    assert other.code == 2
    assert other.out == ""


def test_links_and_pipes_for_the_guardian_to_follow(two: Two) -> None:
    """The guardian is root and reads progress and wishes of the job: it must not be led on."""
    planted = two.server.data / "planted.json"
    planted.write_text('{"done": 0.77, "step": 7, "workers": 9}')
    planted.chmod(0o600)
    job = two.submit(
        two.eve,
        f'ln -s {planted} "$PRESAGE_PROGRESS"; '
        'mkfifo "${PRESAGE_PROGRESS%/*}/request.json"; '
        "ln -s /etc results-link; chmod 000 results-link 2>&1; echo ready; sleep 600",
        grace="1s",
    )
    eventually(lambda: "ready" in two.ask(two.eve, "GET", f"/jobs/{job}/logs").text)
    two.server.tell(job, "stop")
    ended = two.server.wait(job)
    assert ended["status"] == "CANCELLED"
    assert not ended["progress"] or ended["progress"].get("done") != 0.77
    assert Path("/etc").stat().st_mode & 0o055 == 0o055
    eventually(lambda: not two.server.data.joinpath("runs", job).exists())


def test_files_of_the_machine_as_data(two: Two) -> None:
    for url in (str(two.server.data / "presage.db"), f"file://{two.home}/results"):
        job = two.submit(two.eve, "cat $PRESAGE_DATA_DIR/x*", data={"x": url})
        assert two.server.wait(job)["status"] == "FAILED"
        assert SECRET not in two.ask(two.eve, "GET", f"/jobs/{job}/logs").text
    target = two.home / "results" / "stolen"
    job = two.submit(two.eve, "echo x > $PRESAGE_RESULT_DIR/x", results=str(target))
    assert two.server.wait(job)["status"] == "FAILED"
    assert not target.exists()


def test_another_users_job_through_the_api(two: Two) -> None:
    for method, path in (
        ("GET", ""),
        ("GET", "/manifest"),
        ("GET", "/logs"),
        ("GET", "/log-files"),
        ("GET", "/telemetry"),
        ("GET", "/explain"),
        ("POST", "/stop"),
        ("POST", "/halt"),
        ("POST", "/resume"),
    ):
        answer = two.ask(two.eve, method, f"/jobs/{two.job}{path}")
        assert answer.status_code == 404, (path, answer.text)
    answer = two.ask(two.eve, "POST", f"/jobs/{two.job}/scale", json={"workers": 1})
    assert answer.status_code == 404
    listed = [job["id"] for job in two.ask(two.eve, "GET", "/jobs").json()["jobs"]]
    assert two.job not in listed


def test_another_users_secrets(two: Two) -> None:
    for name in ("key", "shared", "no-such"):
        answer = two.offer(two.eve, "true", secrets={"X": name})
        assert answer.status_code == 400
        text = answer.json()["error"]["text"]
        assert text == (
            f"secrets.X: there is no secret '{name}' that eve may use; make one with: "
            f"presage secrets set {name}"
        )
    assert two.ask(two.eve, "GET", "/secrets").json() == {"secrets": []}
    assert two.ask(two.eve, "DELETE", "/secrets/key").status_code == 404
    for method in ("PUT", "DELETE"):
        answer = two.ask(two.eve, method, "/secrets/shared?team=red", content=b"x")
        assert answer.status_code == 403
        assert "members and for the role operator; eve has the role user" in answer.text
    # Of one's own of the same name, one's own is used; the owner still has hers.
    assert two.ask(two.eve, "PUT", "/secrets/key", content=b"mine\n").status_code == 201
    assert two.output(two.eve, "echo ${#KEY}", secrets={"KEY": "key"}) == "4\n"
    assert two.output(two.ada, "echo ${#KEY}", secrets={"KEY": "key"}) == f"{len(SECRET)}\n"
    assert two.ask(two.eve, "DELETE", "/secrets/key").json()["user"] == "eve"
    answers = [two.server.http.get(f"/api/v1/{p}").text for p in ("audit?limit=1000", "secrets")]
    answers += [two.ask(two.ada, "GET", p).text for p in ("/secrets", f"/jobs/{two.job}/logs")]
    assert not [text for text in answers if SECRET in text or "of-the-team" in text]
    assert SECRET not in two.home.joinpath("job.json").read_text()
    assert SECRET not in two.server.log()


@pytest.mark.parametrize(
    ("asked", "rule"),
    [
        ({"priority": 11}, "access.limits.roles.user.max_priority"),
        ({"queue": "urgent"}, "access.limits.teams.blue.queues"),
    ],
)
def test_priorities_and_queues_of_others(two: Two, asked: dict[str, Any], rule: str) -> None:
    answer = two.offer(two.eve, "true", **asked)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
    assert rule in answer.json()["error"]["text"]
    dry = two.ask(two.eve, "POST", "/jobs/dry-run", json={"name": "a", "command": "true", **asked})
    assert dry.status_code == 403
    two.server.wait(two.submit(two.eve, "true", priority=10, queue="default"))


def test_tokens_and_roles_of_others(two: Two) -> None:
    for method, path, body in (
        ("POST", "/users", {"name": "x", "role": "admin"}),
        ("PATCH", "/users/eve", {"role": "admin"}),
        ("PATCH", "/users/eve", {"team": "red"}),
        ("POST", "/users/ada/token", None),
        ("DELETE", "/users/ada", None),
        ("GET", "/audit", None),
    ):
        answer = two.ask(two.eve, method, path, json=body)
        assert answer.status_code == 403, (path, answer.text)
        assert "needs the role admin; eve has the role user" in answer.json()["error"]["text"]


def test_ports(two: Two) -> None:
    """The API without a token; the server's own port; one of the machine's services."""
    port = two.server.port
    listen = "import socket; socket.socket().bind(('127.0.0.1', {}))"
    said = two.output(
        two.eve,
        f'python3 -c "{listen.format(port)}" 2>&1 | tail -1; '
        f"python3 -c \"import urllib.request as u; u.urlopen('http://127.0.0.1:{port}/api/v1/jobs')\""
        " 2>&1 | tail -1",
    ).splitlines()
    assert "Address already in use" in said[0]
    assert "401" in said[1]


# -- a server that is not root --------------------------------------------------------------------


@pytest.fixture(scope="module")
def podman_env(program: Callable[..., str]) -> Iterator[dict[str, str]]:
    """What podman needs for a user who is not root, with an image that has a shell."""
    engine, shell, runtime = program("podman"), program("busybox"), program("runc")
    with TemporaryDirectory(prefix="pod", ignore_cleanup_errors=True) as name:
        home = Path(name)
        (home / "run").mkdir(mode=0o700)
        (home / "containers.conf").write_text(
            f'[engine]\nruntime = "{runtime}"\ncgroup_manager = "cgroupfs"\n'
            'events_logger = "file"\n'
        )
        (home / "storage.conf").write_text(
            f'[storage]\ndriver = "vfs"\ngraphroot = "{home}/graph"\nrunroot = "{home}/run/c"\n'
            '[storage.options]\nignore_chown_errors = "true"\n'
        )
        with tarfile.open(home / "image.tar", "w") as tar:
            tar.add(shell, "bin/busybox")
            for applet in ("sh", "sleep", "cat", "ls", "id", "touch", "ps", "kill", "ln", "true"):
                link = tarfile.TarInfo(f"bin/{applet}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                tar.addfile(link)
        for path in (home, *home.iterdir()):
            os.chown(path, UID, UID)
        env = {
            "HOME": name,
            "XDG_RUNTIME_DIR": f"{name}/run",
            "CONTAINERS_CONF": f"{name}/containers.conf",
            "CONTAINERS_STORAGE_CONF": f"{name}/storage.conf",
        }

        def call(*argv: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [engine, *argv],
                env={**os.environ, **env},
                cwd=name,
                user=UID,
                group=UID,
                extra_groups=[],
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )

        for argv in (
            ("import", f"{name}/image.tar", IMAGE),
            ("run", "--rm", "--network", "host", IMAGE, "true"),
        ):
            if (done := call(*argv)).returncode:
                pytest.skip(f"podman cannot run here without root: {done.stderr.strip()[-300:]}")
        yield env
        call("rm", "--all", "--force")
        call("unshare", "rm", "-rf", f"{name}/graph")
        call("system", "migrate")  # ends the process that holds the user's namespace


class _Starter(Zygote):
    """Starts commands as a user who is not root: with another Python where root's own cannot be
    reached by others."""

    def __init__(self, home: Path) -> None:
        self._place = home
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, *argv: str, env: Mapping[str, str] = {}, cwd: Path | None = None) -> Command:
        """Start a command."""
        out, err = (self._place / f"command.{name}" for name in ("out", "err"))
        paths = [str(Path(presage.__file__).parents[1]), *filter(None, sys.path)]
        with out.open("wb") as said, err.open("wb") as wrong:
            process = subprocess.Popen(
                [self._python(), "-m", "presage", *argv],
                env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(paths), **env},
                cwd=cwd or self._place,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=wrong,
                user=UID,
                group=UID,
                extra_groups=[],
            )
        self._started.append(process)
        return Command(Forked(process.pid, socket.socket()), argv, out, err)

    def close(self) -> None:
        """Take away the remains."""
        for process in self._started:
            process.wait(PATIENCE_S)

    def _python(self) -> str:
        for python in (sys.executable, "/usr/bin/python3"):
            with suppress(PermissionError, FileNotFoundError):
                asked = subprocess.run(
                    [python, "-c", "import sys; print(sys.version_info[:2])"],
                    user=UID,
                    group=UID,
                    extra_groups=[],
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if asked.stdout.strip() == str(sys.version_info[:2]):
                    return python
        pytest.skip("no Python of this version can be reached by another user")


@pytest.fixture(scope="module")
def rootless(podman_env: dict[str, str]) -> Iterator[Two]:
    """Two users of a server that is not root; their jobs run in containers."""
    home = Path(podman_env["HOME"])
    (home / "sets").mkdir(mode=0o755)
    (home / "sets" / "rows").write_text("1 2 3")
    (home / "access.yaml").write_text(
        f"access: {{containers_only: true, data_roots: [{home}/sets]}}\n"
    )
    starter = _Starter(home)
    server = Server(
        starter,
        home / "data",
        "--config",
        str(home / "access.yaml"),
        env={"PRESAGE_TOKEN": ROOT_TOKEN, **podman_env},
        token=ROOT_TOKEN,
    )
    server.start()
    assert Path(f"/proc/{server.pid}").stat().st_uid == UID
    yield Two(server, IMAGE)
    server.stop_everything()
    server.close()
    starter.close()


def test_files_from_a_container(rootless: Two) -> None:
    data, job = rootless.server.data, rootless.job
    _all_refused(
        _tried(
            rootless,
            f"cat {data}/presage.db",
            f"ls {data}/secrets",
            f"cat {data}/jobs/{job}/results/out",
            f"cat {data}/jobs/{job}/checkpoints/c",
            f"cat {data}/secrets/.users/ada/key",
            f"cat {data}/runs/{job}/1/plan.json",
            "cat /etc/passwd",
            f"ls /proc/{rootless.server.pid}",
            f"kill -9 {rootless.server.pid}",
        )
    )
    # The way to one's own files is there, and nothing beside it.
    said = rootless.output(rootless.eve, f"ls {data} {data}/jobs /dev/shm /proc").split()
    assert {"jobs", "runs"} <= set(said)
    assert not {"presage.db", "secrets", job, str(rootless.server.pid)} & set(said)
    assert rootless.server.leads()


def test_ways_around_a_container(rootless: Two) -> None:
    """What the server itself would do for a job, outside of its container."""
    data = rootless.server.data
    bare = {"name": "bare", "command": "true"}
    answer = rootless.ask(rootless.eve, "POST", "/jobs", json=bare)
    assert answer.status_code == 403
    assert "containers_only" in answer.text
    for asked, status in (
        ({"results": f"{data}/secrets"}, 403),
        ({"results": f"local://{data}/x"}, 403),
        ({"data": {"x": f"local://{data}/presage.db"}}, 403),
        ({"data": {"x": f"simplecache::file://{data}/presage.db"}}, 403),
        ({"data": {"x": "../../../../presage.db"}}, 403),
        ({"git": f"file://{data}"}, 403),
        ({"git": str(data)}, 403),
        ({"image": "--privileged"}, 422),
    ):
        answer = rootless.ask(
            rootless.eve, "POST", "/jobs", json={**bare, "image": IMAGE, **asked}
        )
        assert answer.status_code == status, (asked, answer.text)
    sets = data.parent / "sets"
    for asked, why in (
        ({"data": {"x": str(data)}}, "what the server keeps"),
        ({"data": {"x": str(data.parent)}}, "what the server keeps"),
        ({"data": {"x": f"{sets}/../data/secrets"}}, "what the server keeps"),
        ({"data": {"x": "/etc"}}, "data_roots"),
        ({"checkpoint": {"dir": "/etc"}}, "without a leading /"),
    ):
        job = rootless.submit(rootless.eve, "true", **asked)
        ended = rootless.server.wait(job)
        assert ended["status"] == "FAILED"
        assert why in ended["reason"]["text"], ended["reason"]
    said = rootless.output(
        rootless.eve, f"cat {sets}/rows; touch {sets}/planted 2>&1", data={"x": str(sets)}
    )
    assert "1 2 3" in said
    assert not (sets / "planted").exists()
