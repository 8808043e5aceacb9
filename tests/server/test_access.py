"""Who may do what: roles, tokens and what is shown to whom."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import httpx
import pytest

from tests.server.kit import Server, Zygote, eventually, free_port

ROOT_TOKEN = "presage_root-of-the-tests"
PEOPLE = {
    "victor": ("viewer", ""),
    "ada": ("user", "red"),
    "bob": ("user", "red"),
    "eve": ("user", "blue"),
    "olga": ("operator", ""),
    "root": ("admin", ""),
}


@pytest.fixture(scope="module")
def guarded(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with users."""
    data = tmp_path_factory.mktemp("guarded") / "data"
    server = Server(zygote, data, env={"PRESAGE_TOKEN": ROOT_TOKEN}, token=ROOT_TOKEN)
    yield server.start()
    server.close()


@pytest.fixture(scope="module")
def tokens(guarded: Server) -> dict[str, str]:
    """A token of each person."""
    with guarded.client() as client:
        return {name: client.add_user(name, *about).token for name, about in PEOPLE.items()}


def test_adding_never_changes_who_is_there(guarded: Server, tokens: dict[str, str]) -> None:
    """`users add admin` made the only admin a user, and took the token away."""
    done = guarded.presage("users", "add", "admin")
    assert (done.code, len(done.err.strip().splitlines())) == (2, 1)
    assert "presage users token admin" in done.err
    assert "presage users set admin" in done.err
    assert guarded.presage("users", "add", "ada", "--role", "viewer").code == 2
    known = {user["name"]: user for user in guarded.presage("users", "--json").json["users"]}
    assert known["admin"]["role"] == "admin"
    assert (known["ada"]["role"], known["ada"]["team"]) == ("user", "red")
    assert ask(guarded, tokens["ada"], "GET", "/api/v1/me").status_code == 200


def ask(guarded: Server, token: str, method: str, path: str, **rest: object) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return guarded.stranger.request(method, path, headers=headers, **rest)  # type: ignore[arg-type]


MANIFEST = {"name": "mine", "command": "sleep 600"}
ELASTIC = {**MANIFEST, "workers": "1..2", "grace": "1s"}
EVERYBODY = set(PEOPLE)
TABLE: list[tuple[str, str, set[str]]] = [
    ("GET", "/api/v1/me", EVERYBODY),
    ("GET", "/api/v1/jobs", EVERYBODY),
    ("GET", "/api/v1/nodes", EVERYBODY),
    ("GET", "/api/v1/queues", EVERYBODY),
    ("GET", "/metrics", EVERYBODY),
    ("GET", "/api/v1/alerts", EVERYBODY),
    ("GET", "/api/v1/health/alerts", EVERYBODY),
    ("GET", "/api/v1/diagnosis/cluster", EVERYBODY),
    ("GET", "/api/v1/diagnosis/ADAS", EVERYBODY - {"eve"}),
    ("POST", "/api/v1/jobs", EVERYBODY - {"victor"}),
    ("GET", "/api/v1/jobs/ADAS", EVERYBODY - {"eve"}),
    ("GET", "/api/v1/jobs/ADAS/manifest", EVERYBODY - {"eve"}),
    ("GET", "/api/v1/jobs/ADAS/explain", EVERYBODY - {"eve"}),
    ("GET", "/api/v1/jobs/ADAS/logs", EVERYBODY - {"eve"}),
    ("GET", "/api/v1/jobs/ADAS/log-files", EVERYBODY - {"eve"}),
    ("GET", "/api/v1/jobs/ADAS/telemetry", EVERYBODY - {"eve"}),
    ("GET", "/api/v1/jobs/ADAS/progress", EVERYBODY - {"eve"}),
    ("GET", "/api/v1/waiting?job=none", EVERYBODY),
    ("GET", "/api/v1/cluster-map", EVERYBODY),
    ("GET", "/api/v1/shares", EVERYBODY),
    ("GET", "/api/v1/utilization", EVERYBODY),
    ("GET", "/api/v1/policies", EVERYBODY),
    ("POST", "/api/v1/jobs/dry-run", EVERYBODY - {"victor"}),
    ("POST", "/api/v1/what-if", {"olga", "root"}),
    ("POST", "/api/v1/what-if/trace", {"olga", "root"}),
    ("POST", "/api/v1/jobs/ADAS/scale", {"ada", "olga", "root"}),
    ("POST", "/api/v1/jobs/ADAS/halt", {"ada", "olga", "root"}),
    ("POST", "/api/v1/jobs/ADAS/resume", {"ada", "olga", "root"}),
    ("POST", "/api/v1/jobs/ADAS/stop", {"ada", "olga", "root"}),
    ("POST", "/api/v1/nodes/none/drain", {"olga", "root"}),
    ("POST", "/api/v1/nodes/none/undrain", {"olga", "root"}),
    ("GET", "/api/v1/users", {"root"}),
    ("POST", "/api/v1/users", {"root"}),
    ("PATCH", "/api/v1/users/nobody", {"root"}),
    ("POST", "/api/v1/users/nobody/token", {"root"}),
    ("DELETE", "/api/v1/users/nobody", {"root"}),
    ("GET", "/api/v1/audit", {"root"}),
]


@pytest.mark.parametrize(("method", "path", "allowed"), TABLE)
def test_a_role_allows_what_it_should(
    guarded: Server, tokens: dict[str, str], method: str, path: str, allowed: set[str]
) -> None:
    found = set()
    numbers = count()
    for name, token in tokens.items():
        if name == "root":
            continue  # every other answer is checked against it below
        found |= {name} if _allowed(guarded, tokens, token, method, path, next(numbers)) else set()
    if _allowed(guarded, tokens, ROOT_TOKEN, method, path, next(numbers)):
        found.add("root")
    assert found == allowed


def _allowed(
    guarded: Server, tokens: dict[str, str], token: str, method: str, path: str, number: int
) -> bool:
    bodies: dict[str, object] = {
        "/api/v1/jobs": MANIFEST,
        "/api/v1/jobs/dry-run": MANIFEST,
        "/api/v1/jobs/ADAS/scale": {"workers": 2},
        "/api/v1/users": {"name": f"new-{number}", "role": "viewer"},
        "/api/v1/what-if": {"policies": ["nonsense"]},
        "/api/v1/what-if/trace": {},
    }
    body = bodies.get(path) if method == "POST" else {"team": ""} if method == "PATCH" else None
    if "ADAS" in path:
        manifest = ELASTIC if path.endswith("scale") else MANIFEST
        job = ask(guarded, tokens["ada"], "POST", "/api/v1/jobs", json=manifest).json()["id"]
        if path.endswith("resume"):
            ask(guarded, tokens["ada"], "POST", f"/api/v1/jobs/{job}/halt")
            guarded.wait(job, "HALTED")
        path = path.replace("ADAS", job)
    answer = ask(guarded, token, method, path, json=body)
    if "/none/" in path or "/nobody" in path:
        assert answer.status_code in (403, 404), answer.text
        return answer.status_code == 404  # asked far enough to see that there is none
    if "what-if" in path and answer.status_code == 400:
        # Asked far enough to see that there is no such policy, or no job in the journal.
        assert "nonsense" in answer.text or "no job ran" in answer.text
        return True
    assert answer.status_code in (200, 201, 202, 403, 404), answer.text
    return answer.is_success


@pytest.fixture(autouse=True)
def calm(guarded: Server) -> Iterator[None]:
    """Nothing goes on running between the tests."""
    yield
    guarded.stop_everything()


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer nonsense", "Basic a"])
def test_without_a_known_token_nothing_is_told(guarded: Server, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header}
    for path in ("/api/v1/jobs", "/api/v1/nodes", "/api/v1/me", "/metrics", "/api/v1/events"):
        answer = guarded.stranger.get(path, headers=headers)
        assert answer.status_code == 401, path
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["error"]["code"] == "unauthorized"
    assert guarded.stranger.get("/healthz").status_code == 200


def test_a_user_sees_the_teams_jobs_and_no_others(guarded: Server, tokens: dict[str, str]) -> None:
    made = {
        name: ask(guarded, tokens[name], "POST", "/api/v1/jobs", json=MANIFEST).json()["id"]
        for name in ("ada", "bob", "eve")
    }

    def listed(name: str, query: str = "") -> set[str]:
        answer = ask(guarded, tokens[name], "GET", f"/api/v1/jobs?status=PROCESSING{query}")
        return {job["id"] for job in answer.json()["jobs"]}

    for job in made.values():
        guarded.wait(job, "PROCESSING")
    assert listed("ada") == listed("bob") == {made["ada"], made["bob"]}
    assert listed("eve") == {made["eve"]}
    assert listed("victor") == set(made.values())
    assert listed("ada", "&owner=bob") == {made["bob"]}
    assert listed("eve", "&owner=bob") == set()
    nodes = ask(guarded, tokens["eve"], "GET", "/api/v1/nodes").json()["nodes"]
    assert all(node["jobs"] == [] for node in nodes)


def test_who_is_ahead_is_named_to_those_who_may_know(
    guarded: Server, tokens: dict[str, str]
) -> None:
    full = {**MANIFEST, "resources": {"gpus": 4}, "workers": 2}
    made = [
        ask(guarded, tokens[name], "POST", "/api/v1/jobs", json=full).json()["id"]
        for name in ("olga", "ada", "eve", "bob")
    ]

    def ahead(name: str) -> tuple[int, list[str]]:
        answer = ask(guarded, tokens[name], "GET", f"/api/v1/jobs/{made[3]}/explain").json()
        return answer["ahead"], answer["ahead_jobs"]

    guarded.wait(made[0], "PROCESSING")
    assert ahead("olga") == ahead("victor") == (2, made[1:3])
    assert ahead("bob") == ahead("ada") == (2, made[1:2])
    denied = ask(guarded, tokens["eve"], "GET", f"/api/v1/jobs/{made[3]}/explain")
    assert denied.status_code == 404


def test_tokens_are_renewed_kept_and_revoked(guarded: Server) -> None:
    def works(token: str) -> bool:
        return ask(guarded, token, "GET", "/api/v1/me").is_success

    with guarded.client() as client:
        first = client.add_user("tom", "viewer", "red").token
        second = client.new_token("tom", keep=True).token
        assert works(first)
        assert works(second)
        third = guarded.presage("users", "token", "tom").out.strip()
        assert [works(token) for token in (first, second, third)] == [False, False, True]
        changed = guarded.presage("users", "set", "tom", "--role", "operator", "--json").json
        assert (changed["role"], changed["team"]) == ("operator", "red")
        assert ask(guarded, third, "GET", "/api/v1/me").json()["role"] == "operator"
        assert client.set_user("tom", team="").team == ""
        client.remove_user("tom")
    assert not works(third)


def test_a_new_token_of_ones_own_needs_no_admin(guarded: Server) -> None:
    with guarded.client() as client:
        old = client.add_user("self", "viewer").token
    made = ask(guarded, old, "POST", "/api/v1/users/self/token")
    assert made.status_code == 201
    assert ask(guarded, old, "GET", "/api/v1/me").status_code == 401
    other = ask(guarded, made.json()["token"], "POST", "/api/v1/users/ada/token")
    assert other.status_code == 403


def test_the_last_admin_stays(serve: Callable[..., Server], zygote: Zygote) -> None:
    server = serve(env={"PRESAGE_TOKEN": "t" * 30}, token="t" * 30).start()
    with server.client() as client:
        client.add_user("vic", "viewer")
    answers = [
        server.http.delete("/api/v1/users/admin"),
        server.http.patch("/api/v1/users/admin", json={"role": "operator"}),
    ]
    for answer in answers:
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "user_error")
        assert "only admin" in answer.text
    # The way back in: on the server's machine, without a token, while the server runs or not.
    there = ("--data", str(server.data))
    assert "only admin" in zygote.run("users", "remove", "admin", *there).err
    assert "only admin" in zygote.run("users", "set", "admin", "--role", "user", *there).err
    token = zygote.run("users", "token", "admin", *there).out.strip()
    eventually(lambda: server.http.get("/api/v1/me").status_code == 401)
    headers = {"Authorization": f"Bearer {token}"}
    assert server.stranger.get("/api/v1/me", headers=headers).json()["role"] == "admin"
    entry = server.stranger.get("/api/v1/audit", headers=headers).json()["entries"][0]
    assert entry["what"] == "new token"
    assert entry["who"].endswith(", offline")
    assert token not in str(entry)


def test_offline_a_wrong_directory_is_one_line(zygote: Zygote, tmp_path: Path) -> None:
    done = zygote.run("users", "--data", str(tmp_path))
    assert (done.code, len(done.err.strip().splitlines())) == (2, 1)
    assert "there is no database" in done.err
    assert not list(tmp_path.iterdir())
    assert (
        "put --data and --db behind add"
        in zygote.run("users", "--data", str(tmp_path), "add", "x").err
    )


def test_who_is_refused_hears_what_to_do(guarded: Server, tokens: dict[str, str]) -> None:
    said = ask(guarded, "", "GET", "/api/v1/jobs").json()["error"]["text"]
    assert "presage login" in said
    assert "presage users token" in said
    said = ask(guarded, tokens["victor"], "POST", "/api/v1/jobs", json=MANIFEST).json()
    assert "needs the role user; victor has the role viewer" in said["error"]["text"]
    job = ask(guarded, tokens["ada"], "POST", "/api/v1/jobs", json=MANIFEST).json()["id"]
    said = ask(guarded, tokens["bob"], "POST", f"/api/v1/jobs/{job}/stop").json()["error"]["text"]
    assert "needs the role operator; bob has the role user" in said


def test_tokens_are_hashed_at_rest(guarded: Server, tokens: dict[str, str]) -> None:
    database = sqlite3.connect(guarded.data / "presage.db")
    try:
        dump = "\n".join(database.iterdump())
    finally:
        database.close()
    assert "ada" in dump
    for token in (*tokens.values(), ROOT_TOKEN):
        assert token not in dump
        assert token not in guarded.log()


def test_a_server_that_others_can_reach_wants_a_token(zygote: Zygote, tmp_path: Path) -> None:
    argv = ("serve", "--host", "0.0.0.0", "--port", str(free_port()), "--data", str(tmp_path))
    done = zygote.run(*argv)
    assert done.code == 2
    assert "set PRESAGE_TOKEN" in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_a_used_address_is_told_in_one_line(
    guarded: Server, zygote: Zygote, tmp_path: Path
) -> None:
    argv = ("serve", "--port", str(guarded.port), "--data", str(tmp_path))
    done = zygote.run(*argv)
    assert (done.code, len(done.err.strip().splitlines())) == (2, 1)
