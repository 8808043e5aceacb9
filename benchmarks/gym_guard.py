"""Guards on a shared week: how far a bad policy gets, and what a good one gains, with the usual
rules (a look every hour, eight draws, a day ahead).

    PRESAGE_DATA=... python -m benchmarks.gym_guard [--policy random|longest|sjf] [--fallback qssf]
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Callable
from dataclasses import replace
from time import process_time

from benchmarks._data import shared
from presage.core.guard import GuardedPolicy, GuardRules
from presage.core.plan import Plan
from presage.core.ports import Policy, Predictor, SortKey
from presage.gym.worlds import Scene, sized, weeks_of
from presage.model.job import Job
from presage.policy.pipeline import Pipeline
from presage.policy.registry import NAMED, pipeline
from presage.sim.foreseen import FromHistory
from presage.sim.run import simulate
from presage.sim.traces import read_trace


def at_random(job: Job, plan: Plan, predict: Predictor) -> SortKey:
    """By a number that says nothing."""
    return (zlib.crc32(job.id.encode()), job.seq)


def longest(job: Job, plan: Plan, predict: Predictor) -> SortKey:
    """The longest first, as far as that is foreseen, the largest of these."""
    return (-predict.runtime(job).p50 * job.spec.min_gpu_milli, job.seq)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", choices=("random", "longest", *NAMED), action="append")
    parser.add_argument("--fallback", choices=tuple(NAMED), default="qssf")
    parser.add_argument("--cluster", default="cluster03")
    parser.add_argument("--week", type=int, default=2)
    parser.add_argument("--load", type=float, default=1.0)
    given = parser.parse_args()
    itp = read_trace(shared("traces/itp_jobs.parquet"))
    scene = sized(weeks_of(itp, given.cluster)[given.week], given.load)
    name = scene.trace.name
    print(f"{name}: {scene.trace.jobs.height} jobs, {len(scene.nodes)} nodes of 8 GPUs")
    fallback = maker(given.fallback)
    usual, _ = run(scene, fallback(), given.fallback)
    print(f"{given.fallback}: average completion time {usual / 3600:.2f} h")
    for one in given.policy or ("random", "longest"):
        alone, _ = run(scene, maker(one)(), one)
        guarded = GuardedPolicy(maker(one), fallback, (one, given.fallback), GuardRules())
        began = process_time()
        jct, notes = run(scene, guarded, f"{one}@{given.fallback}")
        print(
            f"{one}: alone {alone / usual - 1:+.1%}, guarded {jct / usual - 1:+.1%} "
            f"({process_time() - began:.0f} s of CPU time)"
        )
        for note in notes:
            print(f"  {note}")


def maker(name: str) -> Callable[[], Pipeline]:
    """Makes a policy by name, or a bad one."""
    bad = {"random": at_random, "longest": longest}.get(name)
    if bad is None:
        return lambda: pipeline(NAMED[name])
    return lambda: Pipeline(replace(pipeline(NAMED["fifo"]).rules, order=bad))


def run(scene: Scene, policy: Policy, name: str) -> tuple[float, tuple[str, ...]]:
    """The average completion time, and what there is to say."""
    history = FromHistory()
    done = simulate(
        scene.trace,
        scene.nodes,
        policy,
        name=name,
        rules=scene.rules,
        advise=history,
        foresee=history.predictor,
    )
    return float(done.summary["avg_jct_s"] or 0.0), done.notes


if __name__ == "__main__":
    main()
