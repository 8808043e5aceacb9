"""Utilization foreseen with a timed loader, against trainings that really run here.

The device is one thread of PyTorch on the CPU. Ten input pipelines (five kinds of samples, without
workers and with one) each feed a net that waits for it and one that it waits for. Before a
training, the pipeline is timed by itself as `presage predict --loader` does, and the net's step,
which stands for what the step-time estimator says of a GPU. A core is no GPU: on a batch that a
worker handed over, after a wait, or in caches that other work has filled, a step is slower than
the same step again and again. So it is timed as it will be met; what is foreseen with a step on a
batch that lies ready is shown beside ("by ready"), and what a step took in the training ("met").
Then the training runs, and its busy share is the time in steps over all time. Errors are RMSLE of
log(1 + percent). Wants two cores for itself, or the highest priority on them.
Needs PyTorch; takes a few minutes.

    python -m benchmarks.loader_live [--seconds 3] [--json] [--only images,text]
    python -m benchmarks.loader_live --join A.json B.json      (of runs with --json --only)
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from benchmarks import _loaders
from benchmarks._tables import print_table
from presage.foresee.loader import LoaderTiming, fed, time_loader
from presage.learn.evaluate import rmsle1p
from presage.telemetry.batches import core_time

TARGET = 0.2
_STEPS = 12
_LONGEST_WAIT_S = 0.1
_FIRST = 4
_CACHED_MIB = 8
"""More than the caches of one core hold."""


def main(argv: Sequence[str] | None = None) -> int:
    """Time, train, compare."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each training")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument(
        "--only", default=",".join(_loaders.KINDS), help="kinds of pipelines, with commas"
    )
    parser.add_argument("--join", nargs="+", type=Path, help="what runs of parts wrote")
    options = parser.parse_args(argv)
    if options.join:
        rows = [r for path in options.join for r in json.loads(path.read_text())["trainings"]]
    else:
        rows = run(options.only.split(","), options.seconds)
    summary = summarise(rows)
    if options.json:
        print(json.dumps({"trainings": rows, "summary": summary}, allow_nan=False))
    else:
        print_table(rows)
        print()
        print_table(summary)
    return 0


def run(kinds: Sequence[str], seconds: float) -> list[dict[str, Any]]:
    """Four trainings of each kind."""
    torch.set_num_threads(1)
    rows = []
    for kind in kinds:
        for workers in (0, 1):
            target = f"{Path(_loaders.__file__)}:{kind}_{workers}"
            timing = time_loader(target, batches=24, timeout_s=90)
            for large in (False, True):
                rows.append(compare(kind, workers, large, timing, seconds))
                print(rows[-1], file=sys.stderr)
    return rows


def compare(
    kind: str, workers: int, large: bool, timing: LoaderTiming, seconds: float
) -> dict[str, Any]:
    """One training, foreseen and run."""
    torch.manual_seed(0)
    step = stepper(_loaders.make_net(kind, large))
    ready = next(iter(getattr(_loaders, f"{kind}_0")()))
    feed_ms = float(timing.feed_ms(timing.batch)[1])
    hot_ms = time_steps(step, repeat(ready, _STEPS + 2))
    step_ms = time_steps(step, handed_over(ready, workers, feed_ms))
    hot, foreseen = (
        fed(ms, (100.0, 100.0, 100.0), timing, timing.batch) for ms in (hot_ms, step_ms)
    )
    busy, met_ms = train(step, getattr(_loaders, f"{kind}_{workers}"), seconds)
    return {
        "pipeline": kind,
        "workers": workers,
        "bound by": "step" if large else "loader",
        "step ms": round(step_ms[1], 2),
        "ready ms": round(hot_ms[1], 2),
        "feed ms": round(feed_ms, 1),
        "foreseen %": round(foreseen.util_pct[1], 1),
        "from": round(foreseen.util_pct[0], 1),
        "to": round(foreseen.util_pct[2], 1),
        "by ready %": round(hot.util_pct[1], 1),
        "met ms": round(met_ms, 2),
        "measured %": round(busy, 1),
    }


def stepper(net: nn.Module) -> Callable[[Any], None]:
    """A training step of a net on a batch."""
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)

    def step(batch: Any) -> None:
        samples, labels = batch
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(samples), labels).backward()
        optimizer.step()

    return step


def handed_over(batch: Any, workers: int, feed_ms: float) -> Iterator[Any]:
    """A batch again and again as a training gets it: in new memory, and where a worker makes it,
    from the worker and after as long as it takes to feed."""
    same, other = [batch] * (_STEPS + 2), np.zeros(_CACHED_MIB << 20, np.uint8)
    for given in DataLoader(same, batch_size=None, num_workers=workers):
        if workers:
            time.sleep(min(feed_ms / 1e3, _LONGEST_WAIT_S))
            yield given
        else:
            other += 1  # what makes a batch in the same process has the caches meanwhile
            yield [part.clone() for part in given]


def time_steps(step: Callable[[Any], None], batches: Iterator[Any]) -> tuple[float, float, float]:
    """p10, p50 and p90 of a step in milliseconds, without waiting for a core that others have,
    which a GPU does not; the first ones do not count."""
    times = []
    for batch in batches:
        before, start = core_time(), time.perf_counter()
        step(batch)
        passed, after = time.perf_counter() - start, core_time()
        times.append(1e3 * max(passed - (after.waited_s - before.waited_s), 1e-6))
    low, middle, high = map(float, np.quantile(times[2:], (0.1, 0.5, 0.9)))
    return low, middle, high


def train(
    step: Callable[[Any], None], make: Callable[[], Any], seconds: float
) -> tuple[float, float]:
    """The percent of a training's time that is spent in steps, and milliseconds of one, from when
    its workers run and what they made meanwhile is used up."""
    busy, steps, start = 0.0, 0, None
    while start is None or time.perf_counter() - start < seconds:
        for n, batch in enumerate(make()):
            if start is None and n < _FIRST:
                continue
            began = time.perf_counter()
            start = start or began
            step(batch)
            busy += time.perf_counter() - began
            steps += 1
            if time.perf_counter() - start >= seconds:
                break
    return 100 * busy / (time.perf_counter() - start), 1e3 * busy / steps


def summarise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Errors over all trainings and by what binds them."""
    found = []
    for name in ("all", "loader", "step", "no worker", "one worker"):
        crew = ("no worker", "one worker")
        part = [row for row in rows if name in ("all", row["bound by"], crew[row["workers"]])]
        truth = np.array([row["measured %"] for row in part])
        guess = np.array([row["foreseen %"] for row in part])
        held = np.mean([row["from"] <= row["measured %"] <= row["to"] for row in part])
        found.append(
            {
                "bound by": name,
                "trainings": len(part),
                "target": TARGET if name == "all" else None,
                "RMSLE": round(rmsle1p(truth, guess), 3),
                "by ready": round(rmsle1p(truth, np.array([r["by ready %"] for r in part])), 3),
                "as if fed": round(rmsle1p(truth, np.full(len(part), 100.0)), 3),
                "80 % holds": round(float(held), 3),
            }
        )
    return found


if __name__ == "__main__":
    sys.exit(main())
