"""The chance that a run fails: Supercloud's jobs by time, scout's runs by workload.

Supercloud: the last 30 % of the submissions (cancelled ones dropped) are foreseen from what had
ended before; fitted on jobs that had ended when they began. Scout: runs still alive at 60 s, from
their request and their first minute; five folds of workloads.
Needs the shared data.

    python -m benchmarks.health_failures [--json]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from benchmarks._data import shared
from benchmarks._health import auc_pr, recall_at
from presage.learn.evaluate import family_out
from presage.observe.health.failures import FailureModel
from presage.observe.health.history import PastRun, RunRequest, at_submission, history_names

Floats = npt.NDArray[np.float64]
COMPLETED, CANCELLED = 3, 4
TRAINED = 0.7
NUMBERS = (
    "cpus", "memory", "nodes", "gpus", "timelimit", "mem_req", "nodes_alloc",
    "job_type", "constraints", "partition", "hour", "weekday",
)  # fmt: skip
MEASURED = (
    "cpu_usr_pct", "cpu_sys_pct", "cpu_iowait_pct", "mem_used_pct", "mem_anon_kb", "mem_cached_kb",
    "disk_rd_sec_s", "disk_wr_sec_s", "disk_util_pct", "net_rx_kb_s", "net_tx_kb_s", "runq",
)  # fmt: skip
LANDMARK_S = 60


def supercloud() -> list[PastRun]:
    """All jobs, in the order of submission."""
    table = pl.read_parquet(shared("traces/supercloud_slurm_sample.parquet")).sort("time_submit")
    coded = {
        name: table[name].fill_null("").cast(pl.Categorical).to_physical()
        for name in ("job_type", "constraints", "partition")
    }
    runs = []
    for at, row in enumerate(table.iter_rows(named=True)):
        asked = dict(part.split("=") for part in row["tres_req"].split(",") if "=" in part)
        limit = row["timelimit"] if row["timelimit"] < 2**31 else -1
        memory = row["mem_req"] if row["mem_req"] < 1e18 else -1
        when = row["time_submit"]
        values = [asked.get(key, 0) for key in ("1", "2", "4", "1002")]
        values += [limit, memory, row["nodes_alloc"]]
        values += [coded[name][at] for name in ("job_type", "constraints", "partition")]
        values += [when // 3600 % 24, when // 86400 % 7]
        alike = f"{row['tres_req']} {limit} {row['job_type']} {memory}"
        numbers = {name: float(value) for name, value in zip(NUMBERS, values, strict=True)}
        request = RunRequest(str(row["id_user"]), float(when), alike, numbers)
        cancelled = row["state"] == CANCELLED
        failed = not cancelled and row["state"] != COMPLETED
        runs.append(PastRun(request, row["time_start"], row["time_end"], failed, cancelled))
    return runs


def by_time() -> dict[str, Any]:
    """Fitted on the past, asked of the future."""
    runs = supercloud()
    names = history_names(NUMBERS)
    rows = at_submission([run.request for run in runs], runs, NUMBERS)
    judged = [at for at, run in enumerate(runs) if not run.cancelled]
    split = int(TRAINED * len(judged))
    begin = runs[judged[split]].request.submitted_s
    train = [at for at in judged[:split] if runs[at].ended_s < begin]
    test = judged[split:]
    failed = np.array([run.failed for run in runs], dtype=np.int64)
    found: dict[str, Any] = {"train": len(train), "test": len(test)}
    found["prevalence"] = float(failed[test].mean())
    for title, columns in (("request alone", len(NUMBERS)), ("with history", len(names))):
        model = FailureModel().fit(rows[train, :columns], failed[train], names[:columns])
        chance = model.predict(rows[test, :columns])
        found[title] = _judged(failed[test], chance)
    return found


def scout(folds: int = 5) -> dict[str, Any]:
    """Workloads left out; the length of the telemetry would give the end away, so only runs that
    are alive at the landmark take part."""
    runs = pl.read_parquet(shared("runtime/scout_runs.parquet"))
    samples = pl.read_parquet(shared("telemetry/scout_runs_5s.parquet"))
    samples = samples.with_columns(pl.col("run").cast(pl.String))
    alive = samples.group_by("run").agg(pl.col("t_s").max().alias("last"))
    early = samples.filter(pl.col("t_s") <= LANDMARK_S)
    summary = [pl.col(name).mean().alias(f"{name}_mean") for name in MEASURED]
    summary += [pl.col(name).max().alias(f"{name}_max") for name in MEASURED]
    summary += [pl.col(name).last().alias(f"{name}_last") for name in MEASURED]
    table = (
        runs.select("run", "completed", "workload", "vm", "nodes", "framework", "datasize")
        .join(alive.filter(pl.col("last") > LANDMARK_S), on="run")
        .join(early.sort("t_s").group_by("run").agg(summary), on="run")
        .sort("run")
    )
    sizes = ("small", "medium", "large", "huge", "bigdata")
    machine = table["vm"]
    table = table.with_columns(
        pl.col("datasize").replace_strict(
            {s: float(i) for i, s in enumerate(sizes)}, default=-1.0
        ),
        pl.col("vm").str.ends_with("large").cast(pl.Float64)
        + pl.col("vm").str.contains("xlarge").cast(pl.Float64)
        + pl.col("vm").str.contains("2xlarge").cast(pl.Float64),
        pl.col("framework").cast(pl.Categorical).to_physical().cast(pl.Float64),
    )
    names = [
        name for name in table.columns if name not in ("run", "completed", "workload", "last")
    ]
    rows = table.select(names).cast(pl.Float64).to_numpy()
    failed = (~table["completed"]).cast(pl.Int64).to_numpy()
    chance = np.zeros(len(failed))
    mix = np.random.default_rng(0)  # the mixture's part is drawn, for runs have no order
    for train, test in family_out(table["workload"].to_numpy(), folds, seed=0):
        drawn = mix.permutation(train)
        chance[test] = FailureModel().fit(rows[drawn], failed[drawn], names).predict(rows[test])
    asked = [table["workload"], table["framework"], table["datasize"], machine]
    return {
        "n": len(failed),
        "prevalence": float(failed.mean()),
        **_judged(failed, chance),
        **_bounds(failed, table["workload"].to_list(), list(zip(*asked, strict=True))),
    }


def _bounds(
    failed: npt.NDArray[np.int64], workload: Sequence[str], asked: Sequence[object]
) -> dict[str, Any]:
    """Why it is hard: what the true rate of each workload would tell, that of each workload as it
    was configured, and how many of the failures are one workload's."""
    worst = max(set(workload), key=lambda name: failed[np.array(workload) == name].sum())
    others = np.array(workload) != worst
    rate, exact = _rates(failed, workload), _rates(failed, asked)
    return {
        "auc_pr, true rate by workload": auc_pr(failed, rate),
        "… and configuration": auc_pr(failed, exact),
        f"share of failures of {worst}": 1 - float(failed[others].sum() / failed.sum()),
        "its own rate of failure": float(failed[~others].mean()),
        "auc_pr, true rate, without it": auc_pr(failed[others], rate[others]),
    }


def _rates(failed: npt.NDArray[np.int64], groups: Sequence[object]) -> Floats:
    ended: dict[object, list[int]] = {}
    for group, end in zip(groups, failed.tolist(), strict=True):
        ended.setdefault(group, []).append(end)
    return np.array([np.mean(ended[group]) for group in groups])


def _judged(failed: npt.NDArray[np.int64], chance: Floats) -> dict[str, float]:
    return {
        "auc_pr": auc_pr(failed, chance),
        "recall at 90 % precision": recall_at(failed, chance, 0.9),
        "brier": float(np.mean((chance - failed) ** 2)),
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Print both, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    found = {"supercloud by time": by_time(), "scout by workload": scout()}
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for title, values in found.items():
        print(title)
        for name, value in values.items():
            print(f"  {name:36} {value}")


if __name__ == "__main__":
    main()
