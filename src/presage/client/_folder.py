"""A work folder as bytes to send: the same bytes for the same content. Sends nothing itself.

What git ignores is not sent, nor what `.presageignore` names; files that are well known to hold
secrets are sent only if somebody asked for them, by `include` or by a line `!NAME` there.
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from presage.model.errors import PackError, UserError
from presage.model.words import count_text, size_text

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

__all__ = ["FolderSurvey", "pack_folder", "survey_folder"]

_SKIPPED = {".git", ".hg", "__pycache__", ".venv", "node_modules", ".mypy_cache", ".ruff_cache"}
_MOST_BYTES = 256 << 20
OWN = ".presageignore"
_SECRETS = (
    ".env",
    ".env.*",
    ".envrc",
    ".git-credentials",
    ".htpasswd",
    ".netrc",
    ".npmrc",
    ".pgpass",
    ".pypirc",
    "*.jks",
    "*.kdbx",
    "*.key",
    "*.keystore",
    "*.p12",
    "*.pem",
    "*.pfx",
    "*.ppk",
    "application_default_credentials.json",
    "credentials.json",
    "id_dsa",
    "id_ecdsa",
    "id_ed25519",
    "id_rsa",
    "kaggle.json",
    "service-account*.json",
)
"""Names of files that are well known to hold secrets."""
_SECRET_FOLDERS = frozenset({".aws", ".azure", ".docker", ".gnupg", ".kube", ".ssh"})
_HARMLESS = (".env.example", ".env.sample", ".env.template", ".env.dist")


@dataclass(frozen=True, slots=True)
class FolderSurvey:
    """What is sent of a folder, and what is not."""

    files: int
    bytes: int
    largest: tuple[tuple[str, int], ...]
    """A few of the largest, by path."""
    ignored: int
    """Files and folders that ignore files name."""
    withheld: tuple[str, ...]
    """Files that look like secrets."""

    @property
    def text(self) -> str:
        """In one line."""
        big = ", ".join(f"{path} {size_text(size)}" for path, size in self.largest[:1])
        rest = f"; {count_text(self.ignored, 'path')} ignored" if self.ignored else ""
        what = f"{count_text(self.files, 'file')}, {size_text(self.bytes)}"
        return what + (f", the largest {big}" if big else "") + rest

    @property
    def warning(self) -> str:
        """What is not sent that somebody might want, in one line; empty if nothing is."""
        if not self.withheld:
            return ""
        some = ", ".join(self.withheld[:5]) + ", …" * (len(self.withheld) > 5)
        first = self.withheld[0]
        return (
            f"not sent, since it may hold secrets: {some} (to send: --include '{first}', "
            f"or a line !{first} in {OWN})"
        )


def survey_folder(folder: Path, include: Sequence[str] = ()) -> FolderSurvey:
    """What would be sent of a folder."""
    choice = _Choice(folder, include)
    try:
        sizes = [
            (str(path.relative_to(folder)), path.stat().st_size)
            for path in choice.chosen()
            if path.is_file() and not path.is_symlink()
        ]
    except OSError as error:
        raise _unreadable(folder, error) from None
    largest = tuple(sorted(sizes, key=lambda item: (-item[1], item[0]))[:3])
    total = sum(size for _, size in sizes)
    withheld = tuple(sorted(choice.withheld))
    return FolderSurvey(len(sizes), total, largest, choice.ignored, withheld)


def pack_folder(folder: Path, include: Sequence[str] = ()) -> bytes:
    """A folder as a gzipped tar: the same bytes for the same content. `include` has patterns, as
    in .gitignore, of files that are sent although something says otherwise."""
    try:
        return _pack(folder, include)
    except OSError as error:
        raise _unreadable(folder, error) from None


def _unreadable(folder: Path, error: OSError) -> PackError:
    return PackError(
        f"folder {folder} cannot be sent: {error.filename or folder}: {error.strerror}; keep what "
        "changes while it is sent, and what cannot be read, somewhere else"
    )


def _pack(folder: Path, include: Sequence[str]) -> bytes:
    raw, total = io.BytesIO(), 0
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(_Choice(folder, include).chosen()):
            info = tar.gettarinfo(path, arcname=str(path.relative_to(folder)))
            if info is None or not (info.isreg() or info.issym() or info.isdir()):
                continue
            info.uid = info.gid = 0
            info.uname = info.gname = ""
            info.mtime = 0
            total += info.size
            if total > _MOST_BYTES:
                raise PackError(
                    f"folder {folder} has more than {_MOST_BYTES >> 20} MiB; move data out of it "
                    f"and name it under `data`, or list what is not needed in {OWN}"
                )
            if info.isreg():
                with path.open("rb") as file:
                    tar.addfile(info, file)
            else:
                tar.addfile(info)
    return gzip.compress(raw.getvalue(), compresslevel=6, mtime=0)


class _Choice:
    """Which paths of a folder are sent."""

    def __init__(self, folder: Path, include: Sequence[str]) -> None:
        self._folder = folder
        self._include = _spec(include, "--include") if include else None
        self._own = _ignore_file(folder / OWN)
        self._git: dict[Path, GitIgnoreSpec] = {}
        """What git ignores, by the folder in which an ignore file says so."""
        self._above = _up_to_repository(folder)
        for place in self._above:
            self._look(place)
        self.ignored = 0
        self.withheld: list[str] = []

    def chosen(self) -> Iterator[Path]:
        """Files and folders to send."""
        self.ignored, self.withheld = 0, []
        for home, names, files in os.walk(self._folder):
            place = Path(home)
            self._look(place)
            names[:] = sorted(name for name in names if name not in _SKIPPED)
            kept = []
            for name in names:
                if self._sends(place / name, folder=True):
                    kept.append(name)
                    yield place / name
            # Somebody may want a file of an ignored folder back: then that is looked through.
            names[:] = names if self._include or self._own else kept
            yield from (place / name for name in files if self._sends(place / name))

    def _look(self, place: Path) -> None:
        rules = _ignore_file(place / ".gitignore")
        if rules is not None:
            self._git[place] = rules

    def _sends(self, path: Path, *, folder: bool = False) -> bool:
        relative = path.relative_to(self._folder).as_posix()
        named = relative + "/" * folder
        if self._include is not None and self._include.match_file(named):
            return True
        own = self._own.check_file(named).include if self._own is not None else None
        ignored = own if own is not None else self._git_ignores(path, folder)
        if ignored:
            self.ignored += 1
            return False
        if own is None and _looks_secret(path.relative_to(self._folder), folder):
            self.withheld.append(relative)
            return False
        return True

    def _git_ignores(self, path: Path, folder: bool) -> bool:
        """As git does it: the nearest ignore file that knows a path decides."""
        answer = None
        for place in reversed([*path.parents]):
            if place in self._git:
                named = path.relative_to(place).as_posix() + "/" * folder
                said = self._git[place].check_file(named).include
                answer = answer if said is None else said
        return bool(answer)


def _looks_secret(path: Path, folder: bool) -> bool:
    if any(part in _SECRET_FOLDERS for part in path.parts):
        return not folder
    name = path.name.lower()
    return not folder and name not in _HARMLESS and any(fnmatchcase(name, s) for s in _SECRETS)


def _up_to_repository(folder: Path) -> list[Path]:
    """The folders above, up to that of the repository it is part of; none if it is in none."""
    above: list[Path] = []
    if (folder / ".git").exists():
        return above
    for place in folder.parents:
        above.append(place)
        if (place / ".git").exists():
            return above
    return []


def _ignore_file(path: Path) -> GitIgnoreSpec | None:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as error:
        raise PackError(f"{path} cannot be read: {error.strerror}") from None
    return _spec(lines, str(path)) if lines else None


def _spec(lines: Sequence[str], where: str) -> GitIgnoreSpec:
    from pathspec import GitIgnoreSpec

    try:
        return GitIgnoreSpec.from_lines(lines)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None
