"""What a pass of the elastic policy costs, by the number of running jobs.

`python -m benchmarks.elastic [--nodes 500] [--json]`. On a cluster of 8-GPU nodes, elastic jobs
(1 to 8 workers) arrive until so many run; then jobs end one by one, each replaced by a new one.
A pass is one call of the engine; its cost is the mean over these arrivals and ends, with what each
of them makes the executor report at once.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from time import process_time

import numpy as np

from presage.core.engine import Engine
from presage.model.cluster import Resources, Worker
from presage.model.estimate import Estimate
from presage.model.event import (
    Decision,
    Fact,
    JobExited,
    JobResized,
    JobStarted,
    JobSubmitted,
    Launch,
    NodeUp,
    Outcome,
    Resize,
)
from presage.model.job import Job, JobSpec, Role
from presage.policy.config import PolicyConfig
from presage.policy.registry import build
from presage.sim.clusters import read_cluster
from presage.testing.machine import StablePredictor

RUNNING = (100, 250, 500, 1000)
TURNS = 60
POLICIES = {
    "by gain": PolicyConfig(elastic=True, resize_cost_s=40.0),
    "triggers": PolicyConfig(
        elastic=True, grow_by="fewest", shrink_after_s=30.0, grow_after_s=60.0
    ),
}


class Hours(StablePredictor):
    """Run times of hours that fall with workers, so that a resize can pay."""

    def runtime(self, job: Job, workers: Sequence[Worker] = ()) -> Estimate:
        """An hour on eight workers, and each costs a little."""
        count = len(workers) or 1
        seconds = 8 * 3600.0 * (1 + (0.02 + job.seq % 7 / 50) * (count - 1)) / count
        return Estimate.exact(seconds, "s", self.version)


class Cluster:
    """An engine whose executor does at once what it is told."""

    def __init__(self, nodes: int, config: PolicyConfig) -> None:
        self.engine = Engine(build(config), Hours())
        self.now, self.passes, self.number = 0.0, 0, 0
        self.tell([NodeUp(node) for node in read_cluster(f"{nodes}x8")])

    def tell(self, facts: Sequence[Fact]) -> None:
        """Give facts to the engine until nothing follows from them."""
        while facts:
            self.passes += 1
            decisions = self.engine.handle(self.now, facts)
            facts = [fact for decision in decisions if (fact := _done(decision)) is not None]

    def submit(self) -> None:
        """One more job."""
        role = Role("worker", Resources(gpu_milli=1000), 1, 8)
        self.tell([JobSubmitted(JobSpec(f"j{self.number}", (role,)))])
        self.number += 1

    def end(self, rng: np.random.Generator) -> None:
        """One of the running jobs ends."""
        jobs = list(self.engine.state.active.values())
        job = jobs[int(rng.integers(len(jobs)))]
        self.tell([JobExited(job.id, job.attempt, Outcome.SUCCEEDED)])


def _done(decision: Decision) -> Fact | None:
    if isinstance(decision, Launch):
        return JobStarted(decision.job, decision.attempt)
    if isinstance(decision, Resize):
        return JobResized(decision.job, decision.attempt)
    return None


def cost(config: PolicyConfig, nodes: int, running: int) -> dict[str, float]:
    """Milliseconds of a pass, and microseconds of it for each running job."""
    cluster, rng = Cluster(nodes, config), np.random.default_rng(0)
    for _ in range(running):
        cluster.now += 10.0
        cluster.submit()
    before, began = cluster.passes, process_time()
    for _ in range(TURNS):
        cluster.now += 30.0
        cluster.end(rng)
        cluster.now += 30.0
        cluster.submit()
    pass_ms = 1e3 * (process_time() - began) / (cluster.passes - before)
    return {"running": running, "pass_ms": pass_ms, "us_a_job": 1e3 * pass_ms / running}


def main() -> None:
    """Print the curve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    curves = {
        name: [cost(config, options.nodes, running) for running in RUNNING]
        for name, config in POLICIES.items()
    }
    if options.json:
        print(json.dumps({"nodes": options.nodes, "elastic": curves}))
        return
    print(f"{'policy':<10} {'running':>8} {'ms a pass':>10} {'µs a job':>9}")
    for name, rows in curves.items():
        for row in rows:
            print(
                f"{name:<10} {row['running']:>8} {row['pass_ms']:>10.2f} {row['us_a_job']:>9.1f}"
            )


if __name__ == "__main__":
    main()
