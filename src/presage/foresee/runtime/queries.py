"""Queries: how long each stage takes and the whole, on so many executors, at a size of data.

Queries that were measured at other sizes or on other executors are carried over (`query_known`);
stages nobody has measured are foreseen by trees from their place in the DAG. Both are then
scheduled by `dag.simulate`. Beside the second stand trees and a Gaussian process of the totals
(`totals`) and a recurrent network over the stages (`recurrence`), with equal shares. Runs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from presage.foresee.runtime.dag import Schedule, StageWork, simulate
from presage.foresee.runtime.query_known import (
    LEAST_MEASURED,
    joined,
    known_schedules,
    stretched,
    without,
)
from presage.foresee.runtime.recurrence import StageRecurrence
from presage.foresee.runtime.stagelaws import most_probable_powers
from presage.foresee.runtime.stages import (
    MeasuredWave,
    Query,
    measured_total,
    place_row,
    read_queries,
    rows_of,
    structure,
)
from presage.foresee.runtime.totals import TotalProcess
from presage.learn import Floats, sklearn_ensemble
from presage.learn.bundle import load_bundle, prefixed, save_bundle, under
from presage.learn.conformal import Conformal
from presage.learn.trees import TreeEnsemble
from presage.model.errors import BundleError, UserError

__all__ = ["KIND", "QueryModel", "QueryTimes", "StageTimes", "load_query_model"]

KIND = "query"
_STAGES_TO_TUNE = 16
_LEAST_PLACES = 2
"""Scales, or numbers of executors, that must be left when one is left out to judge by it."""
_ROUND_S = 0.001
_FOLDS = 6
_LEAST_COLUMNS = 5
_NEW_BY = ("stages", "totals", "process", "recurrent")

Report = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class StageTimes:
    """When one stage is foreseen to start and end."""

    stage: int
    tasks: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class QueryTimes:
    """What is foreseen of one query."""

    query: str
    scale_gb: float
    executors: int
    stages: tuple[StageTimes, ...]
    total_s: tuple[float, float, float]
    """p10, p50, p90."""
    why: str
    """What the answer rests on."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        low, middle, high = self.total_s
        return {
            "query": self.query,
            "scale_gb": self.scale_gb,
            "executors": self.executors,
            "n_stages": len(self.stages),
            "stages": [asdict(stage) for stage in self.stages],
            "total_s": {"p10": low, "p50": middle, "p90": high},
            "why": self.why,
        }


@dataclass(frozen=True, slots=True, eq=False)
class QueryModel:
    """What was measured of known queries, and what it takes to carry it over."""

    queries: dict[str, Query]
    powers: Floats
    stage_trees: TreeEnsemble
    total_trees: TreeEnsemble
    total_process: TotalProcess
    recurrence: StageRecurrence | None
    shares: Floats
    """Of the stages' trees, the trees and the process of totals, and the recurrent network, for a
    query nobody has measured."""
    known: Conformal
    new: Conformal
    errors: dict[str, float]

    @classmethod
    def fit(
        cls,
        stages: pl.DataFrame,
        edges: pl.DataFrame,
        *,
        seed: int = 0,
        report: Report = lambda *_: None,
    ) -> QueryModel:
        """Learn from measured stages of several queries at several scales."""
        queries = read_queries(stages, edges)
        if any(one.scale_gb <= 0 for query in queries.values() for one in _waves_of(query)):
            raise UserError("column scale_gb has 0, which is no size; where none is known, say 1")
        places = [(name, *place) for name, query in queries.items() for place in query.places()]
        if len(queries) < 4 or len(places) < 8:
            raise UserError(
                f"{len(queries)} queries measured at {len(places)} places (scale, executors) are"
                " too few to learn from; give 4 queries and 8 places or more, with the columns"
                " scale_gb, query, stage, wave, executors, tasks, mean_ms"
            )
        report(0, 4)
        powers = most_probable_powers(_some_stages(queries, seed))
        draft = cls(queries, powers, *_no_models(), None, np.zeros(len(_NEW_BY)), *_unknown(), {})
        report(1, 4)
        known, known_errors = draft._judge_known()
        report(2, 4)
        shares, new, new_errors = _judge_new(queries, seed)
        report(3, 4)
        trees = _fit_models(queries, list(queries), seed)
        used = StageRecurrence.fit(queries, list(queries), seed) if shares[3] else None
        report(4, 4)
        errors = {**known_errors, **new_errors}
        return cls(queries, powers, *trees, used, shares, known, new, errors)

    def answer(
        self,
        stages: pl.DataFrame,
        edges: pl.DataFrame,
        executors: int,
        scale_gb: float | None = None,
    ) -> list[QueryTimes]:
        """Foresee every query of a table."""
        asked = read_queries(stages, edges)
        return [self._one(query, executors, _scale(query, scale_gb)) for query in asked.values()]

    def total(self, query: Query, scale_gb: float, executors: int) -> tuple[Schedule, bool]:
        """The schedule that is foreseen, and whether its stages were measured before."""
        known = joined(query, self.queries.get(query.name))
        measured = all(
            len(known.measured.get(stage, ())) >= LEAST_MEASURED for stage in known.order
        )
        if measured:
            return known_schedules(known, [(scale_gb, executors)], self.powers)[0], True
        works = _guessed(self.stage_trees, known, scale_gb, executors)
        schedule = simulate(works, known.edges, executors)
        return stretched(schedule, self._blended(known, scale_gb, executors, schedule)), False

    def _blended(self, query: Query, scale_gb: float, executors: int, made: Schedule) -> float:
        row = _total_row(query, scale_gb, executors)
        said = [np.log(made.total_s + _ROUND_S), self.total_trees.predict(row[None, :])[0]]
        said += [self.total_process.predict(row[None, :])[0], 0.0]
        if self.recurrence is not None:
            works = self.recurrence.works(query, scale_gb, executors)
            said[3] = np.log(simulate(works, query.edges, executors).total_s + _ROUND_S)
        return float(np.exp(self.shares @ np.array(said)))

    def _one(self, query: Query, executors: int, scale_gb: float) -> QueryTimes:
        schedule, measured = self.total(query, scale_gb, executors)
        known = joined(query, self.queries.get(query.name))
        interval = self.known if measured else self.new
        low, middle, high = interval.interval(np.array([schedule.total_s]))[0]
        why = (
            "its stages were measured at other sizes or on other executors"
            if measured
            else "its stages were never measured: foreseen from their place in the DAG"
        )
        why += "".join(self._beyond(scale_gb, executors))
        times = tuple(
            StageTimes(
                stage,
                known.tasks_at(stage, scale_gb),
                schedule.start_s[stage],
                schedule.end_s[stage],
            )
            for stage in known.order
        )
        total = (float(low), float(middle), float(high))
        return QueryTimes(query.name, scale_gb, executors, times, total, why)

    def _beyond(self, scale_gb: float, executors: int) -> Iterator[str]:
        """What lies outside all that was measured."""
        waves = [one for query in self.queries.values() for one in _waves_of(query)]
        for value, known, unit in (
            (scale_gb, [one.scale_gb for one in waves], "GB"),
            (executors, [one.executors for one in waves], "executors"),
        ):
            if not min(known) <= value <= max(known):
                yield f"; measured were {min(known):g} to {max(known):g} {unit}"

    def _judge_known(self) -> tuple[Conformal, dict[str, float]]:
        """Each scale, then each number of executors, left out."""
        truth, said, scales = [], [], []
        for by in (0, 1):
            for query in self.queries.values():
                places = query.places()
                values = sorted({place[by] for place in places})
                for value in values if len(values) > _LEAST_PLACES else ():
                    rest = without(query, by, value)
                    if any(len(rest.measured.get(s, ())) < LEAST_MEASURED for s in query.order):
                        continue
                    out = [place for place in places if place[by] == value]
                    foreseen = known_schedules(rest, out, self.powers)
                    for place, schedule in zip(out, foreseen, strict=True):
                        said.append(schedule.total_s)
                        made = measured_total(query, *place)
                        truth.append(made.total_s if made else np.nan)
                        scales.append(by)
        if not said:
            return Conformal(-0.2, 0.0, 0.2, "log"), {}
        actual, guess, which = np.array(truth), np.array(said), np.array(scales)
        off = np.abs(guess / actual - 1)
        errors = {
            name: float(off[which == by].mean())
            for by, name in ((0, "scale_left_out_mape"), (1, "executors_left_out_mape"))
            if np.any(which == by)
        }
        return Conformal.fit(actual, guess), errors

    def save(self, path: Path, date: str, data: str) -> dict[str, Any]:
        """Write a bundle; gives its card."""
        rows = [
            (number, stage, one.scale_gb, one.executors, one.first, one.tasks, one.mean_s)
            for number, query in enumerate(self.queries.values())
            for stage, measured in query.measured.items()
            for one in measured
        ]
        edges = [
            (number, *edge)
            for number, query in enumerate(self.queries.values())
            for edge in query.edges
        ]
        arrays = {
            "measured": np.array(rows, np.float64),
            "edges": np.array(edges, np.int64).reshape(len(edges), 3),
            "powers": self.powers,
            "shares": self.shares,
            **prefixed("recurrence", self.recurrence.to_arrays() if self.recurrence else {}),
            **prefixed("stage_trees", self.stage_trees.to_arrays()),
            **prefixed("total_trees", self.total_trees.to_arrays()),
            **prefixed("total_process", self.total_process.to_arrays()),
            **prefixed("known", self.known.to_arrays()),
            **prefixed("new", self.new.to_arrays()),
        }
        card = {
            "name": KIND,
            "version": 1,
            "date": date,
            "data": data,
            "licence": "as of the table it was fitted on",
            "features": ["scale_gb", "executors", "tasks", "edges"],
            "splits": "scales, numbers of executors and queries left out",
            "errors": self.errors,
            "queries": list(self.queries),
        }
        save_bundle(path, arrays, card)
        return card


def load_query_model(path: Path) -> QueryModel:
    """The model in a bundle."""
    arrays, card = load_bundle(path)
    if card["name"] != KIND:
        raise BundleError(
            f"{path} holds {card['name']}, no queries; fit one with"
            " `presage runtime fit STAGES --edges EDGES`"
        )
    try:
        return QueryModel(
            _restored(list(map(str, card["queries"])), arrays),
            arrays["powers"],
            TreeEnsemble.from_arrays(under("stage_trees", arrays)),
            TreeEnsemble.from_arrays(under("total_trees", arrays)),
            TotalProcess.from_arrays(under("total_process", arrays)),
            StageRecurrence.from_arrays(under("recurrence", arrays)),
            _all_shares(arrays["shares"]),
            Conformal.from_arrays(under("known", arrays)),
            Conformal.from_arrays(under("new", arrays)),
            dict(card["errors"]),
        )
    except (KeyError, TypeError, ValueError, IndexError) as wrong:
        raise BundleError(f"{path} is damaged: {wrong}") from None


def _guessed(
    trees: TreeEnsemble, query: Query, scale_gb: float, executors: int
) -> dict[int, StageWork]:
    """The work of stages nobody has measured."""
    rows, counts = [], []
    for stage in query.order:
        tasks = query.tasks_at(stage, scale_gb)
        counts.append(tasks)
        shape = structure(query, stage, scale_gb)
        rows += [[*place_row(scale_gb, executors, tasks, f), *shape] for f in (True, False)]
    times = np.exp(trees.predict(np.array(rows))).reshape(-1, 2)
    works = {}
    for stage, tasks, (first_s, rest_s) in zip(query.order, counts, times, strict=True):
        first = min(executors, tasks)
        works[stage] = StageWork(first, tasks - first, float(first_s), float(rest_s))
    return works


def _total_row(query: Query, scale_gb: float, executors: int) -> Floats:
    """What the whole query is, for trees that know no stages."""
    tasks = np.array([query.tasks_at(stage, scale_gb) for stage in query.order])
    shapes = np.array([structure(query, stage, scale_gb) for stage in query.order])
    leaves = np.sort(tasks[shapes[:, 5] == 0] / scale_gb)[::-1]
    largest = np.pad(leaves[:4], (0, max(0, 4 - len(leaves))))
    inner = tasks[shapes[:, 5] > 0]
    waves = np.ceil(tasks / executors)
    return np.array(
        [
            np.log(scale_gb),
            np.log(executors),
            np.log(tasks.sum()),
            np.log(waves.sum()),
            float(len(tasks)),
            float(len(leaves)),
            shapes[:, 3].max(),
            leaves.sum(),
            *largest,
            float(inner.sum()),
            shapes[:, 5].max(),
        ]
    )


def _fit_models(
    queries: Mapping[str, Query], names: Sequence[str], seed: int
) -> tuple[TreeEnsemble, TreeEnsemble, TotalProcess]:
    ensemble = sklearn_ensemble("fitting queries")
    rows, logs = [], []
    for name in names:
        query = queries[name]
        for stage in query.order:
            shapes: dict[float, list[float]] = {}
            for one in query.measured.get(stage, ()):
                scale = one.scale_gb
                shapes.setdefault(scale, structure(query, stage, scale))
                tasks = query.tasks_at(stage, scale)
                rows.append([*place_row(scale, one.executors, tasks, one.first), *shapes[scale]])
                logs.append(np.log(max(one.mean_s, _ROUND_S)))
    forest = ensemble.ExtraTreesRegressor(
        60, min_samples_leaf=3, max_features=0.5, random_state=seed
    )
    stage_trees = TreeEnsemble.from_sklearn(forest.fit(np.array(rows), np.array(logs)))
    totals, made = [], []
    for name in names:
        query = queries[name]
        for scale, executors in query.places():
            schedule = measured_total(query, scale, executors)
            if schedule is not None:
                made.append(_total_row(query, scale, executors))
                totals.append(np.log(schedule.total_s + _ROUND_S))
    forest = ensemble.ExtraTreesRegressor(
        100, min_samples_leaf=2, max_features=0.6, random_state=seed
    )
    total_trees = TreeEnsemble.from_sklearn(forest.fit(np.array(made), np.array(totals)))
    return stage_trees, total_trees, TotalProcess.fit(np.array(made), np.array(totals))


def _judge_new(
    queries: Mapping[str, Query], seed: int
) -> tuple[Floats, Conformal, dict[str, float]]:
    """Queries left out in turn: how far answers are off. Each model that could be fitted has the
    same share: shares that were best on other queries did worse."""
    names = list(queries)
    order = np.random.default_rng(seed).permutation(len(names))
    said: list[list[float]] = []
    truth, belong = [], []
    for fold in range(min(_FOLDS, len(names))):
        out = [names[n] for n in order[fold::_FOLDS]]
        learn = [name for name in names if name not in out]
        stage_trees, total_trees, process = _fit_models(queries, learn, seed)
        recurrence = StageRecurrence.fit(queries, learn, seed)
        for name in out:
            query = queries[name]
            for scale, executors in query.places():
                works = [_guessed(stage_trees, query, scale, executors)]
                if recurrence is not None:
                    works.append(recurrence.works(query, scale, executors))
                made = [simulate(one, query.edges, executors).total_s for one in works]
                row = _total_row(query, scale, executors)
                totals = np.log(np.array(made) + _ROUND_S).tolist()
                totals[1:1] = [
                    float(one.predict(row[None, :])[0]) for one in (total_trees, process)
                ]
                said.append(totals)
                actual = measured_total(query, scale, executors)
                truth.append(actual.total_s if actual else np.nan)
                belong.append(name)
    logs, actuals = np.array(said), np.array(truth)
    blended = np.exp(logs.mean(axis=1))
    errors = {"query_left_out_mape": float(np.mean(np.abs(blended / actuals - 1)))}
    for model, name in enumerate(_NEW_BY[: logs.shape[1]]):
        alone = np.abs(np.exp(logs[:, model]) / actuals - 1)
        errors[f"query_left_out_mape_{name}"] = float(alone.mean())
    shares = np.zeros(len(_NEW_BY))
    shares[: logs.shape[1]] = 1 / logs.shape[1]
    return shares, Conformal.fit(actuals, blended, belong), errors


def _all_shares(shares: Floats) -> Floats:
    if shares.shape != (len(_NEW_BY),):
        raise ValueError(f"shares of {len(_NEW_BY)} models are missing")
    return shares


def _some_stages(queries: Mapping[str, Query], seed: int) -> list[tuple[Floats, Floats]]:
    stages = []
    for query in queries.values():
        for stage, measured in query.measured.items():
            if len(measured) >= 8:
                sizes = {one.scale_gb: query.tasks_at(stage, one.scale_gb) for one in measured}
                logs = np.log(np.array([max(one.mean_s, _ROUND_S) for one in measured]))
                stages.append((rows_of(measured, sizes), logs))
    order = np.random.default_rng(seed).permutation(len(stages))[:_STAGES_TO_TUNE]
    return [stages[n] for n in order]


def _waves_of(query: Query) -> list[MeasuredWave]:
    return [one for measured in query.measured.values() for one in measured]


def _scale(query: Query, asked: float | None) -> float:
    if asked is not None:
        if not 0 < asked < np.inf:
            raise UserError(f"--scale-gb is a size above 0, not {asked:g}")
        return asked
    said = {scale for by_scale in query.tasks.values() for scale in by_scale if scale > 0}
    if len(said) != 1:
        there = f"is there at {len(said)} scales" if said else "tells no scale"
        raise UserError(f"query {query.name} {there}; give --scale-gb")
    return said.pop()


def _restored(names: Sequence[str], arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Query]:
    edges: dict[int, list[tuple[int, int]]] = {}
    for number, before, then in arrays["edges"]:
        edges.setdefault(int(number), []).append((int(before), int(then)))
    queries = {n: Query(name, edges.get(n, []), []) for n, name in enumerate(names)}
    counted: dict[tuple[int, int, float], dict[int, int]] = {}
    for number, stage, scale, executors, first, tasks, mean_s in arrays["measured"]:
        one = MeasuredWave(float(scale), int(executors), bool(first), int(tasks), float(mean_s))
        queries[int(number)].measured.setdefault(int(stage), []).append(one)
        here = counted.setdefault((int(number), int(stage), one.scale_gb), {})
        here[one.executors] = here.get(one.executors, 0) + one.tasks
    for (number, stage, scale), said in counted.items():
        queries[number].tasks.setdefault(stage, {})[scale] = max(said.values())
    for query in queries.values():
        query.order = sorted(query.measured)
    return {query.name: query for query in queries.values()}


def _no_models() -> tuple[TreeEnsemble, TreeEnsemble, TotalProcess]:
    arrays: dict[str, npt.NDArray[Any]] = {
        "feature": np.zeros(1, np.int32),
        "threshold": np.array([np.inf]),
        "left": np.zeros(1, np.int32),
        "missing_left": np.ones(1, np.bool_),
        "value": np.zeros((1, 1)),
        "roots": np.zeros(1, np.int32),
        "base": np.zeros(1),
        "settings": np.array([1.0, 1, 0]),
        "link": np.array("identity"),
    }
    tree = TreeEnsemble.from_arrays(arrays)
    none = np.zeros((1, _LEAST_COLUMNS))
    return tree, tree, TotalProcess.fit(none, np.zeros(1))


def _unknown() -> tuple[Conformal, Conformal]:
    wide = Conformal(-1.0, 0.0, 1.0, "log")
    return wide, wide
