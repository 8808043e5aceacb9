"""A phase model: from telemetry to phases, offline and online, with the same answers.

`fit` puts series on a grid, scales them, encodes windows (by a CRBM unless told otherwise),
clusters the codes and measures what each phase uses. A fitted model is a value: nothing changes
it, `expand` makes a new one. One bundle on disk keeps all of it, with the telemetry that it was
fitted on (or a part of it), for margins are set there. Fitting and predicting need NumPy alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, overload

import numpy as np
import numpy.typing as npt

from presage.model.errors import TelemetryError
from presage.observe.phases import _bundle
from presage.observe.phases.clusters import cohesion_curve, enough, kmeans, nearest
from presage.observe.phases.crbm import CRBM
from presage.observe.phases.forecast import PhaseForecast, PhaseForecaster
from presage.observe.phases.hiest import HiestModel
from presage.observe.phases.paths import Path as StoryPath
from presage.observe.phases.peers import (
    MOST_ROWS,
    ChangePointEncoder,
    HmmEncoder,
    WindowEncoder,
)
from presage.observe.phases.statistics import PhaseStatistics, names_in_all
from presage.observe.phases.stepper import Stepper
from presage.observe.phases.windows import (
    Encoder,
    Scaler,
    Situations,
    Windows,
    phases_of_rows,
    sample_windows,
    situations,
)
from presage.telemetry.readers import phase_features, read_telemetry
from presage.telemetry.resample import Grid, held_rows, resample
from presage.telemetry.series import Series

__all__ = ["Method", "PathPlaces", "PhaseDrift", "PhaseModel"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Method = Literal["crbm", "hmm", "changepoints", "windows"]

KEPT_SAMPLES = 200_000
_LEAST_WINDOWS = 20
_MOST_PHASES = 12
_CRBM_WINDOWS = 100_000
_CURVE_POINTS = 15_000
_CLUSTER_POINTS = 60_000
_NORMAL = 0.99
_BLOCK = 240
"""Samples in the blocks of the training from which is learned how drift varies."""
_MOST_BLOCKS = 10
"""More blocks do not make the judgement sharper: other pods are never quite the same."""
_LEAST_THRESHOLD = 0.05


@dataclass(frozen=True, slots=True)
class PhaseDrift:
    """Whether a model still fits: the share of samples that look like almost none (1 %) of the
    training, against what blocks of the training itself reach."""

    score: float
    threshold: float
    samples: int

    @property
    def drifted(self) -> bool:
        """Whether the model should be fitted again."""
        return self.score > self.threshold

    def __str__(self) -> str:
        ends = "fit the model again, or expand a phase" if self.drifted else "the model fits"
        return (
            f"{self.score:.1%} of {self.samples:,} samples look unlike the training "
            f"(up to {self.threshold:.1%} is normal): {ends}"
        )


@dataclass(frozen=True, slots=True, eq=False)
class PathPlaces:
    """Situations and their places on a path."""

    situations: Situations
    places: Ints
    path: StoryPath


@dataclass(frozen=True, eq=False)
class PhaseModel:
    """Phases have the ids 0 to n_phases − 1. A phase that was expanded keeps its id, but samples
    get the ids of its parts."""

    features: tuple[str, ...]
    every: float
    max_gap: float | None
    history: int
    scaler: Scaler
    encoder: Encoder
    centres: Floats
    """(phases, dimensions of a code)"""
    parents: Ints
    """For each phase the one it is a part of; −1 for those of the first fit."""
    curve: Mapping[int, float]
    """Cohesion (SSW) by the number of phases; empty when that number was given."""
    statistics: PhaseStatistics
    limits: Floats
    """Drift: the surprise and the squared distance to the centre that 1 % of the training exceed,
    then the mean and the standard deviation, over blocks, of the share that exceeds either."""
    training: list[Series]
    """What the model was fitted on, or whole pods of it drawn by seed."""
    forecaster: PhaseForecaster | None = None

    @classmethod
    def fit(
        cls,
        series: Sequence[Series],
        *,
        features: Sequence[str] | None = None,
        every: float | None = None,
        max_gap: float | None = None,
        k: int | None = None,
        method: Method = "changepoints",
        history: int = 3,
        hidden: int = 10,
        seed: int = 0,
        keep: int = KEPT_SAMPLES,
        forecast: bool = True,
    ) -> PhaseModel:
        """Learn phases. `every` is in seconds (else the median time between samples); `k` is the
        number of phases (else chosen by cohesion); at most `keep` samples stay in the bundle."""
        names = tuple(features) if features else phase_features(series)
        if history < 1 or hidden < 1 or (k is not None and not 1 <= k <= 100):
            raise TelemetryError("history and hidden must be at least 1, and k from 1 to 100")
        row_s = every if every is not None else _median_cadence(series)
        grid = resample(series, names, row_s, max_gap)
        for column, name in enumerate(names):
            if not np.isfinite(grid.values[:, column]).any():
                raise TelemetryError(f"feature '{name}' has no values; leave it out or give them")
        scaler = Scaler.of(grid.values)
        windows = sample_windows(grid, scaler, history)
        if len(windows.places) < max(_LEAST_WINDOWS, k or 0):
            raise TelemetryError(
                f"{len(windows.places)} samples with {history} rows of {row_s:g} s before them "
                f"are too few to learn phases from; give more or longer series, or a finer --every"
            )
        encoder, centres, curve = _learned(grid, scaler, windows, k, method, hidden, seed)
        model = cls(
            names,
            row_s,
            max_gap,
            history,
            scaler,
            encoder,
            _from_light_to_heavy(encoder, centres, windows),
            np.full(len(centres), -1),
            curve,
            _nothing_measured(),
            np.zeros(4),
            _kept(series, names, keep, seed),
        )
        codes = encoder.encode(windows.values)
        labels = model.assign(codes)
        phases = _spread(labels, windows, grid)
        by_pod = np.split(phases, grid.sample_offsets[1:-1])
        model = replace(
            model,
            statistics=PhaseStatistics.measured(
                series, by_pod, model.n_phases, names_in_all(series, names), row_s
            ),
            limits=model._limits(windows, codes, labels, grid),
        )
        if not forecast:
            return model
        return replace(model, forecaster=model._forecaster(grid, windows, phases, seed))

    @staticmethod
    def from_hiest(folder: Path | str) -> HiestModel:
        """The published models of AI4DL, as their authors' code uses them."""
        return HiestModel.read(Path(folder))

    @property
    def n_phases(self) -> int:
        """How many ids there are."""
        return len(self.centres)

    @property
    def method(self) -> str:
        """How windows are encoded."""
        return self.encoder.kind

    @overload
    def predict(self, telemetry: Series) -> Ints: ...
    @overload
    def predict(self, telemetry: Path | str) -> dict[str, Ints]: ...
    def predict(self, telemetry: Series | Path | str) -> Ints | dict[str, Ints]:
        """The phase of each sample of a series; for a file or folder, of each input row by pod.
        −1 while a pod warms up, after a break and where a value is missing."""
        if isinstance(telemetry, Series):
            return self.predict_many([telemetry])[0]
        series = read_telemetry(Path(telemetry))
        labels = self.predict_many(series)
        return {
            pod.pod: np.array(pod.by_input_row(phases), dtype=np.int64)
            for pod, phases in zip(series, labels, strict=True)
        }

    def predict_many(self, series: Sequence[Series]) -> list[Ints]:
        """The phases of the samples of many series at once."""
        grid, windows = self._windows(series)
        phases = _spread(self.assign(self.encoder.encode(windows.values)), windows, grid)
        return np.split(phases, grid.sample_offsets[1:-1]) if series else []

    def followed(self, series: Sequence[Series]) -> PathPlaces:
        """Where all samples with a phase were, and the path they are on; to judge forecasts by
        what happened."""
        grid, windows = self._windows(series)
        phases = _spread(self.assign(self.encoder.encode(windows.values)), windows, grid)
        path, places = StoryPath.of_pods(phases_of_rows(grid, phases), grid.offsets, self.n_phases)
        where = situations(grid, windows, phases)
        return PathPlaces(where, places[grid.bucket[windows.places]], path)

    def stepper(self) -> Stepper:
        """Phases online; values come in the order of `features`."""
        return Stepper(
            lambda windows: self.assign(self.encoder.encode(self.scaler(windows))),
            n_features=len(self.features),
            history=self.history,
            every=self.every,
            hold=held_rows(self.every, self.max_gap),
        )

    def forecast(self, series: Series, horizon_s: float) -> PhaseForecast:
        """For each sample of a series: which phase the pod will be in, and until when it stays.
        Samples without a phase get NaN."""
        return self.forecast_many([series], horizon_s)[0]

    def forecast_many(self, series: Sequence[Series], horizon_s: float) -> list[PhaseForecast]:
        """The same for many series at once."""
        if self.forecaster is None:
            raise TelemetryError("this model was fitted without a forecast; fit it again")
        grid, windows = self._windows(series)
        phases = _spread(self.assign(self.encoder.encode(windows.values)), windows, grid)
        rows = max(1, round(horizon_s / self.every))
        forecast = self.forecaster.forecast(situations(grid, windows, phases), rows, self.every)
        return forecast.spread(windows.places, grid.sample_offsets)

    def forecast_online(
        self, stepper: Stepper, pods: Sequence[str], horizon_s: float
    ) -> PhaseForecast:
        """The same for pods that a stepper follows, as they are now."""
        if self.forecaster is None:
            raise TelemetryError("this model was fitted without a forecast; fit it again")
        where = stepper.situations(pods)
        scaled = Situations(where.phase, where.rows, where.previous, self.scaler(where.windows))
        return self.forecaster.forecast(scaled, max(1, round(horizon_s / self.every)), self.every)

    def expand(self, series: Sequence[Series], phase: int, *, seed: int = 0) -> PhaseModel:
        """A model in which one phase is split by how it looks in new data. The parts get new ids;
        all other samples keep theirs. The forecast is learned again, from the new data."""
        if not 0 <= phase < self.n_phases or phase in self.parents:
            leaves = ", ".join(str(leaf) for leaf in self._leaves)
            raise TelemetryError(f"there is no phase {phase} to expand; there are {leaves}")
        grid, windows = self._windows(series)
        codes = self.encoder.encode(windows.values)
        inside = codes[self.assign(codes) == phase]
        if len(inside) < _LEAST_WINDOWS:
            raise TelemetryError(
                f"phase {phase} has {len(inside)} samples in this telemetry; "
                f"{_LEAST_WINDOWS} are needed to split it"
            )
        few = _drawn(inside, _CURVE_POINTS, seed)
        parts = max(2, enough(cohesion_curve(few, range(1, _MOST_PHASES // 2 + 1), seed)))
        new = kmeans(_drawn(inside, _CLUSTER_POINTS, seed), parts, seed).centres
        model = replace(
            self,
            centres=np.concatenate([self.centres, new]),
            parents=np.concatenate([self.parents, np.full(parts, phase)]),
        )
        phases = _spread(model.assign(codes), windows, grid)
        by_pod = np.split(phases, grid.sample_offsets[1:-1])
        lacking = [name for name in self.statistics.names if name not in self._names_of(series)]
        if lacking:
            raise TelemetryError(f"this telemetry has no '{lacking[0]}', as the model has")
        measured = PhaseStatistics.measured(
            series, by_pod, model.n_phases, self.statistics.names, self.every
        )
        added = range(self.n_phases, model.n_phases)
        return replace(
            model,
            statistics=self.statistics.with_phases_of(measured, added),
            forecaster=model._forecaster(grid, windows, phases, seed),
        )

    def drift(self, series: Sequence[Series]) -> PhaseDrift:
        """Whether telemetry still looks like the training."""
        _, windows = self._windows(series)
        codes = self.encoder.encode(windows.values)
        strange = self._strange(windows, codes, self.assign(codes), self.limits)
        score = float(strange.mean()) if len(strange) else 0.0
        blocks = min(max(1, len(strange) // _BLOCK), _MOST_BLOCKS)
        normal = self.limits[2] + 3 * self.limits[3] / np.sqrt(blocks)
        return PhaseDrift(score, max(_LEAST_THRESHOLD, float(normal)), len(strange))

    def save(self, path: Path | str, *, date: str = "", data: str = "", licence: str = "") -> None:
        """Write everything into one bundle; `date`, `data` and `licence` go on its card."""
        _bundle.save(self, Path(path), date=date, data=data, licence=licence)

    @classmethod
    def load(cls, path: Path | str) -> PhaseModel:
        """A model from its bundle; refuses one that is damaged or of another version."""
        return _bundle.load(cls, Path(path))

    def assign(self, codes: Floats) -> Ints:
        """The phase of each code: the nearest centre, and within an expanded phase the nearest of
        its parts."""
        roots, splits = self._tree
        labels: Ints = roots[nearest(codes, self.centres[roots])[0]]
        for parent, parts in splits:
            inside = labels == parent
            if inside.any():
                labels[inside] = parts[nearest(codes[inside], self.centres[parts])[0]]
        return labels

    @cached_property
    def _tree(self) -> tuple[Ints, list[tuple[int, Ints]]]:
        """The phases of the first fit, and the parts of each one that was expanded, in order."""
        expanded = np.unique(self.parents[self.parents >= 0])
        splits = [(int(parent), np.flatnonzero(self.parents == parent)) for parent in expanded]
        return np.flatnonzero(self.parents < 0), splits

    @cached_property
    def _leaves(self) -> Ints:
        leaves: Ints = np.setdiff1d(np.arange(self.n_phases), self.parents)
        return leaves

    def _windows(self, series: Sequence[Series]) -> tuple[Grid, Windows]:
        grid = resample(series, self.features, self.every, self.max_gap)
        return grid, sample_windows(grid, self.scaler, self.history)

    def _forecaster(
        self, grid: Grid, windows: Windows, phases: Ints, seed: int
    ) -> PhaseForecaster:
        where = situations(grid, windows, phases)
        rows = phases_of_rows(grid, phases)
        return PhaseForecaster.learned(where, windows, grid, rows, self.n_phases, seed)

    @staticmethod
    def _names_of(series: Sequence[Series]) -> set[str]:
        return set.intersection(*({*pod.features, *pod.resources} for pod in series))

    def _strange(self, windows: Windows, codes: Floats, labels: Ints, limits: Floats) -> Ints:
        """1 for each window that surprises, or is far from its centre; else 0."""
        far = ((codes - self.centres[labels]) ** 2).sum(axis=1) > limits[1]
        surprising = self.encoder.surprise(windows.values) > limits[0]
        return np.asarray(far | surprising, dtype=np.int64)

    def _limits(self, windows: Windows, codes: Floats, labels: Ints, grid: Grid) -> Floats:
        away = ((codes - self.centres[labels]) ** 2).sum(axis=1)
        limits = np.zeros(4)
        limits[0] = np.quantile(self.encoder.surprise(windows.values), _NORMAL)
        limits[1] = np.quantile(away, _NORMAL)
        strange = self._strange(windows, codes, labels, limits)
        pod = np.searchsorted(grid.sample_offsets, windows.places, side="right") - 1
        first = np.searchsorted(pod, pod, side="left")  # the pod's first window
        block = pod * (len(pod) // _BLOCK + 1) + (np.arange(len(pod)) - first) // _BLOCK
        _, block = np.unique(block, return_inverse=True)
        share = np.bincount(block, strange) / np.bincount(block)
        limits[2:] = share.mean(), share.std()
        return limits


def _learned(
    grid: Grid,
    scaler: Scaler,
    windows: Windows,
    k: int | None,
    method: Method,
    hidden: int,
    seed: int,
) -> tuple[Encoder, Floats, dict[int, float]]:
    """The encoder, the centres of the phases, and the curve that chose their number."""
    encoder: Encoder
    if method == "crbm":
        encoder = CRBM(hidden, seed=seed).fit(_drawn(windows.values, _CRBM_WINDOWS, seed))
        codes = encoder.encode(windows.values)
    elif method == "windows":
        encoder = WindowEncoder()
        codes = encoder.encode(windows.values)
    elif method == "changepoints":
        encoder, codes = ChangePointEncoder.fit(_runs(grid, scaler, seed))
    elif method == "hmm":
        runs = _runs(grid, scaler, seed)
        codes = np.concatenate(runs)
    else:
        raise TelemetryError(
            f"there is no method '{method}'; there are crbm, hmm, changepoints, windows"
        )
    curve: dict[int, float] = {}
    if k is None:
        few = _drawn(codes, _CURVE_POINTS, seed)
        curve = cohesion_curve(few, range(1, min(_MOST_PHASES, len(few)) + 1), seed)
        k = enough(curve)
    if method == "hmm":
        return HmmEncoder.fit(runs, k, seed), np.eye(k), curve
    return encoder, kmeans(_drawn(codes, _CLUSTER_POINTS, seed), k, seed).centres, curve


def _runs(grid: Grid, scaler: Scaler, seed: int) -> list[Floats]:
    """Scaled stretches without a break, of pods drawn by seed, up to `MOST_ROWS` rows."""
    random = np.random.default_rng(seed)
    runs: list[Floats] = []
    total = 0
    for pod in random.permutation(len(grid.starts)):
        rows = scaler(grid.values[grid.offsets[pod] : grid.offsets[pod + 1]])
        whole = np.isfinite(rows).all(axis=1)
        edges = np.flatnonzero(np.diff(whole)) + 1
        for piece, good in zip(np.split(rows, edges), np.split(whole, edges), strict=True):
            if len(piece) and good[0] and total < MOST_ROWS:
                runs.append(piece[: MOST_ROWS - total])
                total += len(runs[-1])
    return runs


def _from_light_to_heavy(encoder: Encoder, centres: Floats, windows: Windows) -> Floats:
    """The centres, ordered by the mean of what their windows use: ids that people can guess."""
    labels, _ = nearest(encoder.encode(windows.values), centres)
    level = windows.values[:, -1].mean(axis=1)
    sizes = np.maximum(np.bincount(labels, minlength=len(centres)), 1)
    ordered: Floats = centres[np.argsort(np.bincount(labels, level, len(centres)) / sizes)]
    return ordered


def _spread(labels: Ints, windows: Windows, grid: Grid) -> Ints:
    """One label for every sample; −1 for those without a window."""
    phases = np.full(len(grid.bucket), -1, dtype=np.int64)
    phases[windows.places] = labels
    return phases


def _median_cadence(series: Sequence[Series]) -> float:
    steps = [np.diff(pod.times) for pod in series if len(pod) > 1]
    if not steps:
        raise TelemetryError("no pod has two samples; give longer series")
    return float(np.median(np.concatenate(steps)))


def _drawn(points: Floats, most: int, seed: int) -> Floats:
    if len(points) <= most:
        return points
    return points[np.random.default_rng(seed).choice(len(points), most, replace=False)]


def _kept(series: Sequence[Series], names: Sequence[str], keep: int, seed: int) -> list[Series]:
    """Whole pods drawn by seed, at most so many samples (the end of one pod if it alone has
    more); of the columns, those that phases and resources are made of and that all pods have."""
    head = series[0]
    wanted = [*names, *(part for parts in head.resources.values() for part in parts)]
    wanted += [part for name in names for part in head.resources.get(name, ())]
    columns = tuple(
        name
        for name in head.features
        if name in wanted and all(name in pod.features for pod in series)
    )
    resources = {
        name: parts
        for name, parts in head.resources.items()
        if set(parts) <= set(columns) and all(pod.resources.get(name) == parts for pod in series)
    }
    units = dict(zip(head.features, head.units, strict=False))
    chosen, total = list[Series](), 0
    for place in np.random.default_rng(seed).permutation(len(series)):
        pod = series[place]
        if total + len(pod) > keep and chosen:
            continue
        chosen.append(
            Series(
                pod.pod,
                pod.times[-keep:],
                pod.matrix(columns)[-keep:].astype(np.float32).astype(np.float64),
                columns,
                tuple(units[name] for name in columns) if units else (),
                resources,
            )
        )
        total += len(chosen[-1])
    return sorted(chosen, key=lambda pod: pod.pod)


def _nothing_measured() -> PhaseStatistics:
    none = np.empty((0, 0))
    return PhaseStatistics((), none, none, none, none, none, none, np.empty(0, np.int64))
