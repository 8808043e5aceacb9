"""The policy that decided a journal, on the jobs of that journal: it gives what happened again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import polars as pl
import pytest

from presage.control.advisors.needs import predictor
from presage.core.ports import Predictor
from presage.model.cluster import Device, Node, Resources
from presage.model.job import JobSpec, Placement, Role
from presage.policy.config import PolicyConfig
from presage.policy.registry import build, policy_config
from presage.sim.run import simulate
from presage.sim.traces import Trace
from presage.sim.whatif import Export, export_trace, what_if
from presage.sim.world import Outage, WorldRules
from presage.store.memory import MemoryStore
from tests.sim.results import trace_of

EVEN = [Node(f"n{k}", (Device(),) * 4) for k in range(2)]
MIXED = [Node(f"n{k}", (Device(speed=speed),) * 4) for k, speed in enumerate((1.0, 2.0, 0.7))]
JOBS = 60


def specs(kind: str, rng: np.random.Generator) -> dict[str, JobSpec]:
    """Jobs with what this kind is about, and with what a trace has no columns for."""
    made = {}
    for k in range(JOBS):
        gpus = int(rng.choice([1, 1, 2, 4]))
        milli, least, most = gpus * 1000, 1, 1
        if kind in ("sharing", "everything") and rng.random() < 0.6:
            milli = int(rng.choice([250, 500, 500]))
            least = most = int(rng.choice([1, 2]))
        elif kind in ("elastic", "everything") and rng.random() < 0.6:
            milli, least, most = 1000, 1, int(rng.choice([2, 4, 6]))
        roles = [Role("worker", Resources(1000, 0, milli), least, most)]
        if rng.random() < 0.2:
            roles.append(Role("ps", Resources(500)))
        if rng.random() < 0.1:
            roles.append(Role("rest", Resources(gpu_milli=1000)))
        made[str(k)] = JobSpec(
            str(k),
            tuple(roles),
            priority=int(rng.integers(3)),
            placement=Placement.SPREAD if rng.random() < 0.1 else None,
            checkpointable=rng.random() < 0.7,
            preemptible=rng.random() < 0.9,
        )
    return made


def week(seed: int) -> Trace:
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.exponential(20, JOBS)).round(2)
    at = (at - at[0]).round(2)
    long = rng.lognormal(4.5, 1, JOBS).round(2) + 1
    return trace_of([(float(at[k]), float(long[k]), 1.0) for k in range(JOBS)])


def recorded(
    kind: str,
    policy: PolicyConfig | str,
    cluster: list[Node],
    seed: int,
    rules: WorldRules,
    foresee: Callable[[Predictor], Predictor] | None = None,
) -> tuple[pl.DataFrame, Export]:
    """What happened to jobs of a kind, and the journal of it as something to simulate."""
    trace, store = week(seed), MemoryStore()
    result = simulate(
        trace,
        cluster,
        build(policy),
        name="recorded",
        rules=rules,
        store=store,
        specs=specs(kind, np.random.default_rng(seed)),
        foresee=foresee,
    )
    return result.jobs, export_trace(store.steps())


TIRESIAS = PolicyConfig(order="tiresias", preempt="rank", threshold_gpu_s=61.7, round_s=5)
COLOCATE = policy_config("colocate")
FEWEST = policy_config("elastic").model_copy(update={"grow_by": "fewest"})


@pytest.mark.parametrize(
    ("kind", "policy", "cluster", "truth"),
    [
        ("whole", "fifo", MIXED, True),
        ("whole", "backfill", MIXED, True),
        ("whole", "srtf", MIXED, True),
        ("whole", TIRESIAS, MIXED, True),
        ("whole", "srtf", MIXED, False),
        ("sharing", "fifo", EVEN, True),
        ("sharing", "priority", MIXED, True),
        ("sharing", COLOCATE, EVEN, False),
        ("elastic", FEWEST, MIXED, True),
        ("elastic", "elastic", MIXED, False),
        ("elastic", "fifo", MIXED, True),
        ("everything", "elastic", MIXED, False),
        ("everything", "priority", MIXED, True),
    ],
    ids=lambda value: "" if isinstance(value, list) else getattr(value, "order", str(value)),
)
@pytest.mark.parametrize("seed", range(2))
def test_the_same_policy_gives_what_happened(
    kind: str, policy: PolicyConfig | str, cluster: list[Node], truth: bool, seed: int
) -> None:
    """`truth`: the policy knows run times; else it knows what a server does."""

    def as_a_server(name: str, truth: Predictor) -> Predictor:
        return predictor(cluster, policy is COLOCATE)

    foresee = None if truth else as_a_server
    rules = WorldRules(outages=(Outage("n1", 500.0, 300.0),) if seed == 1 else ())
    was, export = recorded(
        kind, policy, cluster, seed, rules, None if truth else partial(as_a_server, "")
    )
    ran = was.filter(pl.col("status") == "finished").sort("job_id")
    assert len(ran) > JOBS / 2
    made = what_if(export, {"own": partial(build, policy)}, foresee=foresee)
    again = made["own"].jobs.sort("job_id")
    assert again["job_id"].to_list() == ran["job_id"].to_list()
    assert again["nodes"].to_list() == ran["nodes"].to_list()
    assert again["preemptions"].to_list() == ran["preemptions"].to_list()
    for column in ("start_s", "end_s", "wait_s"):
        found = again[column].to_numpy()
        assert found == pytest.approx(ran[column].to_numpy(), abs=1e-4), column
    happened = export.recorded.jobs.sort("job_id")
    assert happened["end_s"].to_numpy() == pytest.approx(ran["end_s"].to_numpy(), abs=1e-4)
    if truth and policy in ("srtf", "priority", TIRESIAS):
        assert ran["preemptions"].sum() > 0


@pytest.mark.parametrize("policy", ["fifo", "backfill"])
def test_an_executor_that_takes_its_time_is_off_by_that_time(policy: str) -> None:
    delay_s = 2.5
    rules = WorldRules(launch_delay_s=delay_s)
    was, export = recorded("whole", policy, MIXED, 1, rules)
    again = what_if(export, {"own": partial(build, policy)})["own"].jobs.sort("job_id")
    was = was.sort("job_id")
    assert again["end_s"].to_numpy() == pytest.approx(was["end_s"].to_numpy(), abs=1e-4)
    late = was["start_s"].to_numpy() - again["start_s"].to_numpy()
    assert late == pytest.approx(np.full(JOBS, delay_s), abs=1e-4)
