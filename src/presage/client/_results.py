"""Brings results of a job to this machine: whole files, and what was interrupted continues.

A file comes into `.NAME.presage-part` beside its place, and gets its name when it is whole. What
the server names never leads out of the directory that it is brought to.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import quote

from presage.beneath import parts_of
from presage.client._http import Connection, path_of
from presage.model.answers import ResultFile, ResultsPage
from presage.model.errors import ApiError, UserError

if TYPE_CHECKING:
    from presage.client._server import Client

__all__ = ["Told", "download"]

Told: TypeAlias = Callable[[ResultFile, int], object]
"""Is told of a file and how many bytes of it came just now."""


def download(
    client: Client, job_id: str, to: Path, paths: Sequence[str], told: Told | None
) -> list[Path]:
    """Bring results into a directory; where they are then."""
    page: ResultsPage = client.results(job_id, paths)
    brought = []
    for file in page.files:
        try:
            target = to.joinpath(*parts_of(file.path))
            target.parent.mkdir(parents=True, exist_ok=True)
            if to.resolve() not in target.parent.resolve().parents and (
                target.parent.resolve() != to.resolve()
            ):
                raise ValueError(f"{file.path} leads outside of {to}")
            if not _is_here(target, file):
                _bring(client, job_id, file, target, told or (lambda *_: None))
        except ValueError as error:
            raise UserError(f"{error}; it was not brought") from None
        except OSError as error:
            where = error.filename or to
            raise UserError(f"{where} cannot be written: {error.strerror or error}") from None
        brought.append(target)
    return brought


def _is_here(target: Path, file: ResultFile) -> bool:
    """Whether it was brought before: a file gets the time of change of the original."""
    try:
        known = target.lstat()
    except OSError:
        return False
    return known.st_size == file.bytes and abs(known.st_mtime - file.changed_at) < 1e-3


def _bring(client: Connection, job_id: str, file: ResultFile, target: Path, told: Told) -> None:
    part = target.with_name(f".{target.name}.presage-part")
    tag = target.with_name(f".{target.name}.presage-tag")
    headers = {}
    if part.exists() and tag.exists() and (have := part.stat().st_size):
        headers = {"Range": f"bytes={have}-", "If-Range": tag.read_text()}
    place = f"/jobs/{path_of(job_id)}/results/{quote(file.path)}"
    try:
        with client.stream(place, {}, headers) as answer:
            again = answer.status_code != 206
            tag.write_text(answer.headers.get("etag", ""))
            with part.open("wb" if again else "ab") as out:
                for chunk in answer.iter_bytes():
                    out.write(chunk)
                    told(file, len(chunk))
    except ApiError as error:
        if error.status != 416:  # all of it is here already
            raise
    os.utime(part, (file.changed_at, file.changed_at))
    part.replace(target)
    tag.unlink(missing_ok=True)
