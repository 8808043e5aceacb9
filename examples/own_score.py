"""A placement of our own: slow GPUs first, so that fast ones stay free for those who need them."""

from pathlib import Path

import numpy as np

import presage
from presage.policy.request import Floats, Request
from presage.policy.score import Pack

HERE = Path(__file__).parent


class SlowFirst:
    """0 for the nodes with the fastest GPUs, more the slower they are."""

    def __call__(self, request: Request) -> Floats:
        """A number from 0 to 1 for every node; where the worker does not fit, it is ignored."""
        nodes = request.capacity.nodes
        speed = np.array([max((d.speed for d in node.devices), default=0.0) for node in nodes])
        return np.asarray(1 - speed / max(speed.max(), 1.0))


def main() -> None:
    placer = presage.Placer({SlowFirst(): 2.0, Pack(): 1.0})  # a weighted sum
    mine = presage.pipeline("fifo", placer=placer)
    policies = {"pack": "fifo", "slow first": mine}
    for result in presage.compare(HERE / "jobs.csv", HERE / "cluster.yaml", policies):
        start = dict(result.jobs.select("job_id", "start_s").iter_rows())
        print(f"{result.policy:10}  llm-pretrain starts at {start['llm-pretrain']:,.0f} s")


if __name__ == "__main__":
    main()
