"""A whole policy of our own, without the pipeline: one job at a time, the oldest first."""

from pathlib import Path

from presage.core.plan import Plan
from presage.core.ports import Predictor
from presage.core.workers import ask_of
from presage.model.cluster import Worker
from presage.model.job import Job, Reason, ReasonCode
from presage.sim.clusters import read_cluster
from presage.sim.run import simulate
from presage.sim.traces import read_trace

HERE = Path(__file__).parent


class OneAtATime:
    """Runs the oldest job alone. It rejects jobs that need more than one worker."""

    def schedule(self, plan: Plan, predict: Predictor) -> None:
        """Called after every fact that could matter; what it does to the plan is the decision."""
        for job in list(plan.state.pending.values()):
            if sum(role.min for role in job.spec.roles) > 1:
                plan.reject(job, Reason(ReasonCode.NEVER_FITS, "only jobs of one worker run here"))
            elif not plan.state.active:
                self._start(job, plan)

    def explain(self, job: Job, plan: Plan, predict: Predictor) -> Reason:
        """Why a job that is pending waits."""
        return Reason(ReasonCode.QUEUED_BEHIND, "another job runs")

    def _start(self, job: Job, plan: Plan) -> None:
        capacity, ask = plan.state.capacity, ask_of(job, 0)
        for i, node in enumerate(capacity.nodes):
            if capacity.accepts(job.spec.roles[0].gpu_types) >> i & 1 and capacity.fits(i, ask):
                plan.place(job, (Worker(0, 0, node.name, capacity.devices(i, ask)),))
                return


def main() -> None:
    trace, nodes = read_trace(HERE / "jobs.csv"), read_cluster(HERE / "cluster.yaml")
    result = simulate(trace, nodes, OneAtATime(), name="alone", check_every=1)
    figures = result.summary()
    print(f"{figures['finished']} finished, {figures['rejected']} rejected")
    print(f"the last one ended after {result.makespan_s / 3600:.1f} h")


if __name__ == "__main__":
    main()
