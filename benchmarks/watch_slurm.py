"""A day of a real Slurm, watched: are its starts foreseen, and is the journal what happened?

    python -m benchmarks.watch_slurm [--faster 60] [--hours 24] [--nodes 8] [--version 22.05]
                                     [--load 1.1] [--seed 1] [--json]

A Slurm of its own (slurmctld, slurmdbd, nodes with GPUs that are only files, backfill on) gets the
jobs of a day, so many times faster: an hour is a minute with --faster 60, and time limits, which
Slurm has in minutes, are hours. Jobs sleep. The watcher sees times stretched back, so that what it
reports is in the seconds of the day. It runs as the user nobody, who has no privilege in Slurm;
slurmctld logs every request with its user, and these are counted. The watcher is killed (SIGKILL)
twice and slurmctld once, in the middle. At the end, the journal is compared with `sacct`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks._watching import Task, a_day, watch
from presage.control.watch.scores import read_scores, report
from presage.executors.slurm.watching import SlurmSource
from presage.layout import Layout
from presage.store import open_store
from presage.store.sql import SqlStore
from tests.slurm_cluster import SlurmCluster
from tests.watched_slurm import (
    AS_NOBODY,
    NOBODY,
    accounts_of,
    asked_by_nobody,
    journal_of,
)

SIZES = {1: 0.55, 2: 0.15, 4: 0.25, 8: 0.05}


def submit(slurm: SlurmCluster, task: Task, faster: float, per_node: int) -> None:
    """One job; it sleeps."""
    nodes = max(1, task.gpus // per_node)
    minutes = max(1, round(task.limit_h * 60 / faster))
    done = slurm.call(
        *("sbatch", "-J", task.name, "-o", "/dev/null", "-t", str(minutes), f"-N{nodes}"),
        *(f"--gres=gpu:{task.gpus // nodes}", "--wrap", f"sleep {task.run_s / faster:.2f}"),
    )
    if done.returncode:
        print(f"sbatch: {done.stderr.strip()}", file=sys.stderr)


# -- the day --------------------------------------------------------------------------------------


class Day:
    """One run of the benchmark."""

    def __init__(self, slurm: SlurmCluster, options: argparse.Namespace) -> None:
        self.slurm, self.options = slurm, options
        self.data = slurm.directory / "watched"
        self.data.mkdir()
        os.chown(self.data, NOBODY, NOBODY)
        self.began = 0.0
        self.watcher: subprocess.Popen[bytes] | None = None
        self.kills: list[str] = []

    def start_watcher(self) -> None:
        """As nobody."""
        words = [str(self.data), repr(self.began), repr(self.options.faster)]
        command = [sys.executable, "-m", "benchmarks.watch_slurm", "--watcher", *words]
        self.watcher = subprocess.Popen([*AS_NOBODY, *command], env=self.slurm.env)

    def kill_watcher(self, how: signal.Signals = signal.SIGKILL) -> None:
        """And wait for its end."""
        assert self.watcher is not None
        self.watcher.send_signal(how)
        self.watcher.wait()

    def run(self) -> None:
        """Submit the day's jobs, with accidents on the way, and wait for the last to end."""
        options, slurm = self.options, self.slurm
        tasks = a_day(options.hours, options.nodes * 4, options.load, options.seed, SIZES)
        print(f"{len(tasks)} jobs in {options.hours * 60 / options.faster:.0f} min", flush=True)
        accidents: list[tuple[float, str, Callable[[], None]]] = [
            (0.35, "the watcher is killed", self.kill_watcher),
            (0.37, "the watcher starts again", self.start_watcher),
            (0.50, "slurmctld is killed", slurm.kill_controller),
            (0.51, "slurmctld starts again", slurm.start_controller),
            (0.70, "the watcher is killed", self.kill_watcher),
            (0.75, "the watcher starts again", self.start_watcher),
        ]
        self.began = float(int(time.time()))
        self.start_watcher()
        whole_s = options.hours * 3600
        waiting = list(tasks)
        while waiting or accidents:
            at_s = (time.time() - self.began) * options.faster
            if accidents and at_s >= accidents[0][0] * whole_s:
                _, what, act = accidents.pop(0)
                print(f"{at_s / 3600:.1f} h: {what}", flush=True)
                self.kills.append(what)
                act()
            elif waiting and at_s >= waiting[0].at_s:
                submit(slurm, waiting.pop(0), options.faster, 4)
            else:
                time.sleep(0.05)
        while slurm.run("squeue", "-h", "-t", "pending,running,completing"):
            asked = slurm.run("squeue", "-h", "-t", "pending", "-o", "%i %r").splitlines()
            for job, _, why in (line.partition(" ") for line in asked):
                if why.endswith("held"):  # a launch that failed while the controller was away
                    slurm.run("scancel", job)
            time.sleep(2)
        time.sleep(8)
        self.kill_watcher(signal.SIGTERM)

    def results(self) -> dict[str, Any]:
        """What is to be shown."""
        store = open_store(f"sqlite:///{Layout(self.data).database}")
        scored = read_scores(store.knowledge)
        print(json.dumps(report(scored)), file=sys.stderr, flush=True)
        compared = self._compare(store)
        store.close()
        half = self.began + self.options.hours * 1800
        asked, writes = asked_by_nobody(self.slurm)
        return {
            "faster": self.options.faster,
            "version": self.slurm.version,
            "report": report(scored),
            "second_half": report(scored, half),
            "journal": compared,
            "asked": dict(asked),
            "writes": writes,
            "refused": self._refused(),
        }

    def _compare(self, store: SqlStore) -> dict[str, int]:
        """The journal beside the accounts: submission, start, end and outcome of each job. A
        controller that was killed may forget jobs and give their numbers again: the latest job
        of a number counts, as in the accounts."""
        ours = journal_of(store, self._fast)
        latest = {job.partition("@")[0]: told for job, told in ours.items()}
        counts = Counter[str](jobs=0, missing=0, other=0, forgotten=len(ours) - len(latest))
        for job, truth in accounts_of(self.slurm).items():
            mine = latest.pop(job, None)
            if not truth.ended:  # the controller forgot it, and the accounts were never told
                counts["never ended in sacct"] += 1
                continue
            counts["jobs"] += 1
            if mine is None:
                counts["missing"] += 1
            elif mine != truth:
                counts["other"] += 1
                print(f"job {job}: {mine} here, {truth} in sacct", file=sys.stderr)
        counts["more"] = len(latest)
        return dict(counts)

    def _fast(self, at: float) -> int:
        return round(self.began + (at - self.began) / float(self.options.faster))

    def _refused(self) -> list[str]:
        """What Slurm says when nobody tries to change something."""
        job = self.slurm.run("sbatch", "-H", "-t", "1", "--wrap", "true").split()[-1]
        said = []
        for words in (("scancel", job), ("scontrol", "update", f"jobid={job}", "nice=5")):
            command = [*AS_NOBODY, str(self.slurm.bin / words[0]), *words[1:]]
            done = subprocess.run(command, env=self.slurm.env, capture_output=True, text=True)
            said.append(f"{words[0]}: {' '.join(done.stderr.split())}")
        return said


def main() -> None:
    """Run a day and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faster", type=float, default=60.0)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--version", default="22.05")
    parser.add_argument("--load", type=float, default=1.1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--watcher", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.watcher:
        data, began, faster = options.watcher
        watch(SlurmSource, Path(data), float(began), float(faster), 1.0)
        return
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        slurm = SlurmCluster(
            options.version,
            Path(place),
            nodes=options.nodes,
            gpus=4,
            accounting=True,
            extra="SlurmctldDebug=debug2\nMinJobAge=60\nMaxJobCount=20000",
        )
        with slurm:
            day = Day(slurm, options)
            day.run()
            results = day.results()
    print(json.dumps(results, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
