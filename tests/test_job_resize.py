"""`presage.job` and the number of workers: asked for, told of a change, standing still for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from presage import job
from tests.waiting import PATIENCE_S, eventually

IN_STEP = """\
import os, sys, time
from pathlib import Path
from presage import job

given, count = job.allocation(), 0
meeting = Path(sys.argv[1])

def all_reduce():  # nobody gets past a step before all have done it
    (meeting / f"{given.rank}.{count}").touch()
    while not all((meeting / f"{rank}.{count}").exists() for rank in range(given.workers)):
        time.sleep(0.001)

def save(directory):
    (directory / "count").write_text(str(count))

job.checkpoint(save, lambda directory: None)
job.on_resize(lambda now, then: print("told", now, then, count, flush=True))
while True:
    count += 1
    all_reduce()
    job.step(step=count)
"""


class Ranks:
    """Workers that train in step, and what Presage tells them."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.place = folder / "progress"
        self.checkpoints = folder / "checkpoints"
        meeting = folder / "meeting"
        for path in (self.place, meeting):
            path.mkdir()
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", IN_STEP, str(meeting)],
                env={
                    **os.environ,
                    "PRESAGE_RANK": str(rank),
                    "PRESAGE_WORKERS": str(workers),
                    "PRESAGE_CHECKPOINT_DIR": str(self.checkpoints),
                    "PRESAGE_PROGRESS": str(self.place / f"worker-{rank}.json"),
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for rank in range(workers)
        ]

    def wait_for(self, *names: str) -> None:
        eventually(lambda: all((self.place / name).exists() for name in names))

    def tell(self, **body: int) -> None:
        (self.place / "resize.new").write_text(json.dumps(body))
        (self.place / "resize.new").replace(self.place / "resize.json")

    def stop(self) -> list[tuple[int, str]]:
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        said = [process.communicate(timeout=PATIENCE_S)[0] for process in self.processes]
        return [(p.returncode, text) for p, text in zip(self.processes, said, strict=True)]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    started = Ranks(tmp_path, 3)
    yield started
    started.close()


def test_all_ranks_stand_still_after_the_same_step(ranks: Ranks) -> None:
    ranks.wait_for("stepping")
    ranks.tell(number=1, workers=2)
    ranks.wait_for("held-0", "held-1", "held-2")
    (saved,) = ranks.checkpoints.glob("checkpoint-*/count")
    ends = ranks.stop()
    assert [code for code, _ in ends] == [job.STOPPED] * 3
    assert {text for _, text in ends} == {f"told 3 2 {saved.read_text()}\n"}
    assert len(list(ranks.checkpoints.glob("checkpoint-*"))) == 1, "saved once"


def test_a_worker_asks_for_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRESAGE_PROGRESS", raising=False)
    job.request_workers(4)  # alone, nothing happens
    monkeypatch.setenv("PRESAGE_PROGRESS", str(tmp_path / "worker-0.json"))
    job.request_workers(4)
    assert json.loads((tmp_path / "request.json").read_text()) == {"workers": 4}
    monkeypatch.setenv("PRESAGE_RANK", "1")
    job.request_workers(5)  # rank 0 asks for all
    assert json.loads((tmp_path / "request.json").read_text()) == {"workers": 4}
    with pytest.raises(ValueError, match="at least 1"):
        job.request_workers(0)


@pytest.mark.parametrize(
    ("rule", "workers", "rank", "batch", "lr"),
    [
        ("linear", 4, 0, 64, 0.2),
        ("sqrt", 4, 0, 64, 0.1 * 2**0.5),
        ("fixed", 4, 0, 32, 0.1),
        ("fixed", 3, 0, 43, 0.1),
        ("fixed", 3, 2, 42, 0.1),
        ("linear", 1, 0, 64, 0.05),
    ],
)
def test_batch_and_learning_rate_follow_the_number_of_workers(
    monkeypatch: pytest.MonkeyPatch, rule: str, workers: int, rank: int, batch: int, lr: float
) -> None:
    monkeypatch.setenv("PRESAGE_WORKERS", str(workers))
    monkeypatch.setenv("PRESAGE_RANK", str(rank))
    found = job.scaled(64, 0.1, tuned_for=2, rule=rule)
    assert found.batch == batch
    assert found.lr == pytest.approx(lr)


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"tuned_for": 0}, {"rule": "cube"}])
def test_what_cannot_be_scaled_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"scaled|rule"):
        job.scaled(**{"batch": 64, "lr": 0.1, **wrong})
