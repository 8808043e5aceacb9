"""A learned policy on a running server: it never decides without a guard, and who decides is
journaled and told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from presage.model.event import PolicyJudged, RulesChanged
from presage.policy.learned.net import Net, read_bundle, write_bundle
from presage.policy.learned.order import ORDER_RULES, order_layout
from presage.store import open_store
from tests.server.kit import Server, Zygote, eventually

CARD = {"name": "mine", "version": "7", "date": "", "data": "", "licence": ""}
CARD |= {"splits": "", "errors": ""}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "mine.npz"
    layout = order_layout()
    net = Net.random(layout, 4, np.random.default_rng(0))
    write_bundle(path, "order", net, layout, ORDER_RULES, CARD)
    return path


@pytest.fixture(scope="module")
def server(zygote: Zygote, bundle: Path) -> Iterator[Server]:
    place = bundle.parent / "data"
    started = Server(zygote, place, "--policy", f"learned:{bundle}", nodes="1x1")
    yield started.start()
    started.close()


def journal(server: Server) -> list[object]:
    store = open_store(f"sqlite:///{server.data / 'presage.db'}")
    try:
        return [fact for _, fact in store.read()]
    finally:
        store.close()


def test_it_is_judged_before_it_decides(server: Server, bundle: Path) -> None:
    runs = server.submit("sleep 600", resources={"gpus": 1})
    waits = server.submit("true", resources={"gpus": 1})
    server.wait(runs, "PROCESSING")

    def judged() -> list[PolicyJudged]:
        return [one for one in journal(server) if isinstance(one, PolicyJudged)]

    (fact,) = eventually(judged)
    assert not fact.trusted
    assert (fact.candidate, fact.fallback) == (f"learned:{bundle}", "fifo")
    (rules,) = [one for one in journal(server) if isinstance(one, RulesChanged)]
    said = json.loads(rules.policy)
    assert said["learned"]["version"] == "7"
    assert said["learned"]["digest"] == read_bundle(bundle).digest
    assert said["guard"]["fallback"]["order"] == "fifo"
    assert fact.rules == rules.digest
    shown = server.presage("policy")
    assert "fifo decides: only 0 jobs ended so far" in shown.err
    assert "fifo decides: only 0 jobs" in server.presage("policy", "--json").json["guard"]
    assert "fifo decides: only 0 jobs" in server.presage("explain", waits).out


def test_a_what_if_reads_the_bundle_of_the_machine_that_asks(server: Server, bundle: Path) -> None:
    done = server.presage("what-if", "--policy", f"fifo,learned:{bundle}", "--json")
    assert done.code == 0, done.err
    assert list(done.json["policies"]) == ["fifo", f"learned:{bundle}"]
    assert done.json["audit"]["same"]
    missing = server.presage("what-if", "--policy", "learned:none.npz")
    assert missing.code == 2
    assert "there is no bundle" in missing.err
    body = {"name": "learned:/etc/hostname"}
    refused = server.http.put("/api/v1/policy", json=body)
    assert refused.status_code == 400, refused.text
    assert "bundles are read only by the server's own" in refused.text
