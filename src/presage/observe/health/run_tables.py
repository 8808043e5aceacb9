"""Tables of runs, as a Slurm's `sacct` or a tracker has them, as rows for a `FailureModel`: what
was asked for, what its owner had done before, and what it used in its first minute.

Columns are found by usual names or named by the caller. What a column says only after the end of a
run (its length, an exit code) is never taken unless somebody names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from presage.learn import Floats
from presage.model.errors import UserError
from presage.observe.health.history import PastRun, RunRequest, at_submission, history_names
from presage.telemetry.readers import read_moment
from presage.telemetry.series import Series

__all__ = ["RunColumns", "RunRows", "describe_runs", "find_columns"]

_NAMES = {
    "run": ("run", "run_id", "job", "job_id", "jobid", "id_job", "id"),
    "owner": ("owner", "user", "username", "user_id", "id_user", "uid"),
    "submitted": ("submitted", "submitted_at", "submit_time", "time_submit", "submit"),
    "started": ("started", "started_at", "start_time", "time_start", "start"),
    "ended": ("ended", "ended_at", "end_time", "time_end", "end"),
    "state": ("state", "status", "outcome", "failed", "completed"),
}
_REQUEST = (
    *("cpus", "cores", "req_cpus", "gpus", "num_gpus", "gpu_num", "memory", "mem", "req_mem"),
    *("mem_req", "memory_mib", "nodes", "num_nodes", "req_nodes", "workers", "timelimit"),
    *("time_limit", "partition", "queue", "qos", "job_type", "constraints", "framework"),
    *("workload", "program", "vm", "datasize", "input_size", "nodes_alloc", "tres_req"),
)
"""Columns that are known at submission, by usual names."""
_WELL = ("completed", "succeeded", "success", "finished", "ok")
_CANCELLED = ("cancel", "stop", "preempt", "halt", "revoked", "killed by user")
_NOT_OVER = ("", "running", "pending", "queued", "waiting", "suspended", "processing", "none")
_SLURM = {0: None, 1: None, 2: None, 3: "well", 4: "cancelled", 8: "cancelled"}
"""Numbers of states in Slurm's database; all others failed."""
_MOST_CATEGORIES = 200
_STATISTICS = ("mean", "max", "last")
_CLOCK = ("hour", "weekday")


@dataclass(frozen=True, slots=True)
class RunColumns:
    """Which columns say what; empty where there is none. It is kept with the model."""

    run: str = ""
    owner: str = ""
    submitted: str = ""
    started: str = ""
    ended: str = ""
    state: str = ""
    request: tuple[str, ...] = ()
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Columns of words, and those that were there when it was fitted, the most frequent first."""
    landmark_s: float = 0.0
    """So long after their start runs are judged; 0 is at submission."""
    metrics: tuple[str, ...] = ()

    @property
    def numbers(self) -> tuple[str, ...]:
        """The names of what a request is made of."""
        return (*self.request, *(_CLOCK if self.submitted else ()))

    @property
    def features(self) -> tuple[str, ...]:
        """The names of a row's numbers."""
        known = history_names(self.numbers) if self.owner else self.numbers
        return (*known, *(f"{name} {how}" for name in self.metrics for how in _STATISTICS))

    def to_card(self) -> dict[str, Any]:
        """For a bundle."""
        return {
            **{name: getattr(self, name) for name in _NAMES},
            "request": list(self.request),
            "categories": {name: list(words) for name, words in self.categories.items()},
            "landmark_s": self.landmark_s,
            "metrics": list(self.metrics),
        }

    @classmethod
    def from_card(cls, card: Mapping[str, Any]) -> RunColumns:
        """What `to_card` made."""
        return cls(
            **{name: str(card[name]) for name in _NAMES},
            request=tuple(map(str, card["request"])),
            categories={name: tuple(words) for name, words in card["categories"].items()},
            landmark_s=float(card["landmark_s"]),
            metrics=tuple(map(str, card["metrics"])),
        )


@dataclass(frozen=True, slots=True, eq=False)
class RunRows:
    """A row for each run of a table, in its order."""

    features: Floats
    failed: npt.NDArray[np.int64]
    judged: npt.NDArray[np.bool_]
    """Whether it is known that it failed or not; runs that were cancelled or go on say neither."""
    alive: npt.NDArray[np.bool_]
    """Whether it got as far as the moment it is judged at."""
    names: tuple[str, ...]
    order: npt.NDArray[np.int64]
    """The runs in the order of time."""


def find_columns(
    table: pl.DataFrame, named: Mapping[str, str | None], request: Sequence[str] | None
) -> RunColumns:
    """The columns of a table; `named` has those that somebody chose."""
    lower = {name.lower(): name for name in table.columns}
    by_role: dict[str, str] = {}
    for role, usual in _NAMES.items():
        chosen = named.get(role)
        if chosen and chosen not in table.columns:
            some = ", ".join(table.columns[:12]) + (" …" if len(table.columns) > 12 else "")
            raise UserError(f"there is no column '{chosen}'; there are {some}")
        usually = next((lower[name] for name in usual if name in lower), "")
        by_role[role] = usually if chosen is None else chosen
    if request is None:
        taken = set(by_role.values())
        request = [lower[n] for n in _REQUEST if n in lower and lower[n] not in taken]
    elif missing := [name for name in request if name not in table.columns]:
        raise UserError(f"--request: there is no column '{missing[0]}'")
    if not request and not by_role["owner"]:
        raise UserError(
            "nothing says what a run asked for or whose it is; name columns with --request and "
            "--owner"
        )
    if by_role["owner"] and not (by_role["submitted"] and by_role["ended"]):
        raise UserError(
            "an owner's history needs to know when runs were submitted and ended; name the "
            "columns with --submitted and --ended, or leave the owner out with --owner ''"
        )
    words = {}
    for name in request:
        if not _is_number(table[name]):
            counts = table[name].cast(pl.String).drop_nulls().value_counts(sort=True)
            words[name] = tuple(_words(counts))
    run, owner, submitted, started, ended, state = (by_role[role] for role in _NAMES)
    return RunColumns(run, owner, submitted, started, ended, state, tuple(request), words)


def _words(counts: pl.DataFrame) -> list[str]:
    """The words of a column, the most frequent first; of equal ones by the alphabet."""
    pairs = sorted(counts.iter_rows(), key=lambda pair: (-pair[1], pair[0]))
    return [word for word, _ in pairs[:_MOST_CATEGORIES]]


def describe_runs(
    table: pl.DataFrame, columns: RunColumns, telemetry: Sequence[Series] = ()
) -> RunRows:
    """Each run of the table as numbers."""
    needed = [getattr(columns, name) for name in ("owner", "submitted", "ended")]
    for name in (*columns.request, *filter(None, needed if columns.owner else ())):
        if name not in table.columns:
            raise UserError(f"there is no column '{name}', which the chances were learned from")
    count = len(table)
    judged, failed, cancelled = _ends(table, columns.state)
    submitted = _times(table, columns.submitted)
    rows, order = _numbers(table, columns, submitted), np.arange(count)
    if columns.owner:
        if np.isnan(submitted).any():
            at = int(np.flatnonzero(np.isnan(submitted))[0]) + 1
            raise UserError(f"row {at}: '{columns.submitted}' is empty; each run needs its time")
        order = np.argsort(submitted, kind="stable")
        rows = _with_history(table, columns, rows, submitted, (judged, failed, cancelled))
    names = tuple(table[columns.run].cast(pl.String)) if columns.run in table.columns else ()
    alive = np.ones(count, dtype=bool)
    if columns.landmark_s:
        first, alive = _first_minute(names, columns, telemetry)
        rows = np.column_stack([rows, first])
    return RunRows(
        rows,
        failed,
        judged,
        alive,
        names or tuple(str(at + 1) for at in range(count)),
        np.asarray(order, dtype=np.int64),
    )


# -- what was asked for ---------------------------------------------------------------------------


def _numbers(table: pl.DataFrame, columns: RunColumns, submitted: Floats) -> Floats:
    values = []
    for name in columns.request:
        if name in columns.categories:
            place = {word: float(at) for at, word in enumerate(columns.categories[name])}
            words = table[name].cast(pl.String)
            values.append([place.get(word, np.nan) for word in words])
        elif _is_number(table[name]):
            values.append(table[name].cast(pl.Float64).fill_null(np.nan).to_list())
        else:
            raise UserError(f"column '{name}' holds words; it held numbers when it was fitted")
    if columns.submitted:
        values += [(submitted // 3600 % 24).tolist(), (submitted // 86400 % 7).tolist()]
    return np.array(values, dtype=float).reshape(-1, len(table)).T


def _with_history(
    table: pl.DataFrame,
    columns: RunColumns,
    rows: Floats,
    submitted: Floats,
    ends: tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]],
) -> Floats:
    judged, failed, cancelled = ends
    ended, started = _times(table, columns.ended), _times(table, columns.started)
    owners = table[columns.owner].cast(pl.String).fill_null("").to_list()
    asked = list(columns.request)
    alike = table.select(pl.col(asked).cast(pl.String).fill_null("")).rows() if asked else []
    requests = []
    for at, owner in enumerate(owners):
        numbers = dict(zip(columns.numbers, rows[at].tolist(), strict=True))
        text = " ".join(alike[at]) if alike else ""
        requests.append(RunRequest(owner, float(submitted[at]), text, numbers))
    past = [
        PastRun(
            requests[at],
            float(started[at] if np.isfinite(started[at]) else submitted[at]),
            float(ended[at]) if np.isfinite(ended[at]) else np.inf,
            bool(failed[at]),
            bool(cancelled[at]),
        )
        for at in range(len(requests))
        if judged[at] or cancelled[at] or not np.isfinite(ended[at])
    ]
    return at_submission(requests, past, columns.numbers)


def _ends(
    table: pl.DataFrame, column: str
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """For each run whether its end is known, whether it failed, and whether it was cancelled."""
    ends = ["" for _ in range(len(table))]
    if column and column in table.columns:
        says_failed = column.lower() in ("failed", "failure")
        ends = [_end(value, says_failed) for value in table[column].to_list()]
    judged = np.array([end in ("well", "failed") for end in ends], dtype=bool)
    failed = np.array([end == "failed" for end in ends], dtype=np.int64)
    return judged, failed, np.array([end == "cancelled" for end in ends], dtype=bool)


def _end(value: object, says_failed: bool) -> str:
    """`well`, `failed`, `cancelled`, or nothing where it is not over."""
    if value is None:
        return ""
    if isinstance(value, bool) or (says_failed and value in (0, 1, 0.0, 1.0)):
        return "failed" if bool(value) == says_failed else "well"
    if isinstance(value, int | float):
        return _SLURM.get(int(value), "failed") or ""
    text = str(value).strip().lower()
    if text in ("true", "false"):
        return "failed" if (text == "true") == says_failed else "well"
    if text in _NOT_OVER:
        return ""
    if text.startswith(_CANCELLED):
        return "cancelled"
    return "well" if text in _WELL else "failed"


def _times(table: pl.DataFrame, column: str) -> Floats:
    """Seconds since 1970; NaN where it is not known."""
    if not column or column not in table.columns:
        return np.full(len(table), np.nan)
    if _is_number(table[column]):
        seconds = table[column].cast(pl.Float64).fill_null(np.nan).to_numpy()
        return np.where(seconds > 0, seconds, np.nan)
    known: dict[object, float] = {}
    for value in table[column].unique().to_list():
        if value is None or str(value).strip().lower() in ("", "unknown", "none"):
            known[value] = np.nan
        elif isinstance(value, date | datetime):
            known[value] = read_moment(value.isoformat(), column, f"column '{column}'")
        else:
            known[value] = read_moment(str(value), column, f"column '{column}'")
    return np.array([known[value] for value in table[column].to_list()])


def _is_number(column: pl.Series) -> bool:
    return column.dtype.is_numeric() or column.dtype == pl.Boolean or column.dtype == pl.Null


# -- what it used at first ------------------------------------------------------------------------


def _first_minute(
    names: Sequence[str], columns: RunColumns, telemetry: Sequence[Series]
) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Per run: mean, highest and latest of each metric until the landmark, and whether there was
    a sample behind it."""
    series = {pod.pod: pod for pod in telemetry}
    width = len(_STATISTICS)
    rows = np.full((len(names), len(columns.metrics) * width), np.nan)
    alive = np.zeros(len(names), dtype=bool)
    for at, name in enumerate(names):
        pod = series.get(name)
        if pod is None or not len(pod):
            continue
        since = pod.times - pod.times[0]
        early = since <= columns.landmark_s
        alive[at] = bool(since[-1] > columns.landmark_s)
        for k, metric in enumerate(columns.metrics):
            if metric not in pod.features:
                continue
            values = pod.values[early, pod.features.index(metric)]
            values = values[np.isfinite(values)]
            if len(values):
                rows[at, width * k : width * (k + 1)] = values.mean(), values.max(), values[-1]
    if not alive.any():
        raise UserError(
            f"no run of the table has telemetry beyond {columns.landmark_s:g} s; the series must "
            "have the names of the runs (--run names their column)"
        )
    return rows, alive
