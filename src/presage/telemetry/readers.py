"""Telemetry from files: CSV or Parquet, wide (a column for each feature) or long (a row for each
value), of one pod or many; and the JSON lines that guardians write.

Columns are found by their names; docs/reference/telemetry.md lists them, and the rules for input
that is not in order. A reader fills nothing in: what was not measured is NaN.
"""

from __future__ import annotations

import csv
import os
import re
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from json import JSONDecodeError
from math import nan
from operator import attrgetter
from pathlib import Path

import numpy as np
import polars as pl

from presage.model.errors import TelemetryError
from presage.telemetry.rows import parse
from presage.telemetry.series import RESOURCES, Floats, Ints, Series, assemble, rate, unit_of

__all__ = [
    "AI4DL_FEATURES",
    "InputRows",
    "phase_features",
    "read_moment",
    "read_rows",
    "read_table",
    "read_telemetry",
]

AI4DL_FEATURES = (
    "cpu.usage",
    "cpu.usage.cores",
    "cpu.usage.pct",
    "cpu.usage.pct.container.requested",
    "mem.current",
    "mem.limit",
    "mem.usage.pct",
    "mem.working.set",
)
"""What phases are mined from in AI4DL (HotCloud 2020), in its order."""

_TIMES = (
    "timestamp",
    "time",
    "ts",
    "t_s",
    "timestamp_anon",
    "datetime",
    "timestamp_ms",
    "t_ms",
    "t",
)
_PODS = (
    "pod.id",
    "pod",
    "pod_id",
    "pod_name",
    "run",
    "run_id",
    "job",
    "job_id",
    "container",
    "id",
    "podname",
    "machine",
    "host",
    "hostname",
    "instance",
)
_NAMES = ("metric", "name", "feature", "resource")
_VALUE = "value"
_ROW_NUMBERS = ("", "row", "index", "unnamed: 0", "__index_level_0__")
_ISO = r"^\d{4}-\d{2}-\d{2}"
_SUFFIXES = (".csv", ".parquet", ".jsonl")
_COUNTERS = ("read_bytes", "write_bytes", "net_sent_bytes", "net_received_bytes")
_LEVELS = ("cpu_cores", "rss_mib", "processes", "threads", "gpu_util_pct", "gpu_memory_mib")
_FEATURES = attrgetter(*_LEVELS, *_COUNTERS)
"""Of a row."""
_MOST = 0.9
_NO_VALUE = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None")
_HINTS = (
    (r"gpu.*mem", "gpu_memory"),
    (r"duty|gpu", "gpu"),
    (r"mem", "memory"),
    (r"cpu", "cpu"),
    (r"net.*tx|transmit|sent", "net_tx"),
    (r"net.*rx|receive", "net_rx"),
    (r"disk", "disk"),
)
"""What the name of a file says about the column `value` in it; the first that fits counts."""


def read_telemetry(source: str | os.PathLike[str] | pl.DataFrame) -> list[Series]:
    """The pods of a file, of the files in a directory, of those that a pattern such as
    `runs/*.csv` names, or of a table with the columns of a file. With several files a pod is
    called `file/id`, else by its id."""
    if isinstance(source, pl.DataFrame):
        return _read_table(Path("DataFrame"), source)
    source = Path(source)
    files = _files(source)
    if len(files) == 1:
        return _read_file(files[0])
    labels = [file.stem for file in files]
    if len(set(labels)) < len(labels):
        top = os.path.commonpath([file.parent for file in files])
        labels = [file.relative_to(top).as_posix() for file in files]
    return [
        replace(pod, pod=f"{label}/{pod.pod}")
        for file, label in zip(files, labels, strict=True)
        for pod in _read_file(file)
    ]


@dataclass(frozen=True, slots=True, eq=False)
class InputRows:
    """Telemetry as series, and the rows of the input that they were made of."""

    series: list[Series]
    pod_of_row: Ints
    """For each row of the input, which of the series it belongs to."""
    times: pl.Series
    """For each row of the input its time, as it was written."""
    id_column: str
    time_column: str
    left_out: tuple[str, ...] = ()
    """Columns of numbers that are no metrics."""
    no_numbers: tuple[str, ...] = ()
    """Columns of a wide table that hold no number."""

    def sample_of_row(self) -> Ints:
        """For each row of the input, the sample of its series that it became."""
        order = np.argsort(self.pod_of_row, kind="stable")
        samples = [np.arange(len(pod)) if pod.rows is None else pod.rows for pod in self.series]
        sample_of = np.empty(len(order), dtype=np.int64)
        sample_of[order] = np.concatenate(samples) if samples else order
        return sample_of


def read_rows(
    source: str | os.PathLike[str],
    pod: str | None = None,
    time: str | None = None,
    leave_out: Sequence[str] = (),
    labels: Sequence[str] = (),
) -> InputRows:
    """One table, with the rows of the input kept apart. `pod` and `time` name the columns of the
    series and of its time, where they have other names than `read_telemetry` knows; columns to
    leave out must be there, labels need not."""
    file = Path(source)
    if file.suffix.lower() == ".jsonl" or file.is_dir():
        raise TelemetryError(f"{file}: give one .csv or .parquet file")
    if not file.exists():
        raise TelemetryError(f"{file}: no such file")
    table = _load(file)
    for wanted in (pod, time, *leave_out):
        if wanted is not None and wanted not in table.columns:
            raise TelemetryError(
                f"{file} has no column '{wanted}'; it has {', '.join(table.columns)}"
            )
    out = [name for name in table.columns if name in leave_out or name.lower() in labels]
    out = [name for name in out if name not in (pod, time)]
    pod = pod or _find(table.columns, _PODS)
    time = time or _find(table.columns, _TIMES)
    if time is None and len(table):
        has = ", ".join(table.columns)
        raise TelemetryError(f"{file} has no column of times; say with --time which it is: {has}")
    if pod is None and (names := _could_name_series(table.drop(out), time)):
        raise TelemetryError(
            f"{file} has several rows for one time; say with --id which column names the series: "
            f"{' or '.join(names)}"
        )
    series = _read_table(file, table.drop(out), pod, time)
    rows = np.zeros(len(table), dtype=np.int64)
    if pod is not None:
        rows = _codes(file, table[pod])[1]
    assert time is not None, "or the table was refused"
    empty = _no_numbers(table.drop(out), series, (pod, time))
    return InputRows(series, rows, table[time], pod or "id", time, tuple(out), empty)


def _no_numbers(
    table: pl.DataFrame, series: Sequence[Series], named: tuple[str | None, ...]
) -> tuple[str, ...]:
    """Columns that became no metric; of a long table, whose metrics are no columns, none."""
    metrics = {name for pod in series for name in pod.features}
    if not metrics.issubset(table.columns):
        return ()
    beside = (*_ROW_NUMBERS, *_TIMES, *_PODS)
    left = [name for name in table.columns if name not in metrics and name not in named]
    return tuple(name for name in left if name.lower() not in beside)


def read_table(file: Path) -> pl.DataFrame:
    """A .csv (every column as text) or .parquet as it is."""
    if not file.exists():
        raise TelemetryError(f"{file}: no such file")
    return _load(file)


def read_moment(text: str, column: str, option: str) -> float:
    """A time that somebody wrote beside a file, as the file's column of times is read."""
    known = _moments(pl.Series(column, [text]))[0]
    if known is None or not np.isfinite(known):
        raise TelemetryError(f"{option}: '{text}' is no time; write it as the file does")
    return float(known)


def phase_features(series: Sequence[Series]) -> tuple[str, ...]:
    """What phases are mined from unless somebody chooses: AI4DL's eight where all pods have them,
    else the resources, else the features, that all pods have."""
    has = [set(pod.features) for pod in series]
    if not has:
        raise TelemetryError("there are no pods to take features from")
    if all(names.issuperset(AI4DL_FEATURES) for names in has):
        return AI4DL_FEATURES
    common = [name for name in RESOURCES if all(name in pod.resources for pod in series)]
    common = common or [name for name in series[0].features if all(name in names for names in has)]
    if not common:
        raise TelemetryError(
            "the pods have no feature in common; read files of one kind, or choose the features"
        )
    return tuple(common)


def _files(source: Path) -> list[Path]:
    if source.is_dir():
        files = sorted(file for file in source.iterdir() if file.suffix.lower() in _SUFFIXES)
        if not files:
            raise TelemetryError(f"{source} has no .csv, .parquet or .jsonl file in it")
        return files
    if source.exists():
        return [source]
    top = Path(source.anchor)
    try:
        files = sorted(file for file in top.glob(str(source.relative_to(top))) if file.is_file())
    except ValueError:  # not a pattern
        files = []
    if not files:
        raise TelemetryError(f"{source}: no such file, and no file has a name of this pattern")
    return files


def _read_file(file: Path) -> list[Series]:
    return _read_rows(file) if file.suffix.lower() == ".jsonl" else _read_table(file, _load(file))


def _read_table(
    file: Path, table: pl.DataFrame, pod: str | None = None, time: str | None = None
) -> list[Series]:
    """`file` is what messages call it."""
    if table.is_empty():
        raise TelemetryError(f"{file} is empty; give a row for each sample, below the header")
    time = time or _find(table.columns, _TIMES)
    if time is None:
        raise TelemetryError(f"{file} has no column of times; call it {' or '.join(_TIMES[:4])}")
    pod = pod or _find(table.columns, _PODS)
    names = _find([name for name in table.columns if name != pod], _NAMES)
    value = _find(table.columns, (_VALUE,))
    times = _seconds(file, table[time])
    pods, pod_of_row = [file.stem], np.zeros(len(table), dtype=np.int64)
    if pod is not None:
        pods, pod_of_row = _codes(file, table[pod])
    if names is not None and value is not None:
        features, feature_of_row = _codes(file, table[names])
        numbers = _numbers(file, table[value])
        if numbers is None:
            raise TelemetryError(f"{file}: the column {value} holds no numbers")
        units = list(map(unit_of, features))
        return assemble(pods, pod_of_row, times, features, units, numbers, feature_of_row)
    features, matrix = _columns(file, table.drop([each for each in (pod, time) if each]))
    units = list(map(unit_of, features))
    if features == [_VALUE]:
        features, units = [_meaning(file, time, matrix)], [unit_of(file.stem)]
    return assemble(pods, pod_of_row, times, features, units, matrix)


def _read_rows(file: Path) -> list[Series]:
    """A file of rows as guardians write it: each worker is a pod, and counters become rates. A
    line that is torn is left out."""
    workers: dict[str, int] = {}
    worker_of_row, times, values = array("q"), array("d"), array("d")
    number = 0
    try:
        with file.open("rb") as lines:
            for line in lines:
                number += 1
                with suppress(JSONDecodeError, UnicodeDecodeError):
                    row = parse(line)
                    worker_of_row.append(workers.setdefault(row.worker, len(workers)))
                    times.append(row.at)
                    values.extend(nan if one is None else one for one in _FEATURES(row))
    except ValueError as wrong:
        raise TelemetryError(f"{file} line {number}: {wrong}") from None
    except OSError as error:
        raise TelemetryError(f"{file} cannot be read: {error.strerror or error}") from None
    if not workers:
        raise TelemetryError(
            f"{file} has no sample; a line is a JSON object with `at`, `worker` and more"
        )
    matrix = np.array(values).reshape(len(times), -1)
    series = assemble(
        list(workers), np.array(worker_of_row), np.array(times), (*_LEVELS, *_COUNTERS), (), matrix
    )
    return list(map(_with_rates, series))


def _with_rates(pod: Series) -> Series:
    """What was ever measured of a worker, counters as rates."""
    names = (*_LEVELS, *(f"{name}_s" for name in _COUNTERS))
    values = pod.values.copy()
    for column in range(len(_LEVELS), len(names)):
        values[:, column] = rate(pod.times, values[:, column])
    units = tuple(map(unit_of, names))
    return replace(Series(pod.pod, pod.times, values, names, units).measured(), rows=pod.rows)


def _load(file: Path) -> pl.DataFrame:
    try:
        table = pl.read_parquet(file) if file.suffix.lower() == ".parquet" else _read_csv(file)
    except UnicodeDecodeError:
        raise TelemetryError(f"{file} is neither CSV in UTF-8 nor called .parquet") from None
    except (OSError, csv.Error, pl.exceptions.PolarsError) as error:
        says = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise TelemetryError(f"{file} cannot be read: {says}") from None
    return table


def _read_csv(file: Path) -> pl.DataFrame:
    """Every column as text. R leaves the name of the row numbers out of the header; then it is
    one field short."""
    with file.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.reader(lines)
        header = [name.strip() for name in next(reader, [])]
        first = next(reader, [])
    if not first:
        return pl.DataFrame()
    if len(first) == len(header) + 1:
        header = ["", *header]
    if len(set(header)) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise TelemetryError(f"{file} has two columns '{twice}'; rename one of them")
    return pl.read_csv(
        file,
        has_header=False,
        skip_rows=1,
        schema=dict.fromkeys(header, pl.String()),
        null_values=list(_NO_VALUE),
    )


def _find(columns: Sequence[str], wanted: Sequence[str]) -> str | None:
    """The column that has the first of the wanted names, in upper or lower case."""
    named = {name.lower(): name for name in reversed(columns)}
    return next((named[name] for name in wanted if name in named), None)


def _codes(file: Path, column: pl.Series) -> tuple[list[str], Ints]:
    """The different values of a column in the order they come, and for each row which it is."""
    if column.null_count():
        raise _bad_row(file, column, column.is_null(), "is empty")
    whole = column.dtype.is_integer()
    numbers = column if whole else column.cast(pl.String).cast(pl.Categorical).to_physical()
    _, first, inverse = np.unique(numbers.to_numpy(), return_index=True, return_inverse=True)
    by_row = np.argsort(first)
    rank = np.empty(len(first), dtype=np.int64)
    rank[by_row] = np.arange(len(first))
    return column[first[by_row]].cast(pl.String).to_list(), rank[inverse]


def _could_name_series(table: pl.DataFrame, time: str | None) -> list[str]:
    """Columns of text that tell (nearly) all rows of one time apart."""
    long = {_find(table.columns, _NAMES)} if _find(table.columns, (_VALUE,)) else {None}
    key = [name for name in (time, *long) if name is not None]
    if not key or not table.select(key).is_duplicated().any():
        return []
    text = [
        name
        for name in table.columns
        if name not in key
        and table[name].dtype in (pl.String, pl.Categorical, pl.Enum)
        and table[name].cast(pl.String).cast(pl.Float64, strict=False).null_count() == len(table)
        and table[name].null_count() == 0
    ]
    return [name for name in text if table.select(*key, name).n_unique() >= _MOST * len(table)]


def _seconds(file: Path, column: pl.Series) -> Floats:
    """Times as seconds; those of a calendar since 1970, in UTC unless they say otherwise."""
    seconds = _moments(column)
    bad = ~seconds.is_finite().fill_null(False)
    if bad.any():
        raise _bad_row(file, column, bad, "is not a time; write seconds or 2024-05-31T12:00:00Z")
    return seconds.to_numpy().astype(np.float64)


def _moments(column: pl.Series) -> pl.Series:
    """Seconds; null where the column has something else."""
    if column.dtype == pl.String:
        if column.str.contains(_ISO).any():
            moments = column.str.to_datetime(strict=False, time_zone="UTC", time_unit="us")
            column = moments.alias(column.name)
        else:
            column = column.cast(pl.Float64, strict=False)
    if column.dtype == pl.Date:
        column = column.cast(pl.Datetime("us"))
    if isinstance(column.dtype, pl.Datetime):
        return column.dt.epoch("us") / 1e6
    if isinstance(column.dtype, pl.Duration):
        return column.dt.total_microseconds() / 1e6
    if not column.dtype.is_numeric():
        return pl.Series(column.name, [None] * len(column), dtype=pl.Float64)
    times = column.cast(pl.Float64)
    return times / _ticks_a_second(column.name, times)


def _ticks_a_second(name: str, times: pl.Series) -> float:
    """Numbers are seconds, unless the name says otherwise or they are too large for a date."""
    for ending, ticks in (("_ms", 1e3), ("_us", 1e6), ("_ns", 1e9)):
        if name.lower().endswith(ending):
            return ticks
    size = times.abs().median()
    if not isinstance(size, float) or size < 1e11:
        return 1.0
    return 1e3 if size < 1e14 else 1e6 if size < 1e17 else 1e9


def _columns(file: Path, table: pl.DataFrame) -> tuple[list[str], Floats]:
    """The columns of numbers, and their values; text, row numbers and what names a time or a pod
    are left out."""
    features, values = [], []
    for name in table.columns:
        if name.lower() in (*_ROW_NUMBERS, *_TIMES, *_PODS):
            continue
        numbers = _numbers(file, table[name])
        if numbers is not None:
            features.append(name)
            values.append(numbers)
    if not features:
        raise TelemetryError(f"{file} has no column of numbers beside its times")
    return features, np.column_stack(values)


def _numbers(file: Path, column: pl.Series) -> Floats | None:
    """A column of numbers, NaN where there is none; None when it is text, or has no number at
    all. What is mostly numbers must be numbers throughout."""
    numbers = column
    if column.dtype == pl.String:
        numbers = column.str.strip_chars().cast(pl.Float64, strict=False)
        bad = numbers.is_null() & column.is_not_null()
        if 0 < bad.sum() < column.is_not_null().sum() / 2:
            raise _bad_row(file, column, bad, "is not a number")
        if bad.any():
            return None
    elif not column.dtype.is_numeric():
        return None
    values = numbers.cast(pl.Float64).to_numpy().astype(np.float64)  # a null becomes NaN
    known = np.isfinite(values)
    return np.where(known, values, np.nan) if known.any() else None


def _meaning(file: Path, time: str, values: Floats) -> str:
    """What the only column, `value`, is: the file's name tells. The times of Alibaba's GenAI
    files are `timestamp_anon`, and each resource there has its own scale: memory is a share, the
    use of a GPU in percent, its memory in bytes. Of anything else we only know that it is a
    value."""
    name = file.stem.lower()
    for pattern, resource in _HINTS:
        if re.search(pattern, name):
            return resource
    highest = np.nanmax(values, initial=0.0)
    if time.lower() != "timestamp_anon" or highest == 0:
        return _VALUE
    return "memory" if highest <= 1 else "gpu" if highest <= 100 else "gpu_memory"


def _bad_row(file: Path, column: pl.Series, bad: pl.Series, what: str) -> TelemetryError:
    """Names the first bad row; the first row below the header is 1."""
    row = int(bad.arg_true()[0])
    value = column[row]
    shown = "" if value is None else f"'{value}' "
    return TelemetryError(f"{file} row {row + 1}, {column.name}: {shown}{what}")
