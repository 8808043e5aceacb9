"""TLS by certificate files, and a standby that sends people to the leader; a CA of our own."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from presage.client import Client
from presage.model.errors import Unreachable, UserError
from tests.server.kit import Server, Zygote, eventually
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.engine, pytest.mark.slow]


class Authority:
    """A CA that signs certificates for this machine."""

    def __init__(self, openssl: str, home: Path) -> None:
        self._openssl, self._home = openssl, home
        self.cert = home / "ca.pem"
        self._run("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")

    def sign(self, name: str) -> tuple[Path, Path]:
        """A certificate and its key."""
        cert, key = self._home / f"{name}.pem", self._home / f"{name}.key"
        self._run(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-CA", str(self.cert), "-CAkey", str(self.cert.with_suffix(".key"))),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
            *("-addext", "basicConstraints=critical,CA:FALSE"),
            name=name,
        )
        return cert, key

    def _run(self, *argv: str, name: str = "ca") -> None:
        out = self._home / name
        subprocess.run(
            [
                *(self._openssl, *argv, "-days", "2", "-subj", f"/CN={name}"),
                *("-out", f"{out}.pem", "-keyout", f"{out}.key"),
            ],
            check=True,
            capture_output=True,
        )


@pytest.fixture(scope="module")
def authority(program: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """One for all tests here."""
    return Authority(program("openssl"), tmp_path_factory.mktemp("ca"))


def shown(server: Server) -> str:
    """The certificate that a server shows to a new connection."""
    return ssl.get_server_certificate(("127.0.0.1", server.port))


def test_everything_is_encrypted_and_a_standby_names_the_leader(
    serve: Callable[..., Server],
    authority: Authority,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cert, key = authority.sign("first")
    tls = ("--tls-cert", str(cert), "--tls-key", str(key), "--lease", "3")
    leader = serve(*tls, scheme="https").start()
    standby = serve(*tls, scheme="https").start()
    assert (leader.leads(), standby.leads()) == (True, False)
    assert standby.http.get("/readyz").json()["leader"] == leader.url
    said = leader.presage("ps", "--json", "--no-wait")
    assert (said.code, said.out) == (3, "")
    assert "is not trusted" in said.err
    assert "set PRESAGE_CA" in said.err
    assert len(said.err.splitlines()) == 1

    monkeypatch.setenv("PRESAGE_CA", str(authority.cert))
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "hello.txt").write_text("hello")
    manifest = folder / "job.yaml"
    manifest.write_text("name: one\ncommand: cat hello.txt\n")
    with Client(standby.url) as client:  # every call of it is led on
        job = client.submit(manifest)
        assert job.wait(PATIENCE_S).status == "COMPLETED"
    assert leader.logs(job.id) == "hello"

    sent = standby.http.post("/api/v1/jobs?a=1", json={"name": "a", "command": "true"})
    assert (sent.status_code, sent.headers["location"]) == (307, f"{leader.url}/api/v1/jobs?a=1")
    assert sent.json()["error"]["code"] == "not_leading"
    page = standby.http.get("/ui/queue", headers={"Accept": "text/html"})
    assert (page.status_code, page.headers["location"]) == (307, f"{leader.url}/ui/queue")
    assert standby.http.get("/api/v1/jobs").json()["jobs"][0]["id"] == job.id  # reads stay here

    trusting = {"SSL_CERT_FILE": str(authority.cert)}
    assert leader.presage("ps", "--json", env=trusting).json["jobs"][0]["id"] == job.id
    before = shown(leader)
    other, other_key = authority.sign("second")
    cert.write_bytes(b"broken")
    os.kill(leader.pid, signal.SIGHUP)
    eventually(lambda: "was not read again" in leader.log())
    assert shown(leader) == before
    cert.write_bytes(other.read_bytes())
    key.write_bytes(other_key.read_bytes())
    os.kill(leader.pid, signal.SIGHUP)
    eventually(lambda: shown(leader) != before)
    assert leader.leads()

    leader.kill()
    eventually(standby.leads)
    assert standby.http.post("/api/v1/jobs", json={}).status_code == 422


def test_the_token_goes_along_and_cookies_are_secure(
    serve: Callable[..., Server], authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby without TLS leads to a leader with it; there, the certificate counts."""
    cert, key = authority.sign("third")
    token, env = "presage_secret", {"PRESAGE_TOKEN": "presage_secret"}
    tls = ("--tls-cert", str(cert), "--tls-key", str(key))
    leader = serve(*tls, scheme="https", token=token, env=env).start()
    standby = serve(token=token, env=env).start()
    assert not standby.leads()
    with (
        Client(standby.url, token, patience_s=0) as client,
        pytest.raises(Unreachable, match=f"of {leader.url} is not trusted"),
    ):
        client.submit_text("name: a\ncommand: 'true'\n")
    monkeypatch.setenv("PRESAGE_CA", str(authority.cert))
    with Client(standby.url, token) as client:
        job = client.submit_text("name: a\ncommand: 'true'\n")
    assert leader.job(job.id)["owner"] == "admin"
    answer = httpx.post(f"{leader.url}/ui/session", data={"token": token}, verify=False)
    assert answer.status_code == 303
    assert "; secure" in answer.headers["set-cookie"].lower()
    monkeypatch.setenv("PRESAGE_CA", str(key))
    with pytest.raises(UserError, match="is no file of certificates"):
        Client(leader.url)


@pytest.mark.parametrize("which", ["missing", "no PEM", "of another"])
def test_a_wrong_certificate_is_one_line(
    zygote: Zygote, authority: Authority, tmp_path: Path, which: str
) -> None:
    cert, key = authority.sign("fourth")
    if which == "missing":
        cert = tmp_path / "nowhere.pem"
    elif which == "no PEM":
        cert = tmp_path / "text.pem"
        cert.write_text("hello")
    else:
        key = authority.sign("fifth")[1]
    said = zygote.run("serve", "--tls-cert", str(cert), "--tls-key", str(key), "--port", "0")
    assert said.code == 2
    assert said.err.startswith("error: --tls-cert")
    assert len(said.err.splitlines()) == 1
