"""What pages draw: the map, the history of the cluster, telemetry, progress and log files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from presage.control.history import FIELDS
from tests.server.kit import Server, Zygote, eventually

ROOT_TOKEN = "presage_root-of-the-charts"
PROGRESS = """python -c "
import time
from presage import job
for step in range(1, 10_000):  # until it is stopped
    job.progress(step=step, steps=10_000, metrics={'loss': 1 / step})
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
    return server.stranger.get(f"/api/v1{path}", headers=headers, params=query)


def test_charts_show_what_one_may_see(guarded: Server) -> None:
    with guarded.client() as client:
        people = {"ada": "red", "bob": "red", "eve": "blue"}
        tokens = {name: client.add_user(name, "user", team).token for name, team in people.items()}
    body = {
        "name": "mine",
        "command": PROGRESS,
        "workers": 2,
        "resources": {"gpus": 0.5, "cpus": 1},
    }
    headers = {"Authorization": f"Bearer {tokens['ada']}"}
    answer = guarded.stranger.post("/api/v1/jobs", json=body, headers=headers)
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
        assert guarded.stranger.get(f"/api/v1/jobs/{job}/{what}").status_code == 401
        assert _ask(guarded, tokens["bob"], f"/jobs/{job}/{what}").status_code == 200

    def measured() -> Any:
        found = _ask(guarded, ROOT_TOKEN, f"/jobs/{job}/telemetry", points=5).json()["series"]
        return found if len(found) == 2 and len(found[0]["at"]) == 5 else None

    series = eventually(measured)
    assert [item["worker"] for item in series] == ["worker-0", "worker-1"]
    assert max(series[0]["rss_mib"]) > 1
    assert series[0]["at"] == sorted(series[0]["at"])
    for token, told in ((ROOT_TOKEN, 2), (tokens["eve"], 0)):
        metrics = guarded.stranger.get("/metrics", headers={"Authorization": f"Bearer {token}"})
        lines = [line for line in metrics.text.splitlines() if job in line]
        for name in ("cpu_cores", "memory_bytes"):
            assert (
                sum(line.startswith(f"presage_worker_{name}{{job_id=") for line in lines) == told
            )
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
    first = guarded.submit("sleep 600", workers=2, resources={"gpus": 4})
    second = guarded.submit("sleep 600", resources={"gpus": 4})
    third = guarded.submit("sleep 600", resources={"gpus": 4})
    query = {"job": [first, second, third, "none"]}
    found = _ask(guarded, ROOT_TOKEN, "/waiting", **query).json()["waiting"]
    assert [(item["id"], item["ahead"]) for item in found] == [(second, 0), (third, 1)]
    assert all(item["reason"]["text"] for item in found)
    assert _ask(guarded, ROOT_TOKEN, "/waiting").status_code == 422
    with guarded.client() as client:
        stranger = client.add_user("mallory", "user", "green").token
    assert _ask(guarded, stranger, "/waiting", **query).json() == {"waiting": []}
    guarded.stop_everything()
