"""Slurm's accounting: `sacct --parsable2` output, and the job table of MIT Supercloud.

Steps are left out, and so are jobs that never started or have not ended: their duration is not
known. What a job held (AllocTRES) counts before what it asked for (ReqTRES); only a GPU type it
*asked* for is a constraint. One node is one worker when its GPUs divide evenly.
"""

from __future__ import annotations

import polars as pl

from presage.model.cluster import WHOLE_GPU
from presage.sim.traces._formats import Format
from presage.sim.traces._rows import Rows, datetimes

__all__ = ["SLURM", "clock_seconds", "mebibytes"]

_NEVER = ("Unknown", "None", "N/A", "INVALID")
_UNITS = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
_NO_LIMIT = 4294967295


def clock_seconds(text: pl.Series) -> pl.Series:
    """Durations as Slurm writes them, [D-][HH:]MM:SS[.mmm], in seconds; others become null."""
    parts = text.str.extract_groups(r"^(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)$").struct
    days, hours, minutes, seconds = (
        parts.field(str(index)).cast(pl.Float64, strict=False) for index in (1, 2, 3, 4)
    )
    return (days.fill_null(0) * 24 + hours.fill_null(0)) * 3600 + minutes * 60 + seconds


def mebibytes(text: pl.Series) -> pl.Series:
    """Sizes such as `512M`, `62.5G` or `4Gn` in MiB, rounded up; without a unit they are MiB."""
    parts = text.str.extract_groups(r"^(\d+(?:\.\d+)?)([KMGTP]?)[nc]?$").struct
    unit = parts.field("2").replace_strict(_UNITS, default=1.0, return_dtype=pl.Float64)
    return (parts.field("1").cast(pl.Float64, strict=False) * unit).ceil()


def _sacct(rows: Rows) -> pl.DataFrame:
    job = "JobID" if rows.has("JobID") else "JobIDRaw"
    rows.keep(~rows.texts(job).str.contains(".", literal=True))
    duration = _elapsed(rows)
    started = _happened(rows, "Start") & ~_state(rows, "^PENDING")
    started &= ~(_state(rows, "^CANCELLED") & (duration == 0).fill_null(True))
    rows.keep(started, "skipped as never started: {n}")
    over = _happened(rows, "End") & ~_state(rows, "^(RUNNING|SUSPENDED|REQUEUED|COMPLETING)")
    rows.keep(over, "skipped as not ended: {n}")
    duration = _elapsed(rows)
    rows.refuse(duration.is_null(), "Elapsed (or End and Start) is not a duration")
    rows.refuse(duration < 0, "End is before Start")
    held = _first(rows, "AllocTRES", "ReqTRES")
    asked = _first(rows, "ReqTRES")
    memory = _amount(held, r"mem=([^,]+)", size=True).fill_null(mebibytes(_first(rows, "ReqMem")))
    return _jobs(
        rows,
        job,
        submit_s=rows.times("Submit"),
        duration_s=duration,
        gpus=_gpus(held),
        cpus=_amount(held, r"cpu=(\d+)").fill_null(
            _numbers(rows, "AllocCPUS", "NCPUS", "ReqCPUS")
        ),
        memory_mib=memory,
        nodes=_amount(held, r"node=(\d+)").fill_null(_numbers(rows, "NNodes", "AllocNodes")),
        gpu_types=asked.str.extract_all(r"gres/gpu:[^=,]+=")
        .list.eval(pl.element().str.extract(r"gres/gpu:([^=,]+)="))
        .list.unique(maintain_order=True)
        .list.join("|"),
        queue=_first(rows, "Partition", "Account"),
        owner=_first(rows, "User"),
        estimate_s=_time_limit(rows),
    )


def _supercloud(rows: Rows) -> pl.DataFrame:
    rows.keep(rows.numbers("time_start", null=True) > 0, "skipped as never started: {n}")
    rows.keep(rows.numbers("time_end", null=True) > 0, "skipped as not ended: {n}")
    duration = rows.numbers("time_end") - rows.numbers("time_start")
    rows.refuse(duration < 0, "time_end is before time_start")
    held = _first(rows, "tres_alloc", "tres_req")
    limit = rows.numbers("timelimit", null=True) if rows.has("timelimit") else _nothing(rows)
    # 1 cpu, 2 memory (MiB), 4 nodes; a site's own kinds start at 1001: here, kinds of GPUs
    gpus = (
        held.str.extract_all(r"(?:^|,)1\d{3}=\d+")
        .list.eval(pl.element().str.extract(r"=(\d+)").cast(pl.Float64))
        .list.max()
    )
    return _jobs(
        rows,
        "id_job",
        submit_s=rows.numbers("time_submit"),
        duration_s=duration,
        gpus=gpus,
        cpus=_amount(held, r"(?:^|,)1=(\d+)"),
        memory_mib=_amount(held, r"(?:^|,)2=(\d+)"),
        nodes=_amount(held, r"(?:^|,)4=(\d+)"),
        gpu_types=None,
        queue=_first(rows, "partition"),
        owner=_first(rows, "id_user"),
        estimate_s=limit.set(limit >= _NO_LIMIT, None) * 60,
    )


SLURM: tuple[Format, ...] = (
    Format(
        "slurm",
        (
            ("JobID", "JobIDRaw"),
            ("Submit",),
            ("ElapsedRaw", "Elapsed", "End"),
            ("AllocTRES", "ReqTRES"),
        ),
        (
            *(
                "Start",
                "End",
                "State",
                "Timelimit",
                "TimelimitRaw",
                "ReqMem",
                "Partition",
                "Account",
                "User",
            ),
            *("AllocCPUS", "NCPUS", "ReqCPUS", "NNodes", "AllocNodes"),
        ),
        _sacct,
    ),
    Format(
        "slurm",
        (
            ("id_job",),
            ("time_submit",),
            ("time_start",),
            ("time_end",),
            ("tres_alloc", "tres_req"),
        ),
        ("timelimit", "partition", "id_user"),
        _supercloud,
    ),
)


def _jobs(
    rows: Rows,
    job: str,
    *,
    gpus: pl.Series,
    cpus: pl.Series,
    memory_mib: pl.Series,
    nodes: pl.Series,
    **rest: pl.Series | None,
) -> pl.DataFrame:
    """Split the totals over the nodes; a total that does not divide is left for the simulator."""
    totals = pl.DataFrame(
        [
            (gpus.fill_null(0) * WHOLE_GPU).alias("gpu_milli"),
            (cpus.fill_null(0) * 1000).alias("cpu_milli"),
            memory_mib.fill_null(0).alias("memory_mib"),
            nodes.fill_null(1).clip(1).alias("nodes"),
        ]
    )
    even = pl.col("gpu_milli") % (pl.col("nodes") * WHOLE_GPU) == 0
    shares = totals.with_columns(pl.when(even).then("nodes").alias("workers")).with_columns(
        (pl.col(name) / pl.col("workers").fill_null(1)).ceil().cast(pl.Int64)
        for name in ("gpu_milli", "cpu_milli", "memory_mib")
    )
    return rows.table(
        job_id=_unique_ids(rows, job),
        workers=shares.get_column("workers").cast(pl.Int64),
        gpu_milli=shares.get_column("gpu_milli"),
        cpu_milli=shares.get_column("cpu_milli"),
        memory_mib=shares.get_column("memory_mib"),
        **rest,
    )


def _unique_ids(rows: Rows, job: str) -> pl.Series | None:
    """Number the records of one id: a job was requeued, or (Supercloud) its id was rounded."""
    ids, _ = rows.ids()
    if ids.n_unique() == ids.len():
        return None
    nth = pl.int_range(1, pl.len() + 1).over("id")
    frame = pl.DataFrame({"id": ids}).with_columns(nth.alias("n"))
    again = frame.get_column("n") > 1
    rows.notes.append(f"records that repeat a {job}, named <id>#2, #3, …: {again.sum():,}")
    named = pl.when(pl.col("n") > 1).then(pl.format("{}#{}", "id", "n")).otherwise("id")
    return frame.select(named.alias("job_id")).to_series()


def _elapsed(rows: Rows) -> pl.Series:
    if rows.has("ElapsedRaw"):
        return rows.texts("ElapsedRaw").cast(pl.Float64, strict=False)
    if rows.has("Elapsed"):
        return clock_seconds(rows.texts("Elapsed"))
    if not rows.has("Start"):
        return _nothing(rows)
    return _clock(rows, "End") - _clock(rows, "Start")


def _clock(rows: Rows, column: str) -> pl.Series:
    """Seconds since 1970, whether written as dates or (SLURM_TIME_FORMAT=%s) as numbers."""
    text = rows.texts(column)
    dated = datetimes(text).dt.epoch("us").cast(pl.Float64) / 1e6
    return text.cast(pl.Float64, strict=False).fill_null(dated)


def _happened(rows: Rows, column: str) -> pl.Series:
    if not rows.has(column):
        return _always(rows, True)
    text = rows.texts(column)
    return text.is_not_null() & ~text.is_in(_NEVER)


def _state(rows: Rows, pattern: str) -> pl.Series:
    if not rows.has("State"):
        return _always(rows, False)
    return rows.texts("State").str.contains(pattern).fill_null(False)


def _gpus(tres: pl.Series) -> pl.Series:
    """gres/gpu=N is the total; without it, the sum of gres/gpu:type=N."""
    typed = tres.str.extract_all(r"gres/gpu:[^=,]+=\d+").list.eval(
        pl.element().str.extract(r"=(\d+)").cast(pl.Float64)
    )
    return _amount(tres, r"gres/gpu=(\d+)").fill_null(typed.list.sum())


def _amount(tres: pl.Series, pattern: str, *, size: bool = False) -> pl.Series:
    value = tres.str.extract(pattern)
    return mebibytes(value) if size else value.cast(pl.Float64, strict=False)


def _time_limit(rows: Rows) -> pl.Series:
    """The user's limit, in seconds: minutes in TimelimitRaw, a clock in Timelimit."""
    if rows.has("TimelimitRaw"):
        return rows.texts("TimelimitRaw").cast(pl.Float64, strict=False) * 60
    return clock_seconds(rows.texts("Timelimit")) if rows.has("Timelimit") else _nothing(rows)


def _first(rows: Rows, *columns: str) -> pl.Series:
    """The first of the columns that says something, row by row."""
    texts = _nothing(rows, pl.String())
    for column in columns:
        if rows.has(column):
            texts = texts.fill_null(rows.texts(column))
    return texts


def _numbers(rows: Rows, *columns: str) -> pl.Series:
    return _first(rows, *columns).cast(pl.Float64, strict=False)


def _always(rows: Rows, value: bool) -> pl.Series:
    return pl.Series([value]).new_from_index(0, rows.height)


def _nothing(rows: Rows, dtype: pl.DataType | None = None) -> pl.Series:
    kind = dtype or pl.Float64()
    return pl.Series([None], dtype=kind).new_from_index(0, rows.height)
