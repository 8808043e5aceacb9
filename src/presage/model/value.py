"""The decorator of hot values: immutable for the type checker, plain slots at run time.

Some values are made several times for each job that passes through (events, specs, workers). A
frozen dataclass assigns each field through `object.__setattr__`, which makes it eight times as
slow to create, and a simulation of a million jobs creates seven million. mypy, which every change
must pass, refuses to assign to a field just the same. Values that are made rarely use
`@dataclass(frozen=True, slots=True)`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

__all__ = ["value"]

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """A slotted, hashable dataclass whose fields nobody assigns to."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
