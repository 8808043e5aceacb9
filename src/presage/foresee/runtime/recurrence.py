"""A recurrent network over the stages of a query: what a stage's tasks take, given what came
before it.

The stages are gone through in the order of the DAG; the state of a gated recurrent unit goes from
each stage to those that wait for it (several are added up), so a stage knows its past. Fitted with
PyTorch, used with NumPy alone. Knows no executors but as numbers of its rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from presage.foresee.runtime.dag import StageWork
from presage.foresee.runtime.stages import Query, place_row, structure
from presage.learn import Floats
from presage.model.errors import BundleError

__all__ = ["StageRecurrence"]

_STATE = 24
_UPDATES = 700
_PLACES = 24
"""Places of a query that one update looks at."""
_ROUND_S = 0.001
_FARTHEST = 4.0
_NAMES = ("centre", "spread", "input", "carried", "offsets", "last", "level")


@dataclass(frozen=True, slots=True, eq=False)
class StageRecurrence:
    """The weights of one gated recurrent unit, and of the line behind it."""

    centre: Floats
    spread: Floats
    input: Floats
    """From a row to the gates: reset, update, new state."""
    carried: Floats
    offsets: Floats
    """Of the gates: two rows, for what comes from the row and from the state."""
    last: Floats
    """From state and row to the logarithms of the time of a task of the first wave, of a rest."""
    level: Floats

    @classmethod
    def fit(
        cls, queries: Mapping[str, Query], names: Sequence[str], seed: int = 0
    ) -> StageRecurrence | None:
        """Learn from some of the queries; None without PyTorch."""
        try:
            import torch
        except ImportError:
            return None
        lessons = [lesson for name in names if (lesson := _lesson(queries[name])) is not None]
        if not lessons:
            return None
        everything = np.concatenate([rows.reshape(-1, rows.shape[2]) for _, rows, _ in lessons])
        centre, spread = everything.mean(axis=0), everything.std(axis=0) + 1e-6
        told = np.concatenate([times.reshape(-1, 2) for _, _, times in lessons])
        level = np.nanmean(told, axis=0)
        level = np.where(np.isnan(level), np.nanmean(told), level)
        width, rng = len(centre), np.random.default_rng(seed)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                cell = torch.nn.GRUCell(width, _STATE)
                line = torch.nn.Linear(_STATE + width, 2)
            steps = torch.optim.Adam([*cell.parameters(), *line.parameters()], lr=5e-3)
            pace = torch.optim.lr_scheduler.OneCycleLR(steps, 1e-2, total_steps=_UPDATES)
            for _ in range(_UPDATES):
                before, rows, times = lessons[int(rng.integers(len(lessons)))]
                places = rng.permutation(rows.shape[1])[:_PLACES]
                scaled = torch.tensor((rows[:, places] - centre) / spread, dtype=torch.float32)
                truth = torch.tensor(times[:, places] - level, dtype=torch.float32)
                states: list[Any] = []
                said = []
                for stage, row in enumerate(scaled):
                    past = torch.zeros(len(places), _STATE)
                    for parent in before[stage]:
                        past = past + states[parent]
                    states.append(cell(row, past))
                    said.append(line(torch.cat([states[-1], row], dim=1)))
                off = torch.stack(said) - truth
                there = ~torch.isnan(truth)
                loss = torch.nn.functional.smooth_l1_loss(
                    torch.where(there, off, 0.0), torch.zeros_like(off), beta=0.3
                )
                steps.zero_grad()
                loss.backward()
                steps.step()
                pace.step()
        finally:
            torch.set_num_threads(threads)

        def array(tensor: Any) -> Floats:
            return np.asarray(tensor.detach().numpy(), np.float64)

        return cls(
            centre,
            spread,
            array(cell.weight_ih),
            array(cell.weight_hh),
            np.stack([array(cell.bias_ih), array(cell.bias_hh)]),
            np.column_stack([array(line.weight), array(line.bias)]),
            level,
        )

    def works(self, query: Query, scale_gb: float, executors: int) -> dict[int, StageWork]:
        """What each stage has to do on so many executors."""
        before, rows = _parents(query), _rows(query, scale_gb, executors)
        scaled = np.clip((rows - self.centre) / self.spread, -_FARTHEST, _FARTHEST)
        states: list[Floats] = []
        works = {}
        for place, (stage, row) in enumerate(zip(query.order, scaled, strict=True)):
            past = np.zeros(self.carried.shape[1])
            for parent in before[place]:
                past = past + states[parent]
            states.append(self._next(row, past))
            said = self.last[:, :-1] @ np.concatenate([states[-1], row]) + self.last[:, -1]
            first_s, rest_s = np.exp(said + self.level)
            tasks = query.tasks_at(stage, scale_gb)
            first = min(executors, tasks)
            works[stage] = StageWork(first, tasks - first, float(first_s), float(rest_s))
        return works

    def _next(self, row: Floats, past: Floats) -> Floats:
        from_row = self.input @ row + self.offsets[0]
        from_past = self.carried @ past + self.offsets[1]
        size = len(past)
        reset, update = 1 / (1 + np.exp(-(from_row + from_past)[: 2 * size].reshape(2, size)))
        new = np.tanh(from_row[2 * size :] + reset * from_past[2 * size :])
        out: Floats = (1 - update) * new + update * past
        return out

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What `from_arrays` takes."""
        return {name: getattr(self, name) for name in _NAMES}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> StageRecurrence | None:
        """The network in these arrays; None where there is none."""
        if not arrays:
            return None
        try:
            made = cls(*(np.asarray(arrays[name], np.float64) for name in _NAMES))
        except (KeyError, ValueError) as wrong:
            raise BundleError(f"these arrays hold no recurrent network: {wrong}") from None
        width, state = len(made.centre), made.carried.shape[1]
        shapes = ((3 * state, width), (3 * state, state), (2, 3 * state), (2, state + width + 1))
        actual = (made.input.shape, made.carried.shape, made.offsets.shape, made.last.shape)
        if actual != shapes:
            raise BundleError("these arrays hold no recurrent network: their shapes contradict")
        return made


def _lesson(query: Query) -> tuple[list[list[int]], Floats, Floats] | None:
    """The stages before each, and for each stage and place a row and two times."""
    places = query.places()
    if not places:
        return None
    rows, times = [], []
    for scale, executors in places:
        works = query.works(scale, executors)
        assert works is not None
        rows.append(_rows(query, scale, executors))
        times.append(
            [
                [
                    np.log(max(work.first_s, _ROUND_S)) if work.first_tasks else np.nan,
                    np.log(max(work.rest_s, _ROUND_S)) if work.rest_tasks else np.nan,
                ]
                for work in (works[stage] for stage in query.order)
            ]
        )
    return _parents(query), np.stack(rows, axis=1), np.array(times).swapaxes(0, 1)


def _parents(query: Query) -> list[list[int]]:
    at = {stage: place for place, stage in enumerate(query.order)}
    parents: list[list[int]] = [[] for _ in query.order]
    for before, then in query.edges:
        parents[at[then]].append(at[before])
    return parents


def _rows(query: Query, scale_gb: float, executors: int) -> Floats:
    rows = []
    for stage in query.order:
        tasks = query.tasks_at(stage, scale_gb)
        place = place_row(scale_gb, executors, tasks, first=True)[:4]
        rows.append([*place, *structure(query, stage, scale_gb)])
    return np.array(rows)
