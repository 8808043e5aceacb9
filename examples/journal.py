"""Keep the journal of a run, fold it to the same state, and audit every decision in it."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from presage.core.engine import Engine
from presage.core.loop import fold
from presage.core.state import State
from presage.model.cluster import Worker
from presage.model.estimate import Estimate
from presage.model.job import Job
from presage.policy import registry
from presage.sim.clusters import read_cluster
from presage.sim.run import simulate
from presage.sim.traces import read_trace
from presage.store.memory import MemoryStore

HERE = Path(__file__).parent


class Durations:
    """A predictor that foresees what the trace says; `srtf` asks for the run time alone."""

    version = "durations of the trace"

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = seconds

    def runtime(self, job: Job, workers: Sequence[Worker] = ()) -> Estimate:
        return Estimate.exact(self.seconds[job.id], "s", self.version)

    def utilization(self, job: Job) -> Estimate:
        return Estimate.exact(1.0, "share", self.version)

    def memory(self, job: Job) -> Estimate:
        return Estimate.exact(0.0, "MiB", self.version)

    def slowdown(self, job: Job, neighbours: Sequence[Job]) -> Estimate:
        return Estimate.exact(1.0, "times", self.version)


def main() -> None:
    trace, nodes = read_trace(HERE / "jobs.csv"), read_cluster(HERE / "cluster.yaml")
    store = MemoryStore()
    simulate(trace, nodes, registry.build("srtf"), name="srtf", store=store)

    with TemporaryDirectory() as folder:  # a journal is a text file, one step a line
        path = Path(folder) / "journal.jsonl"
        store.dump(path)
        store = MemoryStore.load(path)
    kinds = Counter(type(event).__name__ for _, event in store.read())
    print(", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())))

    state = fold(store.read())  # no policy is asked
    state.check()
    print(
        f"folded to {state.now:,.0f} s: {len(state.jobs)} jobs left, "
        f"{state.capacity.free_milli // 1000} GPUs free"
    )

    durations = dict(trace.jobs.select("job_id", "duration_s").iter_rows())
    predict = Durations(durations)
    early = fold((now, event) for now, event in store.read() if now <= 2100)
    then = Engine(registry.build("srtf"), predict, early)
    print(f"at 2,100 s: {len(early.active)} jobs ran, {len(early.pending)} waited")
    for job in early.pending:
        reason = then.explain(job)
        print(f"  {job}: {reason.text if reason else ''}")

    kept = json.dumps(early.snapshot())
    copy = State.restore(json.loads(kept))
    print(f"restored from a snapshot: {len(copy.active)} jobs run, {len(copy.pending)} wait")
    assert copy.snapshot() == early.snapshot()

    fresh = Engine(registry.build("srtf"), predict)
    steps = list(store.steps())
    same = sum(tuple(fresh.handle(now, facts)) == decisions for now, facts, decisions in steps)
    print(f"audit: {same} of {len(steps)} steps decided as recorded")


if __name__ == "__main__":
    main()
