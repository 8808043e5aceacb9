"""From the configuration of a run to its time, with an interval: fitted on a table of runs.

A row whose groups are known is answered by all models together; a row of a group that was not in
the fit by `NewGroup`, the better the more runs of it are shown. Intervals come from rows, or from
groups, that the models had not seen. Reads no file but its own bundles and knows no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from presage.foresee.runtime.columns import Columns, choose_columns, targets, texts
from presage.foresee.runtime.groups import LEAST_GROUPS, NewGroup
from presage.foresee.runtime.members import MEMBERS, BlendedModels, Effort, blend, far_off, weigh
from presage.learn import Floats, one_thread
from presage.learn.bundle import load_bundle, prefixed, save_bundle, under
from presage.learn.conformal import Conformal
from presage.learn.evaluate import coverage, mape
from presage.model.errors import BundleError, UserError

__all__ = ["KIND", "JobTimes", "load_run_times"]

KIND = "runtime"
LEAST_ROWS = 20
_FOLDS = 4
_FOLDS_OF_MANY = 2
"""Where not all rows are judged, so that a fold learns from nearly all anyway."""
_ROWS_TO_JUDGE = 8_000

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, eq=False)
class JobTimes:
    """Models of one table of runs."""

    target: str
    columns: Columns
    members: BlendedModels
    shares: Floats
    interval: Conformal
    new: dict[str, NewGroup]
    """For each group column, what is said of values that were not in the fit."""
    groups: tuple[str, ...]
    errors: dict[str, float]
    odd_runs: int = 0
    """Runs that were not used, as they took far longer or shorter than like ones."""

    @classmethod
    def fit(
        cls,
        table: pl.DataFrame,
        target: str,
        groups: Sequence[str],
        *,
        effort: Effort | None = None,
        seed: int = 0,
        report: Report = lambda _: None,
    ) -> JobTimes:
        """Learn from a table of runs; `groups` are the columns that may have new values."""
        _check(table, target, groups)
        with one_thread("fitting run times"):
            return cls._fit(table, target, groups, effort, seed, report)

    @classmethod
    def _fit(
        cls,
        table: pl.DataFrame,
        target: str,
        groups: Sequence[str],
        effort: Effort | None,
        seed: int,
        report: Report,
    ) -> JobTimes:
        effort = effort or Effort.of(table.height)
        logs = np.log(targets(table, target))
        columns = choose_columns(table, target, groups)
        rows, own = columns.encode(table), _own_slopes(columns, groups[0])
        report("odd runs")
        kept = ~far_off(rows, logs, effort, seed)
        table, rows, logs = table.filter(pl.Series(kept)), rows[kept], logs[kept]
        rng = np.random.default_rng(seed)
        judged = rng.permutation(table.height)[:_ROWS_TO_JUDGE]
        folds = _FOLDS if table.height <= _ROWS_TO_JUDGE else _FOLDS_OF_MANY
        said = np.empty((len(judged), len(MEMBERS)))
        for number in range(folds):
            report(f"known groups: fold {number + 1} of {folds}")
            here = np.arange(len(judged)) % folds == number
            learn = np.setdiff1d(np.arange(table.height), judged[here])  # as many as in the end
            fitted = BlendedModels.fit(
                rows[learn], logs[learn], columns.width(), own=own, effort=effort, seed=seed
            )
            said[here] = fitted.predict(rows[judged[here]])
        shares = weigh(said, logs[judged])
        actual, guess = np.exp(logs[judged]), np.exp(blend(said, shares))
        interval = Conformal.fit(actual, guess)
        errors = {
            "known_mape": mape(actual, guess),
            "known_interval_holds": coverage(actual, interval.interval(guess)),
        }
        report("known groups: all rows")
        members = BlendedModels.fit(rows, logs, columns.width(), own=own, effort=effort, seed=seed)
        new = {
            group: NewGroup.fit(group, columns, table, logs, effort, seed, report)
            for group in groups
            if table[group].n_unique() >= LEAST_GROUPS
        }
        odd = int(np.sum(~kept))
        return cls(target, columns, members, shares, interval, new, tuple(groups), errors, odd)

    def predict(self, table: pl.DataFrame, seen: pl.DataFrame | None = None) -> Floats:
        """p10, p50 and p90 of each row; `seen` has runs, with their times, of new groups."""
        self.columns.check(table)
        seen_logs = None
        if seen is not None:
            self.columns.check(seen)
            seen_logs = np.log(targets(seen, self.target))
        out = np.empty((table.height, 3))
        strange = {name: self._is_new(table, name) for name in self.groups}
        plain = ~np.any(list(strange.values()), axis=0)
        if plain.any():
            said = self.members.predict(self.columns.encode(table.filter(pl.Series(plain))))
            out[plain] = self.interval.interval(np.exp(blend(said, self.shares)))
        left = ~plain
        for name in self.groups:
            labels = texts(table, name)
            for value in sorted(set(labels[left & strange[name]].tolist())):
                here = left & strange[name] & (labels == value)
                out[here] = self._of_new(
                    name, value, table.filter(pl.Series(here)), seen, seen_logs
                )
                left &= ~here
        return out

    def strangers(self, table: pl.DataFrame) -> dict[str, list[str]]:
        """Groups of a table that were not in the fit, by column."""
        return {
            name: sorted(set(texts(table, name)[self._is_new(table, name)].tolist()))
            for name in self.groups
        }

    def likest(self, name: str, value: str, seen: pl.DataFrame) -> dict[str, float]:
        """What a new group is like, from its runs: the share of each known one."""
        runs = seen.filter(pl.Series(texts(seen, name) == value))
        if name not in self.new or not runs.height:
            return {}
        return self.new[name].likest(runs, np.log(targets(runs, self.target)))

    def _is_new(self, table: pl.DataFrame, name: str) -> npt.NDArray[np.bool_]:
        return ~np.isin(texts(table, name), np.array(self.columns.categories[name]))

    def _of_new(
        self,
        name: str,
        value: str,
        table: pl.DataFrame,
        seen: pl.DataFrame | None,
        seen_logs: Floats | None,
    ) -> Floats:
        if name not in self.new:
            raise UserError(
                f"{name} {value} was not in the fit, which had too few of them"
                f" ({len(self.columns.categories[name])}) to tell; fit on {LEAST_GROUPS} or more"
            )
        if seen is None or seen_logs is None:
            return self.new[name].predict(table, None, None)
        mine = texts(seen, name) == value
        return self.new[name].predict(table, seen.filter(pl.Series(mine)), seen_logs[mine])

    def save(self, path: Path, date: str, data: str) -> dict[str, Any]:
        """Write a bundle; gives its card."""
        arrays: dict[str, npt.NDArray[Any]] = {
            "shares": self.shares,
            **prefixed("members", self.members.to_arrays()),
            **prefixed("interval", self.interval.to_arrays()),
        }
        for number, group in enumerate(self.new.values()):
            arrays |= prefixed(f"new{number}", group.to_arrays())
        card = {
            "name": KIND,
            "version": 1,
            "date": date,
            "data": data,
            "licence": "as of the table it was fitted on",
            "features": self.columns.names,
            "splits": f"random folds; groups left out by {', '.join(self.new) or 'none'}",
            "errors": self.errors,
            "odd_runs": self.odd_runs,
            "target": self.target,
            "groups": list(self.groups),
            "new": list(self.new),
            "columns": self.columns.to_json(),
        }
        save_bundle(path, arrays, card)
        return card


def load_run_times(path: Path) -> JobTimes:
    """The models in a bundle."""
    arrays, card = load_bundle(path)
    if card["name"] != KIND:
        raise BundleError(f"{path} holds {card['name']}, not run times of a table; fit one first")
    try:
        columns = Columns.from_json(card["columns"])
        new = {
            str(group): NewGroup.from_arrays(group, columns, under(f"new{number}", arrays))
            for number, group in enumerate(card["new"])
        }
        return JobTimes(
            str(card["target"]),
            columns,
            BlendedModels.from_arrays(under("members", arrays)),
            arrays["shares"],
            Conformal.from_arrays(under("interval", arrays)),
            new,
            tuple(map(str, card["groups"])),
            dict(card["errors"]),
            int(card.get("odd_runs", 0)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as wrong:
        raise BundleError(f"{path} is damaged: {wrong}") from None


def _check(table: pl.DataFrame, target: str, groups: Sequence[str]) -> None:
    for name in (target, *groups):
        if name not in table.columns:
            raise UserError(
                f"the table has no column {name}; it has {', '.join(table.columns[:12])}"
            )
    if len({target, *groups}) <= len(groups):
        raise UserError("the target and the groups are different columns")
    if table.height < LEAST_ROWS:
        raise UserError(
            f"{table.height} run{'s are' if table.height != 1 else ' is'} too few to learn from;"
            f" give {LEAST_ROWS} or more"
        )


def _own_slopes(columns: Columns, group: str) -> tuple[int, int]:
    """Which columns of the encoded rows are the categories of a group."""
    first = columns.width()
    for name, seen in columns.categories.items():
        if name == group:
            return first, first + len(seen)
        first += len(seen)
    return 0, 0


def card_of(path: Path) -> Mapping[str, Any]:
    """What a bundle says of itself."""
    return load_bundle(path)[1]
