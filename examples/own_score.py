"""A placement of our own: slow GPUs first, so that fast ones stay free for those who need them."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from presage.policy import registry
from presage.policy.pipeline import Pipeline
from presage.policy.placer import Placer
from presage.policy.request import Floats, Request
from presage.policy.score import Pack
from presage.sim.clusters import read_cluster
from presage.sim.run import simulate
from presage.sim.traces import read_trace

HERE = Path(__file__).parent


class SlowFirst:
    """0 for the nodes with the fastest GPUs, more the slower they are."""

    def __call__(self, request: Request) -> Floats:
        """A number from 0 to 1 for every node; where the worker does not fit, it is ignored."""
        nodes = request.capacity.nodes
        speed = np.array([max((d.speed for d in node.devices), default=0.0) for node in nodes])
        return np.asarray(1 - speed / max(speed.max(), 1.0))


def main() -> None:
    trace, nodes = read_trace(HERE / "jobs.csv"), read_cluster(HERE / "cluster.yaml")
    pack = registry.build("fifo")
    placer = Placer({SlowFirst(): 2.0, Pack(): 1.0})  # a weighted sum
    mine = Pipeline(replace(pack.rules, placer=placer))
    for name, policy in {"pack": pack, "slow first": mine}.items():
        jobs = simulate(trace, nodes, policy, name=name).jobs
        start = dict(jobs.select("job_id", "start_s").iter_rows())
        print(f"{name:10}  llm-pretrain starts at {start['llm-pretrain']:,.0f} s")


if __name__ == "__main__":
    main()
