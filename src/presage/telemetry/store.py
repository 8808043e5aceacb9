"""Keeps profiles: a directory with a file of JSON lines for each signature.

Lines are only ever appended, each with one write that is flushed to the disk. A crash can tear the
last line; it is left out when reading, and the next line starts on a new one. Nothing is ever
deleted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from presage.model.errors import UserError
from presage.model.profile import Profile, profile_from_json, profile_to_json

__all__ = ["ProfileStore", "default_directory"]

_SUFFIX = ".jsonl"


def default_directory() -> Path:
    """`$PRESAGE_HOME/profiles`; without the variable, below `~/.local/share/presage`."""
    home = os.environ.get("PRESAGE_HOME") or "~/.local/share/presage"
    return Path(home).expanduser() / "profiles"


class ProfileStore:
    """Profiles by signature, oldest first. Several processes may add to it at the same time."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory or default_directory()

    def check(self) -> None:
        """Make the directory, and refuse one that cannot be written to, before any work is
        done."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise self._unusable(error.strerror or str(error)) from None
        if not os.access(self.directory, os.W_OK | os.X_OK):
            raise self._unusable("permission denied")

    def add(self, profile: Profile) -> Path:
        """Keep a profile; when this returns, it is on the disk. Returns the file it is in."""
        self.check()
        path = self._file(profile.signature)
        line = json.dumps(profile_to_json(profile), allow_nan=False).encode() + b"\n"
        try:
            new = not path.exists()
            # Commands can hold secrets: the file is the owner's alone.
            file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                size = os.fstat(file).st_size
                torn = size > 0 and os.pread(file, 1, size - 1) != b"\n"
                _write_all(file, b"\n" + line if torn else line)
                os.fsync(file)
            finally:
                os.close(file)
            if new:
                _flush_directory(self.directory)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror or error}") from None
        return path

    def history(self, signature: str) -> list[Profile]:
        """The profiles of a workload, oldest first."""
        path = self._file(signature)
        return list(_read(path)) if path.is_file() else []

    def read_all(self) -> list[Profile]:
        """Every profile, oldest first."""
        files = sorted(self.directory.glob(f"*{_SUFFIX}"))
        profiles = [profile for path in files for profile in _read(path)]
        return sorted(profiles, key=lambda profile: (profile.started_s, profile.signature))

    def _file(self, signature: str) -> Path:
        return self.directory / f"{signature}{_SUFFIX}"

    def _unusable(self, why: str) -> UserError:
        return UserError(
            f"profiles cannot be kept in {self.directory}: {why}; set PRESAGE_HOME to a directory"
            " that you can write to"
        )


def _read(path: Path) -> Iterator[Profile]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    for number, line in enumerate(lines, 1):
        try:
            data = json.loads(line)
        except ValueError:
            continue  # torn by a crash, or the empty line before its successor
        try:
            yield profile_from_json(data)
        except UserError as error:
            raise UserError(f"{path} line {number}: {error}") from None


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def _flush_directory(directory: Path) -> None:
    """A new name is safe only when its directory is flushed too."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
