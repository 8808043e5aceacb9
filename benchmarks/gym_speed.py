"""How fast the environments are: decisions a second in two processes, random choices of what can
be done, on made traces; and how long a bundle takes to choose.

With `--before`, the `src` directory of another version, both are measured in turns in one run, on
the same episodes.

    python -m benchmarks.gym_speed [--seconds 10] [--processes 2] [--before DIR] [--rounds 3]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter, process_time

import numpy as np

import presage
from presage.gym.envs import ClusterEnv
from presage.gym.tasks import layout_of
from presage.policy.learned.net import Net


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--play", nargs=2, type=int, metavar=("SEED", "DECISIONS"))
    given = parser.parse_args()
    if given.play is not None:
        print(play_so_many(*given.play))
        return
    if given.before is not None:
        compare(given.before, given.seconds, given.rounds)
        return
    with get_context("spawn").Pool(given.processes) as pool:
        pool.map(play, [(seed, 0.5) for seed in range(given.processes)])  # imports
        told = pool.map(play, [(seed, given.seconds) for seed in range(given.processes)])
    for seed, (count, wall_s, cpu_s) in enumerate(told):
        print(f"process {seed}: {count:,} decisions, {count / wall_s:,.0f} a second", end="")
        print(f", {count / cpu_s:,.0f} a second of CPU time")
    together = sum(count / wall_s for count, wall_s, _ in told)
    of_cpu = sum(count / cpu_s for count, _, cpu_s in told)
    print(f"together: {together:,.0f} a second; {of_cpu:,.0f} on {given.processes} whole cores")
    print(f"one choice of a network: {choosing_us():.0f} us")
    count, cpu_s = play_services(given.seconds)
    print(f"services: {count / cpu_s:,.0f} decisions a second of CPU time in one process")


def compare(before: Path, seconds: float, rounds: int) -> None:
    """Another version and this one in turns; each in a process of its own, a fixed number of
    decisions, so that both play the same."""
    decisions = round(seconds * 10_000)
    spent: dict[str, list[float]] = {"before": [], "now": []}
    here = Path(presage.__file__).parents[1]
    for number in range(rounds):
        for name, source in (("before", before), ("now", here)):
            cpu_s = timed(source, number, decisions)
            spent[name].append(cpu_s)
            print(f"round {number}, {name}: {decisions / cpu_s:,.0f} a second of CPU time")
    ratios = [old / new for old, new in zip(spent["before"], spent["now"], strict=True)]
    told = ", ".join(f"{one:.2f}" for one in ratios)
    print(
        f"times as fast, by round: {told}; in all {sum(spent['before']) / sum(spent['now']):.2f}"
    )


def timed(source: Path, seed: int, decisions: int) -> float:
    """The same in a process that imports `presage` from there."""
    ask = ["benchmarks.gym_speed", "--play", str(seed), str(decisions)]
    told = subprocess.run(
        [sys.executable, "-m", *ask],
        env={**os.environ, "PYTHONPATH": str(source.resolve())},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(told.stdout)


def play_so_many(seed: int, decisions: int) -> float:
    """Seconds of CPU time for so many decisions."""
    env, rng = ClusterEnv(), np.random.default_rng(seed)
    env.reset(seed=seed)
    cpu = process_time()
    for lot in rng.random(decisions):
        able = np.flatnonzero(env.action_masks())
        _, _, over, cut, _ = env.step(int(able[int(lot * len(able))]))
        if over or cut:
            env.reset()
    return process_time() - cpu


def play_services(seconds: float) -> tuple[int, float]:
    """Decisions about replicas, and seconds of CPU time."""
    from presage.gym.service_env import ServiceEnv  # another version may have none

    env, rng = ServiceEnv(), np.random.default_rng(0)
    env.reset(seed=0)
    count, began, cpu = 0, perf_counter(), process_time()
    while perf_counter() - began < seconds:
        for lot in rng.random(200):
            able = np.flatnonzero(env.action_masks())
            _, _, over, _, _ = env.step(int(able[int(lot * len(able))]))
            count += 1
            if over:
                env.reset()
    return count, process_time() - cpu


def play(given: tuple[int, float]) -> tuple[int, float, float]:
    """Decisions, seconds, and seconds of CPU time."""
    seed, seconds = given
    env, rng = ClusterEnv(), np.random.default_rng(seed)
    env.reset(seed=seed)
    count, began, cpu = 0, perf_counter(), process_time()
    while perf_counter() - began < seconds:
        for lot in rng.random(200):
            able = np.flatnonzero(env.action_masks())
            _, _, over, cut, _ = env.step(int(able[int(lot * len(able))]))
            count += 1
            if over or cut:
                env.reset()
    return count, perf_counter() - began, process_time() - cpu


def choosing_us() -> float:
    """Of a network with the usual slots."""
    layout = layout_of("order")
    net = Net.random(layout, 16, np.random.default_rng(0))
    seen = np.random.default_rng(1).random(layout.size)
    net.choose(seen, layout)
    began = process_time()
    for _ in range(2000):
        net.choose(seen, layout)
    return (process_time() - began) / 2000 * 1e6


if __name__ == "__main__":
    main()
