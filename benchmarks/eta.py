"""When will my job start? Forecasts made at submission, on traces whose outcome is known.

`python -m benchmarks.eta [--policy fifo] [--jobs 24] [--samples 20] [--quick] [--json]`.

Philly: each virtual cluster that has nodes in `philly_vc_nodes`, × 8 GPUs. ITP: each cluster on
the fewest 8-GPU nodes that keep its mean load at most 85 %. The truth is each job's wait under
the policy with true durations. In each cluster's last two weeks, some of the jobs that wait are
drawn, and foreseen at their submission from the state of that moment. Run times are learned only
from jobs of that trace that ended before the two weeks began, and the calibration only from
forecasts of the four weeks before (made the same way, each from what was known at the start of
its own two weeks) as their outcome was known when the two weeks began: of jobs that still waited
then, that they did. Jobs of a cluster stand for
all of its jobs that wait, so pooled figures weigh them by how many that are.

The yardstick is the average wait of the last week: of the jobs of that queue that started in the
seven days before. At the end, the time of one forecast with 1,000 pending jobs and 500 nodes, as
the server makes it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf
from sys import stderr
from time import process_time
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from benchmarks._data import shared
from presage.control.advisors.starts import Declared
from presage.core.engine import Engine
from presage.core.loop import act
from presage.core.state import State
from presage.model.cluster import Node, Resources
from presage.model.event import JobStarted, JobSubmitted, Launch, NodeUp
from presage.model.job import JobSpec, Role
from presage.policy import registry
from presage.sim.ahead import TimeBox, run_ahead
from presage.sim.calibrate import Calibration
from presage.sim.clusters import read_cluster
from presage.sim.history import DAY_S, RuntimeHistory
from presage.sim.oracle import Oracle
from presage.sim.run import simulate
from presage.sim.traces import Trace, read_trace
from presage.sim.workload import Workload
from presage.sim.world import World

Floats = npt.NDArray[np.float64]

WEEKS_S = 14 * DAY_S
LEAST_HISTORY_S = 5 * DAY_S
MOST_LOAD = 0.85
GRAIN = 0.02
"""As coarse as the server looks ahead."""
MOST_CPU_S = 2.0
"""What the server gives one forecast."""


@dataclass
class Cluster:
    """One cluster of a trace, and what became of its jobs."""

    source: str
    name: str
    trace: Trace
    nodes: Sequence[Node]
    wait: Floats
    submit: Floats
    cut: float
    """When its last two weeks begin."""
    ids: list[str] = field(default_factory=list)

    def drawn(self, begin: float, count: int, rng: np.random.Generator) -> tuple[list[int], int]:
        """Some of the jobs that wait, submitted in the two weeks from `begin` on; and of how
        many."""
        inside = (self.submit >= begin) & (self.submit <= begin + WEEKS_S) & (self.wait > 0)
        found = np.flatnonzero(inside)
        return rng.permutation(found)[:count].tolist(), found.size


@dataclass
class Made:
    """One forecast and its truth."""

    cluster: str
    begin: float
    """When its two weeks begin: what happened later was not known."""
    test: bool
    weight: float
    told: tuple[float, float, float]
    waited: float
    started: float
    last_week: float

    @property
    def submitted(self) -> float:
        """When it was made."""
        return self.started - self.waited


def clusters(source: str, policy: str) -> Iterator[Cluster]:
    """Every cluster of a trace, simulated with true durations."""
    whole = read_trace(shared(f"traces/{source}_jobs.parquet"))
    sizes = dict(pl.read_parquet(shared("traces/philly_vc_nodes.parquet")).iter_rows())
    for name in sorted(whole.jobs["queue"].unique()):
        jobs = whole.jobs.filter(pl.col("queue") == name)
        count = sizes.get(name, 0) if source == "philly" else fewest_nodes(jobs)
        if not count:
            continue
        trace, nodes = replace(whole, jobs=jobs), read_cluster(f"{count}x8")
        done = simulate(trace, nodes, registry.build(policy), name=policy).jobs
        submit = done["submit_s"].to_numpy()
        wait = (done["start_s"] - done["submit_s"]).fill_null(0.0).to_numpy()
        cut = float(submit.max()) - WEEKS_S
        yield Cluster(source, name, trace, nodes, wait, submit, cut, done["job_id"].to_list())


def fewest_nodes(jobs: pl.DataFrame) -> int:
    """8-GPU nodes for a mean load of at most 85 %, and for its largest job."""
    gpus = jobs["gpu_milli"] / 1000
    submit = jobs["submit_s"].to_numpy()
    load = float((jobs["duration_s"] * gpus).sum()) / float(submit.max() - submit.min())
    return max(ceil(load / 8 / MOST_LOAD), ceil(float(gpus.to_numpy().max()) / 8))


class Past:
    """What had ended at a moment, in all clusters of a trace."""

    def __init__(self, found: Iterable[Cluster]) -> None:
        ends: list[tuple[float, JobSpec, float]] = []
        for cluster in found:
            at = cluster.submit + cluster.wait
            for k, (_, task) in enumerate(Workload(cluster.trace, cluster.nodes)):
                ends.append((float(at[k]) + task.duration_s, task.spec, task.duration_s))
        self._ends = sorted(ends, key=lambda end: end[0])

    def history(self, until: float) -> RuntimeHistory:
        """Run times known at that moment."""
        history = RuntimeHistory()
        for ended_at, spec, ran_s in self._ends:
            if ended_at >= until:
                break
            history.add(spec, ran_s, ended_at)
        return history


def forecasts(
    cluster: Cluster, past: Past, policy: str, count: int, samples: int, seed: int
) -> list[Made]:
    """Forecasts for some jobs of the last two weeks and of the two times two weeks before."""
    rng = np.random.default_rng(seed)
    chosen: dict[str, tuple[int, float, float]] = {}
    for back in (0, 1, 2):
        begin = cluster.cut - back * WEEKS_S
        if begin - cluster.submit[0] >= LEAST_HISTORY_S:
            rows, of = cluster.drawn(begin, count if back == 0 else ceil(count / 2), rng)
            chosen |= {cluster.ids[row]: (row, begin, of / len(rows)) for row in rows}
    histories = {begin: past.history(begin) for _, begin, _ in chosen.values()}
    start = cluster.submit + cluster.wait
    made: list[Made] = []

    def look(state: State, now: float, names: Sequence[str]) -> None:
        for name in names:
            row, begin, weight = chosen[name]
            forecast = run_ahead(
                state,
                lambda: registry.build(policy),
                histories[begin],
                now=now,
                asked=(name,),
                samples=samples,
                seed=seed + row,
            )
            told = forecast.starts[name]
            low, middle, high = (
                forecast.horizon_s if wait is None else wait
                for wait in (told.p10_s, told.p50_s, told.p90_s)
            )
            week = cluster.wait[(start < now) & (start >= now - 7 * DAY_S)]
            made.append(
                Made(
                    cluster=cluster.name,
                    begin=begin,
                    test=begin == cluster.cut,
                    weight=weight,
                    told=(low, middle, high),
                    waited=float(cluster.wait[row]),
                    started=float(start[row]),
                    last_week=float(week.mean()) if week.size else 0.0,
                )
            )

    if chosen:
        replay(cluster, policy, chosen.keys(), look)
    return made


def replay(
    cluster: Cluster,
    policy: str,
    names: Iterable[str],
    look: Callable[[State, float, Sequence[str]], None],
) -> None:
    """Run a cluster again with true durations, and look at its state when some jobs wait."""
    wanted, nodes = set(names), cluster.nodes
    world = World(nodes)
    engine = Engine(registry.build(policy), Oracle(world, False), State(0))
    state = engine.state
    engine.handle(0.0, [NodeUp(node) for node in nodes])
    incoming = iter(Workload(cluster.trace, nodes))
    at, task = next(incoming, (inf, None))
    while wanted:
        now = min(world.next_event(), at, inf if state.wake_at is None else state.wake_at)
        facts = world.poll(now)
        new = []
        while at <= now and task is not None:
            world.expect(task, at)
            new.append(task.spec.id)
            facts.append(JobSubmitted(task.spec))
            at, task = next(incoming, (inf, None))
        act(world, engine.handle(now, facts))
        world.finished.clear()
        world.stopped.clear()
        if found := [name for name in new if name in wanted]:
            look(state, now, found)
            wanted.difference_update(found)


def calibrated(made: Sequence[Made], cut: float) -> Calibration | None:
    """What earlier forecasts teach at a moment, of which some jobs still wait; None when there
    are few."""
    earlier = [one for one in made if one.begin < cut and one.submitted < cut]
    if len(earlier) < 20:
        return None
    low, middle, high = np.array([one.told for one in earlier]).T
    return Calibration.fit(
        low,
        middle,
        high,
        [min(one.waited, cut - one.submitted) for one in earlier],
        [f"{one.cluster} {one.begin:.0f}" for one in earlier],
        started=[one.started < cut for one in earlier],
        age_s=[cut - one.submitted for one in earlier],
    )


def judge(made: Sequence[Made], told: Floats) -> dict[str, float]:
    """Coverage and errors of these forecasts, each standing for as many jobs as its weight."""
    waited = np.array([one.waited for one in made])
    weight = np.array([one.weight for one in made])
    raw = np.array([one.told for one in made])
    week = np.array([one.last_week for one in made])

    def covered(interval: Floats) -> float:
        inside = (waited >= interval[:, 0]) & (waited <= interval[:, 2])
        return float(np.average(inside, weights=weight))

    error = weighted_median(np.abs(waited - told[:, 1]), weight)
    yardstick = weighted_median(np.abs(waited - week), weight)
    return {
        "sampled": len(made),
        "waiting_jobs": round(float(weight.sum())),
        "coverage": covered(told),
        "coverage_uncalibrated": covered(raw),
        "median_wait_s": weighted_median(waited, weight),
        "median_error_s": error,
        "last_week_error_s": yardstick,
        "error_less_pct": 100 * (1 - error / yardstick) if yardstick else 0.0,
        "p90_over_p10": weighted_median((told[:, 2] + 60) / (told[:, 0] + 60), weight),
    }


def weighted_median(values: Floats, weights: Floats) -> float:
    """The value with half of the weight below it."""
    order = np.argsort(values)
    share = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][np.searchsorted(share, 0.5)])


def traces(policy: str, count: int, samples: int, seed: int) -> dict[str, dict[str, Any]]:
    """All figures, by cluster and pooled."""
    rows: dict[str, dict[str, Any]] = {}
    every: list[Made] = []
    told: list[Floats] = []
    for source in ("philly", "itp"):
        found = list(clusters(source, policy))
        past = Past(found)
        made: dict[str, list[Made]] = {}
        for cluster in found:
            made[cluster.name] = forecasts(cluster, past, policy, count, samples, seed)
            print(f"{source} {cluster.name}: {len(made[cluster.name])} forecasts", file=stderr)
        earlier = [one for some in made.values() for one in some if not one.test]
        first = len(every)
        for cluster in found:
            tests = [one for one in made[cluster.name] if one.test]
            if not tests:
                continue
            learned = calibrated(earlier, cluster.cut)
            intervals = np.array(
                [one.told if learned is None else learned.interval(*one.told) for one in tests]
            )
            rows[f"{source} {cluster.name}"] = {
                "nodes": len(cluster.nodes),
                **judge(tests, intervals),
            }
            every += tests
            told.append(intervals)
        if len(every) > first:
            mine = np.concatenate(told)[first:]
            rows[f"{source}, all"] = judge(every[first:], mine)
        offsets = calibrated(earlier, max(cluster.cut for cluster in found))
        if offsets is not None:
            errors = offsets.errors
            rows[f"{source}, all"]["offsets"] = [errors.low, errors.middle, errors.high]
    rows["all"] = judge(every, np.concatenate(told))
    return rows


def large(policy: str = "fifo", pending: int = 1000, nodes: str = "500x8") -> dict[str, Any]:
    """CPU seconds of one forecast for all jobs of a long queue on a full cluster."""
    rng = np.random.default_rng(0)
    history = RuntimeHistory()
    engine = Engine(registry.build(policy), Declared(), State(0))
    engine.handle(0.0, [NodeUp(node) for node in read_cluster(nodes)])
    number, now = 0, 0.0
    while len(engine.state.pending) < pending:
        ask = Resources(gpu_milli=1000 * int(rng.choice([1, 1, 1, 2, 4, 8])))
        words = ("python", f"train{number % 300}.py")
        spec = JobSpec(f"j{number}", (Role("worker", ask),), f"u{number % 50}", entrypoint=words)
        history.add(spec, float(rng.lognormal(8.5, 1.3)), now)
        number, now = number + 1, now + 1.0
        made = engine.handle(now, [JobSubmitted(spec)])
        engine.handle(now, [JobStarted(d.job, d.attempt) for d in made if isinstance(d, Launch)])
    began = process_time()
    forecast = run_ahead(
        engine.state,
        lambda: registry.build(policy),
        history,
        predict=Declared(),
        samples=24,
        grain=GRAIN,
        time_box=TimeBox(process_time, MOST_CPU_S),
    )
    cpu_s = process_time() - began
    return {
        "pending": len(forecast.starts),
        "running": len(engine.state.active),
        "foreseen": sum(start.p50_s is not None for start in forecast.starts.values()),
        "samples": forecast.samples,
        "cpu_s": cpu_s,
    }


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", default="fifo")
    parser.add_argument("--jobs", type=int, default=24, help="jobs drawn from each cluster")
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a few jobs: to see that it works")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    count, samples = (6, 5) if options.quick else (options.jobs, options.samples)
    began = process_time()
    rows = traces(options.policy, count, samples, options.seed)
    cpu_s = process_time() - began
    speed = {name: large(name) for name in ("fifo", "sjf", "tiresias", "backfill")}
    if options.json:
        print(json.dumps({"eta": rows, "cpu_s": cpu_s, "large": speed}))
        return
    print(
        f"{'cluster':<16} {'sampled':>7} {'of':>6} {'80 % holds':>10} {'raw':>6} "
        f"{'wait h':>7} {'error h':>8} {'last week h':>11} {'less':>6} {'p90/p10':>8}"
    )
    for name, row in rows.items():
        print(
            f"{name:<16} {row['sampled']:>7} {row['waiting_jobs']:>6} "
            f"{100 * row['coverage']:>9.0f}% {100 * row['coverage_uncalibrated']:>5.0f}% "
            f"{row['median_wait_s'] / 3600:>7.1f} {row['median_error_s'] / 3600:>8.2f} "
            f"{row['last_week_error_s'] / 3600:>11.2f} {row['error_less_pct']:>5.0f}% "
            f"{row['p90_over_p10']:>8.1f}"
        )
    print(f"\n{cpu_s:.0f} CPU s for all of it, policy {options.policy}")
    for name, one in speed.items():
        print(
            f"one forecast under {name}, {one['pending']} pending and {one['running']} running "
            f"jobs on 500 nodes: {one['samples']} samples, {one['foreseen']} jobs foreseen, "
            f"{one['cpu_s']:.2f} CPU s (target: 3 s)"
        )


if __name__ == "__main__":
    main()
