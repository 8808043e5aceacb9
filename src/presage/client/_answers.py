"""Answers of a server as values, and back. Knows nothing of HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from presage.model.errors import ApiError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

__all__ = ["to_json", "value_of", "values_of"]

T = TypeVar("T")

_ADAPTERS: dict[type, TypeAdapter[Any]] = {}


def _adapter(kind: type) -> TypeAdapter[Any]:
    if kind not in _ADAPTERS:
        from pydantic import TypeAdapter

        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def value_of(kind: type[T], body: object) -> T:
    """An answer as a value; fields that a newer server adds are left out."""
    from pydantic import ValidationError

    try:
        value: T = _adapter(kind).validate_python(body)
        return value
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ApiError(
            200, "bad_answer", f"the server's answer makes no sense here: {where}: {first['msg']}"
        ) from None


def values_of(kind: type[T], bodies: Sequence[object]) -> list[T]:
    return [value_of(kind, body) for body in bodies]


def to_json(answer: object) -> Any:
    """A value as the server sent it, for `--json`."""
    return _adapter(type(answer)).dump_python(answer, mode="json", exclude_defaults=True)
