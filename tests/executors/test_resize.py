"""The executor `local` changes the workers of a run, and nothing that was done is done again."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from presage.core.ports import CanResize
from presage.model import event as ev
from presage.model.cluster import Worker
from presage.model.event import Outcome
from presage.testing.executors import Watcher
from tests.executors.kit import LocalKit

COUNTER = """\
import os, time
from pathlib import Path
from presage import job

count = 0
given = job.allocation()

def save(directory):
    (directory / "count").write_text(str(count))

def load(directory):
    global count
    count = int((directory / "count").read_text())

job.checkpoint(save, load)
job.on_resize(lambda now, then: print("told", now, then, flush=True))
job.restore()
print("up", given.rank, "of", given.workers, flush=True)
while count < int(os.environ.get("STEPS", 1_000_000)):
    count += 1
    print("step", count, "of", given.workers, flush=True)
    job.step(step=count)
    time.sleep(0.005)
"""
"""Counts; rank 0 keeps the count. Everyone counts for itself, so nobody waits for the others."""


def crew(count: int, node: str = "n0") -> tuple[Worker, ...]:
    return tuple(Worker(0, index, node, (index,)) for index in range(count))


class Resized:
    """A job of one to four workers that is resized."""

    def __init__(self, kit: LocalKit, watch: Watcher, script: str, **manifest: object) -> None:
        self.kit, self.watch = kit, watch
        more: dict[str, Any] = {"grace": 60, "workers": "1..4", **manifest}
        kit.write_job("count", command=[sys.executable, "-c", script], **more)

    def start(self, workers: int) -> None:
        self.watch.executor.launch(ev.Launch("count", 1, crew(workers)))
        self.watch.until(lambda: len(self.steps()) > 3, "counting")

    def ask(self, workers: int, node: str = "n0") -> None:
        executor = self.watch.executor
        assert isinstance(executor, CanResize)
        executor.resize(ev.Resize("count", 1, crew(workers, node)))

    def to(self, workers: int) -> None:
        """Resize, and wait until it counts with so many workers."""
        before = len(self.watch.of("count", ev.JobResized))
        self.ask(workers)
        self.watch.until(
            lambda: len(self.watch.of("count", ev.JobResized)) > before, f"{workers} workers"
        )
        self.watch.until(lambda: self.steps()[-1][1] == workers, f"counting with {workers}")

    def log(self, worker: int = 0) -> str:
        return self.kit.log("count", 1, f"worker-{worker}")

    def steps(self) -> list[tuple[int, int]]:
        """What the first worker counted, and with how many workers."""
        lines = [line.split() for line in self.log().splitlines() if line.startswith("step")]
        return [(int(line[1]), int(line[3])) for line in lines if len(line) == 4]

    def end(self) -> None:
        self.watch.stop("count")
        assert self.watch.end("count").outcome is Outcome.STOPPED
        self.watch.assert_nothing_left("count")


@pytest.fixture
def counter(kit: LocalKit, watch: Watcher) -> Iterator[Resized]:
    resized = Resized(kit, watch, COUNTER)
    resized.start(1)
    yield resized
    resized.end()


def test_workers_come_and_go_and_no_step_is_lost(counter: Resized) -> None:
    counter.to(3)
    counter.to(2)
    assert not list((counter.kit.data / "runs").rglob("go-*")), "there is nothing to load"
    steps = [count for count, _ in counter.steps()]
    assert steps == list(range(1, len(steps) + 1))
    assert "told 1 3" in counter.log()
    assert "told 3 2" in counter.log()
    assert "up 2 of 3" in counter.log(2)
    assert [fact.stage for fact in counter.watch.of("count", ev.StageChanged)][:2] == [
        "resizing",
        "",
    ]
    assert not counter.watch.of("count", ev.JobExited)


def test_who_uses_pytorch_loads_it_before_the_training_stops(
    kit: LocalKit, watch: Watcher, tmp_path: Path
) -> None:
    """A mapped file of its name is PyTorch enough; an empty package stands in for the rest."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "libtorch_cpu.so").write_bytes(b"x" * 4096)
    maps = "import mmap\nkept = mmap.mmap(os.open(os.environ['MAPS'], 0), 0, prot=1)\n"
    env = {"MAPS": str(tmp_path / "libtorch_cpu.so"), "PYTHONPATH": str(tmp_path)}
    job = Resized(kit, watch, COUNTER.replace("\ncount = 0", f"\n{maps}count = 0", 1), env=env)
    job.start(1)
    for workers in (3, 2):
        job.to(workers)
    steps = [count for count, _ in job.steps()]
    assert steps == list(range(1, len(steps) + 1))
    waited = (kit.data / "runs" / "count" / "1" / "progress").glob("go-*.warm")
    assert sorted(map(_number, waited)) == ["1"] * 3 + ["2"] * 2
    job.end()


def _number(waited: Path) -> str:
    """Of the resize that a worker waited for."""
    return waited.stem.rpartition("-")[2]


def test_workers_may_move_to_another_node(counter: Resized) -> None:
    counter.ask(1, node="n1")
    counter.watch.until(lambda: counter.watch.of("count", ev.JobResized), "resized")
    plan = json.loads((counter.kit.data / "runs" / "count" / "1" / "plan.json").read_text())
    assert [worker["is"] for worker in plan["workers"]] == [[0, 0, "n1", [0]]]


def test_a_job_that_ends_first_has_ended_well(kit: LocalKit, watch: Watcher) -> None:
    job = Resized(kit, watch, COUNTER, env={"STEPS": "150"})
    job.start(1)
    watch.until(lambda: job.steps()[-1][0] > 130, "nearly done")
    job.ask(2)
    assert watch.end("count").outcome is Outcome.SUCCEEDED
    assert job.steps()[-1][0] == 150
    watch.assert_nothing_left("count")


def test_a_resize_of_a_run_that_is_gone_is_nothing(watch: Watcher, kit: LocalKit) -> None:
    job = Resized(kit, watch, COUNTER)
    job.ask(2)
    watch.settle()
    assert not watch.facts


def test_a_failure_after_a_resize_is_a_failure(kit: LocalKit, watch: Watcher) -> None:
    fails = COUNTER.replace("count += 1", "count += 1\n    assert given.workers < 2, 'too many'")
    job = Resized(kit, watch, fails)
    job.start(1)
    job.ask(2)
    exited = watch.end("count")
    assert exited.outcome is Outcome.FAILED
    assert exited.reason is not None
    assert "too many" in exited.reason.text
    watch.assert_nothing_left("count")


# -- torchrun -----------------------------------------------------------------------------------

STEPPER = """\
import os, sys, time
import torch.distributed as dist
import torch
from presage import job
given = job.allocation()
dist.init_process_group("gloo")
print("up", given.rank, "of", given.workers, os.environ["PRESAGE_WORKERS"], sys.argv, flush=True)
count = 0
def save(directory): (directory / "count").write_text(str(count))
def load(directory):
    global count
    count = int((directory / "count").read_text())
job.checkpoint(save, load)
job.restore()
while True:
    count += 1
    total = torch.ones(1)
    dist.all_reduce(total)
    print("step", count, "of", int(total), flush=True)
    if os.path.exists(sys.argv[1]):
        sys.exit(7)
    job.step(step=count)
    time.sleep(0.01)
"""


@pytest.mark.slow
@pytest.mark.engine
def test_torchrun_agents_come_and_go(kit: LocalKit, watch: Watcher, tmp_path: Path) -> None:
    script = tmp_path / "stepper.py"
    script.write_text(STEPPER)
    job = Resized(kit, watch, "")
    enough = tmp_path / "enough"
    command = [sys.executable, str(script), str(enough)]
    kit.write_job("count", command=command, launcher="torchrun", workers="1..2", grace=60)
    job.start(1)
    first = kit.worker_pids("count")[0]
    job.to(2)
    assert kit.worker_pids("count")[0] == first, "the agents that stay are the same"
    job.to(1)
    enough.touch()
    exited = watch.end("count")
    assert (exited.outcome, exited.exit_code) == (Outcome.FAILED, 7)
    steps = [count for count, _ in job.steps()]
    assert steps == list(range(1, len(steps) + 1))
    sizes = [workers for _, workers in job.steps()]
    assert [size for size, _ in groupby(sizes)] == [1, 2, 1]
    assert f"up 0 of 1 1 ['{script}', '{enough}']" in job.log()
    assert "Traceback" not in "".join(map(job.log, range(3)))
    watch.assert_nothing_left("count")
