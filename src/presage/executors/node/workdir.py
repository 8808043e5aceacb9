"""Brings in what a run needs (work folder, data, image) and takes away what it made (results).

Runs in a process of its own, forked from the guardian, so that a stop request can end it and its
memory goes with it. Standard library only, but for fsspec when an address is not a local path.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from presage.executors.node.credentials import drop
from presage.executors.node.messages import RunPlan
from presage.sources import is_local, missing_for, missing_for_git

__all__ = [
    "MAY_PASS",
    "Step",
    "TransferError",
    "fetch",
    "has_content",
    "note_work",
    "prepare",
    "run_in_child",
    "store_results",
]

Step = Callable[[RunPlan, BinaryIO | None], None]
"""Something to do for a run; the second is its work folder as it was uploaded, open."""

_ATTEMPTS = 3
MAY_PASS = 2
"""Exit code of the process that prepares when another attempt may succeed."""


class TransferError(Exception):
    """Something could not be brought in or taken away; the text says what to do. `may_pass`:
    another attempt may succeed."""

    def __init__(self, text: str, *, may_pass: bool = False) -> None:
        super().__init__(text)
        self.may_pass = may_pass


def local_path(url: str, work: Path) -> Path:
    """The path of a local address; a relative one starts in the work directory."""
    return work / Path(url.removeprefix("file://")).expanduser()


def prepare(plan: RunPlan, folder: BinaryIO | None) -> None:
    """Unpack the work folder or check it out, link or download data."""
    if folder is not None:
        _unpack(folder, plan.work)
    elif plan.git:
        _check_out(*plan.git, plan.work)
    if plan.user is None:
        note_work(plan)
    _link_checkpoints(plan)
    for name, url in plan.data.items():
        target = plan.data_dir / name
        if is_local(url):
            source = local_path(url, plan.work)
            if not source.exists():
                raise TransferError(f"data '{name}': there is no {url}")
            target.symlink_to(source.absolute())
        else:
            _retried(f"data '{name}' from {url}", _download, url, target)


def note_work(plan: RunPlan) -> None:
    """Write down what is in the work directory, if something was put there."""
    if plan.folder or plan.git:
        from presage.executors.node.keeping import note_before

        note_before(plan)


def fetch(plan: RunPlan, _: BinaryIO | None = None) -> None:
    """Have the image on this machine."""
    if plan.engine and plan.image:
        from presage.executors.node.containers import fetch_image

        problem = fetch_image(plan.engine, plan.image)
        if problem is not None:
            raise TransferError(problem)


def store_results(plan: RunPlan, _: BinaryIO | None = None) -> None:
    """Copy the results to where the manifest wants them, if it does."""
    url = plan.results
    if url is None:
        return
    if is_local(url):
        try:
            _copy_tree(plan.result_dir, local_path(url, plan.work))
        except OSError as error:
            raise TransferError(f"results to {url}: {_first_line(error)}") from None
    else:
        _retried(f"results to {url}", _upload, plan.result_dir, url)


def has_content(directory: Path) -> bool:
    """Whether there is anything in a directory."""
    try:
        return next(directory.iterdir(), None) is not None
    except OSError:
        return False


def _copy_tree(source: Path, target: Path) -> None:
    """Copy every file, each whole or not at all; links are not followed."""
    import shutil  # late, as elsewhere: what a guardian imports at its start delays every job

    from presage import beneath

    target.mkdir(parents=True, exist_ok=True)
    for path, _ in beneath.walk(source):
        place = target / path
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = place.with_name(f".{place.name}.storing")
        shutil.copy2(source / path, draft, follow_symlinks=False)
        draft.replace(place)


def _opened(folder: Path) -> BinaryIO:
    """An uploaded work folder, opened while this is still the server's user."""
    try:
        return folder.open("rb")
    except OSError as error:
        raise TransferError(f"the work folder cannot be unpacked: {_first_line(error)}") from None


def _unpack(folder: BinaryIO, work: Path) -> None:
    import tarfile

    try:
        with tarfile.open(fileobj=folder) as archive:
            archive.extractall(work, filter="data")  # refuses paths that lead outside
    except (OSError, tarfile.TarError) as error:
        raise TransferError(f"the work folder cannot be unpacked: {_first_line(error)}") from None


def _check_out(url: str, ref: str, work: Path) -> None:
    from presage.executors.node.checkout import GitError, check_out

    if missing := missing_for_git(os.environ.get("PATH")):
        raise TransferError(missing)
    try:
        commit = check_out(url, ref, work, os.environ)
    except GitError as error:
        raise TransferError(f"git {url} at {ref}: {error}") from None
    print(f"{url} at {ref} is commit {commit}")


def _link_checkpoints(plan: RunPlan) -> None:
    """Let a program that writes to the manifest's directory find it where it outlives the run."""
    if not plan.checkpoint_link:
        return
    link = plan.work / plan.checkpoint_link
    if plan.work in link.resolve().parents and not os.path.lexists(link):
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(plan.checkpoint_dir)


def _retried(what: str, transfer: Any, source: Any, target: Any) -> None:
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            transfer(source, target)
            return
        except TransferError:
            raise
        except Exception as error:  # fsspec's file systems raise errors of their own
            if attempt == _ATTEMPTS:
                may_pass = not isinstance(error, FileNotFoundError)
                text = f"{what}: {_first_line(error)}"
                raise TransferError(text, may_pass=may_pass) from None


def _download(url: str, target: Path) -> None:
    fs, path = _filesystem(url)
    if fs.isdir(path):
        fs.get(path.rstrip("/") + "/", f"{target}/", recursive=True)
    else:
        fs.get(path, str(target))


def _upload(source: Path, url: str) -> None:
    fs, path = _filesystem(url)
    from presage import beneath

    fs.makedirs(path, exist_ok=True)
    names = [name for name, _ in beneath.walk(source)]
    if names:
        there = [f"{path.rstrip('/')}/{name}" for name in names]
        fs.put([str(source / name) for name in names], there)


def _filesystem(url: str) -> tuple[Any, str]:
    import site
    from importlib import import_module

    site.main()  # the guardian started without site-packages
    if missing := missing_for(url):
        raise TransferError(missing)
    try:
        fs, path = import_module("fsspec.core").url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise TransferError(f"{url}: {_first_line(error)}") from None
    return fs, path


def _first_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    text = str(error).strip()
    return text.splitlines()[0][:300] if text else type(error).__name__


def run_in_child(step: Step, plan: RunPlan, secrets: dict[str, str], errors: int) -> None:
    """Be the process that prepares or stores: say on `errors` what went wrong, and end. It is
    the run's user, but to fetch an image. Secrets are in its environment, where the file systems
    of fsspec look for credentials."""
    code = 0
    os.environ.update(plan.env)
    os.environ.update(secrets)
    try:
        folder = _opened(plan.folder) if plan.folder and step is prepare else None
        if step is not fetch:
            drop(plan.user)
        step(plan, folder)
    except TransferError as error:
        os.write(errors, str(error).encode()[:4000])
        code = MAY_PASS if error.may_pass else 1
    except BaseException as error:
        os.write(errors, f"{type(error).__name__}: {_first_line(error)}".encode()[:4000])
        code = 1
    finally:
        sys.stdout.flush()
        os._exit(code)
