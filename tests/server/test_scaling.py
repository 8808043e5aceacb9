"""Elastic by gain on a real server: what jobs report of their own speed decides who grows, and a
what-if decides the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from presage.model.event import SpeedMeasured
from presage.store import open_store
from tests.server.kit import Server, eventually

TRAIN = """
import sys, time
from presage import job

done = 0

def load(folder):
    global done
    done = int((folder / "step").read_text())

job.checkpoint(lambda folder: (folder / "step").write_text(str(done)), load)
job.restore()
workers = job.allocation().workers if sys.argv[1] == "scales" else 1
while done < 50_000:
    time.sleep(0.06 / workers)
    done += 1
    job.step(step=done, steps=50_000)
"""


@pytest.mark.slow
@pytest.mark.engine
def test_free_devices_go_to_the_job_that_its_own_reports_say_scales(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    server = serve("--policy", "elastic", nodes="1x4").start()

    def train(how: str) -> str:
        return server.submit(
            f"python {script} {how}",
            workers="1..3",
            resources={"gpus": 1},
            checkpoint={"every": "10m"},
        )

    def measured(job: str) -> set[int]:
        """The sizes at which its own reports told how fast a job is, as far as it is on disk."""
        store = open_store(f"sqlite:///{server.data / 'presage.db'}")
        try:
            facts = [fact for _, fact in store.read() if isinstance(fact, SpeedMeasured)]
        finally:
            store.close()
        return {fact.point.workers for fact in facts if fact.job == job}

    def sizes() -> tuple[int, int]:
        return server.job(scales)["workers"], server.job(flat)["workers"]

    flat = train("flat")  # alone: it starts with all it may have
    eventually(lambda: measured(flat) == {3})
    scales = train("scales")
    other = server.submit("sleep 600", resources={"gpus": 2})
    server.wait(other, "PROCESSING")
    assert sizes() == (1, 1)
    eventually(lambda: measured(flat) == {1, 3})
    server.kill()  # what was learned is on the disk
    server.start()
    server.tell(other, "stop")
    eventually(lambda: sizes() == (3, 1))
    told = server.presage("what-if", "--policy", "elastic", "--json")
    assert told.code == 0, told.err
    assert told.json["audit"]["same"]
