"""Run times in a group nobody has seen: what the models expect, and what a few runs change.

`NewGroup` is fitted for one column (a cluster, a benchmark). Its models do not know that column;
beside them, boosted trees that do are asked what each known group would make of a row. Which of
them counts how much is measured on groups left out, and so are the intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from presage.foresee.runtime.columns import Columns, numbers, texts
from presage.foresee.runtime.members import BlendedModels, Effort, blend, boost, weigh
from presage.foresee.runtime.unseen import Alikeness, Episode, FewShot
from presage.learn import Floats
from presage.learn.bundle import prefixed, under
from presage.learn.evaluate import grouped_folds
from presage.learn.trees import TreeEnsemble

__all__ = ["LEAST_GROUPS", "NewGroup"]

LEAST_GROUPS = 4
"""Groups without which nothing can be said of a new one."""
_FOLDS = 6
_ROWS_TO_LEARN = 300
"""Rows of a group that a fit with groups left out is made on."""
_ROWS_TO_JUDGE = 120
"""Rows of a group left out that are foreseen."""

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, eq=False)
class _GroupModels:
    """Models of one fit, with what it takes to ask them."""

    group: str
    columns: Columns
    attributes: tuple[str, ...]
    known: tuple[str, ...]
    tasks: TreeEnsemble
    members: BlendedModels

    @classmethod
    def fit(
        cls,
        group: str,
        columns: Columns,
        table: pl.DataFrame,
        logs: Floats,
        effort: Effort,
        seed: int,
    ) -> _GroupModels:
        labels = texts(table, group)
        known, member = np.unique(labels, return_inverse=True)
        attributes = tuple(
            name
            for name in columns.names
            if name != group and _told_by(member, texts(table, name))
        )
        weights = _balance(labels).astype(np.float64)
        rows = columns.encode(table, (group, *attributes))
        belongs = (member[:, None] == np.arange(len(known))[None, :]).astype(np.float64)
        tasks = boost(np.hstack([rows, belongs]), logs, effort, weights, seed)
        members = BlendedModels.fit(
            columns.encode(table, (group,)),
            logs,
            columns.width((group,)),
            weights=weights,
            effort=effort,
            seed=seed,
        )
        return cls(group, columns, attributes, tuple(map(str, known)), tasks, members)

    def ask(self, table: pl.DataFrame) -> tuple[Floats, Floats]:
        """The logarithm of the time in each known group (less their mean), and a column for the
        mean and for each member."""
        rows = self.columns.encode(table, (self.group, *self.attributes))
        unique, back = np.unique(rows, axis=0, return_inverse=True)
        count = len(self.known)
        said = np.empty((len(unique), count))
        for place in range(count):
            belongs = np.zeros((len(unique), count))
            belongs[:, place] = 1.0
            said[:, place] = self.tasks.predict(np.hstack([unique, belongs]))
        middle = said.mean(axis=1)
        back = back.reshape(-1)
        members = self.members.predict(self.columns.encode(table, (self.group,)))
        return (said - middle[:, None])[back], np.column_stack([middle[back], members])


@dataclass(frozen=True, slots=True, eq=False)
class NewGroup:
    """How long runs take in a group that was not there in the fit."""

    asker: _GroupModels
    shares: Floats
    """Of the mean over known groups and of each member."""
    few: FewShot
    centre: Floats
    spread: Floats

    @classmethod
    def fit(
        cls,
        group: str,
        columns: Columns,
        table: pl.DataFrame,
        logs: Floats,
        effort: Effort,
        seed: int = 0,
        report: Report = lambda _: None,
    ) -> NewGroup:
        """Learn what is common to the groups, and how they differ."""
        labels = texts(table, group)
        rng = np.random.default_rng(seed)
        folds = grouped_folds(labels, min(_FOLDS, len(set(labels.tolist()))), seed)
        numeric = _logged(columns, table)
        centre, spread = numeric.mean(axis=0), numeric.std(axis=0) + 1e-9
        parts = []
        for fold in range(int(folds.max()) + 1):
            report(f"{group}: fold {fold + 1} of {int(folds.max()) + 1}")
            learn = _some_of_each(labels, folds != fold, _ROWS_TO_LEARN, rng)
            judge = _some_of_each(labels, folds == fold, _ROWS_TO_JUDGE, rng)
            asker = _GroupModels.fit(
                group, columns, table[learn], logs[learn], effort.lighter(), seed
            )
            parts.append((judge, *asker.ask(table[judge])))
        said = np.concatenate([part[2] for part in parts])
        truth = np.concatenate([logs[part[0]] for part in parts])
        belong = np.concatenate([labels[part[0]] for part in parts])
        shares = weigh(said, truth, _balance(belong))
        episodes = []
        for judge, tasks, columns_said in parts:
            alike = _likeness(columns, group, table[judge], centre, spread, tasks)
            for name in sorted(set(labels[judge].tolist())):
                here = np.flatnonzero(labels[judge] == name)
                expected = blend(columns_said[here], shares)
                episodes.append(Episode(name, alike.at(here), expected, logs[judge][here]))
        few = FewShot.fit(episodes, seed)
        report(f"{group}: all rows")
        asker = _GroupModels.fit(group, columns, table, logs, effort, seed)
        return cls(asker, shares, few, centre, spread)

    def predict(
        self, table: pl.DataFrame, seen: pl.DataFrame | None, seen_logs: Floats | None
    ) -> Floats:
        """p10, p50 and p90 for the rows of one new group, after the runs of it in `seen`."""
        tasks, said = self.asker.ask(table)
        rows, expected = self._likeness(table, tasks), blend(said, self.shares)
        if seen is None or seen_logs is None or not seen.height:
            logs, deviation = self.few.adapt(rows, expected, rows.at(slice(0, 0)), np.empty(0))
            return self.few.interval(logs, deviation, 0)
        seen_tasks, seen_said = self.asker.ask(seen)
        surprise = seen_logs - blend(seen_said, self.shares)
        runs = self._likeness(seen, seen_tasks)
        logs, deviation = self.few.adapt(rows, expected, runs, surprise)
        return self.few.interval(logs, deviation, seen.height)

    def likest(self, seen: pl.DataFrame, seen_logs: Floats) -> dict[str, float]:
        """What a new group is like: the share of each known one."""
        tasks, said = self.asker.ask(seen)
        shares = self.few.likest(self._likeness(seen, tasks), seen_logs, said[:, 0])
        return dict(zip(self.asker.known, map(float, shares), strict=True))

    def _likeness(self, table: pl.DataFrame, tasks: Floats) -> Alikeness:
        asker = self.asker
        return _likeness(asker.columns, asker.group, table, self.centre, self.spread, tasks)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What `from_arrays` takes."""
        return {
            "known": np.array(self.asker.known),
            "attributes": np.array(self.asker.attributes, dtype=np.str_),
            "shares": self.shares,
            "centre": self.centre,
            "spread": self.spread,
            **prefixed("tasks", self.asker.tasks.to_arrays()),
            **prefixed("members", self.asker.members.to_arrays()),
            **prefixed("few", self.few.to_arrays()),
        }

    @classmethod
    def from_arrays(
        cls, group: str, columns: Columns, arrays: Mapping[str, npt.NDArray[Any]]
    ) -> NewGroup:
        """The models in these arrays."""
        asker = _GroupModels(
            group,
            columns,
            tuple(map(str, arrays["attributes"])),
            tuple(map(str, arrays["known"])),
            TreeEnsemble.from_arrays(under("tasks", arrays)),
            BlendedModels.from_arrays(under("members", arrays)),
        )
        few = FewShot.from_arrays(under("few", arrays))
        return cls(asker, arrays["shares"], few, arrays["centre"], arrays["spread"])


def _told_by(member: npt.NDArray[np.intp], values: npt.NDArray[np.str_]) -> bool:
    """Whether each group has one value."""
    coded = np.unique(values, return_inverse=True)[1].reshape(-1)
    return len(np.unique(np.stack([member, coded]), axis=1).T) == int(member.max()) + 1


def _some_of_each(
    labels: npt.NDArray[np.str_],
    wanted: npt.NDArray[np.bool_],
    most: int,
    rng: np.random.Generator,
) -> npt.NDArray[np.intp]:
    chosen = []
    for name in sorted(set(labels[wanted].tolist())):
        rows = np.flatnonzero(wanted & (labels == name))
        chosen.append(rng.permutation(rows)[:most])
    return np.sort(np.concatenate(chosen))


def _balance(labels: Sequence[str] | npt.NDArray[np.str_]) -> Floats:
    member = np.unique(np.asarray(labels), return_inverse=True)[1].reshape(-1)
    out: Floats = np.bincount(member)[member].astype(np.float64) ** -0.5
    return out


def _logged(columns: Columns, table: pl.DataFrame) -> Floats:
    filled = [
        np.nan_to_num(numbers(table, name), nan=middle) for name, middle in columns.numeric.items()
    ]
    values = np.stack(filled, axis=1) if filled else np.zeros((table.height, 0))
    out: Floats = np.sign(values) * np.log1p(np.abs(values))
    return out


def _likeness(
    columns: Columns,
    group: str,
    table: pl.DataFrame,
    centre: Floats,
    spread: Floats,
    tasks: Floats,
) -> Alikeness:
    codes = []
    for name, known in columns.categories.items():
        if name != group:
            place = {value: number for number, value in enumerate(known)}
            codes.append([place.get(value, -1) for value in texts(table, name).tolist()])
    coded = np.array(codes, np.int64).reshape(len(codes), table.height).T
    return Alikeness(coded, (_logged(columns, table) - centre) / spread, tasks)
