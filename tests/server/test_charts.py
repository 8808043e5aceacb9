"""What pages draw: the map, the history of the cluster, telemetry, progress and log files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from presage.server.history import FIELDS, History, spread_lines
from tests.server.kit import Server, Zygote, eventually

ROOT_TOKEN = "presage_root-of-the-charts"
PROGRESS = """python -c "
import time
from presage import job
for step in range(1, 101):
    job.progress(step=step, steps=100, metrics={'loss': 1 / step})
    time.sleep(0.1)
" """


@pytest.fixture(scope="module")
def guarded(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data = tmp_path_factory.mktemp("charts") / "data"
    server = Server(zygote, data, env={"PRESAGE_TOKEN": ROOT_TOKEN}, token=ROOT_TOKEN)
    yield server.start()
    server.close()


def _ask(server: Server, token: str, path: str, **query: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.get(f"{server.url}/api/v1{path}", headers=headers, params=query)


def test_charts_show_what_one_may_see(guarded: Server) -> None:
    with guarded.client() as client:
        people = {"ada": "red", "bob": "red", "eve": "blue"}
        tokens = {
            name: client.add_user(name, "user", team)["token"] for name, team in people.items()
        }
    body = {
        "name": "mine",
        "command": PROGRESS,
        "workers": 2,
        "resources": {"gpus": 0.5, "cpus": 1},
    }
    headers = {"Authorization": f"Bearer {tokens['ada']}"}
    answer = httpx.post(f"{guarded.url}/api/v1/jobs", json=body, headers=headers)
    job = answer.json()["id"]
    guarded.wait(job, "PROCESSING")

    whole = _ask(guarded, ROOT_TOKEN, "/cluster-map").json()
    (mine,) = whole["jobs"]
    assert (mine["id"], mine["owner"], mine["queue"]) == (job, "ada", "default")
    used = [device for node in whole["nodes"] for device in node["devices"] if device[0]]
    assert sum(share for share, _ in used) == 1.0
    assert {number for _, numbers in used for number in numbers} == {mine["number"]}
    assert _ask(guarded, tokens["bob"], "/cluster-map").json() == whole
    hidden = _ask(guarded, tokens["eve"], "/cluster-map").json()
    assert hidden["jobs"] == []
    assert [node["jobs"] for node in hidden["nodes"] if node["jobs"]] == [[-1]]
    assert job not in json.dumps(hidden)

    for what in ("telemetry", "progress", "log-files"):
        assert _ask(guarded, tokens["eve"], f"/jobs/{job}/{what}").status_code == 404
        assert httpx.get(f"{guarded.url}/api/v1/jobs/{job}/{what}").status_code == 401
        assert _ask(guarded, tokens["bob"], f"/jobs/{job}/{what}").status_code == 200

    def measured() -> Any:
        found = _ask(guarded, ROOT_TOKEN, f"/jobs/{job}/telemetry", points=5).json()["series"]
        return found if len(found) == 2 and len(found[0]["at"]) == 5 else None

    series = eventually(measured)
    assert [item["worker"] for item in series] == ["worker-0", "worker-1"]
    assert max(series[0]["rss_mib"]) > 1
    assert series[0]["at"] == sorted(series[0]["at"])
    files = _ask(guarded, ROOT_TOKEN, f"/jobs/{job}/log-files").json()["files"]
    assert [(item["attempt"], item["worker"]) for item in files] == [
        (1, "worker-0"),
        (1, "worker-1"),
    ]

    def losses() -> Any:
        found = _ask(guarded, ROOT_TOKEN, f"/jobs/{job}/progress").json()
        known = [value for value in found["metrics"].get("loss", []) if value is not None]
        return (found, known) if len(known) >= 2 else None

    found, known = eventually(losses)
    assert known == sorted(known, reverse=True)
    assert set(found["workers"]) <= {0, 2}

    def held() -> Any:
        body = _ask(guarded, ROOT_TOKEN, "/utilization", hours=1).json()
        assert body.keys() == set(FIELDS)
        return [at for at, gpus in zip(body["at"], body["gpus_held"], strict=True) if gpus == 1.0]

    assert eventually(held)
    guarded.tell(job, "stop")
    guarded.wait(job)


def test_what_waits_says_why(guarded: Server) -> None:
    first = guarded.submit("sleep 60", workers=2, resources={"gpus": 4})
    second = guarded.submit("sleep 60", resources={"gpus": 4})
    third = guarded.submit("sleep 60", resources={"gpus": 4})
    query = {"job": [first, second, third, "none"]}
    found = _ask(guarded, ROOT_TOKEN, "/waiting", **query).json()["waiting"]
    assert [(item["id"], item["ahead"]) for item in found] == [(second, 0), (third, 1)]
    assert all(item["reason"]["text"] for item in found)
    assert _ask(guarded, ROOT_TOKEN, "/waiting").status_code == 422
    with guarded.client() as client:
        stranger = client.add_user("mallory", "user", "green")["token"]
    assert _ask(guarded, stranger, "/waiting", **query).json() == {"waiting": []}
    guarded.stop_everything()


def test_a_history_survives_and_thins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100 * 86_400.0
    monkeypatch.setattr("presage.server.history.time.time", lambda: now)
    path = tmp_path / "history.jsonl"
    history = History(path)
    times = [now - 90 * 86_400, *(now - 10 * 86_400 + np.arange(60) * 10), now - 20, now - 10]
    for k, at in enumerate(times):
        history.add({name: float(k) for name in FIELDS} | {"at": float(at)})
    with path.open("a") as file:
        file.write('[1, 2\n{"at": 1}\n')  # what a full disk leaves
    again = History(path)
    found = again.since(0.0, 1000)
    assert found["at"][-2:] == [now - 20, now - 10]
    assert (
        len(found["at"]) == 4
    )  # two means of five minutes, and what is fresh; the oldest is gone
    assert found["gpus"][:2] == [15.5, 45.5]
    assert len(again.since(now - 30, 1000)["at"]) == 2
    assert len(history.since(0.0, 5)["at"]) <= 6


def test_a_long_file_is_read_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text("".join(json.dumps({"at": k, "x": "y" * 100}) + "\n" for k in range(20_000)))
    found = [line["at"] for line in spread_lines(path, most=1 << 16, pieces=64)]
    assert found == sorted(found)
    assert 64 <= len(found) < 1000
    assert found[0] < 100
    assert found[-1] == 19_999
    assert list(spread_lines(tmp_path / "none")) == []
