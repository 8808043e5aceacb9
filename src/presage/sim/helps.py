"""What would let a waiting job start earlier: the job is changed in a copy of the state, and the
copy is run ahead with the same draws, so that only the change makes a difference.

It tries what an owner can change without changing the work: fewer workers, fewer GPUs for each,
other GPU types, another queue. Whether the job can live with less is for its owner to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from presage.core.ports import Policy, Predictor
from presage.core.state import State
from presage.model.cluster import ANY_GPU, WHOLE_GPU, gpu_count
from presage.model.errors import UserError
from presage.model.job import JobSpec, Role
from presage.sim.ahead import Arrivals, Runtimes, Start, TimeBox, run_ahead
from presage.sim.calibrate import Calibration

__all__ = ["Option", "what_would_help"]

NOTABLE_S = 60.0
NOTABLE_SHARE = 0.2
"""A start is notably earlier by at least so many seconds and at least this part of the wait."""


@dataclass(frozen=True, slots=True)
class Option:
    """A change, and when the job would start with it."""

    change: str
    """For people: 'with 2 workers instead of 4'."""
    spec: JobSpec
    start: Start


def what_would_help(
    state: State,
    policy: Callable[[], Policy],
    runtimes: Runtimes,
    job: str | JobSpec,
    *,
    queues: Sequence[str] = (),
    now: float | None = None,
    predict: Predictor | None = None,
    samples: int = 12,
    seed: int = 0,
    calibration: Calibration | None = None,
    time_box: Callable[[], TimeBox | None] = lambda: None,
    grain: float = 0.0,
    variants: Sequence[tuple[str, JobSpec]] | None = None,
    arrivals: Arrivals | None = None,
) -> tuple[Start | None, list[Option]]:
    """When a waiting job (or one not yet submitted) will start, and the changes with which it
    would start notably earlier, the best first.

    `queues` are those that its owner may use; `time_box` makes one for each variant that is tried.
    None instead of a start: it would be rejected. `variants` are tried instead of the usual ones,
    each with what is said of it. `arrivals` draws who comes later.
    """
    waiting = state.pending.get(job) if isinstance(job, str) else None
    if isinstance(job, str) and waiting is None:
        raise UserError(f"job {job} does not wait; only a waiting job can be helped to start")
    spec = job if isinstance(job, JobSpec) else state.pending[job].spec

    def start_of(variant: JobSpec) -> Start | None:
        copy, submit = state, [variant]
        if waiting is not None:
            copy, submit = state.copy({} if variant is spec else {variant.id: variant}), []
        forecast = run_ahead(
            copy,
            policy,
            runtimes,
            now=now,
            asked=(variant.id,),
            submit=submit,
            predict=predict,
            samples=samples,
            seed=seed,
            calibration=calibration,
            time_box=time_box(),
            grain=grain,
            arrivals=arrivals,
        )
        return forecast.starts.get(variant.id)

    base = start_of(spec)
    options = []
    tried = _variants(spec, state, queues) if variants is None else variants
    for change, variant in tried:
        start = start_of(variant)
        if start is not None and _notably_earlier(start, base):
            options.append(Option(change, variant, start))
    options.sort(key=lambda option: option.start.p50_s or 0.0)
    return base, options


def _notably_earlier(start: Start, base: Start | None) -> bool:
    if start.p50_s is None:
        return False
    if base is None or base.p50_s is None:
        return True
    return base.p50_s - start.p50_s >= max(NOTABLE_S, NOTABLE_SHARE * base.p50_s)


def _variants(spec: JobSpec, state: State, queues: Sequence[str]) -> Iterator[tuple[str, JobSpec]]:
    role, rest = spec.roles[0], spec.roles[1:]

    def with_role(changed: Role) -> JobSpec:
        return replace(spec, roles=(changed, *rest))

    if role.min > 1:
        fewer = role.min // 2
        smaller = replace(role, min=fewer, max=fewer if role.min == role.max else role.max)
        yield f"with {fewer} instead of {role.min} workers", with_role(smaller)
    gpus = role.resources.gpu_milli
    if gpus > WHOLE_GPU:
        half = max(1, gpus // WHOLE_GPU // 2) * WHOLE_GPU
        ask = replace(role.resources, gpu_milli=half)
        change = f"with {gpu_count(half)} instead of {gpu_count(gpus)} GPUs for each worker"
        yield change, with_role(replace(role, resources=ask))
    for name in sorted(set(state.capacity.types) - {ANY_GPU} - set(role.gpu_types)):
        if role.gpu_types:
            yield (
                f"if it also took {name} GPUs",
                with_role(replace(role, gpu_types=(*role.gpu_types, name))),
            )
    for queue in queues:
        if queue != spec.queue:
            yield f"in queue {queue}", replace(spec, queue=queue)
