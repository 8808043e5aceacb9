"""Right-sizing while jobs run: samples in, limits on CPU and memory out.

A `Sizer` follows runs of one kind. With a phase model, a run gets what its phase was measured to
use, and that of every phase it may well enter before the horizon: it has the room before the
change comes. Without a phase it gets the CPU it used of late, and the memory that earlier runs
held at most; all it asked for where there are none. More is given at once; less only when
less was enough for a while, and never below the memory in use. A run that meets its CPU limit gets
all it asked for, since nobody knows then how much it wants.

No clock and no I/O: times are arguments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from presage.model.cluster import Resources
from presage.provision.policies import PhaseTable
from presage.provision.usage import Floats, Ints, Value
from presage.telemetry.series import Series, resources_of

__all__ = ["FEATURES", "LivePhases", "NewLimits", "Sizer", "SizingRules", "series_of"]

FEATURES = ("cpu_cores", "rss_mib")
"""What a sample says of a worker: cores kept busy, and MiB."""
_PLACE = {"cpu_cores": 0, "cpu": 0, "rss_mib": 1, "memory": 1}


class LivePhases(Protocol):
    """What sizing asks of a phase model; `presage.observe.phases.PhaseModel` has it."""

    @property
    def features(self) -> tuple[str, ...]:
        """Features or resources, in the order of a sample's values."""
        ...

    @property
    def every(self) -> float:
        """Seconds between two rows."""
        ...

    @property
    def training(self) -> list[Series]:
        """What the model was fitted on."""
        ...

    @property
    def n_phases(self) -> int:
        """Phases are numbered from 0."""
        ...

    def predict_many(self, series: Sequence[Series]) -> list[Ints]:
        """The phase of each sample; −1 where there is none."""
        ...

    def stepper(self) -> Any:
        """Phases online."""
        ...

    def forecast_online(self, stepper: Any, pods: Sequence[str], horizon_s: float) -> Any:
        """What is expected of pods until the horizon."""
        ...


@dataclass(frozen=True, slots=True)
class SizingRules:
    """How careful sizing is."""

    margin: float = 0.15
    """Given on top of what is thought to be needed."""
    quantile: float = 0.99
    """Of what a phase used."""
    horizon_s: float = 4.0
    """Phases expected within this time count as well; at least two samples. From a sample to a
    limit in force it takes up to three seconds."""
    likely: float = 0.5
    """A phase with at least this probability is expected; its CPU is given ahead."""
    likely_memory: float = 0.1
    """The same for memory, of which too little does more harm."""
    patience: int = 3
    """So many samples in a row must have been content with less before less is given."""
    share_patience: int = 30
    """The same for shares of GPUs, whose phases nobody foresees: a pause between two epochs is no
    sign that less will do."""
    notable: float = 0.1
    """A reduction is worth a resize from this part on; so much of the time is a wait for a GPU."""
    least_cpu_milli: int = 100
    least_memory_mib: int = 64


@dataclass(frozen=True, slots=True)
class NewLimits:
    """Limits that a run should have from now on."""

    limits: Resources
    why: str
    """For people: 'phase 2; phase 3 is expected (64 %)'."""


@dataclass(slots=True)
class _RunLimits:
    """What is known of one run."""

    ask: Resources
    given: Resources
    recent: deque[tuple[float, float]]
    """The latest samples: cores and MiB."""
    wishes: deque[tuple[int, int]]
    """What would have done at the latest samples."""
    phase: int = -1
    at: float = float("-inf")


class Sizer:
    """Follows the runs of one kind of job."""

    def __init__(self, model: LivePhases | None = None, rules: SizingRules | None = None) -> None:
        self.rules = rules or SizingRules()
        self._model = model
        self._runs: dict[str, _RunLimits] = {}
        self._stepper = model.stepper() if model is not None else None
        if model is not None:
            self._cpu, self._memory = _tables(model, self.rules.quantile)
            self._peak_mib = float(np.nanmax(self._memory))
            self._horizon_s = max(self.rules.horizon_s, 2 * model.every)

    def __contains__(self, run: str) -> bool:
        return run in self._runs

    def begin(self, run: str, ask: Resources, given: Resources | None = None) -> None:
        """Follow a run that asked for this for each worker; `given` are limits it has already."""
        rules = self.rules
        self._runs[run] = _RunLimits(
            ask, given or ask, deque(maxlen=rules.patience), deque(maxlen=rules.patience)
        )

    def end(self, run: str) -> None:
        """Forget a run."""
        self._runs.pop(run, None)

    def phase(self, run: str) -> int:
        """The phase a run is in; −1 for none."""
        return self._runs[run].phase

    def see(self, run: str, at: float, cores: float, memory_mib: float) -> NewLimits | None:
        """Take in a sample of the worker that needs most; new limits, when they should change."""
        mine = self._runs[run]
        if at <= mine.at:
            return None
        mine.at = at
        mine.recent.append((cores, memory_mib))
        cpu, memory, why = self._wish(run, mine, at)
        cpu = max(cpu, self.rules.least_cpu_milli)
        memory = max(memory, self._least_memory(memory_mib))
        if mine.given.cpu_milli and 1000 * cores >= 0.95 * mine.given.cpu_milli:
            cpu, why = max(cpu, mine.ask.cpu_milli), f"{why}; it met its CPU limit"
        mine.wishes.append((cpu, memory))
        limits = Resources(
            cpu_milli=self._next(mine, 0, mine.given.cpu_milli, mine.ask.cpu_milli),
            memory_mib=self._next(mine, 1, mine.given.memory_mib, mine.ask.memory_mib),
        )
        if limits == Resources(mine.given.cpu_milli, mine.given.memory_mib):
            return None
        mine.given = limits
        return NewLimits(limits, why)

    def _least_memory(self, used_mib: float) -> int:
        return max(self.rules.least_memory_mib, int(used_mib * (1 + self.rules.margin)) + 1)

    def _next(self, mine: _RunLimits, which: int, given: int, ask: int) -> int:
        """What to give of one resource: more at once, less with patience; what was not asked for
        is not limited."""
        if not ask:
            return 0
        wish = min(mine.wishes[-1][which], ask)
        if wish > given:  # with a little more, so that what climbs is not resized all the time
            return min(ask, max(wish, int((1 + self.rules.notable) * given)))
        if len(mine.wishes) < self.rules.patience:
            return given
        enough = min(max(wishes[which] for wishes in mine.wishes), ask)
        return enough if enough <= (1 - self.rules.notable) * given else given

    def _wish(self, run: str, mine: _RunLimits, at: float) -> tuple[int, int, str]:
        """Milli-cores, MiB and the reason."""
        grown = 1 + self.rules.margin
        if self._model is not None and self._stepper is not None:
            row = [mine.recent[-1][_PLACE[name]] for name in self._model.features]
            mine.phase = self._stepper.step(run, at, row)
        expected = self._expected(run, mine)
        if not expected:
            cores = max(sample[0] for sample in mine.recent)
            # What it will hold later nobody knows: only earlier runs can tell that less will do.
            most = self._peak_mib * grown if self._model is not None else mine.ask.memory_mib
            return int(1000 * cores * grown) + 1, int(most) + 1, "what it used of late"
        rules = self.rules
        soon = [phase for phase, share in expected.items() if share >= rules.likely]
        cores = float(np.nanmax(self._cpu[soon]))
        memory = float(np.nanmax(self._memory[list(expected)]))
        coming = [
            f"phase {phase} is expected ({share:.0%})"
            for phase, share in expected.items()
            if phase != mine.phase
        ]
        why = "; ".join([f"phase {mine.phase}", *coming])
        return int(1000 * cores * grown) + 1, int(memory * grown) + 1, why

    def _expected(self, run: str, mine: _RunLimits) -> dict[int, float]:
        """The phase it is in and those it may well be in before the horizon."""
        if mine.phase < 0 or self._model is None or not np.isfinite(self._cpu[mine.phase]):
            return {}
        visit = self._model.forecast_online(self._stepper, [run], self._horizon_s).visit[0]
        least = min(self.rules.likely, self.rules.likely_memory)
        likely = np.flatnonzero((visit >= least) & np.isfinite(self._cpu))
        return {int(phase): float(visit[phase]) for phase in likely} | {mine.phase: 1.0}


def series_of(run: str, samples: Sequence[tuple[float, float, float]]) -> Series:
    """Telemetry of a run from (time, cores, MiB), for a phase model to learn from."""
    table: Floats = np.array(samples, dtype=np.float64).reshape(-1, 3)
    _, first = np.unique(table[:, 0], return_index=True)
    table = table[first]
    return Series(
        run, table[:, 0], table[:, 1:], FEATURES, ("cores", "MiB"), resources_of(FEATURES)
    )


def _settled(phase: Ints) -> Ints:
    """Phases without the samples at their edges, which tell of both sides."""
    settled = phase.copy()
    change = np.flatnonzero(np.diff(phase)) + 1
    settled[change] = -1
    settled[change - 1] = -1
    return settled


def _tables(model: LivePhases, quantile: float) -> tuple[Floats, Floats]:
    """What each phase used of CPU (a quantile) and memory (the most), by the training."""
    phase = np.concatenate([_settled(one) for one in model.predict_many(model.training)])
    cores = np.concatenate([one.column(FEATURES[0]) for one in model.training])
    memory = np.concatenate([one.column(FEATURES[1]) for one in model.training])
    known = np.isfinite(cores) & np.isfinite(memory)
    cpu = PhaseTable.measured(cores[known], phase[known], model.n_phases, Value(quantile)).value
    most = np.full(model.n_phases, -np.inf)
    inside = known & (phase >= 0)
    np.maximum.at(most, phase[inside], memory[inside])
    return cpu, np.where(np.isfinite(most), most, np.nan)
