"""One small reader for each trace format but Slurm's.

A reader takes checked columns from `Rows` and returns a table with the native names; it does not
sort, fill defaults or look for duplicates (`_table.finish` does).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import polars as pl

from presage.model.cluster import WHOLE_GPU
from presage.sim.traces._rows import Rows
from presage.sim.traces._table import ALSO, COLUMNS

__all__ = ["READERS", "Format"]


@dataclass(frozen=True)
class Format:
    """A layout of columns and how to read it."""

    name: str
    needs: tuple[tuple[str, ...], ...]
    """Columns it cannot do without; each entry lists alternatives. The first is the job's id."""
    also: tuple[str, ...]
    """Columns it uses when they are there."""
    read: Callable[[Rows], pl.DataFrame]

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column it looks at."""
        return (*(name for names in self.needs for name in names), *self.also)

    @property
    def wants(self) -> str:
        """What it needs, for a message."""
        return ", ".join("|".join(names) for names in self.needs)

    def missing(self, columns: Sequence[str]) -> list[str]:
        """What it needs and `columns` do not have."""
        return ["|".join(names) for names in self.needs if not set(names) & set(columns)]

    def distance(self, columns: Sequence[str]) -> float:
        """The share of what it needs that is missing."""
        return len(self.missing(columns)) / len(self.needs)

    def id_column(self, columns: Sequence[str]) -> str:
        """The column that names the job."""
        return next(name for name in self.needs[0] if name in columns)


def _native(rows: Rows) -> pl.DataFrame:
    """The columns of `COLUMNS`; `gpus` (a number of GPUs) may stand for gpu_milli."""
    given: dict[str, pl.Series | None] = {
        "submit_s": rows.numbers("submit_s"),
        "duration_s": rows.numbers("duration_s"),
        "gpu_milli": rows.whole("gpu_milli", null=False)
        if rows.has("gpu_milli")
        else rows.milli("gpus"),
    }
    for name in ("workers", "min_workers", "max_workers"):
        given[name] = rows.whole(name, at_least=1.0) if rows.has(name) else None
    for name in (
        "cpu_milli",
        "memory_mib",
        "gpu_memory_mib",
        "ps_workers",
        "ps_cpu_milli",
        "ps_memory_mib",
    ):
        given[name] = rows.optional(name)
    for name in ("gpu_types", "queue", "owner", "workload", "after"):
        given[name] = rows.optional_text(name)
    if rows.has("priority"):
        given["priority"] = rows.whole("priority", at_least=None)
    if rows.has("estimate_s"):
        given["estimate_s"] = rows.numbers("estimate_s", null=True)
    if rows.has("utilization"):
        given["utilization"] = rows.numbers("utilization", at_most=1.0, null=True)
    if rows.has("link_share"):
        given["link_share"] = rows.numbers("link_share", at_most=0.99, null=True)
    return rows.table(**given)


def _philly(rows: Rows) -> pl.DataFrame:
    """Microsoft's Philly; a few jobs are alike but for their id, and all of them are kept."""
    return rows.table(
        submit_s=rows.times("submit_time"),
        duration_s=rows.numbers("duration_s"),
        gpu_milli=rows.milli("num_gpus"),
        queue=rows.optional_text("vc"),
    )


def _itp(rows: Rows) -> pl.DataFrame:
    """ElasticFlow's ITP clusters."""
    return rows.table(
        submit_s=rows.times("submission_time"),
        duration_s=rows.numbers("duration"),
        gpu_milli=rows.milli("num_gpu"),
        queue=rows.optional_text("cluster"),
    )


def _lucid_sim(rows: Rows) -> pl.DataFrame:
    """The input of Lucid's simulator; `order`, when it is there, is the order of the rows."""
    if rows.has("order"):
        rows.sort("order")
    return rows.table(
        submit_s=rows.times("submit_time"),
        duration_s=rows.numbers("duration"),
        gpu_milli=rows.milli("gpu_num"),
        gpu_memory_mib=rows.numbers("gmem", null=True).ceil() if rows.has("gmem") else None,
        utilization=(
            rows.numbers("gpu_util", at_most=100.0, null=True) / 100
            if rows.has("gpu_util")
            else None
        ),
        estimate_s=rows.numbers("estimate_s", null=True) if rows.has("estimate_s") else None,
        queue=rows.optional_text("vc"),
        owner=rows.optional_text("user"),
    )


def _openb(rows: Rows) -> pl.DataFrame:
    """Alibaba's openb: pods of one worker. One GPU below 1000 milli is shared; more are whole."""
    rows.keep(
        rows.numbers("scheduled_time", null=True).is_not_null(), "skipped as never scheduled: {n}"
    )
    count = rows.whole("num_gpu", null=False)
    milli = rows.whole("gpu_milli", null=False)
    shared = (count == 1) & (milli < WHOLE_GPU)
    duration = rows.numbers("deletion_time") - rows.numbers("scheduled_time")
    rows.refuse(duration < 0, "deletion_time is before scheduled_time")
    return rows.table(
        submit_s=rows.times("creation_time"),
        duration_s=duration,
        workers=pl.Series([1], dtype=pl.Int64).new_from_index(0, count.len()),
        gpu_milli=milli.zip_with(shared, count * WHOLE_GPU),
        cpu_milli=rows.optional("cpu_milli"),
        memory_mib=rows.optional("memory_mib"),
        gpu_types=rows.optional_text("gpu_spec"),
        queue=rows.optional_text("qos"),
    )


READERS: tuple[Format, ...] = (
    Format(
        "native",
        (("job_id",), ("submit_s",), ("duration_s",), ("gpu_milli", "gpus")),
        (*COLUMNS, *ALSO),
        _native,
    ),
    Format(
        "philly", (("job_id",), ("submit_time",), ("duration_s",), ("num_gpus",)), ("vc",), _philly
    ),
    Format(
        "itp", (("job",), ("submission_time",), ("duration",), ("num_gpu",)), ("cluster",), _itp
    ),
    Format(
        "openb",
        (
            ("name",),
            ("num_gpu",),
            ("gpu_milli",),
            ("creation_time",),
            ("deletion_time",),
            ("scheduled_time",),
        ),
        ("cpu_milli", "memory_mib", "gpu_spec", "qos"),
        _openb,
    ),
    Format(
        "lucid_sim",
        (("job_id",), ("gpu_num",), ("submit_time",), ("duration",)),
        ("order", "gmem", "gpu_util", "estimate_s", "vc", "user"),
        _lucid_sim,
    ),
)
