"""What is submitted at once: one job, or all jobs of a sweep; and changes to it (`--set`).

`parse_submission` takes what somebody sent and `read_submission` a file with what stands beside it
(`sweep.file`); both raise `ManifestError` and nothing else.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from presage.edge import YamlLimits, check, load_json, load_yaml, read_bytes
from presage.manifest.schema import Manifest, Objective
from presage.manifest.sweep import MOST_POINTS, Point, Sweep, SweepKeys, check_use, points_of
from presage.manifest.sweep import substituted as _substituted
from presage.model.errors import ManifestError

__all__ = [
    "LIMITS",
    "Submission",
    "manifest_schema",
    "parse_submission",
    "read_submission",
    "submission_of",
    "with_changes",
]

LIMITS = YamlLimits(bytes=1 << 20, nodes=20_000, depth=32)
"""Of one manifest."""
_FILE_LIMITS = YamlLimits(bytes=4 << 20, nodes=200_000, depth=8)

_YAML = {"application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml", "text/plain", ""}


@dataclass(frozen=True, slots=True)
class Submission:
    """One job, or the jobs of a sweep."""

    first: Manifest
    """The job; of a sweep, the first."""
    data: Mapping[str, Any]
    """As it was written, with changes and points in place."""
    sweep: Sweep | None = None
    points: tuple[Point, ...] = ()
    as_written: bool = True
    """Whether the text that was read says all of it."""

    @property
    def objective(self) -> Objective | None:
        """What makes one job better than another."""
        return self.first.objective

    @property
    def size(self) -> int:
        """How many jobs it is."""
        return len(self.points) or 1

    def jobs(self) -> Iterator[Manifest]:
        """The manifest of each job."""
        if self.sweep is None:
            yield self.first
            return
        for number, point in enumerate(self.points):
            yield self.first if not number else self.job(point, f"manifest, point {number + 1}")

    def job(self, point: Point, source: str = "manifest") -> Manifest:
        """The manifest of a sweep's job at one point."""
        return check(_substituted(self.data, point), Manifest, ManifestError, source)


def parse_submission(text: bytes | str, content_type: str = "application/yaml") -> Submission:
    """What a text of this media type asks for: JSON or YAML."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        return submission_of(load_json(text, ManifestError, "manifest", LIMITS))
    if kind not in _YAML and not kind.endswith("+yaml"):
        raise ManifestError("send the manifest as application/json or application/yaml")
    data, root = load_yaml(text, ManifestError, "manifest", LIMITS)
    return submission_of(data, "manifest", root)


def read_submission(path: Path, changes: Sequence[str] = ()) -> Submission:
    """What a file asks for, with `key=value` changes, and with the points that a file beside it
    holds."""
    source: str = str(path)
    data, root = load_yaml(read_bytes(path, ManifestError, LIMITS), ManifestError, source, LIMITS)
    if changes:
        data, root, source = with_changes(data, changes), None, f"{path} with --set"
    sweep = data.get("sweep") if isinstance(data, Mapping) else None
    as_written = not changes
    if isinstance(sweep, Mapping) and isinstance(sweep.get("file"), str):
        check(data, SweepKeys, ManifestError, source, root)
        rest = {key: value for key, value in sweep.items() if key != "file"}
        points = _points_in(path.parent / sweep["file"])
        data, as_written = {**data, "sweep": {**rest, "points": points}}, False
    made = submission_of(data, source, root)
    return Submission(made.first, made.data, made.sweep, made.points, as_written)


def submission_of(
    data: Any, source: str = "manifest", root: yaml.Node | None = None
) -> Submission:
    """What plain data asks for."""
    if not isinstance(data, Mapping) or "sweep" not in data:
        return Submission(check(data, Manifest, ManifestError, source, root), data)
    keys = check(data, SweepKeys, ManifestError, source, root)
    try:
        points = points_of(keys.sweep)
        check_use(data, list(points[0]), list(keys.params))
    except ManifestError as error:
        raise ManifestError(f"{source}: {error}") from None
    first = check(_substituted(data, points[0]), Manifest, ManifestError, source, root)
    return Submission(first, data, keys.sweep, tuple(points))


def manifest_schema() -> dict[str, Any]:
    """A manifest as JSON Schema, with the sweep that makes it many jobs."""
    schema, sweep = Manifest.model_json_schema(), Sweep.model_json_schema()
    schema["$defs"].update(sweep.pop("$defs"))
    schema["properties"]["sweep"] = sweep
    return schema


def with_changes(data: Any, changes: Sequence[str]) -> dict[str, Any]:
    """Plain data with `resources.gpus=2` and the like: a dotted path, and a value as YAML has
    it."""
    changed: dict[str, Any] = json.loads(json.dumps(data, default=str)) if data else {}
    if not isinstance(changed, dict):
        raise ManifestError("a manifest is a mapping; there is nothing to set in this one")
    for change in changes:
        path, equals, text = change.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            raise ManifestError(
                f"--set {change[:80]!r}: write key=value, such as resources.gpus=2"
            )
        try:
            value, _ = load_yaml(text, ManifestError, f"--set {path}", LIMITS)
        except ManifestError as error:
            raise ManifestError(str(error)) from None
        _put(changed, keys, value, path)
    return changed


def _put(data: dict[str, Any], keys: Sequence[str], value: Any, path: str) -> None:
    place: Any = data
    for key in keys[:-1]:
        inner = place.get(key)
        if inner is None:
            inner = place[key] = {}
        if not isinstance(inner, dict):
            raise ManifestError(f"--set {path}: {key} is {type(inner).__name__}, not a mapping")
        place = inner
    if value is None:
        place.pop(keys[-1], None)
    else:
        place[keys[-1]] = value


def _points_in(path: Path) -> list[dict[str, Any]]:
    """The points of a CSV or JSON file."""
    text = read_bytes(path, ManifestError, _FILE_LIMITS)
    if path.suffix.lower() == ".json":
        data = load_json(text, ManifestError, str(path), _FILE_LIMITS)
        if not isinstance(data, list) or not all(isinstance(row, dict) for row in data):
            raise ManifestError(f"{path}: write a list of mappings, one for each point")
        rows = data
    elif path.suffix.lower() == ".csv":
        rows = _rows(path, text)
    else:
        raise ManifestError(f"{path}: points are read from .csv or .json")
    if not rows:
        raise ManifestError(f"{path} is empty: a sweep needs at least one point")
    if len(rows) > MOST_POINTS:
        raise ManifestError(f"{path}: {len(rows):,} points; a sweep has at most {MOST_POINTS:,}")
    return rows


def _rows(path: Path, text: bytes) -> list[dict[str, Any]]:
    try:
        lines = csv.reader(io.StringIO(text.decode("utf-8-sig"), newline=""), strict=True)
        rows = [row for row in lines if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ManifestError(f"{path} cannot be read: {error}") from None
    heads = [head.strip() for head in rows[0]] if rows else []
    if len(set(heads)) < len(heads):
        raise ManifestError(f"{path}: a column is there twice")
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(heads):
            raise ManifestError(f"{path} row {number}: {len(row)} values for {len(heads)} columns")
    return [dict(zip(heads, map(_scalar, row), strict=True)) for row in rows[1:]]


def _scalar(text: str) -> Any:
    """A number where it looks like one; else the text."""
    text = text.strip()
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)
