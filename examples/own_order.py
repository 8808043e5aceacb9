"""An order of our own: the job that asks for the fewest GPUs goes first."""

from dataclasses import replace
from pathlib import Path

from presage.core.plan import Plan
from presage.core.ports import Predictor, SortKey
from presage.model.job import Job
from presage.policy import registry
from presage.policy.pipeline import Pipeline
from presage.sim.clusters import read_cluster
from presage.sim.run import simulate
from presage.sim.traces import read_trace

HERE = Path(__file__).parent


def smallest(job: Job, plan: Plan, predict: Predictor) -> SortKey:
    """Fewest GPUs first; the submission sequence breaks ties, so no two keys are equal."""
    return (job.spec.min_gpu_milli, job.seq)


def main() -> None:
    trace, nodes = read_trace(HERE / "jobs.csv"), read_cluster(HERE / "cluster.yaml")
    fifo = registry.build("fifo")
    mine = Pipeline(replace(fifo.rules, order=smallest))
    for name, policy in {"fifo": fifo, "smallest": mine}.items():
        figures = simulate(trace, nodes, policy, name=name).summary()
        print(f"{name:8}  average wait {figures['avg_wait_s']:,.0f} s")


if __name__ == "__main__":
    main()
