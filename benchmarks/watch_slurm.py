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
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from presage.control.seat import Seat
from presage.control.watch.scores import read_scores, report
from presage.control.watch.watcher import Watcher
from presage.executors.slurm.watching import SlurmSource
from presage.layout import Layout
from presage.model.watched import SeenEnd, SeenJob, SeenRun, Sight
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

LIMITS_H = (1, 2, 4, 8, 24)
GPUS = ((1, 0.55), (2, 0.15), (4, 0.25), (8, 0.05))


# -- the jobs of a day ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Task:
    """A job to submit: seconds of the day."""

    at_s: float
    run_s: float
    limit_h: int
    gpus: int
    name: str


def a_day(hours: float, gpus: int, load: float, seed: int) -> list[Task]:
    """Jobs of twelve users who run the same few things again and again, more by day than by
    night; together they want `load` of the GPUs."""
    rng = np.random.default_rng(seed)
    kinds = []
    for user in range(12):
        for kind in range(3):
            size = int(rng.choice([one for one, _ in GPUS], p=[p for _, p in GPUS]))
            usual = float(np.exp(rng.normal(np.log(2700.0), 1.0)))
            over = float(rng.choice([1.3, 2.0, 4.0, 8.0]))
            limit = next((h for h in LIMITS_H if h * 3600 >= usual * over), LIMITS_H[-1])
            kinds.append((f"u{user}-k{kind}", size, usual, limit))
    tasks: list[Task] = []
    wanted = load * gpus * hours * 3600
    while wanted > 0:
        name, size, usual, limit = kinds[rng.integers(len(kinds))]
        run_s = float(usual * np.exp(rng.normal(0.0, 0.35)))
        while True:
            at_s = float(rng.uniform(0, hours * 3600))
            if rng.random() < 0.6 + 0.4 * np.sin((at_s / 86_400 - 0.25) * 2 * np.pi):
                break
        tasks.append(Task(at_s, run_s, limit, size, name))
        wanted -= min(run_s, limit * 3600) * size
    return sorted(tasks, key=lambda task: task.at_s)


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


# -- the watcher, in a process of its own ---------------------------------------------------------


class Stretched:
    """A source whose times go as fast as those of the day that is replayed."""

    kind = "slurm"

    def __init__(self, source: SlurmSource, began: float, faster: float) -> None:
        self._source, self._began, self._faster = source, began, faster
        self.name = source.name

    def clock(self) -> float:
        """Now, in the time of the day."""
        return self._slow(time.time())

    def look(self, since: float, alive: Collection[str]) -> Sight:
        """What the source sees, with other times."""
        sight = self._source.look(self._began + (since - self._began) / self._faster, alive)
        jobs = tuple(self._job(job) for job in sight.jobs)
        return Sight(self._slow(sight.now), jobs, sight.nodes, sight.notes)

    def annotate(self, job: str, text: str) -> None:
        """Nothing is written."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing to do."""

    def _slow(self, at: float) -> float:
        return self._began + (at - self._began) * self._faster

    def _end(self, end: SeenEnd | None) -> SeenEnd | None:
        return None if end is None else replace(end, at=self._slow(end.at))

    def _run(self, run: SeenRun) -> SeenRun:
        return replace(run, started_at=self._slow(run.started_at), end=self._end(run.end))

    def _job(self, job: SeenJob) -> SeenJob:
        limit, expected = job.time_limit_s, job.expected_at
        return replace(
            job,
            submitted_at=self._slow(job.submitted_at),
            runs=tuple(self._run(run) for run in job.runs),
            end=self._end(job.end),
            time_limit_s=None if limit is None else limit * self._faster,
            expected_at=None if expected is None else self._slow(expected),
        )


def watch(data: Path, began: float, faster: float, every_s: float) -> None:
    """Look again and again until somebody ends it."""
    layout = Layout(data)
    source = Stretched(SlurmSource(), began, faster)
    store = open_store(f"sqlite:///{layout.database}")
    past_s = 86_400.0
    watcher = Watcher(store, source, Seat(layout.lock).take(), past_s=past_s, clock=source.clock)
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    while not stopping:
        until = time.monotonic() + every_s
        try:
            watcher.turn()
        except Exception as error:
            print(f"watcher: {error}", file=sys.stderr, flush=True)
        watcher.keep_lease()
        time.sleep(max(0.0, until - time.monotonic()))
    watcher.close()


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
        tasks = a_day(options.hours, options.nodes * 4, options.load, options.seed)
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
            time.sleep(2)
        time.sleep(8)
        self.kill_watcher(signal.SIGTERM)

    def results(self) -> dict[str, Any]:
        """What is to be shown."""
        store = open_store(f"sqlite:///{Layout(self.data).database}")
        scored = read_scores(store.knowledge)
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
            counts["jobs"] += 1
            mine = latest.pop(job, None)
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
        watch(Path(data), float(began), float(faster), 1.0)
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
