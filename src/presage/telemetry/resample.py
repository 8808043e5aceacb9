"""Series on a fixed grid, without looking ahead.

A pod's grid starts at its first sample and has a row every `every` seconds. A sample belongs to
the first grid time that is not before it, and a row is the mean of its samples, feature by
feature, NaN left out. A value that is missing is held from the row before while it is at most
`max_gap` old; after that it is NaN. A gap in which nothing was measured for longer than that ends
in a single row of NaN, however long it is: the series is broken there.

Nothing here reads the future: `current` is what a consumer knew when a sample arrived, and it
equals the row when the last of the row's samples has come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from presage.model.errors import TelemetryError
from presage.telemetry.series import Floats, Ints, Series, stack

__all__ = ["GAP_ROWS", "Grid", "held_rows", "resample", "tick_of"]

GAP_ROWS = 4
"""Unless told otherwise, a value is held for this many rows."""
_TOLERANCE = 1e-6
"""In rows: a sample this little after a grid time still belongs to it."""


@dataclass(frozen=True, eq=False)
class Grid:
    """Pods on their grids, one after the other. Pod i has the rows offsets[i]:offsets[i+1] and the
    samples sample_offsets[i]:sample_offsets[i+1]."""

    features: tuple[str, ...]
    every: float
    values: Floats
    """(rows, features)"""
    ticks: Ints
    """For each row, its number in the pod's grid: the row is at starts[i] + tick × every. Ticks
    rise by one, except after a break."""
    starts: Floats
    """For each pod, the time of its first sample."""
    offsets: Ints
    current: Floats
    """(samples, features): the mean of the row so far, up to and with this sample; where nothing
    was measured yet, what is held."""
    bucket: Ints
    """For each sample, its row."""
    sample_offsets: Ints


def resample(
    series: Sequence[Series],
    features: Sequence[str],
    every: float,
    max_gap: float | None = None,
) -> Grid:
    """Put the features (or resources) of all pods on grids of `every` seconds. `max_gap` is in
    seconds; without it, a value is held for `GAP_ROWS` rows."""
    hold = held_rows(every, max_gap)
    samples = stack(series, features)
    lengths = np.array([len(pod) for pod in series], dtype=np.int64)
    sample_offsets = _offsets(lengths)
    times = np.concatenate([pod.times for pod in series]) if series else np.empty(0)
    starts = times[sample_offsets[:-1][lengths > 0]]
    pod = np.repeat(np.arange(len(series)), lengths)
    all_starts = np.full(len(series), np.nan)
    all_starts[lengths > 0] = starts
    tick = tick_of(times, np.repeat(all_starts, lengths), every)

    first = np.ones(len(times), dtype=bool)  # of a row's samples
    first[1:] = (np.diff(tick) != 0) | (np.diff(pod) != 0)
    running = _running_means(samples, first)

    full_ticks, full_pods = tick[first], pod[first]
    same_pod = np.diff(full_pods, prepend=-1) == 0
    empty = np.where(same_pod, np.diff(full_ticks, prepend=0) - 1, 0)
    full_rows = np.cumsum(1 + np.minimum(empty, hold + 1)) - 1
    count = int(full_rows[-1]) + 1 if len(full_rows) else 0
    rows_of_pod = np.zeros(len(series), dtype=np.int64)
    new_pod = np.flatnonzero(~same_pod)
    rows_of_pod[full_pods[new_pod]] = np.diff(full_rows[new_pod], append=count)
    offsets = _offsets(rows_of_pod)

    # An empty row counts on from the last full one before it.
    last_full = np.cumsum(np.bincount(full_rows, minlength=count)) - 1
    ticks = full_ticks[last_full] + np.arange(count) - full_rows[last_full]
    bucket = full_rows[np.cumsum(first) - 1]
    values = np.full((count, len(features)), np.nan)
    values[full_rows] = running[np.flatnonzero(np.append(first[1:], True))] if count else running
    pod_start = np.repeat(offsets[:-1], rows_of_pod)
    current = _hold(values, running, ticks, pod_start, bucket, hold)
    return Grid(
        tuple(features),
        float(every),
        values,
        ticks,
        all_starts,
        offsets,
        current,
        bucket,
        sample_offsets,
    )


def tick_of(time: Floats | float, start: Floats | float, every: float) -> Ints:
    """The number of the row that a time belongs to; an array of them for an array of times."""
    tick: Ints = np.ceil((time - start) / every - _TOLERANCE).astype(np.int64)
    return tick


def held_rows(every: float, max_gap: float | None = None) -> int:
    """For how many rows a value is held."""
    if not (np.isfinite(every) and every > 0):
        raise TelemetryError(f"a grid cannot have a row every {every:g} s; give a time above 0")
    if max_gap is None:
        return GAP_ROWS
    if not (np.isfinite(max_gap) and max_gap >= 0):
        raise TelemetryError(f"a gap cannot be {max_gap:g} s long; give 0 or more")
    return int(max_gap / every + _TOLERANCE)


def _offsets(lengths: Ints) -> Ints:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _running_means(samples: Floats, first: npt.NDArray[np.bool_]) -> Floats:
    """For each sample the mean of its row so far; NaN where nothing was measured. Sums are made
    one sample after the other, as an online consumer does, so that both get the same bits."""
    known = np.isfinite(samples)
    totals = np.where(known, samples, 0.0)
    counts = known.astype(np.float64)
    starts = np.flatnonzero(first)
    place = np.arange(len(samples)) - starts[np.cumsum(first) - 1]
    by_place = np.argsort(place, kind="stable")
    ends = np.cumsum(np.bincount(place)) if len(place) else np.empty(0, dtype=np.int64)
    for begin, end in pairwise(ends):
        these = by_place[begin:end]
        totals[these] += totals[these - 1]
        counts[these] += counts[these - 1]
    return np.divide(totals, counts, out=np.full_like(totals, np.nan), where=counts > 0)


def _hold(
    values: Floats, running: Floats, ticks: Ints, pod_start: Ints, bucket: Ints, hold: int
) -> Floats:
    """Fill the rows' missing values in place with those they hold; returns the same for the
    samples."""
    rows = np.arange(len(values))
    current = running.copy()
    for column in range(values.shape[1]):
        known = ~np.isnan(values[:, column])
        unknown = np.isnan(current[:, column])
        if known.all() and not unknown.any():
            continue
        source = np.maximum.accumulate(np.where(known, rows, -1))
        earlier = np.concatenate([[-1], source[:-1]])[: len(rows)]
        held = (earlier >= pod_start) & (ticks - ticks[np.maximum(earlier, 0)] <= hold)
        kept = np.where(held, values[np.maximum(earlier, 0), column], np.nan)
        values[:, column] = np.where(known, values[:, column], kept)
        current[unknown, column] = kept[bucket[unknown]]
    return current
