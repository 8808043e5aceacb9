"""A page of the files that a job made, and what was left out of what it wrote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from presage.control.records.results import JobResults

__all__ = ["results_page"]


def results_page(
    results: JobResults, job: str, wanted: Sequence[str], limit: int, after: str | None
) -> dict[str, Any]:
    """Files by path, from the one that follows `after`; `wanted` names files, directories or
    patterns."""
    note = results.note(job)
    files = sorted(results.files(job, wanted), key=lambda file: file.path)
    rest = [file for file in files if after is None or file.path > after]
    page = rest[:limit]
    return {
        "id": job,
        "count": len(files),
        "bytes": sum(file.bytes for file in files),
        "files": [
            {
                "path": _printable(file.path),
                "bytes": file.bytes,
                "changed_at": file.changed_at,
            }
            for file in page
        ],
        "left_out": [
            {"path": _printable(file.path), "bytes": file.bytes, "why": file.why}
            for file in (note.left_out if note else ())
        ],
        "more_left_out": note.more_left_out if note else 0,
        "url": note.url if note else None,
        "removed_at": note.removed_at if note else None,
        "next": page[-1].path if len(rest) > limit else None,
    }


def _printable(path: str) -> str:
    return path.encode("utf-8", "replace").decode()
