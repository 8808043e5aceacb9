"""What the proxy of jobs' ports passes on, and what it keeps; and what it signs."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from presage.control.forwarding import PortPath
from presage.control.people.tickets import Signer
from presage.model.errors import BadRequest, NotFound
from presage.server import proxy
from presage.server.proxy import _back, _onwards


def target(path: str = "/jobs/a-1/ports/6006/x/y") -> PortPath:
    return PortPath.parse(path)


def test_a_path_names_a_port_of_a_job_and_nothing_else() -> None:
    assert target().path == "/x/y"
    whole = target("/jobs/a-1/absolute/8888/lab%2Fx")
    assert (whole.job, whole.port, whole.path) == ("a-1", 8888, "/jobs/a-1/absolute/8888/lab%2Fx")
    for path in ("/", "/jobs/a/ports/6006", "/jobs/../ports/1/", "/jobs/A/ports/1/", "/api/v1/me"):
        with pytest.raises(NotFound):
            target(path)
    for path in ("/../x", "/a/%2e%2e/x", "/%252e%252e/x", "/a%5c..%5cx"):
        with pytest.raises(BadRequest):
            target(f"/jobs/a/ports/6006{path}")


def test_neither_tokens_nor_our_cookies_go_to_a_job() -> None:
    given = {
        "host": "presage.example",
        "authorization": "Bearer secret",
        "cookie": "presage_port=ours; presage_token=ours; theirs=1",
        "connection": "keep-alive, X-Private",
        "x-private": "hop",
        "x-forwarded-for": "forged",
        "origin": "http://presage.example",
        "accept": "text/html",
    }
    headers = [(name.encode(), value.encode()) for name, value in given.items()]
    scope = {"type": "http", "headers": headers, "scheme": "http", "path": "/", "server": ("x", 1)}
    run: Any = SimpleNamespace(started={"token": "of-the-run"})
    sent = dict(_onwards(Request(scope), target(), run))
    assert sent == {
        b"accept": b"text/html",
        b"Cookie": b"theirs=1",
        b"Host": b"127.0.0.1:6006",
        b"Authorization": b"token of-the-run",
        b"X-Forwarded-Prefix": b"/jobs/a-1/ports/6006",
        b"X-Forwarded-Proto": b"http",
    }


def test_what_a_job_says_stays_on_its_own_path() -> None:
    given = [
        (b"Content-Type", b"text/html"),
        (b"Set-Cookie", b"theirs=1; Path=/; Domain=example.org; HttpOnly"),
        (b"Set-Cookie", b"presage_token=forged; Path=/ui"),
        (b"Location", b"/login"),
        (b"Connection", b"close, X-Hop"),
        (b"X-Hop", b"1"),
        (b"Service-Worker-Allowed", b"/"),
        (b"Clear-Site-Data", b'"*"'),
    ]
    assert _back(given, target()) == [
        (b"content-type", b"text/html"),
        (b"set-cookie", b"theirs=1; HttpOnly; Path=/jobs/a-1/ports/6006/"),
        (b"location", b"/jobs/a-1/ports/6006/login"),
        (b"referrer-policy", b"same-origin"),
    ]
    for said, is_sent in (
        ("http://127.0.0.1:6006/x", "/jobs/a-1/ports/6006/x"),
        ("/jobs/a-1/ports/6006/x", "/jobs/a-1/ports/6006/x"),
        ("next", "next"),
        ("https://example.org/", "https://example.org/"),
    ):
        assert proxy._location(said, target()) == is_sent


def test_a_signature_is_good_for_one_thing_and_one_time(tmp_path: Path) -> None:
    signer, later = Signer(tmp_path / "key"), time.time() + 60
    text = signer.sign("ticket", "ada", "a-1", 6006, later)
    assert Signer(tmp_path / "key").user("ticket", text, "a-1", 6006) == "ada"
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    for kind, job, port in (("cookie", "a-1", 6006), ("ticket", "b", 6006), ("ticket", "a-1", 1)):
        assert signer.user(kind, text, job, port) is None
    old = signer.sign("ticket", "ada", "a-1", 6006, time.time() - 1)
    body, _, mac = text.partition(".")
    for wrong in (old, "", "x", f"{body}.", f"{body}.{mac[:-2]}AA", f"é.{mac}", f"{body}x.{mac}"):
        assert signer.user("ticket", wrong, "a-1", 6006) is None
    assert Signer(tmp_path / "other").user("ticket", text, "a-1", 6006) is None
