"""Frozen dataclasses to JSON values and back, driven by their type hints.

Knows dataclasses, enums, tuples, mappings, optional values and plain scalars. It refuses unknown
keys and wrong types with a ValueError, and it can create only the types that the hints name:
nothing read from disk or network runs code.

A type is looked at once: what comes of it is a function, kept for the next value of that type. A
start reads tens of thousands of values, and a busy server writes thousands a second.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from operator import attrgetter
from types import UnionType
from typing import Any, TypeAlias, Union, get_args, get_origin, get_type_hints

__all__ = ["decode", "encode"]

Coder: TypeAlias = Callable[[Any], Any]
_PLAIN = frozenset({bool, float, int, str, type(None)})


def encode(value: Any) -> Any:
    """A value as JSON types; fields that hold their default are left out."""
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

    def decode_fields(data: Any) -> Any:
        if not isinstance(data, dict):
            raise _unexpected(kind, data)
        try:
            return kind(**{name: fields[name](item) for name, item in data.items()})
        except TypeError as error:
            raise ValueError(f"{kind.__name__}: {error}") from None

    return decode_fields


class _LazyFields(dict[str, Coder]):
    """The decoder of each field, made when it is first met: a type may hold itself."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.kind = kind

    def __missing__(self, name: str) -> Coder:
        hints = get_type_hints(self.kind)
        if name not in hints:
            raise ValueError(f"{self.kind.__name__} has no field {name!r}")
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
