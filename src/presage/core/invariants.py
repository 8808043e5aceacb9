"""Every rule that a `State` keeps, checked from scratch. `State.check` calls it; it changes
nothing.

On in every test, sampled in production: a full check costs about ten times a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from presage.core.gates import Gates
from presage.core.workers import ask_of, missing
from presage.model.cluster import WHOLE_GPU, Resources, Taken, Worker
from presage.model.errors import InvariantBroken
from presage.model.event import Resize
from presage.model.job import Job, JobState

if TYPE_CHECKING:
    from presage.core.state import State

__all__ = ["check_state"]

_HOLDING = (JobState.STARTING, JobState.RUNNING, JobState.STOPPING)


def check_state(state: State) -> None:
    """Raise InvariantBroken with the first contradiction found."""
    for job in state.jobs.values():
        _check_job(state, job)
    _check_indexes(state)
    _check_gates(state)
    _check_capacity(state)


def _check_job(state: State, job: Job) -> None:
    name = f"job {job.id} ({job.state})"
    holding = job.state in _HOLDING
    _ensure(not job.state.ended, f"{name} has ended but is still kept")
    _ensure((job.id in state.active) == holding, f"{name}: wrong index of active jobs")
    _ensure(
        (job.id in state.pending) == (job.state is JobState.PENDING),
        f"{name}: wrong index of pending jobs",
    )
    _ensure(bool(job.allocation) == holding, f"{name} holds {len(job.allocation)} workers")
    _ensure(job.intent is None or job.state is JobState.STOPPING, f"{name} has a stop intent")
    resizing = job.resizing is not None and job.state is not JobState.STOPPING
    _ensure(job.resizing is None or holding, f"{name} is being resized")
    _ensure(not resizing or state.can(Resize), f"{name} is resized by who cannot do that")
    _ensure(
        job.id not in state.reservations or job.state is JobState.PENDING,
        f"{name} has a reservation",
    )
    for workers in (job.allocation, job.resizing or ()):
        _check_workers(job, workers, name)
    if job.state is JobState.RUNNING:
        _ensure(
            all(
                role.min <= sum(worker.role == r for worker in job.allocation)
                for r, role in enumerate(job.spec.roles)
            ),
            f"{name} runs with too few workers",
        )


def _check_workers(job: Job, workers: tuple[Worker, ...], name: str) -> None:
    ids = {(worker.role, worker.index) for worker in workers}
    _ensure(len(ids) == len(workers), f"{name} has a worker twice")
    for r, role in enumerate(job.spec.roles):
        count = sum(worker.role == r for worker in workers)
        _ensure(count <= role.max, f"{name} has {count} workers of role {role.name}")
    for worker in workers:
        wanted = _ask(job, worker).devices
        _ensure(len(set(worker.devices)) == wanted, f"{name} has a worker on too few devices")


def _check_indexes(state: State) -> None:
    usage: dict[str, int] = {}
    for job in state.active.values():
        _ensure(state.jobs.get(job.id) is job, f"{job.id} is active but unknown")
        held = sum(_ask(job, worker).gpu_milli for worker in _held(job))
        _ensure(held == job.held_milli, f"job {job.id} holds {held}, not {job.held_milli} milli")
        usage[job.spec.queue] = usage.get(job.spec.queue, 0) + held
    for job in state.pending.values():
        _ensure(state.jobs.get(job.id) is job, f"{job.id} is pending but unknown")
        _ensure(job.held_milli == 0, f"pending job {job.id} holds {job.held_milli} milli")
    kept = {queue: milli for queue, milli in state.usage.items() if milli}
    _ensure(kept == {q: m for q, m in usage.items() if m}, f"usage is {usage}, not {kept}")
    _ensure(not state.down & state.draining, "a node is down and draining")
    _ensure(state.scaling <= state.jobs.keys(), "a job that is not known is to be scaled")
    _ensure(state.reservations.keys() <= state.pending.keys(), "room is held for nobody")
    for job in state.ended:
        _ensure(state.jobs.get(job.id) is not job and job.state.ended, f"{job.id} did not end")
    starting = [job for job in state.active.values() if job.state is JobState.STARTING]
    lacking = {job.id for job in starting if missing(job)}
    _ensure(lacking == state.incomplete.keys(), "wrong index of jobs that lack workers")


def _check_gates(state: State) -> None:
    """Who waits for others does so for somebody who is not over, or for a place in an array."""
    gates, jobs = state.gates, state.jobs
    anew = Gates.of(sorted(jobs.values(), key=lambda job: job.seq))
    _ensure(gates.blocked.keys() == anew.blocked.keys(), "wrong index of blocked jobs")
    _ensure(set(gates.awaited()) == set(anew.awaited()), "wrong index of who is waited for")
    _ensure(gates.arrays.keys() == anew.arrays.keys(), "wrong index of arrays")
    for name, array in gates.arrays.items():
        other = anew.arrays[name]
        _ensure(array.members == other.members, f"wrong members of array {name}")
        _ensure(array.inside == other.inside, f"wrong members of array {name} at once")
        _ensure(not array.most or len(array.inside) <= array.most, f"array {name} is too full")
    for job in jobs.values():
        waits = job.state is JobState.BLOCKED
        for dependency in job.spec.after:
            _ensure(
                gates.alive(dependency.job, jobs), f"{job.id} waits for {dependency.job}, over"
            )
            _ensure(waits or job.state is JobState.HALTED, f"{job.id} did not wait")
        if waits and not job.spec.after:
            place = gates.arrays.get(job.spec.array)
            _ensure(place is not None and not place.open, f"{job.id} waits for nothing")


def _check_capacity(state: State) -> None:
    capacity = state.capacity
    cpu = [node.taken.cpu_milli for node in capacity.nodes]
    memory = [node.taken.memory_mib for node in capacity.nodes]
    taken = [[int(d in n.taken.devices) for d in range(len(n.devices))] for n in capacity.nodes]
    gpu = [[WHOLE_GPU * others for others in row] for row in taken]
    sharers = [row.copy() for row in taken]
    releasing = [
        node.taken != Taken() for node in capacity.nodes
    ]  # others may come where runs are

    def add(job: Job, worker: Worker) -> None:
        i = capacity.index[worker.node]
        ask = _ask(job, worker)
        cpu[i] += ask.cpu_milli
        memory[i] += ask.memory_mib
        for d in worker.devices:
            gpu[i][d] += min(ask.gpu_milli, WHOLE_GPU)
            sharers[i][d] += 1

    for job in state.active.values():
        for worker in _held(job):
            add(job, worker)
        stops = job.state is JobState.STOPPING  # then workers it was still to get go as well
        leaving = _held(job) if stops else job.allocation if job.resizing is not None else ()
        for worker in leaving:
            releasing[capacity.index[worker.node]] = True
    for job_id, hold in state.reservations.items():
        for worker in hold:
            add(state.jobs[job_id], worker)
    for i, node in enumerate(capacity.nodes):
        _ensure(capacity.free_cpu[i] == node.cpu_milli - cpu[i], f"CPU of {node.name}")
        _ensure(capacity.free_memory[i] == node.memory_mib - memory[i], f"memory of {node.name}")
        free = [WHOLE_GPU - used for used in gpu[i]]
        _ensure(
            capacity.free_gpu[i] == free,
            f"GPUs of {node.name}: {capacity.free_gpu[i]}, not {free}",
        )
        _ensure(capacity.sharers[i] == sharers[i], f"sharers on {node.name}")
        _ensure(capacity.whole[i] == free.count(WHOLE_GPU), f"whole GPUs of {node.name}")
        _ensure(bool(capacity.by_whole[capacity.whole[i]] >> i & 1), f"mask of {node.name}")
        if not releasing[i]:
            low = min(capacity.free_cpu[i], capacity.free_memory[i], *free, 0)
            _ensure(low >= 0, f"{node.name} is oversubscribed with nothing being released")
    names = capacity.index.values()
    free_milli = sum(max(0, milli) for i in names for milli in capacity.free_gpu[i])
    _ensure(
        free_milli == capacity.free_milli, f"{free_milli} milli free, not {capacity.free_milli}"
    )
    ones = sum(mask.bit_count() for mask in capacity.by_whole)
    _ensure(ones == len(capacity.nodes), "a node is in two masks")


def _held(job: Job) -> tuple[Worker, ...]:
    if job.resizing is None:
        return job.allocation
    had = set(job.allocation)
    return job.allocation + tuple(worker for worker in job.resizing if worker not in had)


def _ask(job: Job, worker: Worker) -> Resources:
    return ask_of(job, worker.role)


def _ensure(good: bool, text: str) -> None:
    if not good:
        raise InvariantBroken(text)
