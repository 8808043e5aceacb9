"""A backup of a server in one file, taken while it runs, and a server made of it elsewhere.

The file is a tar: what it is (`backup.json`), the database as of one moment, the files of the data
directory, and last a manifest with the size and SHA-256 of each. Without a whole manifest it is no
backup. The database goes first: whatever its jobs need was uploaded before they were accepted, so
it is among the files. Runs are left out: a restored server finds that they are gone and starts
those jobs again from their checkpoints.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath
from stat import S_ISLNK, S_ISREG
from typing import IO, Any

from presage import __version__
from presage.layout import Layout
from presage.model.errors import BackupError
from presage.store.dump import dump_database, is_empty, loading

__all__ = ["BackupInfo", "Restored", "check_backup", "make_backup", "restore_backup"]

_FORMAT = 1
_ABOUT, _DATABASE, _MANIFEST = "backup.json", "database.jsonl.gz", "manifest.json"
_FILES = "data/"
_CHUNK = 1 << 20
Report = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class BackupInfo:
    """What a backup holds."""

    path: str
    made_at: float
    version: str
    """Of the Presage that made it."""
    revision: str
    """Of its tables."""
    jobs: int
    rows: int
    files: int
    bytes: int
    """Of its files, the database included."""
    secrets: bool
    """Whether the secrets of jobs are in it."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What became of a backup."""

    backup: BackupInfo
    data: str


# -- making one -----------------------------------------------------------------------------------


def make_backup(
    out: Path, layout: Layout, url: str, *, with_secrets: bool = True, report: Report | None = None
) -> BackupInfo:
    """Write a backup, for its owner alone. It has the file's name once it is whole."""
    if out.exists():
        raise BackupError(f"{out} is there already; choose another name or move it away")
    draft = out.with_name(f".{out.name}.{secrets.token_hex(4)}.part")
    try:
        with _private(draft) as file, tarfile.open(fileobj=file, mode="w") as tar:
            info = _fill(tar, out, layout, url, with_secrets, report or (lambda *_: None))
        _give_name(draft, out)
    except OSError as error:
        raise BackupError(f"{out} cannot be written: {error.strerror or error}") from None
    finally:
        draft.unlink(missing_ok=True)
    return info


def _give_name(draft: Path, out: Path) -> None:
    try:
        os.link(draft, out)  # unlike a rename it never replaces anything
    except FileExistsError:
        raise BackupError(f"{out} is there already; choose another name") from None
    except OSError:  # a file system without links
        draft.rename(out)


def _fill(
    tar: tarfile.TarFile,
    out: Path,
    layout: Layout,
    url: str,
    with_secrets: bool,
    report: Report,
) -> BackupInfo:
    made_at, files = time.time(), dict[str, dict[str, Any]]()
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".presage-backup-") as folder:
        dumped = Path(folder) / _DATABASE
        revision, counts = dump_database(url, dumped)
        about = {
            "format": _FORMAT,
            "presage": __version__,
            "made_at": made_at,
            "revision": revision,
            "secrets": with_secrets,
        }
        _add_bytes(tar, _ABOUT, json.dumps(about).encode())
        _add_file(tar, _DATABASE, dumped, files)
    kept = list(_kept(layout, with_secrets))
    for number, path in enumerate(kept):
        report(number, len(kept))
        name = _FILES + path.relative_to(layout.data).as_posix()
        with suppress(FileNotFoundError):  # it is gone since
            _add_file(tar, name, path, files)
    report(len(kept), len(kept))
    manifest = {**about, "rows": counts, "files": files}
    _add_bytes(tar, _MANIFEST, json.dumps(manifest).encode())
    return _info(out, manifest)


def _kept(layout: Layout, with_secrets: bool) -> Iterator[Path]:
    """Files and links of a data directory that a backup has."""
    hidden = None if with_secrets else layout.secrets
    for path in sorted(layout.data.iterdir()) if layout.data.is_dir() else ():
        if layout.passing(path.name) or path == hidden:
            continue
        if not path.is_dir() or path.is_symlink():
            yield path
            continue
        for folder, folders, names in os.walk(path):
            here = Path(folder)
            yield here
            links = [name for name in folders if (here / name).is_symlink()]
            yield from (here / name for name in sorted((*links, *names)))


def _add_file(tar: tarfile.TarFile, name: str, path: Path, files: dict[str, Any]) -> None:
    kind = path.lstat()
    info = tarfile.TarInfo(name)
    info.mode, info.mtime = kind.st_mode & 0o777, kind.st_mtime
    info.uid, info.gid = kind.st_uid, kind.st_gid
    if S_ISLNK(kind.st_mode):
        info.type, info.linkname = tarfile.SYMTYPE, str(path.readlink())
        tar.addfile(info)
    elif path.is_dir():
        info.type = tarfile.DIRTYPE
        tar.addfile(info)
    elif S_ISREG(kind.st_mode):
        with path.open("rb") as file:
            info.size = os.fstat(file.fileno()).st_size
            counted = _Exactly(file, info.size)
            tar.addfile(info, counted)
        files[name] = {"size": info.size, "sha256": counted.digest.hexdigest()}


class _Exactly:
    """A file that may grow or be cut while it is read: as many bytes as it had, and their hash."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._left = file, size
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        """The next bytes; zeros for those that are no longer there."""
        size = self._left if size < 0 else min(size, self._left)
        data = self._file.read(size)
        data += bytes(size - len(data))
        self._left -= size
        self.digest.update(data)
        return data


def _add_bytes(tar: tarfile.TarFile, name: str, body: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = len(body), 0o600, time.time()
    tar.addfile(info, BytesIO(body))


@contextmanager
def _private(path: Path) -> Iterator[IO[bytes]]:
    """A new file for its owner alone, on disk when the block ends."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


# -- reading one ----------------------------------------------------------------------------------


def check_backup(path: Path) -> BackupInfo:
    """Whether a file is a whole backup that this version can read; writes nothing."""
    return _read(path, None)


def restore_backup(path: Path, data: Path, db: str) -> Restored:
    """Make a data directory, and a database, of a backup. Both appear whole, or not at all."""
    if data.exists() and (not data.is_dir() or any(data.iterdir())):
        raise BackupError(f"--data {data} is not empty; a backup is restored to a new directory")
    if db and not is_empty(db):
        raise BackupError("--db is not empty; a backup is restored to an empty database")
    draft = data.with_name(f".{data.name}.{secrets.token_hex(4)}.part")
    try:
        draft.mkdir(parents=True, mode=0o700)
        info = _read(path, draft)
        dumped = draft / _DATABASE
        with loading(db or f"sqlite:///{Layout(draft).database}", dumped, info.revision) as rows:
            if sum(rows.values()) != info.rows:
                raise BackupError(f"{path} is broken: rows are missing")
            dumped.unlink()
            if db:  # what can still fail comes before it is committed
                _take_place(draft, data)
        if not db:
            _take_place(draft, data)
    except OSError as error:
        raise BackupError(f"{data} cannot be made: {error.strerror or error}") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return Restored(info, str(data))


def _take_place(draft: Path, data: Path) -> None:
    if data.exists():
        data.rmdir()
    draft.rename(data)


def _read(path: Path, into: Path | None) -> BackupInfo:
    """Go through a backup, compare everything with its manifest, and unpack it."""
    seen, links = dict[str, dict[str, Any]](), list[tuple[Path, str]]()
    manifest: dict[str, Any] | None = None
    try:
        with tarfile.open(path, "r:") as tar:
            _check_about(path, tar)
            while (member := tar.next()) is not None:
                if member.name == _MANIFEST:
                    manifest = json.loads(_content(tar, member).read())
                elif manifest is not None:
                    raise BackupError(f"{path} is broken: something follows its manifest")
                else:
                    _unpack(tar, member, into, seen, links)
        if manifest is None or manifest["files"] != seen:
            wrong = "it ends too early" if manifest is None else _first_wrong(manifest, seen)
            raise BackupError(f"{path} is broken: {wrong}; use another backup")
        info = _info(path, manifest)
    except FileNotFoundError:
        raise BackupError(f"{path} is not there") from None
    except (tarfile.TarError, EOFError, KeyError, TypeError, ValueError) as error:
        raise BackupError(f"{path} is no backup of Presage, or a broken one: {error}") from None
    for link, target in links:  # last: nothing is ever written through one
        link.symlink_to(target)
    return info


def _check_about(path: Path, tar: tarfile.TarFile) -> None:
    first = tar.next()
    if first is None or first.name != _ABOUT:
        raise BackupError(f"{path} is no backup of Presage")
    about = json.loads(_content(tar, first).read())
    if about["format"] > _FORMAT:
        raise BackupError(
            f"{path} was made by Presage {about['presage']}, which is newer; restore it with that"
        )


def _unpack(
    tar: tarfile.TarFile,
    member: tarfile.TarInfo,
    into: Path | None,
    seen: dict[str, Any],
    links: list[tuple[Path, str]],
) -> None:
    name = PurePosixPath(member.name)
    inside = name == PurePosixPath(_DATABASE) or name.parts[0] + "/" == _FILES
    if name.is_absolute() or ".." in name.parts or not inside:
        raise BackupError(f"a backup does not have {member.name[:80]!r}")
    target = None
    if into is not None:
        target = into.joinpath(*name.parts[1:]) if len(name.parts) > 1 else into / name
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if member.isdir():
        if target is not None:
            target.mkdir(exist_ok=True, mode=0o700)
            target.chmod(member.mode & 0o777 | 0o700)
            if os.geteuid() == 0 and member.uid != 0:
                os.chown(target, member.uid, member.gid)
    elif member.issym():
        if target is not None:
            links.append((target, member.linkname))
    elif member.isreg():
        seen[member.name] = _copy(_content(tar, member), target, member)
    else:
        raise BackupError(f"a backup does not have things such as {member.name[:80]!r}")


def _copy(source: IO[bytes], target: Path | None, member: tarfile.TarInfo) -> dict[str, Any]:
    digest, size = hashlib.sha256(), 0
    out = None if target is None else target.open("xb")
    try:
        if out is not None:
            os.fchmod(out.fileno(), 0o600)
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
            if out is not None:
                out.write(chunk)
    finally:
        if out is not None:
            os.fchmod(out.fileno(), member.mode & 0o777)
            if os.geteuid() == 0 and member.uid != 0:
                os.fchown(out.fileno(), member.uid, member.gid)
            out.close()
    if target is not None:
        os.utime(target, (member.mtime, member.mtime))
    return {"size": size, "sha256": digest.hexdigest()}


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    content = tar.extractfile(member)
    if content is None:
        raise BackupError(f"{member.name[:80]!r} is no file")
    return content


def _first_wrong(manifest: dict[str, Any], seen: dict[str, Any]) -> str:
    for name, is_so in seen.items():
        if manifest["files"].get(name) != is_so:
            return f"{name} is not what was saved"
    missing = next(iter(manifest["files"].keys() - seen.keys()), "something")
    return f"{missing} is missing"


def _info(path: Path, manifest: dict[str, Any]) -> BackupInfo:
    files, rows = manifest["files"], manifest["rows"]
    return BackupInfo(
        path=str(path),
        made_at=float(manifest["made_at"]),
        version=str(manifest["presage"]),
        revision=str(manifest["revision"]),
        jobs=int(rows.get("jobs", 0)),
        rows=sum(rows.values()),
        files=len(files),
        bytes=sum(int(file["size"]) for file in files.values()),
        secrets=bool(manifest["secrets"]),
    )
