"""HotCloud 2020 (Yeung et al.): jobs share GPUs by what is predicted of them, against one job a
GPU and against sharing after a minute of profiling.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from presage.core.plan import Plan
from presage.core.ports import Predictor, SortKey
from presage.foresee.adapter import EstimatePredictor
from presage.model.cluster import WHOLE_GPU, Node
from presage.model.estimate import Estimates
from presage.model.job import Job
from presage.page import COLOURS, short
from presage.policy.config import PolicyConfig
from presage.policy.order import Order, fifo
from presage.policy.pipeline import Pipeline
from presage.policy.registry import NAMED, pipeline
from presage.reproduce._pairs import (
    DEVICE,
    KNOWS,
    Errors,
    MeasuredPairs,
    measured_pairs,
    unseen,
)
from presage.reproduce.result import Chart, Progress, ReproducedFigure, Reproduction
from presage.sim.run import simulate
from presage.sim.traces import Trace, complete
from presage.sim.world import WorldRules

__all__ = ["POLICIES", "Batch", "ColocationFigures", "draw", "longest", "measure", "run"]

JOBS = 100
SHORTEST_S, LONGEST_S = 120.0, 7200.0
SHARERS = 3
RESTART_COST_S = 40.0
NODES = [Node(f"n{i}", (DEVICE,) * 4) for i in range(3)]
_GPUS = sum(len(node.devices) for node in NODES)
_UNSEEN = {"a graph": 0.3, "a graph and honest intervals": 0.3, "a graph and its loader": 0.2}
"""Error of the utilization of unseen real workloads, by what is known of them."""
SWEEP = (0.0, 0.5, 1.0, 1.5, 2.0)
"""Times the real error of the predictions."""

_SHARE = NAMED["colocate"]
_STAY = _SHARE.model_copy(update={"move_gain_s": 0.0})
POLICIES: dict[str, PolicyConfig] = {
    "one job a GPU": _STAY.model_copy(update={"max_jobs_per_gpu": 1}),
    "reactive": _STAY.model_copy(update={"profile_s": 60.0, "profile_gpus": 1}),
    "reactive, any idle GPU": _STAY.model_copy(update={"profile_s": 60.0}),
    "colocate": _SHARE,
}
"""The same pipeline and order; only how jobs share differs."""
_AS_SUBMITTED, _LONGEST = "reactive, as submitted", "reactive, longest first"
_LONGEST_ANY = "reactive, any idle GPU, longest first"

_DIFFERS = (
    "Simulated: the 44 workloads that Lucid measured alone on an RTX 3090, with the speeds of its "
    "pairs, or of the fitted model. The paper ran its own on a testbed.",
    "Durations are drawn evenly on a log scale from 2 min to 2 h (mean 29 min, as the paper's run "
    "times suggest); all jobs are submitted at once.",
    "The paper's mean JCT is close to its run times, so it leaves out most waiting. Ours is from "
    "submission to end; run times are a line of their own.",
    "Utilization is useful GPU time over 12 GPUs until the last job ends.",
    "Slowdowns are foreseen with the errors of a model fitted without the job's model, and "
    "utilization, memory and run time with those of the shipped estimators on unseen families.",
    "The paper does not say where jobs are profiled. 'Reactive' sets one GPU aside for it. A "
    "reactive policy that profiles on any idle GPU and moves jobs at 40 s each is shown, too.",
    "Jobs go shortest first in all of them. Sharing by prediction also starts those early that "
    "would end last; the baselines do not, since they foresee nothing. Reactive is also shown "
    "with jobs as submitted, and with the longest first, for which it is told run times before it "
    "has profiled anything: these lines tell how much of the gain is a matter of order.",
    "Unseen workloads: nobody has measured them. Utilization is foreseen from their graphs by "
    "what was fitted without their model, and pairs by what they want beyond the GPU; run time is "
    "off by 0.35 and memory by 0.15 (spread of the logarithm). 'Its loader': utilization is off "
    "by 0.2, as where the input pipeline was timed.",
    "Out of memory: a job that does not fit beside its neighbours is started again alone, and the "
    "next ones of its workload are foreseen to need half as much again.",
)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Jobs of one draw."""

    trace: Trace
    workloads: list[str]
    estimates: list[Estimates]


@dataclass(frozen=True, slots=True)
class ColocationFigures:
    """What one run is judged by, or the mean of several."""

    utilization_pct: float
    makespan_s: float
    jct_s: float
    run_s: float
    out_of_memory: float
    lost: float

    @classmethod
    def mean(cls, runs: list[ColocationFigures]) -> ColocationFigures:
        """Of several runs."""
        return cls(*np.mean([astuple(one) for one in runs], axis=0).tolist())


def run(data: Path, *, seeds: int, progress: Progress) -> Reproduction:
    """All policies with the real errors, then ours with other errors."""
    measured, errors = measured_pairs(data), Errors.of_shipped_models()
    total, done = seeds * (len(POLICIES) + len(SWEEP) + 2 + len(KNOWS)), 0

    def averaged(
        policy: PolicyConfig,
        error: float,
        order: Order | None = None,
        known: MeasuredPairs = measured,
        off: Errors = errors,
    ) -> ColocationFigures:
        nonlocal done
        runs = []
        for seed in range(seeds):
            batch = draw(known, off, seed, error)
            runs.append(measure(batch, policy, known, error, order))
            done += 1
            progress(done, total)
        return ColocationFigures.mean(runs)

    by_policy = {name: averaged(policy, 1.0) for name, policy in POLICIES.items()}
    for name, of, order in (
        (_AS_SUBMITTED, "reactive", fifo),
        (_LONGEST, "reactive", longest),
        (_LONGEST_ANY, "reactive, any idle GPU", longest),
    ):
        by_policy[name] = averaged(POLICIES[of], 1.0, order)
    real = {}
    for name in KNOWS:
        known, off = unseen(measured, data, name), Errors.of_unseen_workloads(_UNSEEN[name])
        real[name] = averaged(_SHARE, 1.0, None, known, off)
    sweep = {
        error: by_policy["colocate"] if error == 1.0 else averaged(_SHARE, error)
        for error in SWEEP
    }
    return Reproduction(
        "hotcloud20",
        "Sharing GPUs by predicted use: 100 jobs on 12 GPUs",
        "Yeung et al., Towards GPU Utilization Prediction for Cloud Deep Learning, HotCloud 2020",
        (
            *_lines(by_policy),
            *_sweep_lines(sweep, by_policy["one job a GPU"]),
            *_unseen_lines(real, by_policy["one job a GPU"]),
        ),
        _DIFFERS,
        (_chart(sweep, by_policy),),
    )


def draw(measured: MeasuredPairs, errors: Errors, seed: int, error: float) -> Batch:
    """Jobs of measured workloads; the same for every error of a seed."""
    chance, mistakes = np.random.default_rng(seed), np.random.default_rng([seed, 1])
    known = list(measured.alone)
    names = [known[k] for k in chance.integers(len(known), size=JOBS)]
    durations = np.exp(chance.uniform(np.log(SHORTEST_S), np.log(LONGEST_S), JOBS)).round()
    alone = [measured.alone[name] for name in names]
    given = {
        "job_id": [str(k) for k in range(JOBS)],
        "duration_s": durations,
        "gpu_milli": [WHOLE_GPU] * JOBS,
        "gpu_memory_mib": [int(np.ceil(one.memory_mib)) for one in alone],
        "utilization": [one.util_pct / 100 for one in alone],
    }
    return Batch(
        Trace("hotcloud20", "drawn", complete(pl.DataFrame(given))),
        names,
        [errors.foresee(*of, error, mistakes) for of in zip(alone, durations, strict=True)],
    )


def longest(job: Job, plan: Plan, predict: Predictor) -> SortKey:
    """The order that is best for the makespan, of jobs whose run times are foreseen."""
    return (-predict.runtime(job).p50, job.seq)


def measure(
    batch: Batch,
    policy: PolicyConfig,
    measured: MeasuredPairs,
    error: float,
    order: Order | None = None,
) -> ColocationFigures:
    """One run, in the order of the policy or another one."""
    predictors: list[EstimatePredictor] = []
    rules = pipeline(policy).rules

    def foresee(world: Predictor) -> Predictor:
        predictors.append(EstimatePredictor(measured.predictions(error), world))
        return predictors[0]

    result = simulate(
        batch.trace,
        NODES,
        Pipeline(replace(rules, order=order or rules.order)),
        name="hotcloud20",
        rules=WorldRules(restart_cost_s=RESTART_COST_S, beside=measured.slowdown),
        models=batch.workloads,
        estimates=batch.estimates,
        sharers=SHARERS,
        foresee=foresee,
    )
    jobs = result.jobs
    done = jobs.filter(pl.col("status") == "finished")
    useful = float((batch.trace.jobs["utilization"] * batch.trace.jobs["duration_s"]).sum())
    return ColocationFigures(
        100 * useful / (_GPUS * result.makespan_s),
        result.makespan_s,
        float(done["jct_s"].to_numpy().mean()),
        float((done["end_s"] - done["start_s"]).to_numpy().mean()),
        predictors[0].ran_out,
        jobs.height - done.height,
    )


def _lines(by_policy: dict[str, ColocationFigures]) -> list[ReproducedFigure]:
    ours, one, reactive = (by_policy[name] for name in ("colocate", "one job a GPU", "reactive"))
    moving = by_policy["reactive, any idle GPU"]

    def below(mine: float, theirs: float) -> float:
        return 100 * (1 - mine / theirs)

    paper = {
        "one job a GPU": (43.1, 1869.0),
        "reactive": (47.1, 2193.0),
        "colocate": (69.6, 2024.0),
    }
    lines = [
        ReproducedFigure.at_least(
            "utilization ÷ that of one job a GPU",
            ours.utilization_pct / one.utilization_pct,
            1.6,
            paper=69.6 / 43.1,
        ),
        ReproducedFigure.at_least(
            "makespan below one job a GPU",
            below(ours.makespan_s, one.makespan_s),
            33.5,
            paper=33.5,
            unit="%",
        ),
        ReproducedFigure.at_least(
            "makespan below reactive",
            below(ours.makespan_s, reactive.makespan_s),
            26.5,
            paper=26.5,
            unit="%",
        ),
        ReproducedFigure.at_least(
            "makespan below reactive on any idle GPU",
            below(ours.makespan_s, moving.makespan_s),
            26.5,
            unit="%",
        ),
        ReproducedFigure.at_least(
            f"makespan below {_AS_SUBMITTED}",
            below(ours.makespan_s, by_policy[_AS_SUBMITTED].makespan_s),
            26.5,
            unit="%",
        ),
        *(
            ReproducedFigure(
                f"makespan below {name}",
                below(ours.makespan_s, by_policy[name].makespan_s),
                unit="%",
            )
            for name in (_LONGEST, _LONGEST_ANY)
        ),
        ReproducedFigure.at_most(
            "mean JCT ÷ that of reactive", ours.jct_s / reactive.jct_s, 1.0, paper=0.923
        ),
        ReproducedFigure.at_most(
            "mean JCT ÷ that of reactive on any idle GPU", ours.jct_s / moving.jct_s, 1.0
        ),
    ]
    for name, figures in by_policy.items():
        published = paper.get(name, (None, None))
        lines += [
            ReproducedFigure(f"{name}: utilization", figures.utilization_pct, published[0], "%"),
            ReproducedFigure(f"{name}: makespan", figures.makespan_s, None, "s"),
            ReproducedFigure(f"{name}: mean JCT with waiting", figures.jct_s, None, "s"),
            ReproducedFigure(f"{name}: mean run time", figures.run_s, published[1], "s"),
            ReproducedFigure(f"{name}: out of memory", figures.out_of_memory),
        ]
    lines.append(
        ReproducedFigure.at_most("jobs lost", max(one.lost for one in by_policy.values()), 0.0)
    )
    return lines


def _sweep_lines(
    sweep: dict[float, ColocationFigures], one: ColocationFigures
) -> list[ReproducedFigure]:
    lines = [
        ReproducedFigure(
            f"makespan ÷ one job a GPU, error × {error:g}", figures.makespan_s / one.makespan_s
        )
        for error, figures in sweep.items()
    ]
    lines += [
        ReproducedFigure(f"mean JCT ÷ one job a GPU, error × {error:g}", figures.jct_s / one.jct_s)
        for error, figures in sweep.items()
    ]
    return lines


def _unseen_lines(
    real: dict[str, ColocationFigures], one: ColocationFigures
) -> list[ReproducedFigure]:
    """Whether sharing still pays where nobody has measured the workloads."""
    return [
        ReproducedFigure(
            f"unseen workloads, known by {name}: {words} ÷ one job a GPU",
            getattr(figures, what) / getattr(one, what),
        )
        for name, figures in real.items()
        for what, words in (("makespan_s", "makespan"), ("jct_s", "mean JCT"))
    ]


def _chart(
    sweep: dict[float, ColocationFigures], by_policy: dict[str, ColocationFigures]
) -> Chart:
    """How much is left of the gain as predictions get worse."""
    series = {"makespan": "makespan_s", "mean JCT": "jct_s"}
    one, errors = by_policy["one job a GPU"], list(sweep)
    data = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": name,
            "x": errors,
            "y": short([getattr(of, key) / getattr(one, key) for of in sweep.values()]),
            "line": {"color": COLOURS[at]},
        }
        for at, (name, key) in enumerate(series.items())
    ]
    layout = {
        "xaxis": {"title": {"text": "error of the predictions, times the real one"}},
        "yaxis": {"title": {"text": "relative to one job a GPU"}, "rangemode": "tozero"},
    }
    words = "Sharing pays while the lines stay below 1. Errors of 0 are predictions that are true."
    return Chart("When sharing stops paying", words, {"data": data, "layout": layout})
