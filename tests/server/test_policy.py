"""Another policy on a running server: who may choose it, what it decides, how long it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from presage.model.event import RulesChanged
from presage.store import open_store
from tests.server.kit import Server, Zygote, eventually

ADMIN = "admin-token-of-these-tests"
URGENT = "policies:\n  urgent: {order: priority}\n"
ONE: dict[str, Any] = {"resources": {"gpus": 1}}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    (folder / "server.yaml").write_text(
        "policies: {ours: {order: sjf, mode: greedy}, apart: {queues: {night: {}}}}\n"
        "queues: {default: {limit_gpus: 1}}\n"
    )
    (folder / "urgent.yaml").write_text(URGENT)
    (folder / "two.yaml").write_text("policies: {a: {}, b: {order: sjf}}\n")
    (folder / "queues.yaml").write_text(URGENT + "queues: {default: {limit_gpus: 9}}\n")
    (folder / "clash.yaml").write_text("policies: {fifo: {order: sjf}}\n")
    (folder / "wrong.yaml").write_text("policies: {a: {order: loudest}}\n")
    return folder


@pytest.fixture
def make(zygote: Zygote, home: Path) -> Iterator[Callable[..., Server]]:
    """Servers with users on one database, each with a data directory of its own."""
    made: list[Server] = []

    def one(name: str, *options: str) -> Server:
        db = f"sqlite:///{home / 'shared.db'}"
        config = str(home / "server.yaml")
        made.append(
            Server(
                zygote,
                home / name,
                *("--db", db, "--lease", "1", "--config", config, *options),
                nodes="1x2",
                token=ADMIN,
                env={"PRESAGE_TOKEN": ADMIN},
            )
        )
        return made[-1]

    yield one
    for server in made:
        server.close()


def test_a_choice_decides_and_outlives_the_server(make: Callable[..., Server], home: Path) -> None:
    server = make("first").start()
    said = server.presage("policy", "--json").json
    assert (said["name"], said["chosen"], said["started_with"]) == ("fifo", False, "fifo")
    assert {"fifo", "srtf", "ours"} <= set(said["choices"])
    runs = server.submit("sleep 600", **ONE)
    server.wait(runs, "PROCESSING")
    patient, urgent = server.submit("sleep 600", **ONE), server.submit(priority=5, **ONE)

    done = server.presage("policy", "set", "urgent.yaml", cwd=home)
    assert done.code == 0, done.err
    assert done.out == "urgent decides now; before: fifo\n"
    assert "running jobs stay as they are\n" in done.err
    assert "until presage policy reset" in done.err
    assert server.job(runs)["status"] == "PROCESSING"
    assert server.job(runs)["attempt"] == 1
    assert server.http.get("/api/v1/policies").json()["own"] == ["urgent"]
    assert server.presage("what-if", "--policy", "urgent,fifo", "--json").json["audit"]["same"]

    server.tell(runs, "stop")
    assert server.wait(urgent)["status"] == "COMPLETED"  # by fifo it would wait for the other
    server.wait(patient, "PROCESSING")
    shown = server.presage("policy")
    assert shown.out == "urgent\n"
    assert "chosen by admin 20" in shown.err
    assert "started with fifo" in shown.err
    entry = server.http.get("/api/v1/audit").json()["entries"]
    (noted,) = [one for one in entry if one["what"] == "set policy"]
    assert (noted["who"], noted["detail"]) == ("admin", {"policy": "urgent", "before": "fifo"})

    standby = make("second", "--policy", "sjf").start()
    assert not standby.leads()
    server.kill()
    eventually(standby.leads)
    assert standby.presage("policy", "--json").json["name"] == "urgent"
    assert "policy urgent decides: it was chosen with `presage policy set`" in standby.log()
    assert "started with sjf, which counts again after `presage policy reset`" in standby.log()

    done = standby.presage("policy", "reset", "--json").json
    assert (done["name"], done["chosen"], done["by"]) == ("sjf", False, "")
    standby.stop()
    again = make("second", "--policy", "tiresias").start()
    assert again.presage("policy").out == "tiresias\n"
    rules = [(rule.chosen, '"limit_gpus":1.0' in rule.policy) for rule in journaled(home)]
    assert rules[:2] == [("", True), ("urgent", True)]  # the queues are the server's
    assert rules[-2:] == [("", True), ("", True)]
    assert again.presage("what-if", "--policy", "fifo", "--json").json["audit"]["same"]


def test_what_cannot_be_chosen_is_one_line(make: Callable[..., Server], home: Path) -> None:
    server = make("third").start()
    wrong = {
        "loudest": "unknown policy 'loudest'; there are: fifo, sjf",
        "mine.py:best": "code is loaded only by the server's own command line",
        "none.yaml": "none.yaml cannot be read",
        "two.yaml": "two.yaml has 2 policies (a, b); say which: two.yaml:NAME",
        "two.yaml:c": "unknown policy 'c'; there are: a, b",
        "queues.yaml": "leave them out here, or start the server with them",
        "apart": "leave them out here, or start the server with them",
        "clash.yaml": "another policy called fifo; rename yours",
        "wrong.yaml": "policies.a.order",
    }
    for asked, text in wrong.items():
        done = server.presage("policy", "set", asked, cwd=home)
        assert (done.code != 0, done.out, done.err.count("error:")) == (True, "", 1), done.err
        assert text in done.err.splitlines()[-1]
    sent = server.http.put("/api/v1/policy", json={"name": "/x/mine.py:best"})
    assert sent.status_code == 400
    assert "code is loaded only by" in sent.json()["error"]["text"]

    for role in ("viewer", "user", "operator"):
        body = {"name": f"a-{role}", "role": role}
        token = server.http.post("/api/v1/users", json=body).json()["token"]
        done = server.presage("policy", "set", "srtf", token=token)
        assert done.code != 0
        assert f"this needs the role admin; a-{role} has the role {role}" in done.err
        assert server.presage("policy", "--json", token=token).json["chosen"] is False
    before = len(journaled(home))
    assert server.presage("policy", "set", "two.yaml:b", cwd=home).code == 0
    done = server.presage("policy", "set", "srtf")
    assert "it may stop them for others from now on" in done.err
    assert [rule.chosen for rule in journaled(home)][before:] == ["b", "srtf"]
    assert server.presage("policy", "reset").out == "fifo decides now; before: srtf\n"


def journaled(home: Path) -> list[RulesChanged]:
    """Every change of the rules."""
    store = open_store(f"sqlite:///{home / 'shared.db'}")
    try:
        return [fact for _, fact in store.read() if isinstance(fact, RulesChanged)]
    finally:
        store.close()
