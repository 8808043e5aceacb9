"""Checked access to a configuration of the Hugging Face hub; every mistake is one line that names
the key. Knows no architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from presage.foresee.graph.opgraph import InputSpec
from presage.model.errors import GraphError

__all__ = ["HubConfig", "HubModel"]

_MOST = {"layers": 4096, "size": 1 << 24}


@dataclass(frozen=True, slots=True)
class HubModel:
    """How to build what was described, and what it takes."""

    build: Callable[[], Any]
    inputs: tuple[InputSpec, ...]
    longest: int = 0
    """Tokens that have learned positions; 0 where there may be any number."""


@dataclass(frozen=True, slots=True)
class HubConfig:
    """Checked access to a configuration."""

    path: Path | str
    """What messages call it."""
    values: Mapping[str, Any]

    def size(self, *names: str, default: int | None = None) -> int:
        """A whole number above 0 under the first of these names that is there."""
        for name in names:
            value = self.values.get(name)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                raise GraphError(f"{self.path}: {name} is {value!r}; write a whole number")
            if not 0 < value <= _MOST["size"]:
                raise GraphError(f"{self.path}: {name} is {value}; give 1 to {_MOST['size']}")
            return value
        if default is None:
            raise GraphError(f"{self.path}: the key {names[0]} is missing")
        return default

    def layers(self, *names: str, default: int | None = None) -> int:
        """A number of layers."""
        count = self.size(*names, default=default)
        if count > _MOST["layers"]:
            raise GraphError(f"{self.path}: {names[0]} is {count}; give 1 to {_MOST['layers']}")
        return count

    def text(self, name: str, default: str | None = None) -> str:
        """A text."""
        value = self.values.get(name, default)
        if not isinstance(value, str):
            raise GraphError(f"{self.path}: the key {name} is missing or not a text")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.values.get(name)
        return default if value is None else bool(value)

    def share(self, *names: str, default: float) -> float:
        """A number from 0 to 1."""
        for name in names:
            value = self.values.get(name)
            if isinstance(value, (int, float)) and 0 <= value <= 1:
                return float(value)
            if value is not None:
                raise GraphError(f"{self.path}: {name} is {value!r}; give a number from 0 to 1")
        return default

    def activation(self, *names: str, default: str) -> str:
        """One of our activations; those that cost the same are taken for each other."""
        said = next((self.values[n] for n in names if self.values.get(n)), default)
        for sign, ours in (("relu", "relu"), ("silu", "silu"), ("swish", "silu")):
            if sign in str(said):
                return ours
        return "gelu" if said == "gelu" else "tanh_gelu"

    def architecture(self) -> str:
        """The class that was saved, or an empty text."""
        named = self.values.get("architectures")
        return str(named[0]) if isinstance(named, list) and named else ""

    def labels(self) -> int:
        """Classes of a classifier."""
        named = self.values.get("id2label")
        given = self.values.get("num_labels")
        if isinstance(given, int) and given > 0:
            return given
        return len(named) if isinstance(named, dict) and named else 2

    def sizes(self, name: str, count: int | None = None) -> list[int]:
        """Whole numbers above 0; one number stands for `count` of them."""
        value = self.values.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and count:
            value = [value] * count
        if not isinstance(value, list) or not value:
            raise GraphError(f"{self.path}: {name} is missing or no list of whole numbers")
        if count and len(value) != count:
            raise GraphError(f"{self.path}: {name} has {len(value)} entries; give {count}")
        return [HubConfig(self.path, {name: each}).size(name) for each in value]

    def inside(self, name: str) -> HubConfig:
        """A configuration within this one."""
        value = self.values.get(name)
        if not isinstance(value, dict):
            raise GraphError(f"{self.path}: the key {name} is missing or no object")
        return HubConfig(f"{self.path}: {name}", value)
