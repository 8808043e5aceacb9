"""What profiling costs the job that is profiled.

One process repeats a fixed piece of CPU work and logs when each began, how long it took and how
much CPU time that was. Meanwhile the profiler's sampler watches it, one window on, one window off.
The ratio of neighbouring windows is what sampling costs; slow changes of other load on the machine
hit both. Run it with `python -m benchmarks.profiler_overhead [--pairs 60] [--window 1] [--hz 20]
[--json]`; the intervals are bootstrapped over the pairs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from presage.telemetry.sampler import Sampler

WORK = """
import sys, time
import numpy as np
a = np.random.default_rng(0).random((128, 128))
big = np.zeros(200_000)
log = open(sys.argv[1], "wb")
print("ready", flush=True)
while True:
    row = [time.monotonic(), time.thread_time()]
    for _ in range(10):
        a @ a
        np.add(big, 1.0, out=big)
    log.write(np.array([*row, time.monotonic(), time.thread_time()]).tobytes())
    log.flush()
"""

Array = npt.NDArray[np.float64]


def main() -> None:
    """Measure, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--window", type=float, default=1.0)
    parser.add_argument("--hz", type=float, default=20.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = measure(options.pairs, options.window, options.hz)
    if options.json:
        print(json.dumps({"profiler_overhead": figures}))
        return
    print(f"{options.pairs} pairs of windows of {options.window:g} s, {options.hz:g} Hz asked for")
    for name, title in (("cpu", "CPU time of the same work"), ("wall", "time of the same work")):
        ratio, low, high = (figures[f"{name}{part}"] for part in ("", "_low", "_high"))
        print(f"{title + ', on / off':<35} {ratio:.4f}  ({low:.4f} to {high:.4f})")
    print(f"{'CPU time of the sampler':<35} {100 * figures['sampler_share']:.2f} % of one core")
    print(f"{'rate':<35} {figures['hz']:.2f} Hz")


def measure(pairs: int, window_s: float, hz: float) -> dict[str, float]:
    """Alternate, and compare each window with sampling to the one without it beside it."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        command = [sys.executable, "-c", WORK, str(log)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as job:
            try:
                assert job.stdout is not None
                job.stdout.readline()
                spans, cpu_s, samples = _alternate(job.pid, pairs, window_s, hz)
            finally:
                job.kill()
        rows = np.frombuffer(log.read_bytes(), dtype=np.float64)
    done = rows[: len(rows) // 4 * 4].reshape(-1, 4)
    wall, cpu = done[:, 2] - done[:, 0], done[:, 3] - done[:, 1]
    figures = {"sampler_share": cpu_s / (pairs * window_s), "hz": samples / (pairs * window_s)}
    for name, cost in (("wall", wall), ("cpu", cpu)):
        means = np.array(
            [cost[(done[:, 0] >= start) & (done[:, 2] < end)].mean() for start, end in spans]
        )
        ratio, low, high = _median_with_interval(means[0::2] / means[1::2])
        figures |= {name: ratio, f"{name}_low": low, f"{name}_high": high}
    return figures


def _alternate(
    pid: int, pairs: int, window_s: float, hz: float
) -> tuple[list[tuple[float, float]], float, int]:
    """Windows as (start, end), on and off in turn within each pair; CPU time and samples."""
    spans, cpu_s, samples = [], 0.0, 0
    for pair in range(pairs):
        on_then_off = []
        for on in (True, False) if pair % 2 else (False, True):
            sampler = Sampler(pid, hz)
            start = time.monotonic()
            if on:
                sampler.start()
            time.sleep(window_s)
            span = (start, time.monotonic())
            if on:
                samples += len(sampler.stop()["at"])
                cpu_s += sampler.cpu_s
            on_then_off.append((not on, span))
        spans += [span for _, span in sorted(on_then_off)]
    return spans, cpu_s, samples


def _median_with_interval(ratios: Array) -> tuple[float, float, float]:
    """The median, and the 2.5 and 97.5 % quantiles of the medians of resampled pairs."""
    rng = np.random.default_rng(0)
    drawn = np.median(rng.choice(ratios, (2000, len(ratios))), axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(np.median(ratios)), float(low), float(high)


if __name__ == "__main__":
    main()
