"""The ratio of servers to workers, tuned live: a job that starts badly against every fixed ratio.

    python -m benchmarks.bursts_ratio --keep FILE 1/1 2/1 3/1 1/2 2/2 best tuned best never
    python -m benchmarks.bursts_ratio --keep FILE

Real servers and processes (`examples/distributed` under `presage serve`), on a node of `--tasks`
places; each task has a link of its own (`_links`), so it needs root. Each part is one job and adds
one line to FILE, so what was measured stays if it is interrupted, and its job is then stopped. A
part is a fixed ratio (workers/servers); `best`, the fastest of those so far; `tuned`, a job that
is labelled `tune: roles` and starts at `--start`, else as the policy places it; or `never`, the
same without the label. Speed is in steps of a worker a second, by what the job reports: over
`--seconds` after a warm-up, and of `tuned` and `never`, over the last `--seconds`. With `best`
before and after `tuned` both are compared in a pair, so that what else the machine does hits both.
Without parts, what FILE tells of each network. `--nice -10` has the tasks go before other work.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import httpx

from benchmarks._burst_runs import EXAMPLE
from benchmarks._links import Links
from benchmarks.live_loop import served, submit
from presage.foresee.bursts.settings import NETWORKS

ROOT = Path(__file__).parent.parent
Reports = list[tuple[float, float]]
"""When it was seen, in seconds since the job was submitted, and the steps made by then."""
Line = dict[str, Any]
WHOLE = ("tuned", "never")
_WARM = 12


class RatioBench:
    """A server, links, and jobs on them."""

    def __init__(self, url: str, links: Links, home: Path, options: argparse.Namespace) -> None:
        self.url, self.links, self.home, self.options = url, links, home, options

    def measure(self, part: str) -> Line:
        """What one part finds."""
        load = round(os.getloadavg()[0], 1)
        found = self._whole(part) if part in WHOLE else self._fixed(part)
        asked = {key: getattr(self.options, key) for key in ("network", "model", "batch")}
        return {**asked, "part": part, "load_before": load, **found}

    def _fixed(self, ratio: str) -> Line:
        """Steps a second at a ratio that stays."""
        workers, servers = map(int, ratio.split("/"))
        reports: Reports = []
        with self._job(workers, servers, 1_000_000) as job:
            for at, made in self._watch(job):
                if made > _WARM:
                    reports.append((at, made))
                if reports and at - reports[0][0] > self.options.seconds:
                    break
        return {"speed": round(_speed(reports), 3)}

    def _whole(self, part: str) -> Line:
        """A job of `--steps` from its start to its end."""
        labels = {"tune": "roles"} if part == "tuned" else {}
        steps, spans = self.options.steps, (self.options.workers, self.options.servers)
        with self._job(*spans, steps, labels=labels) as job:
            self._scale(job)
            reports = list(self._watch(job))
        ended = next(at for at, made in reports if made >= steps)
        told = [each for each in reports if each[1] < steps]
        last = [each for each in told if each[0] > told[-1][0] - self.options.seconds]
        found = {
            "speed": round(_speed(last), 3),
            "steps": steps,
            "took_s": round(ended, 1),
            "reports": [(round(at, 2), made) for at, made in told],
        }
        return found | ({"advisor": self._said(job)} if part == "tuned" else {})

    @contextmanager
    def _job(
        self, workers: str | int, servers: str | int, steps: int, **more: Any
    ) -> Iterator[str]:
        """A job's id; when this is left, nothing of it runs any more."""
        asked = self.options
        command = [sys.executable, "-m", "benchmarks._link_task", self.links.name, str(EXAMPLE)]
        command += ["--model", asked.model, "--input", asked.input, "--batch", str(asked.batch)]
        command += ["--steps", str(steps)]
        one = {"gpus": 1}
        self._began = time.monotonic()
        job = submit(
            self.url,
            name="ratio",
            command=command,
            roles={
                "worker": {"workers": workers, "resources": one},
                "ps": {"workers": servers, "resources": one},
            },
            env={
                "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
                "OMP_NUM_THREADS": "1",
                "LINK_TASK_NICE": str(asked.nice),
            },
            checkpoint={"dir": "checkpoints", "every": "10m"},
            grace="20s",
            **more,
        )
        try:
            yield job
        finally:
            with suppress(httpx.HTTPError):
                httpx.post(f"{self.url}/api/v1/jobs/{job}/stop", timeout=30)
            for _ in self._watch(job):
                pass

    def _scale(self, job: str) -> None:
        """Bring a job to the ratio that it is to start at, if one is named."""
        counts = self.options.start.split("/") if self.options.start else ()
        for role, count in zip(("worker", "ps"), counts, strict=False):
            body = {"workers": int(count), "role": role}
            answer = httpx.post(f"{self.url}/api/v1/jobs/{job}/scale", json=body, timeout=30)
            assert answer.status_code == 202, answer.text

    def _watch(self, job: str) -> Iterator[tuple[float, float]]:
        """What it reports that is new, until it is over."""
        last = None
        while True:
            found = httpx.get(f"{self.url}/api/v1/jobs/{job}", timeout=30).json()
            made = (found.get("progress") or {}).get("step")
            if made is not None and made != last:
                last = made
                yield time.monotonic() - self._began, float(made)
            if found["ended_at"] is not None:
                assert found["status"] in ("COMPLETED", "CANCELLED"), found
                return
            time.sleep(0.2)

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
    Links.check()
    Links.sweep()
    with (
        tempfile.TemporaryDirectory() as home,
        Links(tasks, NETWORKS[options.network]) as links,
        served(Path(home), "--nodes", f"1x{tasks}:core", "--policy", options.policy) as (url, _),
    ):
        yield RatioBench(url, links, Path(home), options)


# -- what was measured ----------------------------------------------------------------------------


def summary(lines: Sequence[Line]) -> Line:
    """What the parts on one network say, in the order in which they were measured."""
    fixed: dict[str, list[float]] = {}
    for line in lines:
        if line["part"] not in WHOLE:
            fixed.setdefault(line["part"], []).append(line["speed"])
    out: Line = {"fixed": {ratio: round(mean(speeds), 3) for ratio, speeds in fixed.items()}}
    best = max(out["fixed"], key=out["fixed"].__getitem__, default="")
    never = [line for line in lines if line["part"] == "never"]
    for part in WHOLE:
        out[part] = [
            {
                **{key: line[key] for key in ("speed", "steps", "took_s")},
                "since its first report s": round(line["took_s"] - line["reports"][0][0], 1),
            }
            for line in lines
            if line["part"] == part
        ]
    for at, line in enumerate(lines):
        if line["part"] != "tuned":
            continue
        found = out["tuned"][sum(each["part"] == "tuned" for each in lines[:at])]
        if best:
            found["over best"] = round(line["speed"] / _beside(lines, at, best), 3)
        found["longest pause s"] = round(_pause(line["reports"])[1], 1)
        if never:
            found["pays after steps"] = _pays_after(line, min(never, key=lambda n: n["took_s"]))
        found["advisor"] = line["advisor"]
    return {**out, "best": best}


def _beside(lines: Sequence[Line], at: int, ratio: str) -> float:
    """The speed of a fixed ratio as it was measured just before and just after a line."""
    before: list[float] = [line["speed"] for line in lines[:at] if line["part"] == ratio]
    after: list[float] = [line["speed"] for line in lines[at:] if line["part"] == ratio]
    return mean(before[-1:] + after[:1])


def _pause(reports: Sequence[Sequence[float]]) -> tuple[int, float]:
    """The longest time without a report after the first one: where, and how long."""
    gaps = [after[0] - before[0] for before, after in pairwise(reports)]
    return max(enumerate(gaps), key=lambda each: each[1], default=(0, 0.0))


def _pays_after(tuned: Line, never: Line) -> int | None:
    """Steps of a job from which on it ends earlier when it is tuned; None: never. One goes on as
    fast as it was since its longest pause, the other as it always was."""
    ours, others = tuned["reports"], never["reports"]
    fast, slow = _speed(ours[_pause(ours)[0] + 1 :]), _speed(others)
    behind_s = _late_s(ours, fast) - _late_s(others, slow)
    gains_s = 1 / slow - 1 / fast  # with each step
    return max(0, round(behind_s / gains_s)) if gains_s > 0 else None


def _late_s(reports: Reports, speed: float) -> float:
    """How much later than at this speed it is where it is, since its first report: how long
    programs take to start is not the ratio's."""
    (start, _), (at, made) = reports[0], reports[-1]
    return at - start - made / speed


def _end(*_: Any) -> None:
    """Leave as by Ctrl-C, so that the job is stopped; `timeout` asks twice."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(143)


def main() -> None:
    parser = argparse.ArgumentParser(description="Servers against workers, tuned live.")
    parser.add_argument("parts", nargs="*", help="workers/servers, best, tuned, never")
    parser.add_argument("--keep", type=Path, required=True, help="JSON lines, one a part")
    parser.add_argument("--network", default="1gbit", choices=NETWORKS)
    parser.add_argument("--model", default="a2c")
    parser.add_argument("--input", default="")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--workers", default="1..3")
    parser.add_argument("--servers", default="1..2")
    parser.add_argument("--start", default="", help="ratio at which tuned and never start")
    parser.add_argument("--steps", type=int, default=1500, help="of tuned and never")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--policy", default="elastic")
    parser.add_argument("--nice", type=int, default=0, help="-20: before what else runs")
    options = parser.parse_args()
    if options.parts:
        signal.signal(signal.SIGTERM, _end)
        with _bench(options) as bench:
            for part in options.parts:
                if part == "best":
                    part = summary(_kept(options.keep, options.network))["best"]
                line = bench.measure(part)
                with options.keep.open("a") as file:
                    print(json.dumps(line), file=file)
                told = {key: value for key, value in line.items() if key != "reports"}
                print(json.dumps(told), file=sys.stderr, flush=True)
    of = {network: _kept(options.keep, network) for network in NETWORKS}
    print(json.dumps({name: summary(some) for name, some in of.items() if some}, indent=1))


def _kept(file: Path, network: str) -> list[Line]:
    """What was measured on a network."""
    lines = map(json.loads, file.read_text().splitlines())
    return [line for line in lines if line["network"] == network]


if __name__ == "__main__":
    main()
