"""What the journal costs in SQLite: turns of the deciding loop written to disk, and a start.

The disk decides about small turns, so a bare flush of 64 KiB is measured beside them. Run it
with `python -m benchmarks.store [--jobs 10000] [--directory DIR] [--json]`.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from presage.core.loop import fold
from presage.core.state import State
from presage.model import event as ev
from presage.model.cluster import Resources
from presage.model.job import JobSpec, Role
from presage.store import open_store
from presage.store.records import JobRow
from presage.store.sql import SqlStore

TURNS = (10, 100)
"""Jobs that are submitted in one turn."""
MANIFEST = {
    "name": "hello",
    "command": "python train.py --epochs 3",
    "workers": "2..4",
    "resources": {"cpus": 1, "memory": "512Mi", "gpus": 1},
    "checkpoint": {"dir": "ckpt", "every": "60s"},
}


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--directory", type=Path, default=None)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures: dict[str, float] = {}
    for size in TURNS:
        with tempfile.TemporaryDirectory(dir=options.directory) as place:
            figures |= measure(Path(place), options.jobs, size)
    if options.json:
        print(json.dumps({"store": figures}))
        return
    for name, figure in figures.items():
        print(f"{name:<36} {figure:,.3f}" if figure < 100 else f"{name:<36} {figure:,.0f}")


def measure(place: Path, jobs: int, size: int) -> dict[str, float]:
    """Submit jobs in turns of one size, then start again from what was written."""
    url = f"sqlite:///{place / 'presage.db'}"
    store = open_store(url)
    turns = [range(first, min(jobs, first + size)) for first in range(0, jobs, size)]
    waits, began, cpu = [], time.perf_counter(), time.process_time()
    for now, numbers in enumerate(turns):
        at = time.perf_counter()
        submit(store, float(now), numbers)
        waits.append(time.perf_counter() - at)
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    waits.sort()
    flush = bare_flush(place / "flush", len(turns))
    state, folded = timed(lambda: fold(store.read()))
    store.save_snapshot(store.position(), state.now, state.snapshot())
    store.close()

    def start() -> State:
        again = open_store(url)
        found = again.load_snapshot()
        assert found is not None
        restored = fold(again.read(found[0]), State.restore(found[1]))
        again.close()
        return restored

    restored, started = timed(start)
    assert len(restored.jobs) == jobs
    title = f"{size} a turn:"
    return {
        f"{title} submissions a second": jobs / wall,
        f"{title} rows a second": 3 * jobs / wall,  # the event, the job, its first transition
        f"{title} rows a CPU second": 3 * jobs / cpu,
        f"{title} p99 of a turn, s": waits[int(0.99 * len(waits))],
        f"{title} a bare flush, s": flush,
        f"{title} fold the whole journal, s": folded,
        f"{title} start from a snapshot, s": started,
    }


def submit(store: SqlStore, now: float, numbers: range) -> None:
    """One turn in which these jobs are submitted."""
    role = Role("worker", Resources(1000, 512, 1000), 2, 4)
    specs = [JobSpec(f"job-{i:06d}", (role,), owner="ann", max_retries=2) for i in numbers]
    store.append(
        now,
        [ev.JobSubmitted(spec) for spec in specs],
        [],
        jobs=[
            JobRow(id=spec.id, name="hello", owner="ann", submitted_at=now, manifest=MANIFEST)
            for spec in specs
        ],
    )


def bare_flush(path: Path, times: int) -> float:
    """Seconds to bring 64 KiB to this disk, without any database."""
    times = min(times, 200)
    with path.open("wb", buffering=0) as file:
        file.write(bytes(times << 16))
        os.fsync(file.fileno())
        began = time.perf_counter()
        for i in range(times):
            os.pwrite(file.fileno(), os.urandom(1 << 16), i << 16)
            os.fdatasync(file.fileno())
        return (time.perf_counter() - began) / times


def timed(work: Callable[[], State]) -> tuple[State, float]:
    """What came of it, and how long it took."""
    began = time.perf_counter()
    return work(), time.perf_counter() - began


if __name__ == "__main__":
    main()
