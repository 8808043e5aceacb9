"""How fast phases are learned and followed.

The CRBM: an epoch of mini-batches against an epoch of one slice at a time, both in NumPy, on
600,000 windows of eight features from the scout runs (the slow one is timed on a tenth and scaled
up; its reconstruction error is measured after a whole epoch with --whole). Online: a sample of
each of 100,000 pods, again and again. Needs the shared data; set OMP_NUM_THREADS=1 for one core.

    python -m benchmarks.phases_speed [--whole] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from benchmarks._data import shared
from presage.observe.phases import CRBM, PhaseModel
from presage.telemetry.readers import read_telemetry

ROWS, FEATURES, PODS = 600_000, 8, 100_000


def training(whole: bool) -> dict[str, Any]:
    """An epoch of each."""
    table = pl.read_parquet(shared("telemetry/scout_runs_5s.parquet"))
    values = table.select(pl.all().exclude("run", "t_s")).to_numpy()[:, :FEATURES]
    values = np.clip((values - values.mean(axis=0)) / values.std(axis=0), -5, 5)
    views = np.lib.stride_tricks.sliding_window_view(values, 4, axis=0).transpose(0, 2, 1)
    windows = np.resize(views, (ROWS, 4, FEATURES)).astype(np.float32)
    held = windows[::50]
    part = windows if whole else windows[: ROWS // 10]
    started = time.perf_counter()
    slow = CRBM(learning_rate=0.001, epochs=1, compat="hiest").fit(part)
    slow_s = (time.perf_counter() - started) * len(windows) / len(part)
    times = {}
    for epochs in (1, 5):
        started = time.perf_counter()
        fast = CRBM(epochs=epochs, patience=epochs).fit(windows)
        times[epochs] = time.perf_counter() - started
        if epochs == 1:
            after_one = fast
    fast_s = (times[5] - times[1]) / 4
    return {
        "one slice at a time, s an epoch": slow_s,
        "mini-batches, s an epoch": fast_s,
        "ratio (target 50)": slow_s / fast_s,
        f"error after an epoch {'' if whole else 'of a tenth '}of slices": float(
            slow.surprise(held).mean()
        ),
        "error after an epoch of mini-batches": float(after_one.surprise(held).mean()),
        "first epoch with setting up, s": times[1],
    }


def online(rounds: int = 20) -> dict[str, Any]:
    """Samples a second for many pods."""
    model = PhaseModel.fit(read_telemetry(shared("telemetry/ai4dl_vr.csv")), forecast=False)
    random = np.random.default_rng(0)
    pods = [f"pod-{number}" for number in range(PODS)]
    stepper = model.stepper()
    taken = 0.0
    for turn in range(rounds):
        values = model.scaler.mean + model.scaler.scale * random.normal(
            size=(PODS, len(model.features))
        )
        times = np.full(PODS, 15.0 * turn) + random.uniform(0, 5, PODS)
        started = time.perf_counter()
        stepper.step_many(pods, times, values)
        taken += time.perf_counter() - started
    single = model.stepper()
    started = time.perf_counter()
    for turn in range(2000):
        single.step("one", 20.0 * turn, values[turn])
    return {
        "samples a second, batches (target 7,000)": rounds * PODS / taken,
        "samples a second, one at a time": 2000 / (time.perf_counter() - started),
        "bytes a pod in arrays": stepper.bytes_per_pod,
        "bytes a pod for its name": sum(map(sys.getsizeof, pods)) / PODS
        + sys.getsizeof(stepper._slots) / PODS,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--whole", action="store_true", help="time all slices, not a tenth")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    found = {"training": training(options.whole), "online": online()}
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for title, rows in found.items():
        print(f"\n{title}")
        for name, value in rows.items():
            print(f"  {name:48} {value:12,.4g}")


if __name__ == "__main__":
    main()
