"""From the rows of a trace to jobs: what each asks for on this cluster, made when its time comes.

Rows are read in chunks and jobs are made one by one, so a run of a million jobs holds only those alive.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl

from presage.model.cluster import WHOLE_GPU, Node, Resources
from presage.model.job import JobSpec, Role
from presage.sim.traces import Trace
from presage.sim.world import Task

__all__ = ["arrivals"]

_SHAPE = [
    "workers",
    "gpu_milli",
    "cpu_milli",
    "memory_mib",
    "gpu_memory_mib",
    "min_workers",
    "max_workers",
    "gpu_types",
    "ps_workers",
    "ps_cpu_milli",
    "ps_memory_mib",
]
_CHUNK = 4096


def arrivals(trace: Trace, nodes: Sequence[Node]) -> Iterator[tuple[float, Task]]:
    """Jobs in the order of their submission, with the time of it."""
    jobs = trace.jobs.with_columns(pl.struct(_SHAPE).rank("dense").alias("shape"))
    shapes = jobs.unique("shape").select("shape", *_SHAPE)
    biggest = max((len(node.devices) for node in nodes), default=1)
    roles = {row["shape"]: _roles(row, biggest) for row in shapes.iter_rows(named=True)}
    counts = {
        shape: (_measured(row), sum(role.min for role in roles[shape]))
        for row in shapes.iter_rows(named=True)
        for shape in [row["shape"]]
    }
    peaks = {row["shape"]: row["gpu_memory_mib"] for row in shapes.iter_rows(named=True)}
    columns = ["job_id", "submit_s", "duration_s", "estimate_s", "utilization", "shape"]
    k = 0
    for chunk in jobs.select(*columns, "owner", "queue", "priority").iter_slices(_CHUNK):
        for job_id, at, duration, estimate, busy, shape, owner, queue, priority in chunk.rows():
            of = roles[shape]
            measured, needed = counts[shape]
            measured = measured or needed
            retries = 3 if of[0].resources.shared else 0
            spec = JobSpec(job_id, of, owner, queue, priority, max_retries=retries)
            task = Task(spec, k, duration, measured, needed, estimate)
            if busy is not None:
                task.utilization = busy
            task.peak_memory_mib = peaks[shape]
            yield at, task
            k += 1


def _measured(row: dict[str, int | None]) -> int | None:
    """Workers that the trace's duration belongs to; None when the trace does not name workers."""
    if row["workers"] is None:
        return None
    return row["workers"] + (row["ps_workers"] or 0)


def _roles(row: dict[str, int | str | None], biggest: int) -> tuple[Role, ...]:
    """The roles of a row. Where a trace names only a total, a worker is as large as a node."""
    types = tuple(name for name in str(row["gpu_types"] or "").split("|") if name)
    gpus, cpu, memory, gpu_memory = (
        _int(row[name]) for name in ("gpu_milli", "cpu_milli", "memory_mib", "gpu_memory_mib")
    )
    share = gpu_memory if 0 < gpus < WHOLE_GPU else 0
    if row["workers"] is not None:
        count = _int(row["workers"])
        least = _int(row["min_workers"]) or count
        most = _int(row["max_workers"]) or count
        worker = Role("worker", Resources(cpu, memory, gpus, share), least, most, types)
        return (worker, *_servers(row))
    full, rest = divmod(gpus, biggest * WHOLE_GPU) if biggest else (0, gpus)
    if full == 0 or (full == 1 and rest == 0):
        return (Role("worker", Resources(cpu, memory, gpus, share), 1, 1, types),)
    parts = full + (rest > 0)
    each = Resources(cpu // parts, memory // parts, biggest * WHOLE_GPU)
    roles = [Role("worker", each, full, full, types)]
    if rest:
        roles.append(Role("rest", Resources(cpu // parts, memory // parts, rest), 1, 1, types))
    return (*roles, *_servers(row))


def _servers(row: dict[str, int | str | None]) -> tuple[Role, ...]:
    count = _int(row["ps_workers"])
    if not count:
        return ()
    ask = Resources(_int(row["ps_cpu_milli"]), _int(row["ps_memory_mib"]))
    return (Role("ps", ask, count, count),)


def _int(value: int | str | None) -> int:
    return int(value or 0)
