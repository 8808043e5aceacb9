"""Sweeps, arrays and dependencies on a real server: from one manifest to the best of 200 jobs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from presage.cli._job_words import JOB_COLUMNS
from presage.cli._tables import table_lines
from presage.cli.sweep import array_row
from tests.server.kit import Server, eventually

SWEEP = """\
name: tune
command: "sleep 600; true ${lr} ${seed}"
grace: 1s
resources: {cpus: 0.01}
sweep:
  grid: {lr: [0.1, 0.03, 0.01, 0.003], seed: 0..49}
  at_once: 2
objective: {metric: val_loss}
"""

REPORTS = """\
name: report
command: >-
  python -c "from presage import job; p = job.params();
  job.progress(step=1, steps=1, metrics={'val_loss': abs(p['x'] - 2) + 0.5})"
env: {X: "${x}"}
sweep: {points: [{x: 1}, {x: 2}, {x: 4}]}
objective: {metric: val_loss}
"""


def written(folder: Path, text: str, name: str = "presage.yaml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def counts(server: Server, array: str) -> dict[str, int]:
    found: dict[str, int] = server.http.get(f"/api/v1/arrays/{array}").json()["counts"]
    return found


def test_two_hundred_jobs_from_one_manifest(server: Server, tmp_path: Path) -> None:
    sent = server.presage("submit", written(tmp_path, SWEEP), "--json")
    assert sent.code == 0, sent.err
    array, jobs = sent.json["id"], sent.json["jobs"]
    assert jobs == 200

    appends = server.http.get("/api/v1/jobs", params={"array": array, "limit": 1000}).json()[
        "jobs"
    ]
    assert len(appends) == 200
    assert len({job["submitted_at"] for job in appends}) == 1
    assert appends[-1]["params"] == {"lr": 0.1, "seed": 0}
    assert appends[-1]["id"] == f"{array}-1"

    listed = server.presage("ps")
    row = [line for line in listed.out.splitlines() if "tune" in line]
    assert len(row) == 1
    assert array in row[0]
    with server.client() as client:
        narrow = table_lines(JOB_COLUMNS, [array_row(client.array(array).info)], 80)
    assert len(narrow) == 2
    assert narrow[1].plain.startswith(array)
    assert "/200 over" in narrow[1].plain
    assert max(line.cell_len for line in narrow) <= 80
    assert "/200 over" in row[0]

    opened = server.presage("ps", array)
    assert opened.out.splitlines()[0].startswith(f"{array}: 200 jobs, 2 at once: ")
    why = server.presage("explain", array)
    assert "at most 2 of its array go at once" in why.out

    stopped = server.presage("stop", array, "--yes")
    assert stopped.code == 0, stopped.err
    assert stopped.out.startswith(f"{array} stopping ")
    waited = server.presage("wait", array)
    assert waited.code == 1
    assert "200/200 over" in waited.out
    again = server.presage("stop", array, "--yes")
    assert again.code == 2
    assert "has no job to stop" in again.err


def test_the_best_is_found_and_failed_ones_are_submitted_again(
    server: Server, tmp_path: Path
) -> None:
    sent = server.presage("submit", written(tmp_path, REPORTS), "--json")
    array = sent.json["id"]
    assert server.presage("wait", array).code == 0
    found = server.presage("best", array, "--json").json
    assert [one["params"]["x"] for one in found["best"]] == [2, 1, 4]
    assert [one["value"] for one in found["best"]] == [0.5, 1.5, 2.5]
    shown = server.presage("best", array, "--limit", "1").out.splitlines()
    assert shown[1].split() == [f"{array}-2", "0.5", "2", "COMPLETED"]
    assert "3/3 over, best 0.5" in server.presage("ps", "--all").out
    assert server.http.get(f"/api/v1/arrays/{array}").json()["best"] == 0.5

    none = server.presage("resubmit", array, "--failed")
    assert (none.code, none.err) == (2, f"error: no job of array {array} failed\n")
    member = server.presage("resubmit", f"{array}-1", "--set", "params.x=2", "--json").json["id"]
    assert server.wait(member)["status"] == "COMPLETED"
    assert server.job(member)["params"] == {"x": 2}
    made = server.http.get(f"/api/v1/jobs/{member}/manifest").json()
    assert made["env"] == {"X": "2"}
    assert made["labels"] == {"resubmit-of": f"{array}-1"}

    broken = server.presage(
        "resubmit", array, "--set", "command=sh -c 'exit ${x}'", "--set", "env.X=null", "--json"
    ).json["id"]
    assert server.presage("wait", broken).code == 1
    assert counts(server, broken) == {"FAILED": 3}
    unknown = server.presage("best", broken)
    assert "no job of" in unknown.err
    repaired = server.presage(
        "resubmit", broken, "--failed", "--set", "command=true ${x}", "--json"
    ).json
    assert repaired["jobs"] == 3
    assert server.presage("wait", repaired["id"]).code == 0


def test_the_same_key_gives_the_same_array_and_a_bad_member_refuses_all(server: Server) -> None:
    body: dict[str, Any] = {
        "name": "keyed",
        "command": "true ${g}",
        "resources": {"gpus": "${g}"},
        "sweep": {"grid": {"g": [0.1, 0.2]}},
    }
    headers = {"Idempotency-Key": "the-same"}
    first = server.http.post("/api/v1/jobs", json=body, headers=headers)
    assert first.status_code == 201, first.text
    again = server.http.post("/api/v1/jobs", json=body, headers=headers)
    assert again.json()["id"] == first.json()["id"]
    members = {"array": first.json()["id"]}
    assert len(server.http.get("/api/v1/jobs", params=members).json()["jobs"]) == 2

    body["name"] = "refused"
    body["sweep"] = {"grid": {"g": [0.1, 1.5]}}
    bad = server.http.post("/api/v1/jobs", json=body)
    assert bad.status_code == 422
    assert "point 2: resources.gpus" in bad.json()["error"]["text"]
    arrays = server.http.get("/api/v1/arrays").json()["arrays"]
    assert not [one for one in arrays if one["name"] == "refused"]


def test_a_job_waits_for_others_and_says_so(server: Server, tmp_path: Path) -> None:
    first = server.submit("sleep 600", name="first", grace="1s")
    manifest = written(tmp_path, "name: next\ncommand: 'true'\n")
    sent = server.presage("submit", manifest, "--after", "first", "--json")
    assert sent.code == 0, sent.err
    second = sent.json["id"]
    third = server.submit(name="third", after={"failed": [first[:-3]]})
    array = server.http.post(
        "/api/v1/jobs",
        json={
            "name": "last",
            "command": "true ${x}",
            "sweep": {"grid": {"x": [1, 2]}},
            "after": {"any": ["first"]},
        },
    ).json()["id"]
    server.wait(first, "PROCESSING")
    about = server.http.get(f"/api/v1/jobs/{second}/explain").json()
    assert about["reason"]["text"] == f"waits for {first} (running) to end well"
    assert [(one["id"], one["on"], one["status"]) for one in about["after"]] == [
        (first, "ok", "PROCESSING")
    ]
    eventually(
        lambda: server.http.get(f"/api/v1/jobs/{second}/explain").json()["after"][0]["ends_s"]
    )
    said = server.presage("explain", second).out
    assert f"after {first} (ok): PROCESSING, expected to end in " in said

    server.tell(first, "stop")
    ended = server.wait(second)
    assert ended["status"] == "CANCELLED"
    assert ended["reason"]["code"] == "dependency"
    assert "did not end well" in ended["reason"]["text"]
    assert server.wait(third)["status"] == "COMPLETED"
    assert server.presage("wait", array).code == 0
    assert server.wait(server.submit(name="late", after=array))["status"] == "COMPLETED"

    for after, status, text in (
        ("nobody", 400, "there is no job 'nobody'"),
        ([first], 409, "did not end well, so that `ok` can never be met"),
        ({"failed": [third]}, 409, "ended well, so that `failed` can never be met"),
    ):
        body = {"name": "x", "command": "true", "after": after}
        answer = server.http.post("/api/v1/jobs", json=body)
        assert (answer.status_code, text in answer.text) == (status, True), answer.text


def test_losing_members_are_stopped_early(server: Server, tmp_path: Path) -> None:
    """A member that reports a bad value after a good one was told ends with the reason."""
    seen = tmp_path / "seen"
    script = (
        "import os, time; from presage import job; p = job.params()\n"
        f"while p['x'] > 1 and not os.path.exists({str(seen)!r}): time.sleep(0.05)\n"
        "job.progress(step=4, steps=8, metrics={'loss': p['x']}); "
        "time.sleep(600)"
    )
    body = {
        "name": "prune",
        "command": ["python", "-c", script],
        "env": {"X": "${x}"},
        "grace": "1s",
        "sweep": {
            "points": [{"x": 1}, {"x": 9}],
            "prune": {"by": "halving", "reduction": 2, "min_steps": 4},
        },
        "objective": {"metric": "loss"},
    }
    array = server.http.post("/api/v1/jobs", json=body).json()["id"]
    eventually(lambda: (server.job(f"{array}-1")["progress"] or {}).get("loss") == 1)
    seen.touch()
    ended = server.wait(f"{array}-2")
    assert ended["status"] == "CANCELLED"
    assert ended["reason"]["code"] == "stopped_early"
    assert ended["reason"]["text"] == "stopped early: loss 9 at step 4, in the worse half"
    assert server.job(f"{array}-1")["status"] == "PROCESSING"
    server.presage("stop", array, "--yes")


def test_lint_counts_the_jobs(server: Server, tmp_path: Path) -> None:
    path = written(tmp_path, SWEEP)
    assert "tune, 200 jobs, worker 1" in server.presage("lint", path).out
    assert json.loads(server.presage("lint", path, "--json").out)["jobs"] == 200
    dry = server.presage("submit", path, "--dry-run")
    assert dry.code == 0, dry.err
