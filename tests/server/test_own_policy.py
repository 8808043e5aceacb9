"""A server that decides by a policy of one's own, and a what-if under one that it has not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from presage.model.event import RulesChanged
from presage.store import open_store
from tests.server.kit import Server, Zygote

POLICY = """
def widest(job, plan, predict):
    if job.spec.priority == 7:
        raise LookupError("seven is too much")
    return (-job.spec.min_gpu_milli, job.seq)

def nothing():
    return 1 / 0
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    (folder / "ours.py").write_text(POLICY)
    return folder


@pytest.fixture(scope="module")
def server(zygote: Zygote, home: Path) -> Iterator[Server]:
    started = Server(zygote, home / "data", "--policy", str(home / "ours.py:widest"), nodes="1x4")
    yield started.start()
    started.close()


def test_it_decides_and_a_pass_that_raises_takes_nothing_down(server: Server, home: Path) -> None:
    first = server.submit("sleep 0.3", resources={"gpus": 4})
    narrow = server.submit("true", resources={"gpus": 1})
    wide = server.submit("sleep 0.1", resources={"gpus": 4})
    trouble = server.submit("true", resources={"gpus": 2}, priority=7)
    for job in (first, narrow, wide, trouble):
        assert server.wait(job)["status"] == "COMPLETED"
    (alert,) = server.http.get("/api/v1/alerts").json()["alerts"]
    assert "policy widest raised LookupError: seven is too much (line 4 of ours.py)" in alert
    assert server.http.get("/api/v1/policies").json()["own"] == ["widest"]
    store = open_store(f"sqlite:///{server.data / 'presage.db'}")
    try:
        told = [fact for _, fact in store.read() if isinstance(fact, RulesChanged)]
    finally:
        store.close()
    about = json.loads(told[0].policy)["own"]
    assert (about["name"], about["origin"], len(about["sha256"])) == ("widest", "ours.py", 64)


def test_a_what_if_knows_it_and_audits_it(server: Server, home: Path) -> None:
    told = server.presage("what-if", "--policy", "widest,fifo", "--json").json
    assert told["own"] == ["widest"]
    assert told["audit"]["same"]
    assert any("raised LookupError" in note for note in told["notes"])
    assert told["policies"]["widest"]["finished"] == told["recorded"]["finished"]


def test_another_policy_decides_for_a_while_and_then_it_again(server: Server) -> None:
    assert "of ours.py, what the server was started with" in server.presage("policy").err
    assert server.presage("policy", "set", "fifo").out == "fifo decides now; before: widest\n"
    assert server.http.get("/api/v1/policies").json()["own"] == ["fifo"]
    assert server.presage("what-if", "--policy", "widest", "--json").json["audit"]["same"]
    assert server.presage("policy", "set", "widest").out == "widest decides now; before: fifo\n"
    assert server.presage("policy", "--json").json["chosen"] is False  # its code is here alone


def test_a_what_if_under_a_policy_that_only_this_machine_has(server: Server, home: Path) -> None:
    (home / "mine.py").write_text("def last(job, plan, predict):\n    return (-job.seq,)\n")
    done = server.presage("what-if", "--policy", str(home / "mine.py:last"))
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines}
    assert {"as_it_happened", "widest_*", "last"} <= rows.keys()  # and what decides there
    assert rows["last"] != rows["widest_*"]
    assert "* decides on this server" in done.err
    assert max(map(len, lines)) <= 80
    answer = server.http.post("/api/v1/what-if", json={"policies": [str(home / "mine.py:last")]})
    assert answer.status_code == 400  # nobody sends a server code
    assert "unknown policy" in answer.json()["error"]["text"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("ours.py:nobody", "ours.py has no 'nobody'"),
        ("ours.py:nothing", "nothing cannot be made: ZeroDivisionError"),
        ("gone.py:x", "No such file"),
        ("nobody", "unknown policy 'nobody'"),
    ],
)
def test_a_server_refuses_what_is_no_policy_when_it_starts(
    zygote: Zygote, home: Path, name: str, says: str
) -> None:
    done = zygote.run("serve", "--port", "0", "--data", "elsewhere", "--policy", name, cwd=home)
    assert (done.code, done.out) == (2, "")
    assert says in done.err
    assert done.err.count("\n") == 1
