"""A whole policy of our own, without the pipeline: one job at a time, the oldest first."""

from pathlib import Path

import presage
from presage.core.workers import ask_of
from presage.model.job import Job

HERE = Path(__file__).parent


class OneAtATime:
    """Runs the oldest job alone. It rejects jobs that need more than one worker."""

    def schedule(self, plan: presage.Plan, predict: presage.Predictor) -> None:
        """Called after every fact that could matter; what it does to the plan is the decision."""
        for job in list(plan.state.pending.values()):
            if sum(role.min for role in job.spec.roles) > 1:
                says = "only jobs of one worker run here"
                plan.reject(job, presage.Reason(presage.ReasonCode.NEVER_FITS, says))
            elif not plan.state.active:
                self._start(job, plan)

    def _start(self, job: Job, plan: presage.Plan) -> None:
        capacity, ask = plan.state.capacity, ask_of(job, 0)
        for i, node in enumerate(capacity.nodes):
            if capacity.accepts(job.spec.roles[0].gpu_types) >> i & 1 and capacity.fits(i, ask):
                worker = presage.Worker(0, 0, node.name, capacity.devices(i, ask))
                plan.place(job, (worker,))
                return


def main() -> None:
    result = presage.simulate(
        HERE / "jobs.csv", HERE / "cluster.yaml", OneAtATime(), check_every=1
    )
    print(f"{result.summary['finished']} finished, {result.summary['rejected']} rejected")
    print(f"the last one ended after {result.makespan_s / 3600:.1f} h")


if __name__ == "__main__":
    main()
