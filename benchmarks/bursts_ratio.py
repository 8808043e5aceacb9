"""The ratio of servers to workers, tuned live: a job that starts badly against every fixed ratio.

    python -m benchmarks.bursts_ratio [--network 1gbit] [--model a2c] [--steps 1500] [--json]

Real servers and processes (`examples/distributed` under `presage serve`), on a node of `--tasks`
places; each task has a link of its own (`_links`), so it needs root. Speed is in steps of a worker
a second, by what the job reports: that of a fixed ratio over `--seconds` after a warm-up, that of
the tuned job over its last `--seconds`. The tuned job is labelled `tune: roles`; `never` is the
same job, the same length, without the label.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from benchmarks._burst_runs import EXAMPLE
from benchmarks._links import Links
from benchmarks.live_loop import served, submit
from presage.foresee.bursts.settings import NETWORKS

ROOT = Path(__file__).parent.parent
Reports = list[tuple[float, float]]
"""When it was seen, and the steps made by then."""
_WARM = 12


class RatioBench:
    """A server, links, and jobs on them."""

    def __init__(self, url: str, links: Links, home: Path, options: argparse.Namespace) -> None:
        self.url, self.links, self.home, self.options = url, links, home, options

    def submit(self, workers: str | int, servers: str | int, steps: int, **more: Any) -> str:
        """A job's id."""
        asked = self.options
        command = [sys.executable, "-m", "benchmarks._link_task", self.links.name, str(EXAMPLE)]
        command += ["--model", asked.model, "--input", asked.input, "--batch", str(asked.batch)]
        command += ["--steps", str(steps)]
        one = {"gpus": 1}
        return submit(
            self.url,
            name="ratio",
            command=command,
            roles={
                "worker": {"workers": workers, "resources": one},
                "ps": {"workers": servers, "resources": one},
            },
            env={"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "OMP_NUM_THREADS": "1"},
            checkpoint={"dir": "checkpoints", "every": "10m"},
            grace="20s",
            **more,
        )

    def watch(self, job: str) -> Iterator[tuple[float, float]]:
        """What it reports, until it is over."""
        while True:
            found = httpx.get(f"{self.url}/api/v1/jobs/{job}", timeout=30).json()
            if found["ended_at"] is not None:
                assert found["status"] in ("COMPLETED", "CANCELLED"), found
                return
            made = (found.get("progress") or {}).get("step")
            if made is not None:
                yield time.monotonic(), float(made)
            time.sleep(0.1)

    def fixed(self, workers: int, servers: int) -> float:
        """Steps a second at a ratio that stays."""
        job = self.submit(workers, servers, 1_000_000)
        reports: Reports = []
        for at, made in self.watch(job):
            if made > _WARM:
                reports.append((at, made))
            if reports and at - reports[0][0] > self.options.seconds:
                break
        httpx.post(f"{self.url}/api/v1/jobs/{job}/stop", timeout=30)
        for _ in self.watch(job):
            pass
        return _speed(reports)

    def whole(self, *, tuned: bool) -> dict[str, Any]:
        """A job of `--steps` from its start to its end."""
        labels = {"tune": "roles"} if tuned else {}
        spans = (self.options.workers, self.options.servers)
        start = time.monotonic()
        job = self.submit(*spans, self.options.steps, labels=labels)
        reports = list(self.watch(job))
        took_s = time.monotonic() - start
        reports = [each for each in reports if each[1] < self.options.steps]
        last = [each for each in reports if each[0] > reports[-1][0] - self.options.seconds]
        return {
            "took_s": round(took_s, 1),
            "steps_s_at_the_end": round(_speed(last), 3),
            "advisor": self._said(job),
        }

    def _said(self, job: str) -> list[str]:
        """What the advisor found."""
        lines = (self.home / "server.log").read_text().splitlines()
        return [
            line.partition(f"{job}: ")[2] for line in lines if f"presage.ratio job {job}" in line
        ]


def _speed(reports: Reports) -> float:
    (start, before), (end, after) = reports[0], reports[-1]
    return (after - before) / max(end - start, 1e-9)


@contextmanager
def _bench(options: argparse.Namespace) -> Iterator[RatioBench]:
    tasks = options.tasks
    with (
        tempfile.TemporaryDirectory() as home,
        Links(tasks, NETWORKS[options.network]) as links,
        served(Path(home), "--nodes", f"1x{tasks}:core", "--policy", options.policy) as (url, _),
    ):
        yield RatioBench(url, links, Path(home), options)


def main() -> None:
    parser = argparse.ArgumentParser(description="Servers against workers, tuned live.")
    parser.add_argument("--network", default="1gbit", choices=NETWORKS)
    parser.add_argument("--model", default="a2c")
    parser.add_argument("--input", default="")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--workers", default="1..3")
    parser.add_argument("--servers", default="1..2")
    parser.add_argument("--fixed", default="1/1,2/1,3/1,1/2,2/2", help="workers/servers")
    parser.add_argument("--steps", type=int, default=1500, help="0: fixed ratios alone")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--policy", default="elastic")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    out: dict[str, Any] = {"network": options.network, "model": options.model, "fixed": {}}
    with _bench(options) as bench:
        for name in options.fixed.split(",") if options.fixed else ():
            workers, servers = map(int, name.split("/"))
            out["fixed"][name] = round(bench.fixed(workers, servers), 3)
            print(f"{name}: {out['fixed'][name]} steps a second", file=sys.stderr, flush=True)
        if options.steps:
            out["tuned"] = bench.whole(tuned=True)
            out["never"] = bench.whole(tuned=False)
    best = max(out["fixed"].values(), default=0.0)
    if best and options.steps:
        out["tuned_over_best"] = round(out["tuned"]["steps_s_at_the_end"] / best, 3)
    print(json.dumps(out, indent=None if options.json else 1))


if __name__ == "__main__":
    main()
