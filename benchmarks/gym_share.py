"""Learned sharing of GPUs against the policy `colocate`, the heuristics that taught it, and one
job a GPU.

Lucid-like weeks, as `presage reproduce lucid-week` makes them: workloads that were measured alone
and in pairs on an RTX 3090, drawn for the jobs of a trace; in the world pairs have the measured
speeds, policies know held-out predictions and estimates of run times that are as wrong as Lucid's.
Trains on made traces and on stretches of Philly's first six weeks and of four clusters of ITP;
tests on weeks of the other four clusters (`lucid`), and on made traces of other seeds with drawn
use and memory (`made`). A move costs 40 s. What is done already (files in `--out`) is not done
again.

    PRESAGE_DATA=... python -m benchmarks.gym_share [--algo imitate] [--seeds 0,1,2,3,4]
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
import polars as pl

from benchmarks import _gym
from benchmarks._data import data_dir
from presage.core.ports import Predictor
from presage.foresee.adapter import EstimatePredictor
from presage.gym.jobs import LOADS, SharingJobs
from presage.gym.worlds import Generated, Mixed, Scene, Worlds
from presage.learn import Floats
from presage.model.cluster import WHOLE_GPU
from presage.model.estimate import Estimate, Estimates
from presage.reproduce._pairs import MeasuredPairs, measured_pairs, read_table
from presage.reproduce.lucid_week import (
    RESTART_COST_S,
    SHARERS,
    WEEK,
    Week,
    itp_week,
    nodes,
    philly_week,
    profiles,
)
from presage.sim.world import WorldRules

PARTS = ("lucid", "made")
TAUGHT = ("least-busy",)
"""Teachers that are measured beside what they taught; `colocate` is one of its own."""
MADE = 20
WEEKS = 9
FEWEST = 300


def main() -> None:
    parts = {name: partial(scenes, name) for name in PARTS}
    trained_on = "made traces, Philly, ITP, Lucid"
    _gym.compare("share", __doc__, 1200, worlds, trained_on, parts, "colocate", teachers=TAUGHT)


@cache
def measured() -> tuple[MeasuredPairs, Floats]:
    """The pairs, and how wrong estimates are."""
    table = read_table(data_dir(), WEEK)
    ratios: Floats = (table["estimate_s"] / table["duration"]).to_numpy()
    return measured_pairs(data_dir(), profiles(table)), ratios


def scene_of(week: Week) -> Scene:
    """A week as a scene; policies know what `simulate_week` tells them."""
    pairs, _ = measured()
    known = pairs.believed or pairs.alone
    told = tuple(
        Estimates(
            "profiles",
            runtime_s=Estimate.exact(runtime, "s", "estimate_s"),
            memory_mib=Estimate.exact(known[name].memory_mib, "MiB", "profile"),
            utilization=Estimate.exact(known[name].util_pct / 100, "share", "profile"),
        )
        for name, runtime in zip(week.workloads, week.trace.jobs["estimate_s"], strict=True)
    )
    return Scene(
        replace(week.trace, name=week.name),
        tuple(week.nodes),
        WorldRules(restart_cost_s=RESTART_COST_S, beside=pairs.slowdown),
        models=tuple(week.workloads),
        estimates=told,
        sharers=SHARERS,
        foresee=predictions,
    )


def predictions(world: Predictor) -> Predictor:
    """What is foreseen of pairs."""
    return EstimatePredictor(measured()[0].predictions(), world)


@dataclass(frozen=True, slots=True)
class Stretches:
    """Jobs in a row of Lucid-like weeks, on clusters that are loaded as drawn."""

    jobs: int = 400

    def draw(self, rng: np.random.Generator) -> Scene:
        """One of Philly's first weeks, or of the clusters of ITP that train."""
        while True:
            seed = int(rng.integers(1_000))
            if rng.random() < 0.5:
                week = _philly(int(rng.integers(_gym.PHILLY_TRAINED)), seed % 4)
            else:
                name = _gym.ITP_TRAINED[int(rng.integers(len(_gym.ITP_TRAINED)))]
                week = _itp(name, int(rng.integers(WEEKS)), seed % 4)
            if week is not None:
                return self._part(week, rng)

    def _part(self, week: Week, rng: np.random.Generator) -> Scene:
        jobs = week.trace.jobs
        first = int(rng.integers(max(jobs.height - self.jobs, 0) + 1))
        part = jobs.slice(first, self.jobs)
        part = part.with_columns(pl.col("submit_s") - part["submit_s"][0])
        load = float(rng.uniform(*LOADS["share"]))
        gpus = part["gpu_milli"].to_numpy() / WHOLE_GPU
        span = max(float(part["submit_s"].to_numpy()[-1]), 1.0)
        inside = np.minimum(part["duration_s"].to_numpy(), span)
        count = round(float((gpus * inside).sum()) / span / load / 8)
        count = max(count, -int(-gpus.max() // 8), 1)
        workloads = list(week.workloads)[first : first + self.jobs]
        return scene_of(Week(week.name, nodes(count), replace(week.trace, jobs=part), workloads))


@cache
def _philly(week: int, seed: int) -> Week | None:
    made = philly_week(data_dir(), week, *measured(), seed)
    return made if made.trace.jobs.height >= FEWEST else None


@cache
def _itp(name: str, week: int, seed: int) -> Week | None:
    try:
        made = itp_week(data_dir(), name, week, *measured(), seed)
    except (TypeError, ValueError):  # a week without jobs
        return None
    return made if made.trace.jobs.height >= FEWEST else None


def worlds() -> Worlds:
    """What is trained on."""
    made = Generated(jobs=(150, 500), nodes=(1, 16), load=LOADS["share"])
    return Mixed((SharingJobs(made), Stretches(), Stretches()))


def scenes(part: str, most_jobs: int) -> list[Scene]:
    """What is tested on."""
    if part == "made":
        rng = np.random.default_rng(20261119)
        made = SharingJobs(Generated(jobs=(150, 800), nodes=(1, 24), load=LOADS["share"]))
        return [made.draw(rng) for _ in range(MADE)]
    names = sorted({f"cluster{k:02}" for k in range(1, 9)} - set(_gym.ITP_TRAINED))
    weeks = [_itp(name, week, 100) for name in names for week in range(WEEKS)]
    small = [one for one in weeks if one and one.trace.jobs.height <= most_jobs]
    return [scene_of(one) for one in small]


if __name__ == "__main__":
    main()
