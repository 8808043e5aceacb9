"""Servers against workers, tuned on a real server: a job whose steps wait for its one server gets
another as soon as there is room, at a checkpoint, and goes on from the step it had."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.server.kit import Server, eventually

SCRIPT = """
import json, time
from presage import job

made = [0]

def save(directory):
    (directory / "made").write_text(json.dumps(made))

def load(directory):
    made[0] = json.loads((directory / "made").read_text())[0]

given = job.allocation()
job.checkpoint(save, load)
job.restore()
servers = given.workers - 2
print("begins after", made[0], "with", servers, flush=True)
while made[0] < 100_000:
    time.sleep(0.02 + 0.08 * max(1.0, 2 / servers))
    made[0] += 2
    job.step(step=made[0], steps=100_000)
"""


@pytest.mark.slow
@pytest.mark.soak
def test_a_server_is_added_where_servers_hold_it_up(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    server = serve(nodes="1x4").start()
    other = server.submit("sleep 600", resources={"gpus": 1})
    server.wait(other, "PROCESSING")
    (tmp_path / "train.py").write_text(SCRIPT)
    one = {"gpus": 1}
    job = server.submit(
        f"python {tmp_path / 'train.py'}",
        roles={
            "worker": {"workers": 2, "resources": one},
            "ps": {"workers": "1..2", "resources": one},
        },
        checkpoint={"every": "10m"},
        labels={"tune": "roles"},
    )
    server.wait(job, "PROCESSING")
    assert server.job(job)["workers"] == 3
    server.tell(other, "stop")
    eventually(lambda: server.job(job)["workers"] == 4, 120)
    eventually(lambda: server.logs(job).count("begins after") > 1, 60)
    begins = [line for line in server.logs(job).splitlines() if "begins after" in line]
    assert begins[0] == "begins after 0 with 1"
    assert int(begins[-1].split()[2]) > 0
    assert begins[-1].endswith("with 2")
    assert server.job(job)["attempt"] == 1
