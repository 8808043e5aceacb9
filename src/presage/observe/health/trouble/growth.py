"""What grows until it hits a limit: memory of workers and GPUs, and what fills disks.

A window is cut into six blocks; five increments say how fast it grows, how steadily, and whether
it slows down. All workers are looked at in one go. A limit that nobody named is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from presage.observe.health.trouble.findings import (
    Evidence,
    Subject,
    SubjectKind,
    Trouble,
    TroubleKind,
)
from presage.observe.health.trouble.formulas import student_cdf
from presage.observe.health.trouble.runs import WatchedRun, WorkerPlace
from presage.observe.health.trouble.windows import Floats, WorkerWindows

__all__ = ["Growth", "filling_disks", "full_hosts", "growing_memory"]

_BLOCKS = 6
_LEAST_SAMPLES = 24
_SKIPPED = 4
"""One in so many of the samples, at the start: what grows there is the program being loaded."""
_HORIZON = 6.0
"""As many times as long as it was watched, and no longer, it is thought to go on."""
_LEAST_SHARE = 0.03
"""Of the limit, that it grew in the window: less is noise of the allocator."""
_NEARLY_FULL = 0.01
_UNLIMITED_MIB = float(1 << 40)


@dataclass(frozen=True, slots=True)
class Growth:
    """How something grows."""

    probability: float
    """That it passes the limit within the horizon."""
    rate_s: float
    left_s: float
    """Until it does, at this rate."""


def growth(at: Floats, values: Floats, limit: float) -> Growth | None:
    """How a series grows towards a limit; None where it does not, or nobody can say."""
    known = np.isfinite(values) & np.isfinite(at)
    at, values = at[known], values[known]
    if len(values) < _LEAST_SAMPLES:
        return None
    first = len(values) // _SKIPPED
    at, values = at[first:], values[first:]
    size = len(values) // _BLOCKS
    cut = len(values) - size * _BLOCKS
    means = values[cut:].reshape(_BLOCKS, size).mean(axis=1)
    steps = np.diff(means)
    span_s = float(at[-1] - at[cut])
    if span_s <= 0 or (steps <= 0).any() or values[-1] - values[cut] < _LEAST_SHARE * limit:
        return None
    remaining = limit - float(values[-1])
    block_s = span_s / _BLOCKS
    early, late = float(steps[:2].mean()), float(steps[-2:].mean())
    mean, spread = float(steps.mean()), float(steps.std(ddof=1))
    blocks = _HORIZON * _BLOCKS
    expected = blocks * mean
    if late < early:  # it levels off: what is still to come is a geometric series
        ratio = (late / early) ** (1 / 3)
        expected = late * ratio * (1 - ratio**blocks) / (1 - ratio)
    error = max(spread * (blocks + blocks**2 / 5) ** 0.5, 1e-6 * limit)
    probability = student_cdf((expected - remaining) / error, 4)
    rate_s = mean / block_s
    return Growth(probability, rate_s, max(0.0, remaining) / rate_s)


def growing_memory(
    windows: WorkerWindows, runs: dict[str, WatchedRun], now: float
) -> list[Trouble]:
    """Workers whose memory, or that on their GPUs, will pass the limit."""
    if not len(windows):
        return []
    counts, (at, rss, gpu) = windows.whole("at", "rss_mib", "gpu_memory_mib")
    grows = _may_grow(counts, rss) | _may_grow(counts, gpu)
    troubles = []
    for (job, attempt, name), slot in windows.slots.items():
        run = runs.get(job)
        place = run.view.workers.get(name) if run is not None else None
        if not grows[slot] or place is None:
            continue
        for kind, values, limit in (
            (TroubleKind.LEAK, rss[slot], place.memory_mib),
            (TroubleKind.GPU_MEMORY, gpu[slot], place.gpu_memory_mib),
        ):
            how = growth(at[slot], values, limit) if 0 < limit < _UNLIMITED_MIB else None
            if how is not None:
                about = (job, attempt, name)
                troubles.append(_memory(kind, about, place, how, (at[slot], values, limit), now))
    return troubles


def _may_grow(
    counts: np.ndarray[tuple[int], np.dtype[np.int64]], values: Floats
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """A quick look at all: those with enough samples whose last is above their middle one."""
    slots = np.arange(len(counts))
    last = values[slots, np.maximum(counts - 1, 0)]
    middle = values[slots, counts // 2]
    return np.asarray((counts >= _LEAST_SAMPLES) & (last > middle))


def _memory(
    kind: TroubleKind,
    about: tuple[str, int, str],
    place: WorkerPlace,
    how: Growth,
    measured: tuple[Floats, Floats, float],
    now: float,
) -> Trouble:
    job, attempt, name = about
    at, values, limit = measured
    on_gpu = kind is TroubleKind.GPU_MEMORY
    what = "its memory on the GPU" if on_gpu else "its memory"
    series = "gpu_memory_mib" if on_gpu else "rss_mib"
    known = np.isfinite(values)
    last = float(values[known][-1])
    text = (
        f"{what} grows by {how.rate_s * 60:.1f} MiB a minute and will pass the "
        f"{limit:.0f} MiB limit at {clock_text(now + how.left_s)} (in {_span(how.left_s)})"
    )
    action = "look for what is kept between steps"
    if not on_gpu:
        action += "; retry.oom in the manifest starts it again with more memory"
    evidence = Evidence(
        series,
        f"{last:.0f} of {limit:.0f} MiB, {how.rate_s * 3600:.0f} MiB an hour",
        _few(at[known]),
        _few(values[known]),
    )
    subject = Subject(SubjectKind.WORKER, f"{job}/{name}")
    return Trouble(
        *(kind, subject, how.probability, text, action, (evidence,)),
        *(job, attempt, place.node),
        due_at=now + how.left_s,
    )


def full_hosts(
    windows: WorkerWindows, runs: dict[str, WatchedRun], leaks: list[Trouble], now: float
) -> list[Trouble]:
    """Nodes whose workers together hold nearly all of their memory, or leak towards it."""
    if not len(windows):
        return []
    (rss,) = windows.recent("rss_mib", last=1)
    held: dict[str, float] = {}
    most: dict[str, float] = {}
    for (job, _, name), slot in windows.slots.items():
        run = runs.get(job)
        place = run.view.workers.get(name) if run is not None else None
        if place is not None and 0 < place.node_memory_mib < _UNLIMITED_MIB:
            held[place.node] = held.get(place.node, 0.0) + float(np.nan_to_num(rss[slot, 0]))
            most[place.node] = place.node_memory_mib
    troubles = []
    for node, mib in held.items():
        share = mib / most[node]
        if share < 0.97:
            continue
        leaking = [one.subject.name for one in leaks if one.node == node]
        said = f"; {', '.join(leaking[:3])} grow" if leaking else ""
        text = f"its workers hold {mib:.0f} of {most[node]:.0f} MiB ({share:.0%}){said}"
        evidence = Evidence("rss_mib", "summed over the workers of the node", (now,), (mib,))
        subject = Subject(SubjectKind.NODE, node)
        action = f"have jobs ask for the memory they use, or drain it: presage drain {node}"
        probability = min(0.99, 0.9 + (share - 0.97) * 3 + 0.05 * bool(leaking))
        kind = TroubleKind.HOST_MEMORY
        troubles.append(Trouble(kind, subject, probability, text, action, (evidence,), node=node))
    return troubles


def filling_disks(
    windows: WorkerWindows, runs: dict[str, WatchedRun], now: float
) -> list[Trouble]:
    """File systems that runs work on and that are full, or fill."""
    if not len(windows):
        return []
    at, free, total, written = windows.recent(
        "at", "disk_free_mib", "disk_total_mib", "write_bytes"
    )
    full = free[:, -1] < _NEARLY_FULL * total[:, -1]
    falls = (windows.counts >= _LEAST_SAMPLES) & (free[:, -1] < 0.97 * free[:, -12])
    by_disk: dict[tuple[str, float], tuple[float, Trouble]] = {}
    for (job, attempt, name), slot in windows.slots.items():
        run = runs.get(job)
        if run is None or not (full[slot] or falls[slot]) or name not in run.view.workers:
            continue
        node = run.view.workers[name].node
        finding = _disk((job, attempt, name), node, at[slot], (free[slot], total[slot]), now)
        if finding is not None:  # of those who share it, the one who writes most is named
            amount = written[slot, np.isfinite(written[slot])]
            grew = float(amount[-1] - amount[0]) if len(amount) else 0.0
            key = node, float(total[slot, -1])
            if key not in by_disk or grew > by_disk[key][0]:
                by_disk[key] = grew, finding
    return [finding for _, finding in by_disk.values()]


def _disk(
    about: tuple[str, int, str],
    node: str,
    at: Floats,
    room: tuple[Floats, Floats],
    now: float,
) -> Trouble | None:
    job, attempt, name = about
    free, total = room[0], float(room[1][-1])
    known = np.isfinite(free)
    last = float(free[known][-1])
    if last < _NEARLY_FULL * total:
        probability, when = 0.97, "is full"
    else:
        how = growth(at, total - free, total)
        if how is None:
            return None
        probability = how.probability
        when = f"will be full at {clock_text(now + how.left_s)} (in {_span(how.left_s)})"
    text = f"the disk of {job} {when}: {last:.0f} of {total:.0f} MiB free"
    action = f"remove what is not needed, or stop who writes ({job}/{name} writes most)"
    evidence = Evidence("disk_free_mib", "free", _few(at[known]), _few(free[known]))
    subject = Subject(SubjectKind.NODE, node)
    return Trouble(
        *(TroubleKind.DISK, subject, probability, text, action, (evidence,)),
        *(job, attempt, node),
    )


def clock_text(at: float) -> str:
    """A moment as people write it."""
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M UTC")


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _few(values: Floats) -> tuple[float, ...]:
    chosen = np.unique(np.linspace(0, len(values) - 1, min(16, len(values))).astype(int))
    return tuple(round(float(v), 3) for v in values[chosen])
