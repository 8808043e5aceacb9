"""Phases online: one sample at a time, with the answers that `predict` gives for the whole series.

The state of all pods lies in a few arrays, so that a batch of samples takes a handful of NumPy
calls whatever the number of pods. What is kept of a pod is its current grid row, the last rows
before it, and the latest known value of each feature; the rules are those of `resample`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite

import numpy as np
import numpy.typing as npt

from presage.model.errors import TelemetryError
from presage.observe.phases.windows import Situations
from presage.telemetry.resample import tick_of

__all__ = ["Stepper"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Places = Ints | slice
"""Slots of different pods; a slice for a single one, which is faster."""

_EMPTY: dict[str, float] = {
    "_start": np.nan,
    "_time": -np.inf,
    "_tick": 0,
    "_sums": 0,
    "_counts": 0,
    "_past": np.nan,
    "_known": np.nan,
    "_known_tick": 0,
    "_phase": -1,
    "_row_phase": -1,
    "_rows": 0,
    "_before": -1,
}
"""The arrays of the state, and what is in them for a pod that nobody has seen."""


class Stepper:
    """Follows any number of pods. A sample that is not later than the pod's last one is ignored:
    the answer is the phase the pod is in."""

    def __init__(
        self,
        classify: Callable[[Floats], Ints],
        *,
        n_features: int,
        history: int,
        every: float,
        hold: int,
    ) -> None:
        self._classify = classify
        self._every, self._hold, self._history = every, hold, history
        self._slots: dict[str, int] = {}
        self._free: list[int] = []
        self._start, self._time = np.empty(0), np.empty(0)
        self._tick = np.empty(0, np.int64)
        self._sums = np.empty((0, n_features))
        self._counts = np.empty((0, n_features), np.int32)
        self._past = np.empty((0, history, n_features))
        self._known = np.empty((0, n_features))
        self._known_tick = np.empty((0, n_features), np.int64)
        self._phase = np.empty(0, np.int64)
        self._row_phase = np.empty(0, np.int64)  # of the last finished row
        self._rows = np.empty(0, np.int64)  # that have had it, one after the other
        self._before = np.empty(0, np.int64)  # the phase before that

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def bytes_per_pod(self) -> int:
        """The arrays' share of one pod; its name and place in the table come on top."""
        return sum(getattr(self, name)[:1].nbytes for name in _EMPTY)

    def step(self, pod: str, time: float, values: Sequence[float] | Floats) -> int:
        """The pod's phase after this sample; −1 while it warms up."""
        row = np.asarray(values, dtype=np.float64)
        slot = self._slots.get(pod, -1)
        if slot < 0 or row.shape != self._sums.shape[1:] or not isfinite(time):
            return int(self.step_many([pod], np.array([time]), row.reshape(1, -1))[0])
        if time <= self._time[slot]:
            return int(self._phase[slot])
        tick = int(tick_of(time, self._start[slot], self._every))
        if tick == self._tick[slot] + 1 and self._counts[slot].all() and np.isfinite(row).all():
            return self._next_row(slot, tick, time, row)
        self._record(slice(slot, slot + 1), np.array([time]), row[None])
        return int(self._phase[slot])

    def step_many(self, pods: Sequence[str], times: Floats, values: Floats) -> Ints:
        """The phases after these samples (n, features); a pod may be there more than once, then
        its samples are taken in order."""
        times = np.asarray(times, dtype=np.float64)
        values = np.asarray(values, dtype=np.float64)
        if values.shape != (len(pods), self._sums.shape[1]) or times.shape != (len(pods),):
            raise TelemetryError(
                f"{len(pods)} samples of {self._sums.shape[1]} features were expected; got "
                f"{times.shape[0]} times and values of shape {values.shape}"
            )
        if not np.isfinite(times).all():
            raise TelemetryError("a sample needs a finite time")
        slots = self._slots_of(pods)
        answers = np.empty(len(slots), dtype=np.int64)
        for turn in _turns(slots):
            answers[turn] = self._take(slots[turn], times[turn], values[turn])
        return answers

    def situations(self, pods: Sequence[str]) -> Situations:
        """Where pods that have a phase are now, for a forecast. Windows are not scaled yet."""
        at = np.array([self._slots.get(pod, -1) for pod in pods], dtype=np.int64)
        for pod, slot in zip(pods, at, strict=True):
            if slot < 0 or self._phase[slot] < 0:
                raise TelemetryError(f"pod {pod} has no phase yet; give it more samples")
        goes_on = self._row_phase[at] == self._phase[at]
        return Situations(
            self._phase[at],
            np.where(goes_on, self._rows[at] + 1, 1),
            np.where(goes_on, self._before[at], self._row_phase[at]),
            self._window(at),
        )

    def forget(self, pod: str) -> None:
        """Drop a pod that has ended; its place is used again."""
        slot = self._slots.pop(pod, None)
        if slot is not None:
            self._free.append(slot)
            for name, empty in _EMPTY.items():
                getattr(self, name)[slot] = empty

    def _slots_of(self, pods: Sequence[str]) -> Ints:
        slots = np.fromiter((self._slots.get(pod, -1) for pod in pods), np.int64, len(pods))
        new = list(dict.fromkeys(pods[int(place)] for place in np.flatnonzero(slots < 0)))
        if not new:
            return slots
        if len(new) > len(self._free):
            self._grow(max(len(new) - len(self._free), len(self._start)))
        for pod in new:
            self._slots[pod] = self._free.pop()
        return np.fromiter((self._slots[pod] for pod in pods), np.int64, len(pods))

    def _grow(self, more: int) -> None:
        size = len(self._start)
        self._free = [*range(size + more - 1, size - 1, -1), *self._free]
        for name, empty in _EMPTY.items():
            old = getattr(self, name)
            new = np.full((more, *old.shape[1:]), empty, dtype=old.dtype)
            setattr(self, name, np.concatenate([old, new]))

    def _take(self, slots: Ints, times: Floats, values: Floats) -> Ints:
        """One sample of each of some different pods."""
        later = times > self._time[slots]
        self._record(slots[later], times[later], values[later])
        answer: Ints = self._phase[slots]
        return answer

    def _record(self, at: Places, times: Floats, values: Floats) -> None:
        """Samples that are later than all before them."""
        self._start[at] = np.where(np.isnan(self._start[at]), times, self._start[at])
        self._time[at] = times
        tick = tick_of(times, self._start[at], self._every)
        passed = tick - self._tick[at]
        moved = passed > 0
        if moved.all():
            self._advance(at, passed)
        elif moved.any():
            self._advance(at[moved], passed[moved])  # type: ignore[index]  # a slice has one pod
        self._tick[at] = tick

        known = np.isfinite(values)
        self._sums[at] += np.where(known, values, 0.0)
        self._counts[at] += known
        window = self._window(at)
        whole = np.isfinite(window).all(axis=(1, 2))
        phases = np.full(len(times), -1)
        if whole.any():
            phases[whole] = self._classify(window[whole])
        self._phase[at] = phases

    def _next_row(self, slot: int, tick: int, time: float, row: Floats) -> int:
        """`_record` for the most common case, in fewer calls: one pod, everything measured, in the
        row that follows the last one."""
        last = self._sums[slot] / self._counts[slot]
        self._known[slot], self._known_tick[slot] = last, tick - 1
        past = self._past[slot]
        past[:-1] = past[1:]
        past[-1] = last
        phase, ended = int(self._phase[slot]), int(self._row_phase[slot])
        if ended == phase:
            self._rows[slot] += 1
        else:
            self._rows[slot], self._before[slot], self._row_phase[slot] = 1, ended, phase
        self._sums[slot], self._counts[slot] = row, 1
        self._time[slot], self._tick[slot] = time, tick
        window = np.concatenate([past, row[None]])[None]
        now = int(self._classify(window)[0]) if np.isfinite(past).all() else -1
        self._phase[slot] = now
        return now

    def _window(self, at: Places) -> Floats:
        return np.concatenate([self._past[at], self._current(at)[:, None]], axis=1)

    def _current(self, at: Places) -> Floats:
        """The row so far; where nothing was measured yet, what is held."""
        counts = self._counts[at]
        held = self._tick[at][:, None] - self._known_tick[at] <= self._hold
        row = np.where(held, self._known[at], np.nan)
        np.divide(self._sums[at], counts, out=row, where=counts > 0)
        return row

    def _advance(self, at: Places, passed: Ints) -> None:
        """Finish the current row, and add those in which nothing was measured."""
        row = self._current(at)
        measured = self._counts[at] > 0
        self._known[at] = np.where(measured, row, self._known[at])
        self._known_tick[at] = np.where(measured, self._tick[at][:, None], self._known_tick[at])
        self._push(at, row)
        self._count_on(at, passed)
        self._sums[at] = 0.0
        self._counts[at] = 0
        for empty in range(1, min(self._hold + 2, int(passed.max()))):
            gap = passed > empty
            still = at if isinstance(at, slice) else at[gap]
            age = self._tick[still][:, None] + empty - self._known_tick[still]
            self._push(still, np.where(age <= self._hold, self._known[still], np.nan))

    def _count_on(self, at: Places, passed: Ints) -> None:
        """For how long the phase has lasted; a break makes that unknown."""
        broken = passed > self._hold + 1
        same = self._row_phase[at] == self._phase[at]
        before = np.where(same, self._before[at], self._row_phase[at])
        self._before[at] = np.where(broken, -1, before)
        self._rows[at] = np.where(broken, 1, self._rows[at] * same + passed)
        self._row_phase[at] = np.where(broken, -1, self._phase[at])

    def _push(self, at: Places, row: Floats) -> None:
        self._past[at] = np.concatenate([self._past[at][:, 1:], row[:, None]], axis=1)


def _turns(slots: Ints) -> list[Ints]:
    """Places in order, split so that no pod is twice in one turn."""
    _, first = np.unique(slots, return_index=True)
    if len(first) == len(slots):
        return [np.arange(len(slots))]
    order = np.argsort(slots, kind="stable")
    starts = np.flatnonzero(np.diff(slots[order], prepend=-1))
    turn = np.empty(len(slots), dtype=np.int64)
    turn[order] = np.arange(len(slots)) - np.repeat(starts, np.diff(starts, append=len(slots)))
    return [np.flatnonzero(turn == number) for number in range(int(turn.max()) + 1)]
