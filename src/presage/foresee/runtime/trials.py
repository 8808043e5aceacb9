"""Tables of measured runs as trials: which workload, which configuration, what it took.

Recognises the columns of common tables (scout, ALOJA, C3O, bell); each can be named instead. A
measurement is the mean of its repeats; a configuration that never completed is not there. Chooses
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from presage.foresee.runtime.columns import choose_columns, numbers, texts
from presage.foresee.runtime.surrogate import Described
from presage.learn import Floats
from presage.model.errors import UserError

__all__ = ["Objective", "Trials", "read_trials", "trials_ahead"]

Objective = Literal["time", "cost"]

_TIMES = (
    "elapsed_time",
    "Exe.Time",
    "gross_runtime",
    "Runtime",
    "runtime",
    "time_s",
    "duration_s",
)
_COSTS = ("cost", "cost_usd", "price_usd")
_WORKLOADS = (
    ("set", "workload", "framework", "datasize"),
    ("Benchmark", "Bench.Type", "Cluster"),
    ("job",),
    ("workload",),
    ("benchmark",),
)
_MACHINES = (("machine_type", "instance_count"), ("vm", "nodes"))
"""Columns that are the whole configuration where a table has them."""
_FOLLOW = ("slots", "memory")
"""Follow from the machines."""
_TIMEOUT_S = 7200.0
"""Of scout: a run that was stopped then."""

_HOUR_USD = {
    "c3.large": 0.105,
    "c4.large": 0.1,
    "m3.large": 0.133,
    "m4.large": 0.1,
    "r3.large": 0.166,
    "r4.large": 0.133,
}
"""On demand, Linux, us-east-1, at the time of the measurements; twice as much a size larger."""
_MEMORY_GB = {"c3": 3.75, "c4": 3.75, "m3": 7.5, "m4": 8.0, "r3": 15.25, "r4": 15.25}
_MEMORIES = ("memory", "memory_gb", "mem_gb", "memory_mib", "VM.RAM")
"""Columns with the memory of one machine."""
_COUNTS = ("nodes", "instance_count", "Datanodes")
_SIZES = {"large": 1, "xlarge": 2, "2xlarge": 4, "4xlarge": 8, "8xlarge": 16}
_VM = re.compile(r"^([a-z]\d)\.(\d*x?large)$")


@dataclass(frozen=True, slots=True, eq=False)
class Trials:
    """What was measured: a row for each workload and configuration."""

    workload: npt.NDArray[np.str_]
    config: npt.NDArray[np.intp]
    """Row of `configs`."""
    value: Floats
    """Seconds, or money."""
    configs: pl.DataFrame
    described: Described
    """Each configuration in numbers."""
    names: tuple[str, ...]
    """Columns that say which workload a row is."""
    programs: dict[str, str] = field(default_factory=dict)
    """Workload -> the program that it runs, whatever the size of its data."""
    words: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Workload -> what else is known of it before it runs: framework, size, cluster."""
    unused: int = 0
    """Rows of the table without a time above 0, or whose run did not complete."""

    @property
    def features(self) -> Floats:
        """Of each configuration, standardised."""
        return self.described.features

    def of(self, workload: str) -> dict[int, float]:
        """Configuration -> what it took."""
        here = self.workload == workload
        return dict(zip(self.config[here].tolist(), self.value[here].tolist(), strict=True))

    def only(self, wanted: Collection[str]) -> Trials:
        """Some of the workloads."""
        yes = {name: name in wanted for name in set(self.workload.tolist())}
        keep = np.array([yes[name] for name in self.workload.tolist()], np.bool_)
        return replace(
            self,
            workload=self.workload[keep],
            config=self.config[keep],
            value=self.value[keep],
            programs={name: one for name, one in self.programs.items() if yes.get(name)},
        )


def read_trials(
    tables: Sequence[pl.DataFrame],
    objective: Objective,
    *,
    target: str | None = None,
    cost: str | None = None,
    workload: str | None = None,
) -> list[Trials]:
    """The trials of each table, with configurations numbered alike in all of them."""
    first = tables[0]
    time = target or _found(first, _TIMES, "--target", "the time")
    words = _workload_columns(first, workload, time)
    kept = [_completed(table, time) for table in tables]
    chosen = _config_columns(kept[0], time, words, cost)
    for table in kept[1:]:
        if lacking := [n for n in (time, *words, *chosen) if n not in table.columns]:
            raise UserError(f"the known table lacks the column {lacking[0]}")
    kept = _one_type(kept, chosen)
    measured = [_measured(table, time, words, chosen, objective, cost) for table in kept]
    configs = (
        pl.concat([one.select(chosen) for one in measured], how="vertical_relaxed")
        .unique(maintain_order=True)
        .with_row_index("_config")
    )
    described = _described(configs.drop("_config"))
    out = []
    for one, table, used in zip(measured, tables, kept, strict=True):
        at = one.join(configs, on=chosen, how="left", nulls_equal=True)
        labels = at["_workload"].to_numpy().astype(str)
        programs = dict(zip(labels.tolist(), at["_program"].to_list(), strict=True))
        rows = at["_config"].to_numpy().astype(np.intp)
        said = at.select(list(_others(words))).rows() if _others(words) else [()] * at.height
        out.append(
            Trials(
                labels,
                rows,
                at["_value"].to_numpy(),
                configs.drop("_config"),
                described,
                tuple(words),
                programs,
                dict(zip(labels.tolist(), (tuple(map(str, one)) for one in said), strict=True)),
                table.height - used.height,
            )
        )
    return out


def trials_ahead(
    points: pl.DataFrame, known: pl.DataFrame | None, time: str
) -> tuple[Trials, Trials | None]:
    """Configurations that nobody has tried, a row each, and what is known of such ones: a table
    with the same columns, `time`, and the workload if there are several."""
    names = points.columns
    if known is None:
        return _unmeasured(points, points), None
    if lacking := [name for name in (*names, time) if name not in known.columns]:
        raise UserError(
            f"the known table lacks the column {lacking[0]}; it has {', '.join(known.columns)}"
        )
    words = ["workload"] if "workload" in known.columns else []
    rows = _measured(_completed(known, time), time, words, names, "time", None)
    points = points.with_columns(pl.col(n).cast(pl.Float64) for n in _fractions(points, rows))
    rows = rows.with_columns(
        pl.col(name).cast(points[name].dtype, strict=False).alias(name) for name in names
    )
    configs = pl.concat([points, rows.select(names)]).unique(maintain_order=True)
    at = rows.join(configs.with_row_index("_config"), on=names, how="left", nulls_equal=True)
    ahead, labels = _unmeasured(points, configs), at["_workload"].to_numpy().astype(str)
    taught = replace(
        ahead,
        workload=labels,
        config=at["_config"].to_numpy().astype(np.intp),
        value=at["_value"].to_numpy(),
        programs=dict(zip(labels.tolist(), labels.tolist(), strict=True)),
        words={name: () for name in labels.tolist()},
    )
    return ahead, taught


def _fractions(points: pl.DataFrame, rows: pl.DataFrame) -> list[str]:
    """Columns of whole numbers that are not whole in what is known."""
    both = [n for n in points.columns if points[n].dtype.is_integer() and rows[n].dtype.is_float()]
    return [n for n in both if (rows[n] != rows[n].floor()).any()]


def _unmeasured(points: pl.DataFrame, configs: pl.DataFrame) -> Trials:
    """The first rows of `configs` are the points."""
    assert configs.head(points.height).equals(points)
    none = np.array([], np.str_)
    described = _described(configs)
    return Trials(none, np.array([], np.intp), np.empty(0), configs, described, ())


def _found(table: pl.DataFrame, names: Sequence[str], option: str, what: str) -> str:
    for name in names:
        if name in table.columns:
            return name
    raise UserError(
        f"no column is known as {what}: name it with {option}; there are"
        f" {', '.join(table.columns[:15])}"
    )


def _workload_columns(table: pl.DataFrame, asked: str | None, time: str) -> list[str]:
    if asked is not None:
        names = [name.strip() for name in asked.split(",") if name.strip()]
        for name in names:
            if name not in table.columns:
                raise UserError(f"--workload {name}: the table has no such column")
        return names
    for known in _WORKLOADS:
        if known[-1] in table.columns and any(name in table.columns for name in known[:2]):
            return [name for name in known if name in table.columns]
    machines = _machines(table)
    return [
        name
        for name in table.columns
        if machines and name not in (*machines, *_FOLLOW, time) and not name.startswith("_")
    ]


def _machines(table: pl.DataFrame) -> tuple[str, ...]:
    for names in _MACHINES:
        if set(names) <= set(table.columns):
            return names
    return ()


def _completed(table: pl.DataFrame, time: str) -> pl.DataFrame:
    if time not in table.columns:
        raise UserError(f"the table has no column {time}")
    if not table[time].dtype.is_numeric() and not np.isfinite(numbers(table, time)).any():
        raise UserError(f"column {time} has no times, but words such as {table[time][0]}")
    _refuse_negative(table, time)
    if "completed" in table.columns and table["completed"].dtype == pl.Boolean:
        table = table.filter(pl.col("completed") & (pl.col(time) < _TIMEOUT_S))
    took = numbers(table, time)
    kept = table.filter(pl.Series(np.isfinite(took) & (took > 0)))
    if not kept.height:
        raise UserError("no run of the table completed")
    return kept


def _one_type(tables: Sequence[pl.DataFrame], names: Sequence[str]) -> list[pl.DataFrame]:
    """Tables whose columns can be compared: 8 is 8.0, but no word."""
    types: dict[str, pl.DataType] = {}
    for name in names:
        said = {table[name].dtype for table in tables} - {pl.Null()}
        if len(said) < 2:
            continue
        if len({dtype.is_numeric() for dtype in said}) > 1:
            raise UserError(
                f"column {name} has numbers in one table and words in the other: make them alike"
            )
        values = np.concatenate([numbers(table, name) for table in tables])
        whole = bool(np.all(values == np.round(values)))
        numeric = next(iter(said)).is_numeric()
        types[name] = pl.String() if not numeric else pl.Int64() if whole else pl.Float64()
    casts = [pl.col(name).cast(dtype) for name, dtype in types.items()]
    return [table.with_columns(casts) for table in tables]


def _refuse_negative(table: pl.DataFrame, name: str) -> None:
    below = np.flatnonzero(numbers(table, name) < 0)
    if below.size:
        row = int(below[0])
        raise UserError(f"column {name} has {table[name][row]} in row {row + 1}; that is below 0")


def _config_columns(
    table: pl.DataFrame, time: str, words: Sequence[str], cost: str | None
) -> list[str]:
    machines = _machines(table)
    if machines:
        return list(machines)
    rest = table.drop([name for name in words if name in table.columns])
    if cost is not None and cost in rest.columns:
        rest = rest.drop(cost)
    names = [name for name in rest.columns if name != time]
    if not names:
        raise UserError("the table has no column that describes a configuration")
    if table.height < 2:
        return names
    chosen = choose_columns(rest, time, ()).names
    return [name for name in names if name in chosen]


def _measured(
    table: pl.DataFrame,
    time: str,
    words: Sequence[str],
    chosen: Sequence[str],
    objective: Objective,
    cost: str | None,
) -> pl.DataFrame:
    value = numbers(table, time)
    if objective == "cost":
        value = value / 3600 * _hourly(table) if cost is None else _costs(table, cost)
    label = [" ".join(parts) for parts in zip(*(texts(table, w) for w in words), strict=True)]
    main = _program(words)
    keyed = table.select(chosen).with_columns(
        pl.Series("_workload", label if words else ["all"] * table.height),
        pl.Series("_program", texts(table, main) if main else ["all"] * table.height),
        pl.Series("_value", value),
    )
    keyed = keyed.with_columns(pl.Series(name, texts(table, name)) for name in _others(words))
    by = ["_workload", "_program", *_others(words), *chosen]
    return keyed.group_by(by, maintain_order=True).agg(pl.col("_value").mean())


def _costs(table: pl.DataFrame, name: str) -> Floats:
    if name not in table.columns:
        raise UserError(f"--cost {name}: the table has no such column")
    values = numbers(table, name)
    bad = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
    if bad.size:
        said = table[name][int(bad[0])]
        raise UserError(f"column {name} must be money above 0 in every completed run, not {said}")
    return values


def _program(words: Sequence[str]) -> str:
    """The column that names the program."""
    known = [word for word in ("workload", "Benchmark", "job") if word in words]
    return (known or [*words, ""])[0]


def _others(words: Sequence[str]) -> list[str]:
    return [word for word in words if word != _program(words)]


def _hourly(table: pl.DataFrame) -> Floats:
    """What the machines of each row cost an hour."""
    named = [name for name in _COSTS if name in table.columns]
    machines = _machines(table)
    if named or not machines:
        raise UserError("name the column with the money of a run: --cost COLUMN")
    kind, count = sorted(machines, key=lambda name: table[name].dtype.is_numeric())
    prices = {name: _price(name) for name in table[kind].unique().to_list()}
    each = np.array([prices[name] for name in table[kind].to_list()])
    return each * numbers(table, count)


def _price(name: str) -> float:
    match = _VM.match(name)
    if match is None or f"{match[1]}.large" not in _HOUR_USD or match[2] not in _SIZES:
        raise UserError(f"no price is known for {name}: name a column with --cost")
    return _HOUR_USD[f"{match[1]}.large"] * _SIZES[match[2]]


def _described(configs: pl.DataFrame) -> Described:
    """Numbers of each configuration: machines by what they have, categories one by one."""
    parts: list[tuple[Floats, ...]] = []
    cores, memory = np.zeros(configs.height), None
    for name in configs.columns:
        if configs[name].dtype.is_numeric():
            values = np.nan_to_num(numbers(configs, name))
            parts.append((np.sign(values) * np.log1p(np.abs(values)),))
            if name in _MEMORIES and (values > 0).all():
                memory = np.log2(values)
            continue
        words = texts(configs, name)
        matches = [_VM.match(word) for word in words.tolist()]
        if all(matches):
            kinds = np.array([one[1] for one in matches if one])
            size = np.log2([_SIZES[one[2]] for one in matches if one])
            each = np.log2([_MEMORY_GB.get(kind, 8.0) for kind in kinds.tolist()])
            memory, cores = size + each, cores + size
            known = np.unique(kinds)
            parts += [(size,), (each,), tuple((kinds == kind).astype(float) for kind in known)]
        else:
            parts.append(tuple((words == word).astype(float) for word in np.unique(words)))
    counts = [name for name in _COUNTS if name in configs.columns]
    if memory is not None and len(parts) > 1:
        parts.append((memory,))
    if counts:
        count = np.log2(np.maximum(numbers(configs, counts[0]), 1))
        parts.append((cores + count,))
        if memory is not None:
            memory = memory + count
            parts.append((memory,))
    return _standardised(parts, memory)


def _standardised(parts: Sequence[tuple[Floats, ...]], memory: Floats | None) -> Described:
    """Without what is the same everywhere; the columns of one part have one number."""
    kept, blocks = [], []
    for part in parts:
        columns = np.stack(part, axis=1)
        spread = columns.std(axis=0)
        varied = (columns - columns.mean(axis=0))[:, spread > 0] / spread[spread > 0]
        if varied.shape[1]:
            kept.append(varied / np.sqrt(varied.shape[1]))
            blocks += [len(kept) - 1] * varied.shape[1]
    features = np.hstack(kept) if kept else np.zeros((len(parts[0][0]), 1))
    return Described(features, tuple(blocks) or (0,), memory)
