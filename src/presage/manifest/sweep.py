"""A sweep: one manifest that stands for many jobs, each with its own values of some parameters.

    sweep:
      grid: {lr: [0.1, 0.01], seed: 0..4}
      at_once: 4
    command: python train.py --lr ${lr} --seed ${seed}

`points_of` gives the values of each job, `substituted` puts them in place of `${name}`. Every
number of jobs is bounded before anything is made. Draws come from the seed alone. Reads no file.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from random import Random
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from presage.edge import misplaced
from presage.manifest.fields import Text
from presage.manifest.quantities import shown
from presage.manifest.schema import Objective, Parameter, Setting
from presage.model.errors import ManifestError

__all__ = [
    "MOST_POINTS",
    "ParamRange",
    "Prune",
    "Sweep",
    "SweepPart",
    "draw",
    "points_of",
    "substituted",
]

MOST_POINTS = 5000
"""Jobs of one sweep."""
_SPAN = re.compile(r"\s*(-?\d{1,9})\s*\.\.\s*(-?\d{1,9})\s*", re.ASCII)
_PLACE = re.compile(r"\$?\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_FIXED = frozenset({"name", "sweep", "objective", "after", "params"})
"""Keys that say nothing about one job alone."""
_TEXTS = frozenset({"command", "resume", "env", "labels", "data", "results", "image"})
"""Keys under which a value is always text."""
_TRIES = 100

Point = Mapping[str, Any]


def _values(value: object) -> object:
    """`0..9` is every whole number from 0 to 9."""
    span = _SPAN.fullmatch(value) if isinstance(value, str) else None
    if span is None:
        return value
    first, last = int(span[1]), int(span[2])
    if not 0 <= last - first < MOST_POINTS:
        raise ValueError(
            f"give a span of 1 to {MOST_POINTS:,} numbers, the smaller one first, "
            f"not {shown(value)}"
        )
    return list(range(first, last + 1))


class SweepPart(BaseModel):
    """What parts of a sweep have in common."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


_Number = int | float
_Whole = int  # a field below has that name
_Ends = Annotated[list[_Number], Field(min_length=2, max_length=2)]
Values = Annotated[
    list[Setting],
    Field(min_length=1, max_length=MOST_POINTS),
    BeforeValidator(_values),
    WithJsonSchema({"anyOf": [{"type": "array"}, {"type": "string"}]}),
]


class ParamRange(SweepPart):
    """Where a parameter is drawn from."""

    uniform: _Ends | None = None
    log_uniform: _Ends | None = None
    int: Annotated[list[_Whole], Field(min_length=2, max_length=2)] | None = None
    choice: Annotated[list[Setting], Field(min_length=1, max_length=1000)] | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = self.model_dump(exclude_none=True)
        if len(given) != 1:
            raise ValueError("give one of uniform, log_uniform, int and choice")
        (name, ends), *_ = given.items()
        if name != "choice" and ends[0] >= ends[1]:
            raise misplaced("write the smaller end first", name)
        if name == "log_uniform" and ends[0] <= 0:
            raise misplaced("a logarithm needs ends above 0", name)
        return self


class Prune(SweepPart):
    """Which members are stopped early: those that do worse than others at the same step."""

    by: Literal["halving", "hyperband", "median"] = "halving"
    min_steps: Annotated[int, Field(ge=1, le=10**12)] = 1
    """None is stopped before this step."""
    reduction: Annotated[int, Field(ge=2, le=100)] = 4
    """Halving and hyperband: one in so many goes on from a rung to the next."""
    startup: Annotated[int, Field(ge=0, le=MOST_POINTS)] = 5
    """Median: none is stopped before so many members have ended."""


def _prune(value: object) -> object:
    return {"by": value} if isinstance(value, str) else value


class Sweep(SweepPart):
    """The points of a sweep, and how they are gone through."""

    grid: Annotated[dict[Parameter, Values], Field(max_length=20)] | None = None
    points: Annotated[list[dict[Parameter, Setting]], Field(max_length=MOST_POINTS)] | None = None
    space: Annotated[dict[Parameter, ParamRange], Field(max_length=100)] | None = None
    file: Annotated[Text, Field(min_length=1, max_length=1024)] | None = None
    trials: Annotated[int, Field(ge=1, le=MOST_POINTS)] | None = None
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    at_once: Annotated[int, Field(ge=1, le=MOST_POINTS)] | None = None
    prune: (
        Annotated[
            Prune,
            BeforeValidator(_prune),
            WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]}),
        ]
        | None
    ) = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        given = [
            key for key in ("grid", "points", "space", "file") if getattr(self, key) is not None
        ]
        if len(given) != 1:
            raise ValueError("give one of grid, points, space and file")
        if not getattr(self, given[0]):
            raise misplaced("is empty: a sweep needs at least one point", given[0])
        if self.space is not None and self.trials is None:
            raise misplaced("needs trials, how many points to draw", "space")
        if self.space is None:
            for key in ("trials", "seed"):
                if key in self.model_fields_set:
                    raise misplaced("goes with space, where points are drawn", key)
        size = math.prod(len(values) for values in (self.grid or {}).values())
        if size > MOST_POINTS:
            raise misplaced(f"{size:,} points; a sweep has at most {MOST_POINTS:,}", "grid")
        return self


class SweepKeys(BaseModel):
    """The keys of a manifest that concern all of its jobs; the others are each job's own."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, allow_inf_nan=False)

    sweep: Sweep
    params: dict[Parameter, Setting] = {}
    objective: Objective | None = None

    @model_validator(mode="after")
    def _measured(self) -> Self:
        if self.sweep.prune is not None and self.objective is None:
            says = "needs objective, such as objective: {metric: val_loss}"
            raise misplaced(says, "sweep", "prune")
        return self


def points_of(sweep: Sweep) -> list[Point]:
    """The values of each job, in order."""
    if sweep.points is not None:
        points: list[Point] = list(sweep.points)
        names = list(points[0])
        for number, point in enumerate(points, 1):
            if point.keys() != points[0].keys():
                raise ManifestError(
                    f"sweep.points: point {number} has {_listed(point)}; the first has "
                    f"{_listed(names)}; give each point the same parameters"
                )
    elif sweep.grid is not None:
        points = [
            dict(zip(sweep.grid, values, strict=True)) for values in product(*sweep.grid.values())
        ]
    elif sweep.space is not None:
        points = _drawn(sweep, sweep.space)
    else:
        raise ManifestError(
            "sweep.file is read by `presage submit`, beside the manifest; over HTTP send the "
            "points as sweep.points"
        )
    _refuse_twins(points)
    return points


def _drawn(sweep: Sweep, space: Mapping[str, ParamRange]) -> list[Point]:
    """Different points, from the seed."""
    rng, points = Random(sweep.seed), dict[str, Point]()
    assert sweep.trials is not None
    for _ in range(_TRIES * sweep.trials):
        point = {name: draw(one, rng) for name, one in space.items()}
        points.setdefault(json.dumps(point), point)
        if len(points) == sweep.trials:
            return list(points.values())
    raise ManifestError(
        f"sweep.space: {sweep.trials} trials, and only {len(points)} different points were found; "
        "give fewer trials or a larger space"
    )


def draw(one: ParamRange, rng: Random) -> Any:
    """A value of a distribution, with six digits."""
    if one.choice is not None:
        return rng.choice(one.choice)
    if one.int is not None:
        return rng.randint(*one.int)
    if one.uniform is not None:
        return float(f"{rng.uniform(*one.uniform):.6g}")
    assert one.log_uniform is not None
    low, high = map(math.log, one.log_uniform)
    return float(f"{math.exp(rng.uniform(low, high)):.6g}")


def _refuse_twins(points: Sequence[Point]) -> None:
    seen: dict[str, int] = {}
    for number, point in enumerate(points, 1):
        upper: dict[str, str] = {}
        for name in point if number == 1 else ():
            if (other := upper.setdefault(name.upper(), name)) != name:
                raise ManifestError(f"sweep: {other} and {name} differ only in case; rename one")
        first = seen.setdefault(json.dumps(point, sort_keys=True), number)
        if first != number:
            values = ", ".join(f"{name} {value}" for name, value in point.items())
            raise ManifestError(f"sweep: points {first} and {number} are the same: {values}")


def _listed(names: Sequence[str] | Point) -> str:
    return ", ".join(names) or "nothing"


# -- from a template to one job -------------------------------------------------------------------


def substituted(template: Mapping[str, Any], point: Point) -> dict[str, Any]:
    """The manifest of one job: the template without its sweep, `${name}` replaced. `$${name}` is
    left to the shell as `${name}`."""
    settings = {**(template.get("params") or {}), **point}
    body = {
        key: value if key in _FIXED else _filled(value, settings, key in _TEXTS)
        for key, value in template.items()
        if key != "sweep"
    }
    return {**body, "params": settings}


def _filled(value: Any, settings: Point, text: bool) -> Any:
    if isinstance(value, Mapping):
        return {key: _filled(item, settings, text or key in _TEXTS) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, settings, text) for item in value]
    if not isinstance(value, str):
        return value
    whole = _PLACE.fullmatch(value)
    if whole and not text and not value.startswith("$$") and whole[1] in settings:
        return settings[whole[1]]

    def put(place: re.Match[str]) -> str:
        if place[0].startswith("$$"):
            return place[0][1:]
        setting = settings.get(place[1], place[0])
        return setting if isinstance(setting, str) else json.dumps(setting)

    return _PLACE.sub(put, value)


def check_use(template: Mapping[str, Any], names: Sequence[str], fixed: Sequence[str]) -> None:
    """Refuse a parameter that is used nowhere, and a placeholder that stands for none."""
    used = {key: None for part in _texts_in(template) for key in _placeholders(part)}
    known = {*names, *fixed}
    for name in used:
        if name not in known:
            raise ManifestError(
                f"${{{name}}} stands for no parameter of the sweep ({_listed(list(names))}); for "
                f"a variable of the shell write ${name} or $${{{name}}}"
            )
    for name in names:
        if name not in used:
            raise ManifestError(
                f"sweep: parameter {name} is used nowhere; write ${{{name}}} in command, env or "
                f'resources, such as env: {{{name.upper()}: "${{{name}}}"}}'
            )


def _texts_in(template: Mapping[str, Any]) -> Iterator[str]:
    waiting: list[Any] = [value for key, value in template.items() if key not in _FIXED]
    while waiting:
        value = waiting.pop(0)
        if isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str):
            yield value


def _placeholders(text: str) -> Iterator[str]:
    for place in _PLACE.finditer(text):
        if not place[0].startswith("$$"):
            yield place[1]
