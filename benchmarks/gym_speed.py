"""How fast the environment is: decisions a second in two processes, random choices of what can be
done, on made traces; and how long a bundle takes to choose.

    python -m benchmarks.gym_speed [--seconds 10] [--processes 2]
"""

from __future__ import annotations

import argparse
from multiprocessing import get_context
from time import perf_counter, process_time

import numpy as np

from presage.gym.envs import ClusterEnv
from presage.gym.tasks import layout_of
from presage.policy.learned.net import Net


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
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
