"""Links of nodes in the simulated world: who loads them, and what becomes of steps that meet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import presage
from presage.foresee.bursts.pairs import Pulse, slowdown
from presage.model import event as ev
from presage.model.cluster import Worker
from presage.model.errors import UserError
from presage.sim.clusters import Cluster
from presage.sim.links import (
    MEASURED_SHARES,
    LinkLoads,
    LinkPhase,
    LinkRules,
    drawn_share,
    needs_several,
    stretches,
)
from presage.sim.traces import COLUMNS, complete, read_trace
from presage.sim.world import Outage
from presage.testing.machine import task_for
from tests.scenario import job, nodes
from tests.sim.test_world import Stage

HALF = 0.5


def table(*jobs: tuple[int, float | None], **columns: object) -> pl.DataFrame:
    """Jobs a, b … of so many workers of one GPU, which talk for such a share of a step."""
    return pl.DataFrame(
        {
            "job_id": [chr(ord("a") + at) for at in range(len(jobs))],
            "submit_s": [float(at) for at in range(len(jobs))],
            "duration_s": 100.0,
            "workers": [count for count, _ in jobs],
            "gpu_milli": 1000,
            "link_share": pl.Series([share for _, share in jobs], dtype=pl.Float64),
            **columns,
        }
    )


def world(tmp_path: Path, text: str) -> Path:
    """A configuration with this world, and policies that place by links and not."""
    path = tmp_path / "world.yaml"
    path.write_text(
        f"world: {{{text}}}\n"
        "policies:\n  packed: {}\n  apart: {placement: {pack: 1, links: 2}}\n",
        encoding="utf-8",
    )
    return path


def took(result: presage.SimResult) -> dict[str, float]:
    """Seconds that each job ran."""
    rows = result.jobs.select("job_id", "start_s", "end_s").iter_rows()
    return {name: round(end - start, 3) for name, start, end in rows}


# -- the formula ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shares", "phase", "expected"),
    [
        ([0.4], LinkPhase.RANDOM, [1.0]),
        ([0.4, 0.5], LinkPhase.RANDOM, [1.5, 1.4]),
        ([0.4, 0.5], LinkPhase.INTERLEAVED, [1.0, 1.0]),  # there is room for both
        ([1.0, 1.0, 1.0], LinkPhase.RANDOM, [3.0, 3.0, 3.0]),
        ([0.5] * 4, LinkPhase.RANDOM, [3.0] * 4),  # at random 2.5, but it is full before
        ([0.6, 0.6], LinkPhase.INTERLEAVED, [4 / 3, 4 / 3]),  # 0.6 ÷ (0.4 + 0.6 · 4/3) = ½
        ([0.0, 0.9], LinkPhase.RANDOM, [1.9, 1.0]),
    ],
)
def test_how_long_talking_takes(
    shares: list[float], phase: LinkPhase, expected: list[float]
) -> None:
    assert stretches(shares, phase) == pytest.approx(expected)


@given(st.floats(0, 1), st.floats(0, 1))
def test_two_at_random_are_slowed_as_pairs_are(one: float, other: float) -> None:
    first, _ = stretches([one, other])
    step = 1 - one + one * first
    assert step == pytest.approx(slowdown(Pulse(one), Pulse(other)))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.sampled_from(LinkPhase))
def test_a_link_never_carries_more_than_it_can(shares: list[float], phase: LinkPhase) -> None:
    found = stretches(shares, phase)
    assert all(1.0 <= each <= len(shares) + 1e-9 for each in found)
    steps = [1 - s + s * k for s, k in zip(shares, found, strict=True)]
    assert sum(s / step for s, step in zip(shares, steps, strict=True)) <= 1 + 1e-9


def test_a_slower_link_makes_steps_longer() -> None:
    """Half of a step over 10 Gbit/s is ten times as long over 1: 0.5 + 5 in place of 1."""
    slow = LinkRules(1.0, 10.0)
    assert slow.share(HALF) == pytest.approx(5 / 5.5)
    assert slow.speed(HALF, apart=True, stretch=1.0) == pytest.approx(1 / 5.5)
    assert slow.speed(HALF, apart=False, stretch=1.0) == pytest.approx(HALF / 5.5)
    assert slow.speed(HALF, apart=False, stretch=None) == 1.0
    assert slow.speed(HALF, apart=True, stretch=None) == 2.0  # it need not talk at all
    assert slow.share(0.0) == 0.0


def test_who_needs_several_nodes() -> None:
    four = nodes(4, 4)
    assert not needs_several(job("a", gpus=2, workers=2), 2, four)
    assert needs_several(job("a", gpus=2, workers=3), 3, four)
    assert needs_several(job("a", gpus=1, workers=2, most=8), 5, four)
    cores = list(Cluster("2x4:8c"))
    spec = job("a", gpus=0, workers=2)
    assert not needs_several(spec, 2, cores)


# -- the books ------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.sets(st.integers(0, 3), min_size=1), st.floats(0, 0.99)),
        max_size=30,
    )
)
def test_loads_are_those_of_who_is_there(moves: list[tuple[int, set[int], float]]) -> None:
    """A job that is there leaves, another comes: never below zero, and nothing stays behind."""
    loads, there = LinkLoads(), dict[str, tuple[set[int], float]]()
    for number, on, share in moves:
        name = f"j{number}"
        if name in there:
            loads.leave(name)
            del there[name]
        else:
            others = loads.join(name, [f"n{i}" for i in sorted(on)], share)
            there[name] = (on, share)
            assert name not in others
        for i in range(4):
            true = sum(s for nodes_, s in there.values() if i in nodes_ and len(nodes_) > 1)
            assert loads.load(f"n{i}") == pytest.approx(true)
            assert loads.load(f"n{i}") >= 0
        for name, (nodes_, _) in there.items():
            stretch = loads.stretch(name)
            assert stretch is None if len(nodes_) == 1 else stretch is not None and stretch >= 1
    for name in there:
        loads.leave(name)
    assert [loads.load(f"n{i}") for i in range(4)] == [0, 0, 0, 0]


# -- what runs do ---------------------------------------------------------------------------------


def talking(stage: Stage, name: str, *on: str, most: int | None = None) -> None:
    """Launch a job of 100 s that talks half of its step, a worker on the first free GPU of each
    of these nodes."""
    spec = job(name, workers=len(on), most=most)
    if name not in stage.world.tasks:
        task = task_for(spec, 100.0, 0)
        task.link_share = HALF
        stage.world.expect(task, stage.world.now)
    attempt = stage.world.tasks[name].ended_attempt + 1
    stage.world.launch(ev.Launch(name, attempt, workers_on(*on)))


def workers_on(*names: str) -> tuple[Worker, ...]:
    return tuple(Worker(0, index, name, (0,)) for index, name in enumerate(names))


def linked(*gpus: int) -> Stage:
    """Nodes whose GPUs are all too few for two workers."""
    return Stage(*nodes(*gpus), links=LinkRules(1.0, 1.0))


def test_who_was_stopped_loads_nothing_until_it_runs_again() -> None:
    """Beside each other they get 0.8 of a second's work done in a second: `a` has 80 s of 100
    left when `b` stops at 25, and 30 when it is back at 75."""
    stage = linked(1, 1, 1)
    talking(stage, "a", "n0", "n1")
    talking(stage, "b", "n1", "n2")
    stage.to(25.0).stop("b").to(75.0)
    talking(stage, "b", "n1", "n2")
    # a: 30 / 0.8 = 37.5 on; b: 80 left at 75, 50 at 112.5, then alone
    assert stage.ends() == {"a": 112.5, "b": 162.5}


def test_a_job_that_shrinks_to_one_node_leaves_the_links() -> None:
    """Its duration is of two nodes: on one it computes alone, twice as fast but for its worker
    that is gone (1.05 ÷ 2 of the speed of two)."""
    stage = linked(1, 1, 1)
    talking(stage, "a", "n0", "n1", most=2)
    talking(stage, "b", "n1", "n2")
    stage.to(25.0).resize("a", *workers_on("n0"))
    assert stage.ends()["b"] == 25 + 80
    assert stage.ends()["a"] == pytest.approx(25 + 80 / (2 * 1.05 / 2), abs=1e-3)


def test_a_node_that_goes_away_frees_the_links_of_those_it_stops() -> None:
    stage = Stage(*nodes(1, 1, 1), links=LinkRules(1.0, 1.0), outages=(Outage("n2", 25.0, 10.0),))
    talking(stage, "a", "n0", "n1")
    talking(stage, "b", "n1", "n2")
    stage.to(25.0).stop("b")
    assert stage.ends() == {"a": 105.0}


# -- whole runs -----------------------------------------------------------------------------------


def test_jobs_that_would_meet_are_placed_apart_and_end_sooner(tmp_path: Path) -> None:
    """`a` keeps two of three GPUs of a node and its link quiet. `b` takes a node and one GPU of
    the next; the last worker of `c` goes there, too, where most is free, and both take 1 + ½·½
    times as long. By links it goes to the node of `a`, and nobody is slowed."""
    # Trace rows of one worker hold both GPUs; the other two have a worker for each GPU.
    jobs = table((1, None), (4, HALF), (4, HALF), gpu_milli=[2000, 1000, 1000])
    config = world(tmp_path, "link: 10gbit")
    found = {
        name: presage.simulate(jobs, "4x3", name, config=config) for name in ("packed", "apart")
    }
    # b runs alone for a second before c comes and, at the end, after it
    assert took(found["packed"])["c"] == pytest.approx(125.0 - 0.25, abs=0.3)
    assert took(found["packed"])["b"] == pytest.approx(124.75, abs=0.01)
    assert took(found["apart"]) == {"a": 100.0, "b": 100.0, "c": 100.0}


def test_a_neighbour_that_leaves_gives_its_link_back(tmp_path: Path) -> None:
    """Two jobs of two nodes each meet on one. `b` has a quarter of the work: it takes 25 · 1.25 s;
    in these `a` does 25 s of its 100."""
    jobs = table((4, HALF), (4, HALF), submit_s=0.0, duration_s=[100.0, 25.0])
    result = presage.simulate(jobs, "3x3", config=world(tmp_path, "link: 1gbit"), policy="packed")
    assert took(result) == {"a": 31.25 + 75.0, "b": 31.25}
    calm = world(tmp_path, "link: 1gbit, link_phase: interleaved")
    assert took(presage.simulate(jobs, "3x3", "packed", config=calm)) == {"a": 100.0, "b": 25.0}


def test_a_job_on_one_node_loads_nothing(tmp_path: Path) -> None:
    """Four GPUs fit there; where they are not free on one node, it waits for the link as well."""
    config = world(tmp_path, "link: 1gbit, link_measured: 10gbit")
    whole = table((4, HALF))
    assert took(presage.simulate(whole, "2x4", "packed", config=config)) == {"a": 100.0}
    busy = table((1, None), (1, None), (4, HALF), gpu_milli=[1000, 4000, 1000])
    busy = busy.with_columns(gpu_milli=pl.Series([2000, 1000, 1000]), duration_s=3000.0)
    split = presage.simulate(busy, "2x3", "packed", config=config)
    # 4 GPUs on nodes of 3 are always two: half of a step is ten times as long
    assert took(split)["c"] == pytest.approx(3000 * 5.5)


def _random_jobs(seed: int, count: int = 60) -> pl.DataFrame:
    random = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "job_id": np.arange(count),
            "submit_s": np.sort(random.uniform(0, 3000, count)).round(),
            "duration_s": random.integers(10, 600, count).astype(float),
            "workers": random.integers(1, 7, count),
            "gpu_milli": 1000,
            "min_workers": 1,
            "max_workers": 8,
        }
    )


@pytest.mark.parametrize("policy", ["fifo", "srtf", "elastic", "tiresias"])
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_without_links_nothing_changes(policy: str, seed: int) -> None:
    """A trace that says how much jobs talk is the same trace to a world without links; and a world
    whose jobs do not talk is one without."""
    jobs = _random_jobs(seed)
    told = jobs.with_columns(link_share=pl.Series(np.linspace(0, 0.9, jobs.height)))
    plain = presage.simulate(jobs, "4x3", policy, check_every=1).jobs
    assert presage.simulate(told, "4x3", policy).jobs.equals(plain)


@pytest.mark.parametrize("policy", ["fifo", "srtf", "packed", "apart"])
def test_talking_only_ever_takes_time(policy: str, tmp_path: Path) -> None:
    jobs = _random_jobs(3).drop("min_workers", "max_workers")
    silent = world(tmp_path, "link: 1gbit, link_share: 0")
    plain = presage.simulate(jobs, "4x3", policy, config=silent, check_every=1)
    if policy in ("fifo", "srtf"):
        assert plain.jobs.equals(presage.simulate(jobs, "4x3", policy).jobs)
    loud = world(tmp_path, "link: 1gbit, link_share: 0.6")
    slowed = presage.simulate(jobs, "4x3", policy, config=loud, check_every=1)
    assert slowed.jobs["jct_s"].sum() > plain.jobs["jct_s"].sum()
    assert (slowed.jobs["status"] == "finished").all()


# -- what is said ---------------------------------------------------------------------------------


def test_shares_that_no_trace_says_are_drawn_by_workload() -> None:
    drawn = [drawn_share(f"w{at}", 0) for at in range(2000)]
    deciles = np.quantile(drawn, np.linspace(0, 1, 11))
    assert deciles[1:-1] == pytest.approx(MEASURED_SHARES[1:-1], abs=0.02)
    assert drawn_share("w1", 0) == drawn_share("w1", 0) != drawn_share("w1", 1)


def test_a_share_of_the_link_is_below_one(tmp_path: Path) -> None:
    jobs = table((2, 1.0))
    with pytest.raises(UserError, match=r"row 1.*link_share must be at most 0\.99"):
        presage.simulate(jobs, "2x1", config=world(tmp_path, "link: 1gbit"), policy="fifo")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("link: fast", "write the speed of a link as 10gbit or 100mbit"),
        ("link: 0gbit", "write the speed of a link as 10gbit or 100mbit"),
        ("link_share: 0.5", "link_share needs link, such as link: 10gbit"),
        ("link: 1gbit, link_share: 1.5", "less than 1"),
        ("link: 1gbit, link_phase: never", "random"),
    ],
)
def test_a_world_that_makes_no_sense(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=says) as error:
        presage.simulate(table((1, 0.1)), "1x1", "fifo", config=world(tmp_path, text))
    assert len(str(error.value).splitlines()) == 1


def test_a_trace_has_shares_only_where_its_source_has(tmp_path: Path) -> None:
    said = complete(table((1, 0.2), (2, None)))
    assert said["link_share"].to_list() == [0.2, None]
    path = tmp_path / "jobs.csv"
    said.write_csv(path)
    assert read_trace(path).jobs.equals(said)
    assert list(complete(said.drop("link_share")).columns) == list(COLUMNS)
