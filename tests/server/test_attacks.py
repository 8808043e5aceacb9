"""Attacks on a running server, and what each meets: the table of docs/reference/security.md.

Each row of the table is a test here; the last test holds the two together.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import socket
import sqlite3
import tarfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import psutil
import pytest

from presage.executors.node.processes import all_pids
from tests.server.kit import PATIENCE_S, Server, Zygote, eventually

ROOT_TOKEN = "presage_" + "r" * 43
SECRET = "the-secret-that-must-not-leak"
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "reference" / "security.md"


@pytest.fixture(scope="module")
def guarded(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with users and a secret."""
    data = tmp_path_factory.mktemp("attacked") / "data"
    server = Server(zygote, data, env={"PRESAGE_TOKEN": ROOT_TOKEN}, token=ROOT_TOKEN)
    server.start()
    (data / "secrets" / "key").write_text(SECRET)
    (data / "secrets" / "key").chmod(0o600)
    yield server
    server.close()


def refused(answer: httpx.Response, status: int, code: str) -> None:
    """It was refused in this way, in one line, without a trace of how the server is made."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["code"] == code
    assert "Traceback" not in answer.text
    assert "/site-packages" not in answer.text


def raw(server: Server, request: bytes) -> bytes:
    """The answer to bytes that no client library would send."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as link:
        link.sendall(request)
        link.shutdown(socket.SHUT_WR)
        got = b""
        while chunk := link.recv(65536):
            got += chunk
        return got


# -- paths ----------------------------------------------------------------------------------------

TRAVERSALS = ["..", "../..", "../../etc/passwd", "..%2f..", "/etc/passwd", "a/../../b", "%00"]


@pytest.mark.parametrize("name", TRAVERSALS)
@pytest.mark.parametrize("path", ["jobs/{}", "jobs/{}/logs", "jobs/{}/stop", "nodes/{}/drain"])
def test_traversal_in_names(server: Server, path: str, name: str) -> None:
    where = "/api/v1/" + path.format(quote(name, safe=""))
    method = "POST" if where.endswith(("stop", "drain")) else "GET"
    answer = server.http.request(method, where)
    assert answer.status_code in (400, 404, 405), answer.text
    assert "root:" not in answer.text


@pytest.mark.parametrize("worker", ["../../job.json", "worker-0/../../x", "..", "worker-0\0", "/"])
def test_traversal_in_workers(server: Server, worker: str) -> None:
    job = server.wait(server.submit("true"))["id"]
    refused(
        server.http.get(f"/api/v1/jobs/{job}/logs", params={"worker": worker}), 400, "user_error"
    )


@pytest.mark.parametrize("digest", ["..", "../../presage.db", "%2e%2e%2fpresage.db", "A" * 64])
def test_traversal_in_folders(server: Server, digest: str) -> None:
    answer = server.http.put(f"/api/v1/folders/{quote(digest, safe='')}", content=b"x")
    assert answer.status_code in (404, 422), answer.text
    answer = server.http.post(
        "/api/v1/jobs", params={"folder": digest}, json={"name": "a", "command": "true"}
    )
    refused(answer, 422, "bad_request")


@pytest.mark.parametrize("name", ["../a", "a/b", "..", ".hidden", "-rf", "A", "", "a" * 64, "a\n"])
def test_traversal_in_manifests(server: Server, name: str) -> None:
    answer = server.http.post("/api/v1/jobs", json={"name": name, "command": "true"})
    refused(answer, 422, "bad_manifest")
    body = {"name": "a", "command": "true", "checkpoint": {"dir": "../../out"}}
    refused(server.http.post("/api/v1/jobs", json=body), 422, "bad_manifest")
    body = {"name": "a", "command": "true", "secrets": {"KEY": "../presage.db"}}
    refused(server.http.post("/api/v1/jobs", json=body), 422, "bad_manifest")


def _tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    raw_bytes = io.BytesIO()
    with tarfile.open(fileobj=raw_bytes, mode="w") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return gzip.compress(raw_bytes.getvalue())


def _link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    "members",
    [
        [(tarfile.TarInfo("../../../../escaped"), b"x")],
        [(tarfile.TarInfo("/tmp/presage-escaped"), b"x")],
        [(_link("out", "../../../.."), b""), (tarfile.TarInfo("out/escaped"), b"x")],
        [(_link("passwd", "/etc/passwd"), b"")],
        [(_link("hard", "/etc/passwd", tarfile.LNKTYPE), b"")],
        [(_link("null", "", tarfile.CHRTYPE), b"")],
    ],
    ids=["dots", "absolute", "through a link", "symlink", "hard link", "device"],
)
def test_traversal_in_tar_members(
    server: Server, members: list[tuple[tarfile.TarInfo, bytes]]
) -> None:
    body = _tar(*members)
    name = hashlib.sha256(body).hexdigest()
    assert server.http.put(f"/api/v1/folders/{name}", content=body).status_code == 201
    answer = server.http.post(
        "/api/v1/jobs", params={"folder": name}, json={"name": "tar", "command": "cat passwd hard"}
    )
    job = server.wait(answer.json()["id"])
    assert job["status"] == "FAILED"
    assert job["started_at"] is None or "root:" not in server.logs(job["id"])
    eventually(lambda: not (server.data / "runs" / job["id"]).exists())
    assert not list(server.data.rglob("escaped"))
    assert not Path("/tmp/presage-escaped").exists()


# -- bombs ----------------------------------------------------------------------------------------

YAML_BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(9)
)


def cpu_s(server: Server) -> float:
    """CPU time that a server has used."""
    used = psutil.Process(server.pid).cpu_times()
    return used.user + used.system


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (YAML_BOMB, "application/yaml"),
        ("[" * 100_000, "application/yaml"),
        ("[" * 100_000, "application/json"),
        ('{"a":' * 50_000, "application/json"),
        ("a: " * 50_000, "application/yaml"),
        ("!!python/object/apply:os.system ['touch /tmp/presage-pwned']", "application/yaml"),
        ("x: " + "1" * 500_000, "application/yaml"),
        ("name: a\nname: b\ncommand: x", "application/yaml"),
    ],
    ids=["aliases", "deep", "deep json", "deep objects", "keys", "tags", "number", "twice"],
)
def test_bombs(server: Server, text: str, kind: str) -> None:
    before = cpu_s(server)
    answer = server.http.post("/api/v1/jobs", content=text, headers={"Content-Type": kind})
    refused(answer, 422, "bad_manifest")
    assert cpu_s(server) - before < 60  # 0.3 s at most; without a limit it would take hours
    assert len(answer.text) < 2000
    assert not Path("/tmp/presage-pwned").exists()


def test_huge_bodies(server: Server) -> None:
    text = b"x" * ((1 << 20) + 1)
    refused(server.http.post("/api/v1/jobs", content=text), 413, "too_large")
    claimed = (
        b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n"
    )
    assert b" 413 " in raw(server, claimed).split(b"\r\n")[0]


def test_chunked_bodies_without_a_length(server: Server) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(40):
            yield b"x" * (1 << 16)

    try:
        answer = server.stranger.post("/api/v1/jobs", content=chunks())
    except httpx.TransportError:
        pass  # cut off before all of it was sent
    else:
        refused(answer, 413, "too_large")
    assert server.leads()


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 200_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n",
    ],
    ids=["header", "address", "negative length", "two lengths", "not HTTP", "NUL in a header"],
)
def test_malformed_requests(server: Server, request_bytes: bytes) -> None:
    try:
        answer = raw(server, request_bytes)
    except (ConnectionResetError, BrokenPipeError):
        answer = b""
    assert b" 500 " not in answer.split(b"\r\n")[0]
    assert server.leads()


# -- who asks -------------------------------------------------------------------------------------


def test_foreign_tokens(guarded: Server) -> None:
    for token in ("presage_" + "x" * 43, ROOT_TOKEN[:-1], ROOT_TOKEN + "x", ROOT_TOKEN.upper()):
        headers = {"Authorization": f"Bearer {token}"}
        answer = guarded.stranger.get("/api/v1/jobs", headers=headers)
        refused(answer, 401, "unauthorized")
        assert token not in guarded.log()


def test_revoked_tokens(guarded: Server) -> None:
    with guarded.client() as client:
        token = client.add_user("mallory", "user").token
        headers = {"Authorization": f"Bearer {token}"}
        job = guarded.stranger.post(
            "/api/v1/jobs",
            json={"name": "mine", "command": "sleep 600"},
            headers=headers,
        ).json()["id"]
        client.remove_user("mallory")
    refused(guarded.stranger.get(f"/api/v1/jobs/{job}", headers=headers), 401, "unauthorized")
    stopped = guarded.stranger.post(f"/api/v1/jobs/{job}/stop", headers=headers)
    refused(stopped, 401, "unauthorized")
    guarded.tell(job, "stop")


def test_foreign_jobs(guarded: Server) -> None:
    """What a user may not see is as if it were not there."""
    with guarded.client() as client:
        token = client.add_user("trudy", "user", "other").token
    job = guarded.submit("sleep 600", name="private")
    headers = {"Authorization": f"Bearer {token}"}
    for method, path in (("GET", ""), ("GET", "/logs"), ("GET", "/manifest"), ("POST", "/stop")):
        answer = guarded.stranger.request(method, f"/api/v1/jobs/{job}{path}", headers=headers)
        refused(answer, 404, "not_found")
    events = guarded.stranger.get(f"/api/v1/events?job={job}", headers=headers)
    refused(events, 404, "not_found")
    key = {"Idempotency-Key": "shared"}
    mine = guarded.http.post(
        "/api/v1/jobs", json={"name": "k", "command": "true"}, headers=key
    ).json()
    theirs = guarded.stranger.post(
        "/api/v1/jobs",
        json={"name": "k", "command": "true"},
        headers={**headers, **key},
    ).json()
    assert mine["id"] != theirs["id"]
    guarded.tell(job, "stop")


def test_secrets_stay_secret(guarded: Server) -> None:
    job_id = guarded.submit(
        "printf 'key is '; echo $KEY | head -c 9; sleep 0.7; echo $KEY | tail -c +10; "
        'echo "${#KEY}"; echo "worker ran out of $KEY" >&2; exit 1',
        name="secretive",
        secrets={"KEY": "key"},
    )
    guarded.wait(job_id, "PROCESSING", "FAILED")
    lines = [
        Path(f"/proc/{pid}/cmdline").read_bytes()
        for pid in all_pids()
        if Path(f"/proc/{pid}/cmdline").exists()
    ]
    assert not [line for line in lines if SECRET.encode() in line]
    live = guarded.logs(job_id, follow=1)
    job = guarded.wait(job_id)
    answers = [json.dumps(job)]
    for path in ("manifest", "explain", "logs"):
        answers.append(guarded.http.get(f"/api/v1/jobs/{job_id}/{path}").text)
    answers.append(guarded.http.get("/api/v1/audit").text)
    answers.append(guarded.http.get("/metrics").text)
    answers.append(guarded.log())
    assert not [text for text in answers if SECRET in text or SECRET[:9] in text]
    stars = "*" * len(SECRET)
    shown = f"key is {stars}\n{len(SECRET)}\nworker ran out of {stars}\n"
    assert live == guarded.logs(job_id) == shown
    for offset in range(len(shown)):
        assert guarded.logs(job_id, offset=offset) == shown[offset:]
    database = sqlite3.connect(guarded.data / "presage.db")
    try:
        assert SECRET not in "\n".join(database.iterdump())
    finally:
        database.close()
    for file in guarded.data.rglob("*"):
        if file.is_file() and "secrets" not in file.parts and "logs" not in file.parts:
            assert SECRET.encode() not in file.read_bytes(), file


# -- browsers -------------------------------------------------------------------------------------


def test_dns_rebinding(server: Server) -> None:
    for host in ("evil.example", "evil.example:8265", "localhost.evil.example", "", "127.0.0.1.x"):
        answer = raw(
            server,
            f"GET /api/v1/jobs HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode(),
        )
        assert b" 403 " in answer.split(b"\r\n")[0], host
    for host in ("localhost", f"127.0.0.1:{server.port}", "[::1]:80"):
        assert server.http.get("/api/v1/jobs", headers={"Host": host}).status_code == 200, host


def test_cross_origin_requests(server: Server) -> None:
    for origin in ("https://evil.example", "null", "http://127.0.0.1:1", "http://localhost"):
        answer = server.http.post(
            "/api/v1/jobs", json={"name": "x", "command": "true"}, headers={"Origin": origin}
        )
        refused(answer, 403, "forbidden")
        assert "access-control-allow-origin" not in answer.headers
    own = {"Origin": server.url, "Host": f"127.0.0.1:{server.port}"}
    assert server.http.get("/api/v1/jobs", headers=own).status_code == 200


# -- texts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/jobs/%00",
        "/api/v1/jobs?owner=%00",
        "/api/v1/jobs?queue=a%00b",
        "/api/v1/events?job=%00",
        "/api/v1/audit?job=%00",
        "/api/v1/jobs/x%00/logs",
    ],
)
def test_nul_characters(server: Server, path: str) -> None:
    refused(server.http.get(path), 400, "user_error")
    for field in ("command", "image", "model"):
        answer = server.http.post(
            "/api/v1/jobs", json={"name": "a", "command": "true", field: "a\0b"}
        )
        refused(answer, 422, "bad_manifest")


def test_unicode(server: Server) -> None:
    for text in ("\u202egnp.exe", "\ud800", "💥", "\u017f", "A\u0301"):
        body = json.dumps({"name": text, "command": "true"}).encode()
        answer = server.http.post(
            "/api/v1/jobs", content=body, headers={"Content-Type": "application/json"}
        )
        refused(answer, 422, "bad_manifest")
    job = server.submit(["echo", "Zoë 💥 \u202e"], labels={"who": "Zoë"})
    server.wait(job)
    assert server.logs(job) == "Zoë 💥 \u202e\n"


def test_header_injection(server: Server) -> None:
    answer = server.http.get("/api/v1/jobs/a%0d%0aSet-Cookie:%20x=1")
    refused(answer, 404, "not_found")
    assert "set-cookie" not in answer.headers
    for url in ("http://h/\r\nX: y", "ftp://h/", "file:///etc/passwd", "http://", "//h"):
        body = {"name": "a", "command": "true", "webhooks": [url]}
        refused(server.http.post("/api/v1/jobs", json=body), 422, "bad_manifest")


def test_shell_metacharacters(server: Server) -> None:
    """A list is executed as it is; only a line goes to a shell, which is its owner's wish."""
    mark = server.data / "injected"
    job = server.submit(["echo", f"$(touch {mark}); touch {mark}"], name="list")
    server.wait(job)
    assert not mark.exists()


def test_sql(server: Server) -> None:
    for text in ("' OR 1=1 --", "'; DROP TABLE jobs; --", "%", "_"):
        assert server.http.get("/api/v1/jobs", params={"owner": text}).json()["jobs"] == []
        answer = server.http.get(f"/api/v1/jobs/{quote(text, safe='')}")
        refused(answer, 404, "not_found")
    assert server.http.get("/api/v1/jobs").json()["jobs"]


def test_files_are_for_their_owner_alone(guarded: Server) -> None:
    guarded.wait(guarded.submit("true"))
    assert guarded.data.stat().st_mode & 0o777 == 0o700
    assert (guarded.data / "presage.db").stat().st_mode & 0o077 == 0


def test_the_document_names_every_attack() -> None:
    rows = set(re.findall(r"`(test_\w+)`", DOCUMENT.read_text(encoding="utf-8")))
    tests = {name for name in globals() if name.startswith("test_")}
    between = Path(__file__).with_name("test_attacks_between_users.py").read_text(encoding="utf-8")
    tests |= set(re.findall(r"^def (test_\w+)", between, re.MULTILINE))
    assert rows == tests - {"test_the_document_names_every_attack"}
