"""The one table every reader fills, and the checks that hold whatever the source was.

Knows nothing of file formats: `finish` takes what a reader found, fills the defaults, sorts, and
refuses jobs that make no sense.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import polars as pl

from presage.model.cluster import WHOLE_GPU, gpu_count
from presage.model.errors import TraceError
from presage.sim.traces._rows import ROW, Rows

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["COLUMNS", "Trace", "complete", "finish"]

COLUMNS: dict[str, pl.DataType] = {
    "job_id": pl.String(),
    "submit_s": pl.Float64(),  # seconds from the first submission
    "duration_s": pl.Float64(),  # at its own size, on the devices it was measured on
    "workers": pl.Int64(),  # null: only a total is known, the simulator splits it by node size
    "gpu_milli": pl.Int64(),  # per worker when `workers` is given, else of the whole job
    "cpu_milli": pl.Int64(),  # the same rule; 0 is "does not say"
    "memory_mib": pl.Int64(),  # the same rule
    "gpu_memory_mib": pl.Int64(),  # on each device it uses, as in `Resources`
    "min_workers": pl.Int64(),  # null: rigid
    "max_workers": pl.Int64(),
    "gpu_types": pl.String(),  # 'A100|V100'; '' is any
    "queue": pl.String(),
    "owner": pl.String(),
    "priority": pl.Int64(),
    "estimate_s": pl.Float64(),  # what someone thought it would take, if anyone did
    "utilization": pl.Float64(),  # 0..1 of a device, from a profile
    "ps_workers": pl.Int64(),  # parameter servers beside the workers
    "ps_cpu_milli": pl.Int64(),
    "ps_memory_mib": pl.Int64(),
    "workload": pl.String(),  # jobs of one name do the same work; '' is not known
    "after": pl.String(),  # 'a|b': jobs that must end well before it starts; '' is none
}
"""Every column of `Trace.jobs`, in order."""

ALSO: dict[str, pl.DataType] = {
    "link_share": pl.Float64(),  # 0..1 of a step that it talks for where it is on several nodes
}
"""Columns that follow where the source has them; null is not known."""

_DEFAULTS: dict[str, object] = {
    "cpu_milli": 0,
    "memory_mib": 0,
    "gpu_memory_mib": 0,
    "gpu_types": "",
    "queue": "default",
    "owner": "",
    "priority": 0,
    "ps_workers": 0,
    "ps_cpu_milli": 0,
    "ps_memory_mib": 0,
    "workload": "",
    "after": "",
}


@dataclass(frozen=True, repr=False)
class Trace:
    """Jobs in order of submission; rows of the source break ties."""

    name: str
    format: str
    jobs: pl.DataFrame
    """Exactly the columns of `COLUMNS`, and those of `ALSO` that the source has."""
    integer_ids: bool = False
    """Whether the source's job ids were integers; outputs then write them as integers again."""
    notes: tuple[str, ...] = ()
    """What a reader left out or renamed, one sentence each."""

    def __len__(self) -> int:
        return self.jobs.height

    def to_polars(self) -> pl.DataFrame:
        """The jobs; filtered or changed, they can be simulated in place of the trace."""
        return self.jobs

    def plot(self) -> Figure:
        """How many GPUs were asked for over time, if every job had started at once."""
        from presage.sim._charts import demand

        return demand(self)

    def __repr__(self) -> str:
        return f"Trace({self.name}, {self.format}, {len(self):,} jobs)"

    def _repr_html_(self) -> str:
        said = escape(f"{self.name} ({self.format}): {'; '.join(self.notes)}".rstrip(": "))
        return f"<p>{said}</p>{self.jobs._repr_html_()}"


def finish(rows: Rows, table: pl.DataFrame, *, format: str, integer_ids: bool) -> Trace:
    """Complete, check and sort what a reader found. `table` has `ROW` and some of `COLUMNS`."""
    if table.is_empty():
        why = "; ".join(rows.notes)
        because = f" ({why})" if why else ""
        raise TraceError(f"trace {rows.name}: no job is left to simulate{because}")
    jobs = table.select(pl.col(ROW), *_columns(table), *_also(table))
    _check_ids(rows, jobs, integer_ids)
    _check_gpus(rows, jobs)
    jobs = _check_elastic(rows, jobs)
    first = jobs.get_column("submit_s").min()
    jobs = jobs.drop(ROW).with_columns(pl.col("submit_s") - first)
    if not jobs.get_column("submit_s").is_sorted():
        jobs = jobs.sort("submit_s", maintain_order=True)
    _check_after(rows, jobs)
    return Trace(rows.name, format, jobs, integer_ids, tuple(rows.notes))


def complete(table: pl.DataFrame) -> pl.DataFrame:
    """A table of jobs with every column of `COLUMNS`, in order: the defaults of a trace for what
    it leaves out. Nothing is checked; for jobs that were made and not read."""
    given = table if "submit_s" in table.columns else table.with_columns(submit_s=0.0)
    return given.select(*_columns(given), *_also(given))


def _columns(table: pl.DataFrame) -> list[pl.Expr]:
    columns = []
    for name, dtype in COLUMNS.items():
        value = pl.col(name) if name in table.columns else pl.lit(None)
        value = value.cast(dtype)
        if name in _DEFAULTS:
            value = value.fill_null(pl.lit(_DEFAULTS[name], dtype=dtype))
        columns.append(value.alias(name))
    return columns


def _also(table: pl.DataFrame) -> list[pl.Expr]:
    return [pl.col(name).cast(kind) for name, kind in ALSO.items() if name in table.columns]


def _check_ids(rows: Rows, jobs: pl.DataFrame, integers: bool) -> None:
    ids = jobs.get_column("job_id")
    if (ids.cast(pl.Int64) if integers else ids).n_unique() == ids.len():  # integers hash faster
        return
    job = ids.filter(ids.is_duplicated())[0]
    same = jobs.filter(pl.col("job_id") == job).get_column(ROW)
    raise TraceError(
        f"trace {rows.name}: rows {same[0]} and {same[1]} are both job {job}; "
        "give every job its own id"
    )


def _check_gpus(rows: Rows, jobs: pl.DataFrame) -> None:
    """A device is shared by parts or taken whole; 1.5 GPUs are neither."""
    odd = (pl.col("gpu_milli") > WHOLE_GPU) & (pl.col("gpu_milli") % WHOLE_GPU != 0)
    bad = jobs.filter(odd)
    if bad.height:
        asked = gpu_count(bad.get_column("gpu_milli")[0])
        raise rows.wrong(bad, f"asks for {asked} GPUs; use a share below 1 or a whole number")


def _check_after(rows: Rows, jobs: pl.DataFrame) -> None:
    """Nobody waits for a job that is not there, or that is submitted later."""
    waiting = jobs.with_row_index("place").filter(pl.col("after") != "")
    if waiting.is_empty():
        return
    names = waiting.select("job_id", "place", pl.col("after").str.split("|")).explode("after")
    places = jobs.with_row_index("there").select(pl.col("job_id").alias("after"), "there")
    joined = names.join(places, on="after", how="left", maintain_order="left")
    bad = joined.filter(pl.col("there").is_null() | (pl.col("there") >= pl.col("place")))
    if bad.height:
        job, other, place = bad.select("job_id", "after", "there").row(0)
        why = "is no job of the trace" if place is None else "is not submitted before it"
        raise TraceError(f"trace {rows.name}: job {job} waits for {other!r}, which {why}")


def _check_elastic(rows: Rows, jobs: pl.DataFrame) -> pl.DataFrame:
    """min ≤ workers ≤ max, all given together or not at all."""
    least, most, count = pl.col("min_workers"), pl.col("max_workers"), pl.col("workers")
    elastic = least.is_not_null() | most.is_not_null()
    bad = jobs.filter(elastic & count.is_null())
    if bad.height:
        raise rows.wrong(bad, "has min_workers or max_workers but no workers; give all three")
    jobs = jobs.with_columns(
        pl.when(elastic).then(least.fill_null(count)).alias("min_workers"),
        pl.when(elastic).then(most.fill_null(count)).alias("max_workers"),
    )
    bad = jobs.filter((least > count) | (count > most))
    if bad.height:
        raise rows.wrong(bad, "needs min_workers ≤ workers ≤ max_workers")
    return jobs
