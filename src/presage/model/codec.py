"""Frozen dataclasses to JSON values and back, driven by their type hints.

Knows dataclasses, enums, tuples, mappings, optional values and plain scalars. It refuses unknown
keys and wrong types with a ValueError, and it can create only the types that the hints name:
nothing read from disk or network runs code.

A type is looked at once: what comes of it is a function, kept for the next value of that type. A
start reads tens of thousands of values, and a busy server writes thousands a second.

A field may be left out where it holds what `LEFT_OUT` says. That is written down apart from the
defaults of the code: these may change, and a journal must not change its meaning by it.
"""

from __future__ import annotations

import dataclasses
import marshal
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from operator import attrgetter
from types import UnionType
from typing import Any, TypeAlias, Union, get_args, get_origin, get_type_hints

__all__ = ["LEFT_OUT", "decode", "encode"]

Coder: TypeAlias = Callable[[Any], Any]
_PLAIN = frozenset({bool, float, int, str, type(None)})

LEFT_OUT: dict[str, dict[str, Any]] = {
    "AlertCleared": {"job": ""},
    "AlertRaised": {"job": ""},
    "CancelRequested": {"reason": None},
    "Dependency": {"on": "ok"},
    "Device": {"type": "gpu", "memory_mib": 1 << 50, "speed": 1.0},
    "Estimates": dict.fromkeys(("runtime_s", "memory_mib", "utilization", "step_s", "link_share")),
    "Job": {
        **{"state": "pending", "attempt": 0, "allocation": [], "held_milli": 0, "stage": ""},
        **dict.fromkeys(("resizing", "intent", "wants", "reason", "phase", "limits", "estimates")),
        **dict.fromkeys(("failures", "lost", "out_of_memory"), 0),
        **dict.fromkeys(("progress", "progress_s", "ran_s", "gpu_s", "mark"), 0.0),
        **{"held_since": 0.0, "wants_of": [], "limit_asked": 0},
    },
    "JobExited": {"reason": None, "exit_code": None, "at": None},
    "JobSpec": {
        **{"owner": "", "queue": "default", "priority": 0, "placement": None, "model": None},
        **{"preemptible": True, "checkpointable": True, "shareable": True, "max_retries": 0},
        **{"max_lost": 100, "relaunch": True, "oom": None, "time_limit_s": None, "labels": {}},
        **{"entrypoint": [], "after": [], "array": "", "at_once": 0, "team": ""},
    },
    "JobStarted": {"at": None},
    "JobSubmitted": {"estimates": None},
    "Node": {"devices": [], "cpu_milli": 1 << 50, "memory_mib": 1 << 50, "labels": {}}
    | {"taints": [], "taken": {}},
    "OomRetry": {"times": 3, "factor": 1.5, "ceiling_mib": 0},
    "PolicyJudged": {"rules": ""},
    "Progress": {"detail": {}, "not_finite": []},
    "RemedyAdvised": {"avoid": [], "oom": None},
    "Resources": {"cpu_milli": 0, "memory_mib": 0, "gpu_milli": 0, "gpu_memory_mib": 0},
    "Role": {"name": "worker", "resources": {}, "min": 1, "max": 1, "gpu_types": [], "where": {}},
    "RulesChanged": {"lacks": [], "counts": False, "chosen": ""},
    "ScaleRequested": {"role": 0},
    "SpeedBook": {"count": 0, "points": {}},
    "Taken": {"cpu_milli": 0, "memory_mib": 0, "devices": []},
    "LabelRule": {"operator": "Exists", "values": []},
    "Where": {"any_of": [], "tolerates": [], "avoid": []},
    "Worker": {"devices": []},
}
"""What a field means that is not there, of each type in journals and snapshots, as JSON: part of
every journal that was written, so nothing here ever changes. A new field is added with what the
journals of before mean. Other types are read with the defaults of their code."""


def encode(value: Any) -> Any:
    """A value as JSON types, without the fields that may be left out."""
    kind: Any = type(value)
    return _encoder(kind)(value)


def decode(kind: Any, data: Any) -> Any:
    """The value of type `kind` that `encode` turned into `data`."""
    return _decoder(kind)(data)


# -- to JSON --------------------------------------------------------------------------------------


@cache
def _encoder(kind: Any) -> Coder:
    if issubclass(kind, Enum):
        return attrgetter("value")
    if dataclasses.is_dataclass(kind):
        return _dataclass_encoder(kind)
    if issubclass(kind, tuple | list):
        return lambda value: [encode(item) for item in value]
    if issubclass(kind, Mapping):
        return lambda value: {str(key): encode(item) for key, item in value.items()}
    return lambda value: value


def _dataclass_encoder(kind: Any) -> Coder:
    defaults = tuple(_fields(kind).items())

    def encode_fields(value: Any) -> dict[str, Any]:
        body = {}
        for name, default in defaults:
            item = getattr(value, name)
            if item is not default and item != default:
                body[name] = item if type(item) in _PLAIN else encode(item)
        return body

    return encode_fields


_NO_DEFAULT = object()


def _fields(kind: Any) -> dict[str, Any]:
    """What each field means when it is left out; `_NO_DEFAULT` where it must be there."""
    defaults = _own_defaults(kind)
    fixed = LEFT_OUT.get(kind.__name__, {})
    return defaults | {name: _decoder(_hints(kind)[name])(fixed[name]) for name in fixed}


def _own_defaults(kind: Any) -> dict[str, Any]:
    """The defaults that the code of a type has."""
    defaults: dict[str, Any] = {}
    for item in dataclasses.fields(kind):
        if not item.init:
            continue
        if item.default is not dataclasses.MISSING:
            defaults[item.name] = item.default
        elif item.default_factory is not dataclasses.MISSING:
            defaults[item.name] = item.default_factory()
        else:
            defaults[item.name] = _NO_DEFAULT
    return defaults


_hints = cache(get_type_hints)


# -- and back -------------------------------------------------------------------------------------


@cache
def _decoder(kind: Any) -> Coder:
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return _optional_decoder(kind)
    if origin is tuple:
        return _tuple_decoder(kind, _decoder(get_args(kind)[0]))
    if origin is not None and issubclass(origin, Mapping):
        return _mapping_decoder(kind, _decoder(get_args(kind)[1]))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    if dataclasses.is_dataclass(kind):
        return _dataclass_decoder(kind)
    return _float if kind is float else _plain_decoder(kind)


def _optional_decoder(kind: Any) -> Coder:
    inner = [item for item in get_args(kind) if item is not type(None)]
    decode_it = _decoder(inner[0])
    if len(inner) == len(get_args(kind)):
        return decode_it
    return lambda data: None if data is None else decode_it(data)


def _tuple_decoder(kind: Any, decode_item: Coder) -> Coder:
    def decode_tuple(data: Any) -> tuple[Any, ...]:
        if not isinstance(data, list):
            raise _unexpected(kind, data)
        return tuple([decode_item(item) for item in data])

    return decode_tuple


def _mapping_decoder(kind: Any, decode_item: Coder) -> Coder:
    def decode_mapping(data: Any) -> dict[str, Any]:
        if not isinstance(data, Mapping):
            raise _unexpected(kind, data)
        return {str(key): decode_item(item) for key, item in data.items()}

    return decode_mapping


def _dataclass_decoder(kind: Any) -> Coder:
    fields = _LazyFields(kind)
    exact = fields.exact.get
    own, fixed = _own_defaults(kind), _fields(kind)
    moved = {name: LEFT_OUT[kind.__name__][name] for name in own if own[name] != fixed[name]}

    def decode_fields(data: Any) -> Any:
        if not isinstance(data, dict):
            raise _unexpected(kind, data)
        if moved:  # the code has another default by now
            data = moved | data
        try:
            return kind(
                **{
                    name: item if type(item) is exact(name) else fields[name](item)
                    for name, item in data.items()
                }
            )
        except TypeError as error:
            raise ValueError(f"{kind.__name__}: {error}") from None

    return _shared(decode_fields) if kind.__dataclass_params__.frozen else decode_fields


def _shared(decode_it: Coder) -> Coder:
    """Equal values become one: thousands of jobs have the same roles, and frozen values take long
    to make."""
    made: dict[bytes, Any] = {}

    def decode_once(data: Any) -> Any:
        key = marshal.dumps(data)
        value = made.get(key)
        if value is None:
            if len(made) >= _MOST_SHARED:
                made.clear()
            value = made[key] = decode_it(data)
        return value

    return decode_once


_MOST_SHARED = 4096


class _LazyFields(dict[str, Coder]):
    """The decoder of each field, made when it is first met: a type may hold itself."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.kind = kind
        self.exact: dict[str, type] = {}
        """The type of each plain field: a value of that type is taken as it is."""

    def __missing__(self, name: str) -> Coder:
        hints = _hints(self.kind)
        if name not in hints:
            raise ValueError(f"{self.kind.__name__} has no field {name!r}")
        if hints[name] in _PLAIN:
            self.exact[name] = hints[name]
        self[name] = _decoder(hints[name])
        return self[name]


def _float(data: Any) -> float:
    if type(data) is float:
        return data
    if not isinstance(data, int | float) or isinstance(data, bool):
        raise _unexpected(float, data)
    return float(data)


def _plain_decoder(kind: Any) -> Coder:
    def decode_plain(data: Any) -> Any:
        if type(data) is not kind:
            raise _unexpected(kind, data)
        return data

    return decode_plain


def _unexpected(kind: Any, data: Any) -> ValueError:
    return ValueError(f"expected {getattr(kind, '__name__', kind)}, got {data!r}")
