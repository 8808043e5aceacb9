"""Frozen dataclasses to JSON values and back, driven by their type hints.

Knows dataclasses, enums, tuples, mappings, optional values and plain scalars. It refuses unknown
keys and
wrong types with a ValueError, and it can create only the types that the hints name: nothing read
from
disk or network runs code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

__all__ = ["decode", "encode"]


def encode(value: Any) -> Any:
    """A value as JSON types; fields that hold their default are left out."""
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            name: encode(item)
            for name, default in _fields(type(value)).items()
            if (item := getattr(value, name)) != default
        }
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    return value


def decode(kind: Any, data: Any) -> Any:
    """The value of type `kind` that `encode` turned into `data`."""
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return _decode_optional(kind, data)
    if origin is tuple:
        _expect(isinstance(data, list), kind, data)
        return tuple(decode(get_args(kind)[0], item) for item in data)
    if origin is not None and issubclass(origin, Mapping):
        _expect(isinstance(data, Mapping), kind, data)
        return {str(key): decode(get_args(kind)[1], item) for key, item in data.items()}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(data)
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, data)
    if kind is float:
        _expect(isinstance(data, int | float) and not isinstance(data, bool), kind, data)
        return float(data)
    _expect(type(data) is kind, kind, data)
    return data


def _decode_optional(kind: Any, data: Any) -> Any:
    inner = [item for item in get_args(kind) if item is not type(None)]
    if data is None and len(inner) < len(get_args(kind)):
        return None
    return decode(inner[0], data)


def _decode_dataclass(kind: Any, data: Any) -> Any:
    _expect(isinstance(data, Mapping), kind, data)
    hints = _hints(kind)
    unknown = sorted(set(data) - set(hints))
    if unknown:
        raise ValueError(f"{kind.__name__} has no field {unknown[0]!r}")
    try:
        return kind(**{name: decode(hints[name], item) for name, item in data.items()})
    except TypeError as error:
        raise ValueError(f"{kind.__name__}: {error}") from None


def _expect(good: bool, kind: Any, data: Any) -> None:
    if not good:
        raise ValueError(f"expected {getattr(kind, '__name__', kind)}, got {data!r}")


_hints = cache(get_type_hints)
_NO_DEFAULT = object()


@cache
def _fields(kind: Any) -> dict[str, Any]:
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
