"""The codec of messages between the processes that run jobs: strict, versioned, and small.

A message is JSON: a file in the directory of a run, a line on a pipe, or an argument of a call to
an agent. It carries a version, and runs outlive servers, so a message of an older version is read
(without a version it is of the first), while a newer one, an unknown key and a missing one are
refused in one line. A field that holds its default is left out: a default is what the absence of
a key means, for ever. To change a message, add a field with a default, or raise VERSION.

A message is a frozen dataclass to the type checker (PEP 681), which every change must pass. It is
not one at run time: with `dataclasses` a guardian would take twice as long to start. Standard
library only.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path, PurePath
from types import UnionType
from typing import Any, ClassVar, Self, TypeAlias, TypeVar, dataclass_transform

__all__ = [
    "VERSION",
    "Mark",
    "Message",
    "MessageError",
    "decode",
    "dumps",
    "encode",
    "find",
    "loads",
    "mark",
    "pack",
    "read",
    "read_bounded",
    "unpack",
    "write",
]

VERSION = 1

Mark: TypeAlias = tuple[int, int]
_NO_DEFAULT = object()
_WRITTEN = {"identity": "is"}
"""What a field is called in a message where Python has that word for itself."""


class MessageError(ValueError):
    """A message cannot be understood; the text is one line."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Message:
    """A value whose fields are its annotations."""

    FILE: ClassVar[str] = ""
    """Where it is in the directory of a run, if it is a file."""
    KINDS: ClassVar[dict[str, Any]] = {}
    """The types of its fields, by name."""

    def __init_subclass__(cls) -> None:
        cls.KINDS = {**cls.KINDS, **cls.__annotations__}

    def __init__(self, **fields: Any) -> None:
        for name in fields.keys() - self.KINDS.keys():
            raise TypeError(f"{type(self).__name__} has no field {name!r}")
        self.__dict__.update(fields)  # what is missing is found in the class, if it has a default

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__}.{name}: a message is never changed")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and encode(self) == encode(other)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({encode(self)})"

    def but(self, **changes: Any) -> Self:
        """The same with other values."""
        return type(self)(**{**vars(self), **changes})


M = TypeVar("M", bound=Message)


def pack(message: Message) -> Any:
    """A message as JSON values. Of one field, it is that field alone: it gets a version when it
    gets a second."""
    body = encode(message)
    return next(iter(body.values())) if len(message.KINDS) == 1 else {"version": VERSION, **body}


def unpack(kind: type[M], body: Any) -> M:
    """The message that was packed; raises MessageError."""
    if not isinstance(body, dict):
        body = dict.fromkeys(kind.KINDS, body) if len(kind.KINDS) == 1 else {}
    try:
        return _message(kind, dict(body))
    except MessageError as error:
        raise MessageError(f"{kind.FILE or kind.__name__}: {error}") from None


def dumps(message: Message) -> bytes:
    """A message in one line."""
    return json.dumps(pack(message)).encode() + b"\n"


def loads(kind: type[M], text: bytes) -> M:
    """The message in a text; raises MessageError."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        raise MessageError(f"{kind.FILE or kind.__name__} is not JSON") from None
    return unpack(kind, body)


def write(directory: Path, message: Message, *, durable: bool = False) -> None:
    """Replace the file of a message, whole or not at all; with `durable` it is on disk then."""
    file = directory / message.FILE
    new = file.with_suffix(".new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
    with os.fdopen(os.open(new, flags, 0o666), "wb") as out:
        out.write(dumps(message))
        if durable:
            out.flush()
            os.fsync(out.fileno())
    new.replace(file)


def read(kind: type[M], directory: Path) -> M:
    """The message in a directory; raises OSError or MessageError."""
    return loads(kind, (directory / kind.FILE).read_bytes())


def find(kind: type[M], directory: Path) -> M | None:
    """The message in a directory, if there is one; raises MessageError."""
    try:
        return read(kind, directory)
    except OSError:
        return None


def read_bounded(file: Path, most: int = 1 << 20) -> bytes:
    """The beginning of a file that any program may have put there; raises OSError for what is no
    plain file, instead of waiting for somebody who writes to a pipe."""
    fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "no plain file", str(file))
        return os.read(fd, most)
    finally:
        os.close(fd)


def mark(file: str | Path) -> Mark | None:
    """What changes when a file is replaced or touched; None when there is none."""
    try:
        info = os.stat(file)  # noqa: PTH116 (called very often)
    except OSError:
        return None
    return info.st_mtime_ns, info.st_ino


def encode(value: Any) -> Any:
    """A message, or what is in one, as JSON values without a version."""
    if isinstance(value, Message):
        kind = type(value)
        return {
            _WRITTEN.get(name, name): encode(item)
            for name, item in vars(value).items()
            if item != getattr(kind, name, _NO_DEFAULT)
        }
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {name: encode(item) for name, item in value.items()}
    return str(value) if isinstance(value, PurePath) else value


def _message(kind: type[M], body: dict[str, Any]) -> M:
    version = body.pop("version", 1)
    if not isinstance(version, int) or version > VERSION:
        raise MessageError(
            f"version {version} is newer than what this Presage reads ({VERSION}); run the "
            "version that wrote it, or a newer one"
        )
    fields = {}
    for name, inner in kind.KINDS.items():
        written = _WRITTEN.get(name, name)
        if written in body:
            try:
                fields[name] = decode(inner, body.pop(written))
            except MessageError as error:
                raise MessageError(f"{written}: {error}") from None
        elif not hasattr(kind, name):
            raise MessageError(f"{written!r} is missing")
    for name in body:
        raise MessageError(f"{name!r} is not known here")
    return kind(**fields)


def decode(kind: Any, data: Any) -> Any:
    """A value of a type that fields may have; raises MessageError."""
    if kind is Any:
        return data
    if isinstance(kind, UnionType):  # with None
        return None if data is None else decode(kind.__args__[0], data)
    origin = getattr(kind, "__origin__", kind)
    if origin is tuple and isinstance(data, tuple | list):
        inner = kind.__args__
        if inner[-1] is ...:
            return tuple([decode(inner[0], item) for item in data])
        if len(inner) == len(data):
            return tuple(map(decode, inner, data))
    elif origin is dict and isinstance(data, dict):
        return {name: decode(kind.__args__[1], item) for name, item in data.items()}
    elif kind is float and type(data) in (int, float):
        return data
    elif kind is Path and type(data) is str:
        return Path(data)
    elif issubclass(origin, Message) and isinstance(data, dict):
        return _message(kind, dict(data))
    elif type(data) is kind:
        return data
    raise MessageError(f"{data!r:.80} is not of type {getattr(kind, '__name__', kind)}")
