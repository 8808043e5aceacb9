"""A work folder as bytes to send: the same bytes for the same content. Sends nothing itself."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

from presage.model.errors import PackError

__all__ = ["pack_folder"]

_SKIPPED = {".git", ".hg", "__pycache__", ".venv", "node_modules", ".mypy_cache", ".ruff_cache"}
_MOST_BYTES = 256 << 20


def pack_folder(folder: Path) -> bytes:
    """A folder as a gzipped tar: the same bytes for the same content."""
    try:
        return _pack(folder)
    except OSError as error:
        name = error.filename or folder
        raise PackError(
            f"folder {folder} cannot be sent: {name}: {error.strerror}; keep what changes while "
            "it is sent, and what cannot be read, somewhere else"
        ) from None


def _pack(folder: Path) -> bytes:
    raw, total = io.BytesIO(), 0
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(_files(folder)):
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
                    "and name it under `data`"
                )
            if info.isreg():
                with path.open("rb") as file:
                    tar.addfile(info, file)
            else:
                tar.addfile(info)
    return gzip.compress(raw.getvalue(), compresslevel=6, mtime=0)


def _files(folder: Path) -> Iterator[Path]:
    for home, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if name not in _SKIPPED)
        for name in names + files:
            yield Path(home) / name
