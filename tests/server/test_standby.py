"""A standby on another host: another data directory, the same PostgreSQL, the same knowledge."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from presage.control.advisors.starts import Experience
from presage.core.state import State
from presage.manifest import parse_manifest
from presage.model import event as ev
from presage.model.job import JobSpec, Role
from presage.sim.ahead import Start, StartForecast
from presage.store import open_store
from presage.store.records import JobChange, JobRow
from presage.testing.stores import PostgresCluster
from tests.server.kit import ENDED, Server, Zygote, eventually

pytestmark = [pytest.mark.engine, pytest.mark.slow]

RUNS = 11
TRAIN = """python -c "
import time
from presage import job
for step in range(1, 131):
    if step % 60 == 1:
        kept = bytearray(60 << 20 if step % 120 == 61 else 1)
    job.step(step=step, steps=130, metrics={'loss': 1 / step})
    time.sleep(0.1)
" """
"""Two phases of memory, six seconds each."""
ASK = {"cpus": 1, "memory": "256Mi"}
MODEL = {"ref": "zoo:mlp", "batch": 8, "steps": 1_000_000}


def test_a_standby_knows_what_the_first_server_learned(
    serve: Callable[..., Server], tmp_path: Path, postgres: PostgresCluster, zygote: Zygote
) -> None:
    db = postgres.new_database()
    waits_were_long(db)
    options = ("--db", db, "--rightsize", "--policy", "backfill", "--lease", "5")
    first = serve(*options, data=tmp_path / "a", nodes="1x4").start()
    standby = serve(*options, data=tmp_path / "b", nodes="1x4").start()
    assert first.leads()
    assert not standby.leads()
    runs = [first.submit(TRAIN, resources=ASK, model=MODEL) for _ in range(RUNS)]
    for run in runs:
        assert first.wait(run)["status"] == "COMPLETED"
    eventually(lambda: len(models(zygote, db)["memory"]["versions"]) == 1)
    eventually(lambda: fitted(db))
    eventually(lambda: len(utilization(first)["at"]) > 2)
    holds = first.submit("sleep 600", resources={"gpus": 4}, model=MODEL)
    first.wait(holds, "PROCESSING")
    queued = first.submit(resources={"gpus": 4})
    asked = first.submit("sleep 600", resources=ASK, model=MODEL, rightsize=False)
    eta = eventually(lambda: first.job(queued)["eta_s"])
    seen = [charts(first, run) for run in runs]
    said, told = models(zygote, db), learned(first)
    before = utilization(first)
    assert [charts(standby, run) for run in runs] == seen  # it answers reads while it waits
    first.kill()

    eventually(standby.leads)
    later = eventually(lambda: standby.job(queued)["eta_s"])
    # Without what was learned it would be minutes; what runs has run longer meanwhile.
    assert eta["p50"] / 3 < later["p50"] < eta["p50"] * 3
    asked_again = standby.submit("sleep 600", resources=ASK, model=MODEL, rightsize=False)
    estimates = standby.job(asked_again)["estimates"]
    assert estimates == standby.job(asked)["estimates"]
    assert "memory 1" in estimates["version"]
    assert models(zygote, db) == said
    assert learned(standby) == told
    assert [charts(standby, run) for run in runs] == seen
    assert all(limits["at"] and progress["at"] for limits, progress in seen)
    after, count = utilization(standby), len(before["at"])
    assert {name: values[:count] for name, values in after.items()} == before
    standby.stop_everything()

    def sized() -> bool:
        """Whether a run was held to what its phases need; a busy machine may see too little."""
        run = standby.submit(TRAIN, resources=ASK, model=MODEL)
        eventually(lambda: says_phase(run) or standby.job(run)["status"] in ENDED)
        return says_phase(run)

    def says_phase(run: str) -> bool:
        return any("phase" in why for why in charts(standby, run)[0]["why"])

    eventually(sized)


def waits_were_long(db: str) -> None:
    """Forecasts of a server before, and what came of them: jobs waited ten times as long."""
    store, state, began = open_store(db), State(), time.time() - 7200.0
    manifest = parse_manifest("name: old\ncommand: train").to_json()
    rows = [
        JobRow(id=f"old-{k}", name="old", owner="o", submitted_at=began, manifest=manifest)
        for k in range(60)
    ]
    store.append(began, [], [], jobs=rows)
    for row in rows:
        state.apply(began, ev.JobSubmitted(JobSpec(row.id, (Role(),))))
    experience = Experience(store, store.knowledge, lambda: None)
    experience.catch_up()
    starts = {row.id: Start(80.0, 100.0, 120.0, ()) for row in rows}
    experience.foreseen(StartForecast(began, 9, 5000.0, starts), state)
    at = began + 1000.0
    for status in ("DOWNLOADING", "CANCELLED"):
        changes = [JobChange(job=row.id, at=at, status=status, ended_at=at) for row in rows]
        store.append(at, [], [], changes=changes)
    experience.catch_up()
    store.close()


def models(zygote: Zygote, db: str) -> Any:
    """`presage models`."""
    return zygote.run("models", "--db", db, "--json").json


def learned(server: Server) -> list[str]:
    """How far estimates were off, and how many runs were learned from."""
    lines = server.http.get("/metrics").text.splitlines()
    return [line for line in lines if line.startswith(("presage_estimate_", "presage_history_"))]


def charts(server: Server, job: str) -> tuple[Any, Any]:
    """What a job was held to, and what it reported."""
    limits = server.http.get(f"/api/v1/jobs/{job}/telemetry").json()["limits"]
    return limits, server.http.get(f"/api/v1/jobs/{job}/progress").json()


def utilization(server: Server) -> dict[str, list[float]]:
    found: dict[str, list[float]] = server.http.get("/api/v1/utilization").json()
    return found


def fitted(db: str) -> bool:
    """Whether the phases of a workload are known."""
    import psycopg

    with psycopg.connect(db) as connection:
        query = "SELECT name FROM knowledge WHERE name LIKE 'phases/%/model'"
        return connection.execute(query).fetchone() is not None
