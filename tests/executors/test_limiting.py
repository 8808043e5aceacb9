"""Limits while a job runs: its processes get fewer cores, and all of them again."""

from __future__ import annotations

import os

import pytest

from presage.model import event as ev
from presage.model.cluster import Resources
from presage.model.job import Reason, ReasonCode
from presage.testing.executors import RoleWork, Watcher
from tests.executors.kit import LocalKit

CHILD = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("up", flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_limit_holds_for_all_processes_of_a_run(kit: LocalKit, watch: Watcher) -> None:
    watch.run("held", RoleWork(CHILD))
    watch.until_log("held", "up")
    why = Reason(ReasonCode.OK, "phase 1")

    def cores() -> set[int]:
        return {len(os.sched_getaffinity(pid)) for pid in kit.worker_pids("held")}

    watch.until(lambda: len(kit.worker_pids("held")) == 2, "both processes")
    everything = len(os.sched_getaffinity(0))
    assert cores() == {everything}
    executor = watch.executor
    executor.limit(ev.Limit("held", 1, Resources(cpu_milli=700, memory_mib=100), why))  # type: ignore[attr-defined]
    watch.until(lambda: cores() == {1}, "one core for each")
    executor.limit(ev.Limit("held", 1, Resources(cpu_milli=64_000), why))  # type: ignore[attr-defined]
    watch.until(lambda: cores() == {everything}, "all cores again")
    executor.limit(ev.Limit("nobody", 1, Resources(cpu_milli=1), why))  # type: ignore[attr-defined]
    watch.stop("held")
    watch.end("held")
    watch.assert_nothing_left("held")
