"""From the rows of a trace to jobs: what each asks for on this cluster, made when its time comes.

Rows are read in chunks and jobs are made one by one, so a run of a million jobs holds only those
alive.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import process_time
from typing import Any

from presage.model.cluster import WHOLE_GPU, Node, Resources
from presage.model.estimate import Estimates
from presage.model.job import Dependency, JobSpec, Role
from presage.sim.links import LinkRules, drawn_share, with_share
from presage.sim.traces import Trace
from presage.sim.usage import RecordedUse
from presage.sim.world import Task

__all__ = ["Workload"]

_JOB = [
    "job_id",
    "submit_s",
    "duration_s",
    "estimate_s",
    "utilization",
    "owner",
    "queue",
    "priority",
    "workload",
]
_WIDTH = len(_JOB)
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
_OOM_RETRIES = 3
"""How often a job that shares a device, or may be held to less, is started again after it ran
out of memory."""


class Workload:
    """The jobs of a trace on a cluster, in the order of their submission."""

    def __init__(
        self,
        trace: Trace,
        nodes: Sequence[Node],
        models: Sequence[str] | None = None,
        estimates: Sequence[Estimates | None] | None = None,
        sharers: int = 1,
        uses: Mapping[str, RecordedUse] | None = None,
        specs: Mapping[str, JobSpec] | None = None,
        links: LinkRules | None = None,
        seed: int = 0,
    ) -> None:
        """`models` has the model that each row trains, `estimates` what is foreseen of it. Above
        1, `sharers` is how many jobs may share a GPU: a job then has a worker for each of its
        GPUs, and each asks for a share. `uses` has what jobs use over time, by their ids, and
        `specs` what was really submitted, for jobs of which a row does not tell everything. With
        `links`, each job has a share of its step in which it talks; where the trace says none,
        that is drawn by `seed` and the workload's name, else by the id."""
        started = process_time()
        self._models = models
        self._estimates = estimates
        self._uses = uses or {}
        self._specs = specs or {}
        self._share_milli = WHOLE_GPU // sharers
        self._links, self._seed = links, seed
        said = links is not None and "link_share" in trace.jobs.columns
        self._link_shares = trace.jobs["link_share"].to_list() if said else []
        self._biggest = max((len(node.devices) for node in nodes), default=1)
        jobs = trace.jobs
        varying = [name for name in _SHAPE if (jobs[name].n_unique() > 1)]
        self._varying = varying
        self._fixed = {name: jobs[name][0] for name in _SHAPE if name not in varying}
        self._frame = jobs.select(*_JOB, *varying)
        waiting = jobs.filter(jobs["after"] != "").select("job_id", "after").rows()
        self._after = {
            job_id: tuple(map(Dependency, dict.fromkeys(after.split("|"))))
            for job_id, after in waiting
        }
        self.awaited = {one.job for after in self._after.values() for one in after}
        """Jobs that others wait for."""
        self._shapes: dict[tuple[Any, ...], _JobShape] = {}
        self._roles: dict[tuple[Role, ...], tuple[Role, ...]] = {}
        self.read_s = process_time() - started
        """Process time spent on reading rows into jobs rather than on simulating them."""

    def __iter__(self) -> Iterator[tuple[float, Task]]:
        first = 0
        for chunk in self._frame.iter_slices(_CHUNK):
            started = process_time()
            made = [self._job(first + k, values) for k, values in enumerate(chunk.rows())]
            first += len(made)
            self.read_s += process_time() - started
            yield from made

    def _job(self, row: int, values: tuple[Any, ...]) -> tuple[float, Task]:
        job_id, at, duration, estimate, busy, owner, queue, priority, work = values[:_WIDTH]
        key = values[_WIDTH:]
        shape = self._shapes.get(key) or self._new_shape(key)
        model = self._models[row] if self._models is not None else None
        use = self._uses.get(job_id)
        given = self._specs.get(job_id)
        if given is not None:
            shape = _as_asked(shape, given.roles)
        spec = given or JobSpec(
            job_id,
            shape.roles,
            owner,
            queue,
            priority,
            max_retries=shape.retries if use is None else _OOM_RETRIES,
            model=model,
            entrypoint=(work,) if work else (),
            after=self._after.get(job_id, ()) if self._after else (),
        )
        task = Task(
            spec,
            row,
            shape.shared,
            duration,
            shape.measured,
            shape.needed,
            shape.share if busy is None else busy,
            shape.peak_mib,
            estimate,
        )
        task.use = use
        if self._estimates is not None:
            task.estimates = self._estimates[row]
        if self._links is not None:
            self._talks(task, self._links, work or job_id)
        return at, task

    def _talks(self, task: Task, links: LinkRules, name: str) -> None:
        """How much a job talks, and what is foreseen of that; one that is alone never does."""
        share = self._link_shares[task.row] if self._link_shares else None
        if share is None:
            share = drawn_share(name, self._seed) if links.unsaid is None else links.unsaid
        if sum(role.max for role in task.spec.roles) > 1:
            task.link_share = share
            task.estimates = with_share(task.estimates, links.share(share))

    def _new_shape(self, key: tuple[Any, ...]) -> _JobShape:
        row = {**self._fixed, **dict(zip(self._varying, key, strict=True))}
        shape = _shape(_shared(row, self._share_milli), self._biggest)
        shape.peak_mib = _int(row["gpu_memory_mib"])
        shape.roles = self._roles.setdefault(shape.roles, shape.roles)
        self._shapes[key] = shape
        return shape


@dataclass(slots=True)
class _JobShape:
    """What jobs of the same size have in common."""

    roles: tuple[Role, ...]
    measured: int
    """Workers that the trace's durations belong to."""
    needed: int
    shared: bool
    share: float
    """How busy a job keeps a device that nobody measured: as busy as it asked for."""
    retries: int
    peak_mib: int


def _shared(row: dict[str, Any], share_milli: int) -> dict[str, Any]:
    """A row whose whole GPUs are shares of as many GPUs, one for each worker. What memory they
    need is for others to foresee."""
    gpus, rest = divmod(_int(row["gpu_milli"]), WHOLE_GPU)
    if share_milli == WHOLE_GPU or row["workers"] is not None or not gpus or rest:
        return row
    each = {name: _int(row[name]) // gpus for name in ("cpu_milli", "memory_mib")}
    return {**row, **each, "workers": gpus, "gpu_milli": share_milli, "gpu_memory_mib": 0}


def _shape(row: dict[str, Any], biggest: int) -> _JobShape:
    roles = _roles(row, biggest)
    needed = sum(role.min for role in roles)
    named = row["workers"] is not None
    measured = row["workers"] + (row["ps_workers"] or 0) if named else needed
    shared = roles[0].resources.shared
    retries = _OOM_RETRIES if shared else 0
    share = roles[0].resources.gpu_milli / WHOLE_GPU if shared else 1.0
    return _JobShape(roles, measured, needed, shared, share, retries, row["gpu_memory_mib"] or 0)


def _as_asked(shape: _JobShape, roles: tuple[Role, ...]) -> _JobShape:
    """The shape of a job that asked for other roles than its row has columns for."""
    needed, ask = sum(role.min for role in roles), roles[0].resources
    share = ask.gpu_milli / WHOLE_GPU if ask.shared else 1.0
    measured, retries, peak_mib = max(shape.measured, needed), shape.retries, shape.peak_mib
    return _JobShape(roles, measured, needed, ask.shared, share, retries, peak_mib)


def _roles(row: dict[str, Any], biggest: int) -> tuple[Role, ...]:
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


def _servers(row: dict[str, Any]) -> tuple[Role, ...]:
    count = _int(row["ps_workers"])
    if not count:
        return ()
    ask = Resources(_int(row["ps_cpu_milli"]), _int(row["ps_memory_mib"]))
    return (Role("ps", ask, count, count),)


def _int(value: int | None) -> int:
    return int(value or 0)
