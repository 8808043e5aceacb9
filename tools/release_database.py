"""Make the database that an upgrade is tested with: `python tools/release_database.py OUT.sql`.

Run it with the code of a release, once, and keep what it writes in tests/store: a real server
takes users and jobs, learns from runs, is stopped in the middle of things, and its SQLite file is
dumped as SQL. Nothing here is used by the program itself.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from presage.client import Client, JobHandle
from presage.executors.node.processes import all_pids, environment
from presage.layout import Layout
from presage.store import open_store

_TOKEN = "presage_" + "0123456789abcdef" * 2  # of a server that lives for seconds
_TRAIN = """python -c "
import time
from presage import job
for step in range(1, 21):
    job.step(step=step, steps=20, metrics={'loss': 1 / step})
    time.sleep(0.1)
" """
_MODEL = {"ref": "zoo:mlp", "batch": 8, "steps": 20}


def main(out: Path) -> None:
    """Write the dump."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        data = Path(folder) / "data"
        argv = [sys.executable, "-m", "presage", "serve", "--port", "0", "--data", str(data)]
        argv += ["--nodes", "2x4", "--policy", "backfill"]
        env = {**os.environ, "PRESAGE_TOKEN": _TOKEN, "PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True) as server:
            assert server.stderr is not None
            words = server.stderr.readline().split()
            url = next(word for word in words if word.startswith("http"))
            try:
                with Client(url, _TOKEN) as client:
                    _use(client, data)
            finally:
                server.terminate()
        _dump(Layout(data).database, out)
        _end_jobs(data)


def _use(client: Client, data: Path) -> None:
    client.add_user("ada", "user", "vision")
    done = [_submit(client, 1, name="train", command=_TRAIN, model=_MODEL) for _ in range(2)]
    failed = _submit(client, 0, name="fails", command="exit 3")
    for job in (*done, failed):
        _until(_has(job, "FAILED" if job is failed else "COMPLETED"))
    halted = _submit(client, 1, name="halted", command="sleep 3600")
    _until(_has(halted, "PROCESSING"))
    halted.halt()
    _until(_has(halted, "HALTED"))
    for name in ("runs-a", "runs-b"):
        job = _submit(client, 4, name=name, command="sleep 3600")
        _until(_has(job, "PROCESSING"))
    _submit(client, 4, name="waits", command="true")

    def learned() -> bool:
        store = open_store(f"sqlite:///{Layout(data).database}")
        try:
            return bool(store.knowledge.tail("models/memory/runs", 5))
        finally:
            store.close()

    _until(learned)


def _submit(client: Client, gpus: int, **manifest: object) -> JobHandle:
    asked = {"resources": {"gpus": gpus, "cpus": 1, "memory": "256Mi"}}
    return client.submit_text(json.dumps({**manifest, **asked}))


def _has(job: JobHandle, status: str) -> Callable[[], bool]:
    return lambda: job.refresh().status == status


def _until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.2)


def _end_jobs(data: Path) -> None:
    """What the server left running."""
    mark = f"PRESAGE_RUN={data}/".encode()
    for pid in all_pids():
        if mark in environment(pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _dump(database: Path, out: Path) -> None:
    with sqlite3.connect(database) as made:
        text = "\n".join(made.iterdump()) + "\n"
    made.close()
    out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
