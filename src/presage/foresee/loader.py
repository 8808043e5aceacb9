"""What feeds a job: its own input pipeline, timed on the CPU before a GPU is taken.

A user's function returns any iterable of batches, such as a `torch.utils.data.DataLoader`. A few
batches of it are taken in a process with limits (`presage.foresee.sandbox`), with as many workers
as it asks for. `fed` then says what the step of a model becomes: the slower of the two where
batches are prepared ahead, and both after each other where they are not. Nothing here knows
models.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from presage.foresee.graph.load import _import
from presage.foresee.sandbox import run_isolated
from presage.learn import Floats
from presage.model.errors import UserError
from presage.telemetry.batches import TimedBatch, time_batches

__all__ = ["FedStep", "LoaderTiming", "fed", "spell_s", "take_batches", "time_loader"]

_MEMORY_MIB = 16_384
_SPENT = 0.6
"""Of the time limit, the part in which batches are taken; the rest is for imports."""
_LEAST = 3
_LEVELS = (0.1, 0.5, 0.9)
_NODES = np.array([0.1, 0.3, 0.5, 0.7, 0.9])
_SHARPNESS = 4.0
"""Of the smooth maximum of step and feed: both vary, so one waits for the other now and then."""
_LEAST_SPREAD = 0.05
"""Of the logarithm of a rate at each end: another machine, another epoch."""
_WAIT_SPREAD, _CROWDED = 0.2, 0.3
"""Of the logarithm of what a step waits for its samples, at each end: in any training, and more
where as many processes compute as there are cores. From 30 trainings of other sizes than those
that `benchmarks.loader_live` judges by."""
_BUSY = 0.2
"""Share of the time that others had the cores from which on the middle is that of spells."""
_LEAST_SHARE = 0.05
"""Of the time that passed: what is taken to be a pipeline's own at least."""


@dataclass(frozen=True, slots=True)
class LoaderTiming:
    """How fast an input pipeline is by itself."""

    p10: float
    """Samples a second: one in ten spells is slower."""
    p50: float
    p90: float
    batch: int
    """Samples of a batch as it hands them out."""
    batches: int
    """How many were timed."""
    workers: int
    prefetches: bool
    """Whether batches are prepared while the model computes."""
    waited: float = 0.0
    """The share of the time that other programs had the cores. It is not in the rates, but for
    the slowest of them: a training may run beside others as well."""
    core_ms: float = 0.0
    """Of cores, for a sample, by all its processes; 0 where the kernel does not tell."""
    take_ms: float = 0.0
    """Of these, what it takes the training itself to get a sample that workers made."""
    cores: int = 1
    """That its workers share with the training."""

    def feed_ms(self, batch: float) -> Floats:
        """Milliseconds for a batch of so many samples, p10, p50 and p90."""
        return 1e3 * batch / np.array([self.p90, self.p50, self.p10])


@dataclass(frozen=True, slots=True)
class FedStep:
    """A step of a model behind its input pipeline: p10, p50 and p90 of each."""

    step_ms: tuple[float, float, float]
    util_pct: tuple[float, float, float]
    starved: float
    """The chance that the model waits for samples for more than a tenth of a step."""
    reason: str


def time_loader(
    target: str, *, batches: int = 40, timeout_s: float = 60.0, memory_mib: int = _MEMORY_MIB
) -> LoaderTiming:
    """Time the iterable that `file.py:function` or `package.module:function` returns."""
    place, _, function = target.rpartition(":")
    if not place or not function:
        raise UserError(f"'{target}' names no loader: write file.py:make_loader")
    if place.endswith(".py") and not Path(place).is_file():
        raise UserError(f"{place} does not exist; give the path of a file, as in file.py:function")
    if batches < _LEAST:
        raise UserError(f"{batches} batches tell nothing: time {_LEAST} or more")
    payload = {
        "place": place,
        "function": function,
        "batches": batches,
        "most_s": _SPENT * timeout_s,
    }
    told = run_isolated(
        __name__,
        "take_batches",
        payload,
        timeout_s=timeout_s,
        memory_mib=memory_mib,
        subject=target,
    )
    return _timing(target, told)


def take_batches(payload: dict[str, Any]) -> dict[str, Any]:
    """Import a user's function and take batches of what it returns; runs in a process of its own,
    which explains what the user's code raises."""
    place, name = payload["place"], payload["function"]
    make = getattr(_import(place), name, None)
    if not callable(make):
        raise UserError(f"{place} has no function '{name}' that returns a loader")
    loader = make()
    if not isinstance(loader, Iterable):
        raise UserError(
            f"{place}:{name} returned a {type(loader).__name__}: it must return something to "
            "iterate over, such as a DataLoader"
        )
    workers = getattr(loader, "num_workers", 0)
    workers = workers if isinstance(workers, int) else 0
    ahead = getattr(loader, "prefetch_factor", None)
    skipped = max(1, workers * ahead) if workers and isinstance(ahead, int) else 1
    taken = time_batches(loader, payload["batches"] + skipped, payload["most_s"])
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"taken": taken, "workers": workers, "skipped": skipped, "cores": cores or 1}


def _timing(target: str, told: dict[str, Any]) -> LoaderTiming:
    """What the times say: the first batches start workers and fill queues, and with several
    workers batches come in bursts of as many."""
    taken, workers = [TimedBatch(*batch) for batch in told["taken"]], int(told["workers"])
    if len(taken) < _LEAST:
        raise UserError(
            f"{target} handed out {len(taken)} batches in the time there was: {_LEAST} are "
            "needed, so give it more time, a smaller batch or more data"
        )
    steady = taken[min(int(told["skipped"]), len(taken) - 2) :]
    size = max(1, min(workers, len(steady) // 2))
    spells = [steady[at : at + size] for at in range(0, len(steady) - size + 1, size)]
    rates = [_rate(spell, spell_s(spell, told["cores"])) for spell in spells]
    # The middle is what comes out in the long run: a slow spell counts by how long it lasts.
    alone = spell_s(steady, told["cores"])
    middle, passed = _rate(steady, alone), sum(batch.seconds for batch in steady)
    low, usual, high = np.quantile(rates, (0.1, 0.5, 0.9))
    if 1.0 - alone / max(passed, 1e-9) > _BUSY:  # slow spells are the machine's then
        middle = float(usual)
    return LoaderTiming(
        p10=float(min(low, middle * np.exp(-_LEAST_SPREAD), _rate(steady, passed))),
        p50=float(middle),
        p90=float(max(high, middle * np.exp(_LEAST_SPREAD))),
        batch=int(np.median([batch.samples for batch in taken])),
        batches=len(steady),
        workers=workers,
        prefetches=workers > 0,
        waited=max(0.0, 1.0 - alone / max(passed, 1e-9)),
        core_ms=1e3 * sum(b.computed_s for b in steady) / sum(b.samples for b in steady),
        take_ms=1e3 * sum(b.taking_s for b in steady) / sum(b.samples for b in steady),
        cores=max(1, int(told["cores"])),
    )


def spell_s(spell: Sequence[TimedBatch], cores: int) -> float:
    """Seconds that these batches take when nobody else has the cores: without the waiting for
    them, but no less than what was computed takes on all of them, as workers may be more."""
    passed = sum(batch.seconds for batch in spell)
    waited = sum(batch.waited_s for batch in spell)
    computed = sum(batch.computed_s for batch in spell)
    return max(passed - waited, min(computed / max(cores, 1), passed), _LEAST_SHARE * passed)


def _rate(spell: Sequence[TimedBatch], seconds: float) -> float:
    return sum(batch.samples for batch in spell) / max(seconds, 1e-9)


def fed(
    step_ms: Sequence[float], util_pct: Sequence[float], timing: LoaderTiming, batch: float
) -> FedStep:
    """What a model's step and its utilization, each p10, p50 and p90 as if samples were always
    there, become behind this pipeline."""
    step, busy = np.asarray(step_ms, np.float64), np.asarray(util_pct, np.float64)
    if step.shape != (3,) or busy.shape != (3,) or not np.all(step > 0):
        raise UserError("a step and its utilization are given as p10, p50 and p90, above 0")
    feed = timing.feed_ms(batch)
    middle, share = float(_behind(step[1], feed[1], timing, batch)), busy[1]
    steps, feeds = (_between(values)[:, None] for values in (step, feed))
    waited = _behind(steps, feeds.T, timing, batch) - steps
    both = steps[..., None] + waited[..., None] * _unsure(timing)
    shares = np.clip(_between(busy)[:, None, None, None] * (steps[..., None] / both), 0, 100)
    waits = float(np.mean(waited > 0.1 * steps))
    longer = np.quantile(both, _LEVELS)
    used = np.quantile(shares, _LEVELS)
    longer[1], used[1] = middle, min(100.0, share * step[1] / middle)
    first, second, third = (float(value) for value in np.sort(longer))
    low, usual, high = (float(value) for value in np.sort(used))
    rate = f"{timing.p50:,.0f} samples/s from its loader"
    wanted = f"{1e3 * batch / step[1]:,.0f} wanted"
    reason = f"waits for samples: {rate}, {wanted}" if waits > 0.5 else f"is fed: {rate}, {wanted}"
    return FedStep((first, second, third), (low, usual, high), waits, reason)


def _behind(step: Any, feed: Any, timing: LoaderTiming, batch: float) -> Any:
    """Workers and the training share the cores, one of which it keeps for as long as its step and
    as it takes to get the batch from them: the host gives a device nothing to do meanwhile."""
    if not timing.prefetches:
        return step + feed
    step = step + np.minimum(timing.take_ms * batch, feed)
    if timing.core_ms:
        feed = np.maximum(feed, (timing.core_ms * batch + step) / timing.cores)
    return (step**_SHARPNESS + feed**_SHARPNESS) ** (1 / _SHARPNESS)


def _unsure(timing: LoaderTiming) -> Floats:
    """Five equally likely factors of a wait."""
    crowd = (timing.workers + 1) / timing.cores if timing.prefetches else 0.0
    end = _WAIT_SPREAD + _CROWDED * min(crowd, 2.0)
    return _between(np.exp(np.array([-end, 0.0, end])))


def _between(quantiles: Floats) -> Floats:
    """Five equally likely values of what has these p10, p50 and p90."""
    logs = np.log(np.maximum(quantiles, 1e-9))
    return np.asarray(np.exp(np.interp(_NODES, _LEVELS, logs)))
