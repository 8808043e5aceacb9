"""Results: keeps what a run left in its working directory and was not there before.

Files are moved from the work directory to the results of the job, each whole or not at all, so
doing it again after a crash goes on where it was. The rules (docs/how-to/files-of-a-job.md):

- New and changed regular files are results; links, and what `SKIPPED` names, are not. `keep` and
  `ignore` of the manifest (patterns as in .gitignore) choose among them.
- A file replaces what an earlier run left under its path. What this run itself wrote to
  PRESAGE_RESULT_DIR stays; a work file of the same path and other content is `from-work/PATH`.
- When all would be more than the job may keep, the newest files are kept that still fit; the
  others are left out, by name and size, in `results.json`.

Standard library only, but for pathspec when the manifest has patterns. Guardians import this when
their run left something; `base` does for a guardian that died.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from presage import beneath
from presage.executors.node import wire
from presage.executors.node.messages import LeftOut, ResultsNote, RunPlan, WorkBefore
from presage.model.words import count_text, size_text

__all__ = ["FROM_WORK", "SKIPPED", "keep", "note_before", "patterns", "said", "survey"]

SKIPPED = frozenset(
    {
        "__pycache__",
        ".cache",
        ".git",
        ".ipynb_checkpoints",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
        ".venv",
        "node_modules",
    }
)
"""Names of directories and files that no job wants back."""
FROM_WORK = "from-work"
MOST_NAMED = 1000
"""Files that are left out by name; the others are counted."""

Matches = Callable[[str], bool]


def note_before(plan: RunPlan) -> None:
    """Write down what is in the work directory before any worker begins."""
    files = {path: (known.st_size, known.st_mtime_ns) for path, known in beneath.walk(plan.work)}
    if files:
        wire.write(plan.run, WorkBefore(files=files))


def keep(plan: RunPlan) -> ResultsNote | None:
    """Move what the run left to the results of its job, and write down what there is; None if
    there is nothing."""
    files = _found(plan)
    left_out: list[LeftOut] = []
    if files:
        plan.result_dir.mkdir(parents=True, exist_ok=True)
        began_ns = (plan.run / RunPlan.FILE).stat().st_mtime_ns
        room = plan.most_results - sum(known.st_size for _, known in beneath.walk(plan.result_dir))
        for path, known in sorted(files, key=lambda file: (-file[1].st_mtime_ns, file[0])):
            freed = _replaced(plan.result_dir, path, began_ns)
            if plan.most_results and known.st_size > room + freed:
                left_out.append(LeftOut(path=path, bytes=known.st_size, why="limit"))
                continue
            try:
                if _move(plan, path, began_ns):
                    room -= known.st_size - freed
            except (OSError, ValueError) as error:
                why = getattr(error, "strerror", None) or str(error)
                left_out.append(LeftOut(path=path, bytes=known.st_size, why=why))
    note = survey(plan.result_dir, plan.attempt, plan.results, left_out)
    if note is not None:
        wire.write(plan.result_dir.parent, note, durable=True)
    return note


def survey(
    results: Path, attempt: int, url: str | None, left_out: list[LeftOut]
) -> ResultsNote | None:
    """What there is, in numbers; None if there is nothing to say."""
    sizes = [known.st_size for _, known in beneath.walk(results)]
    if not sizes and not left_out:
        return None
    return ResultsNote(
        files=len(sizes),
        bytes=sum(sizes),
        attempt=attempt,
        url=url,
        left_out=tuple(left_out[:MOST_NAMED]),
        more_left_out=max(0, len(left_out) - MOST_NAMED),
    )


def said(note: ResultsNote | None, most: int) -> str:
    """The same in words, to follow how a run ended."""
    if note is None:
        return ""
    words = f"; {count_text(note.files, 'result file')} ({size_text(note.bytes)})"
    if out := len(note.left_out) + note.more_left_out:
        over = any(file.why == "limit" for file in note.left_out)
        limit = f", since a job may keep {size_text(most)}" if over else ""
        first = ", ".join(f"{file.path} {size_text(file.bytes)}" for file in note.left_out[:3])
        words += f"; {count_text(out, 'file')} LEFT OUT{limit}: {first}{', …' * (out > 3)}"
    return words


def patterns(lines: tuple[str, ...]) -> Matches:
    """Whether a path matches patterns of .gitignore."""
    import site

    site.main()  # a guardian starts without site-packages
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines(lines).match_file


def _found(plan: RunPlan) -> list[tuple[str, os.stat_result]]:
    """What is new or different in the work directory and wanted."""
    before = wire.find(WorkBefore, plan.run)
    known = before.files if before else {}
    wanted = patterns(plan.keep) if plan.keep else None
    unwanted = patterns(plan.ignore) if plan.ignore else None

    def result(path: str, now: os.stat_result) -> bool:
        if known.get(path) == (now.st_size, now.st_mtime_ns) or path.endswith(".pyc"):
            return False
        return (wanted is None or wanted(path)) and not (unwanted and unwanted(path))

    skipped = frozenset() if wanted else SKIPPED
    return [(path, now) for path, now in beneath.walk(plan.work, skipped) if result(path, now)]


def _replaced(results: Path, path: str, began_ns: int) -> int:
    """Bytes of an earlier run's file that one of this path replaces."""
    known = _stat(results, path)
    return known.st_size if known is not None and known.st_mtime_ns < began_ns else 0


def _stat(root: Path, path: str) -> os.stat_result | None:
    with suppress(OSError, ValueError):
        fd = beneath.open_file(root, path)
        try:
            return os.fstat(fd)
        finally:
            os.close(fd)
    return None


def _move(plan: RunPlan, path: str, began_ns: int) -> bool:
    """Make a work file a result; False if it is there already."""
    there = _stat(plan.result_dir, path)
    here = _stat(plan.work, path)
    target = path
    if there is not None and there.st_mtime_ns >= began_ns:
        if here is not None and os.path.samestat(here, there):
            return False
        if _same(plan.work, plan.result_dir, path):
            return False
        target = f"{FROM_WORK}/{path}"
    *homes, name = beneath.parts_of(path)
    *there_homes, there_name = beneath.parts_of(target)
    with (
        beneath.directory(plan.work, homes) as source,
        beneath.directory(plan.result_dir, there_homes, make=True) as home,
    ):
        if here is not None and os.geteuid() == 0:
            _give_alike(plan.result_dir, there_homes, here)
        _flush(name, source)
        try:
            os.rename(name, there_name, src_dir_fd=source, dst_dir_fd=home)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            _copy(plan, path, there_name, home)
    return True


def _give_alike(results: Path, names: list[str], file: os.stat_result) -> None:
    """Directories that were made for a file belong to whom the file belongs to."""
    for n in range(1, len(names) + 1):
        with beneath.directory(results, names[:n]) as home:
            if os.fstat(home).st_uid == 0 != file.st_uid:
                os.fchown(home, file.st_uid, file.st_gid)


def _flush(name: str, home: int) -> None:
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=home)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _copy(plan: RunPlan, path: str, name: str, home: int) -> None:
    """The same for a file on another file system: under another name first."""
    draft = f".storing-{os.getpid()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with suppress(FileNotFoundError):
        os.unlink(draft, dir_fd=home)
    source = beneath.open_file(plan.work, path)
    target = os.open(draft, flags, 0o600, dir_fd=home)
    try:
        known = os.fstat(source)
        while copied := os.sendfile(target, source, None, 1 << 24):
            del copied
        os.fchmod(target, known.st_mode & 0o777)
        if os.geteuid() == 0:
            os.fchown(target, known.st_uid, known.st_gid)
        os.utime(target, ns=(known.st_atime_ns, known.st_mtime_ns))
        os.fsync(target)
        os.rename(draft, name, src_dir_fd=home, dst_dir_fd=home)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft, dir_fd=home)
        raise
    finally:
        os.close(source)
        os.close(target)


def _same(one: Path, other: Path, path: str) -> bool:
    """Whether a file has the same content in two directories."""
    chunks = [_chunks(root, path) for root in (one, other)]
    with suppress(OSError):
        while True:
            left, right = (next(part, b"") for part in chunks)
            if left != right:
                return False
            if not left:
                return True
    return False


def _chunks(root: Path, path: str) -> Iterator[bytes]:
    fd = beneath.open_file(root, path)
    with os.fdopen(fd, "rb") as file:
        while chunk := file.read(1 << 20):
            yield chunk
