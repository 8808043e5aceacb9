"""Python that people wrote, by name: an object of a file (`file.py:name`) or one that an installed
package offers (an entry point).

To load is to run that code: only for names that the person who runs the command gave, never for
one that came over a network. Every mistake is one line that says where it is. Knows no kind of
object; whoever asks brings the group and the checks.
"""

from __future__ import annotations

import hashlib
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from presage.model.errors import ConfigError

__all__ = ["Loaded", "installed", "is_file", "load", "load_source", "where"]

_MOST_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Loaded:
    """An object that code of somebody else made."""

    name: str
    value: Any
    origin: str
    """The file without its folder, or the package and its version."""
    digest: str
    """SHA-256 of the file that the object is from."""
    source: str = ""
    """The text of the file; empty for what a package offers."""


def is_file(text: str) -> bool:
    """Whether a name is one of a file: `file.py:name`."""
    return text.endswith(".py") or ".py:" in text


def installed(group: str) -> dict[str, EntryPoint]:
    """What installed packages offer under this group."""
    return {point.name: point for point in entry_points(group=group)}


def load(text: str, group: str) -> Loaded:
    """The object that a name stands for: of a file, else of an installed package."""
    if is_file(text):
        return _from_file(text)
    return _from_package(installed(group)[text])


def load_source(source: str, name: str, origin: str, path: Path | None = None) -> Loaded:
    """The object of this name after this text has run as a module."""
    digest = hashlib.sha256(source.encode()).hexdigest()
    module = ModuleType(f"presage_plugin_{digest[:12]}")
    module.__file__ = origin if path is None else str(path.absolute())
    sys.modules[module.__name__] = module  # classes look for their module by name

    def run() -> Any:
        exec(compile(source, origin, "exec"), module.__dict__)
        return module

    _guarded(run, origin)
    if not hasattr(module, name):
        there = [key for key in vars(module) if not key.startswith("_")]
        raise ConfigError(f"{origin} has no {name!r}; it has: {', '.join(there) or 'nothing'}")
    return Loaded(name, getattr(module, name), origin, digest, source)


def where(error: BaseException, origin: str) -> str:
    """What went wrong in somebody's code, and in which line of it."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == origin]
    if isinstance(error, SyntaxError) and error.filename == origin:
        lines = [error.lineno]
        said = error.msg
    else:
        said = str(error)
    place = f" (line {lines[-1]} of {origin})" if lines else ""
    kind = type(error).__name__
    first = said.splitlines()[0][:300] if said else ""
    return f"{kind}: {first}{place}" if first else f"{kind}{place}"


def _from_file(text: str) -> Loaded:
    path_text, _, name = text.rpartition(":") if not text.endswith(".py") else (text, "", "")
    if not name:
        raise ConfigError(f"{text}: say which object of the file: {text.rstrip(':')}:NAME")
    path = Path(path_text).expanduser()
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ConfigError(f"{path} is larger than {_MOST_BYTES >> 20} MiB")
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{path} cannot be read: {why}") from None
    return load_source(source, name, path.name, path)


def _from_package(point: EntryPoint) -> Loaded:
    dist = point.dist
    origin = f"{dist.name} {dist.version}" if dist is not None else point.module
    value = _guarded(point.load, origin)
    file = getattr(sys.modules.get(point.module), "__file__", None)
    body = Path(file).read_bytes() if file else point.value.encode()
    return Loaded(point.name, value, origin, hashlib.sha256(body).hexdigest())


def _guarded(run: Callable[[], Any], origin: str) -> Any:
    try:
        return run()
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{origin} cannot be loaded: {where(error, origin)}") from None
