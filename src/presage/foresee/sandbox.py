"""Runs a function of ours that imports a user's code, in a process that can be lost.

The function gets JSON and returns JSON. Whatever the code does, the caller gets a value or one
`UserError`: exceptions, exits, crashes, endless loops, floods of output and too much memory alike.
It protects from mistakes, not from malice: the code may read and write what its user may.

The child is `python -m presage.foresee.sandbox`: the task is on its stdin and the answer goes to
an unnamed file, so that neither gets mixed up with what the code prints. Both are JSON: nothing
that comes back can run code.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from presage.model.errors import PresageError, UserError

__all__ = ["run_isolated"]

_MIB = 1 << 20
_SHOWN_BYTES = 64 << 10
"""How much of what the code prints is shown."""
_FLOOD_BYTES = 16 * _MIB
_ANSWER_BYTES = 256 * _MIB
_MESSAGE_SIGNS = 400
_NO_MEMORY = ("can't allocate memory", "cannot allocate memory", "std::bad_alloc")
"""How libraries say it that do not raise MemoryError."""


def run_isolated(
    module: str,
    function: str,
    payload: Any,
    *,
    timeout_s: float,
    memory_mib: int,
    subject: str = "the code",
) -> Any:
    """What `module.function(payload)` returns, computed in a child process; payload and value are
    JSON. `subject` names the user's code in messages, and what it prints goes to stderr."""
    task = {
        "module": module,
        "function": function,
        "payload": payload,
        "memory_mib": memory_mib,
        "timeout_s": timeout_s,
    }
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as answer:
        given.write(json.dumps(task).encode())
        given.seek(0)
        end = _run_child(given, answer, timeout_s)
        if end.late:
            raise UserError(f"{subject} took longer than {timeout_s:g} s and was stopped")
        if end.flood:
            raise UserError(f"{subject} printed more than {_FLOOD_BYTES >> 20} MiB; print less")
        said = _read_answer(answer)
    if "value" in said:
        return said["value"]
    if said.get("memory"):
        raise UserError(f"{subject} needs more than {memory_mib:,} MiB of memory")
    if "error" in said:
        raise UserError(str(said["error"]))
    raise UserError(f"{subject} {_how_it_ended(end.exit_code)}")


@dataclass(slots=True)
class _ChildExit:
    """How a child ended."""

    exit_code: int = 0
    late: bool = False
    flood: bool = False


def _run_child(given: IO[bytes], answer: IO[bytes], timeout_s: float) -> _ChildExit:
    end = _ChildExit()
    # -P: a file in the working directory must not take the place of a library.
    # -B: nothing is written beside the user's files.
    child = subprocess.Popen(
        [sys.executable, "-P", "-B", "-m", __name__, str(answer.fileno())],
        stdin=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=[answer.fileno()],
        process_group=0,  # not a session: Linux shares cores among those, whatever was `nice`d
    )

    def stop_late() -> None:
        end.late = True
        _kill(child.pid)

    timer = threading.Timer(timeout_s, stop_late)
    timer.daemon = True
    timer.start()
    try:
        _show_output(child, end)
    finally:
        timer.cancel()
        timer.join()
        _kill(child.pid)
        end.exit_code = child.wait()
        if child.stdout is not None:
            child.stdout.close()
    return end


def _show_output(child: subprocess.Popen[bytes], end: _ChildExit) -> None:
    """Pass on the first of what the child prints until it ends. Its end is not that of its output,
    which a grandchild may hold open."""
    assert child.stdout is not None
    output, process = child.stdout.fileno(), os.pidfd_open(child.pid)
    events = select.poll()
    events.register(output, select.POLLIN)
    events.register(process, select.POLLIN)
    seen = 0
    try:
        while True:
            ready = {file for file, _ in events.poll()}
            chunk = os.read(output, 64 << 10) if output in ready else b""
            if chunk and seen < _SHOWN_BYTES:
                sys.stderr.write(chunk[: _SHOWN_BYTES - seen].decode("utf-8", "replace"))
                if seen + len(chunk) > _SHOWN_BYTES:
                    sys.stderr.write("\n… more output is not shown\n")
                sys.stderr.flush()
            seen += len(chunk)
            if seen > _FLOOD_BYTES:
                end.flood = True
                return
            if process in ready and not chunk:
                return
            if output in ready and not chunk:  # closed, though the child runs
                events.unregister(output)
    finally:
        os.close(process)


def _kill(group: int) -> None:
    """End the child, all of its group, and its descendants that have
    left it."""
    import psutil

    strays = []
    with suppress(psutil.Error):
        strays = psutil.Process(group).children(recursive=True)
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    for stray in strays:
        with suppress(psutil.Error):
            stray.kill()


def _read_answer(answer: IO[bytes]) -> dict[str, Any]:
    """What the child wrote; nothing if it did not get that far."""
    answer.seek(0)
    raw = answer.read(_ANSWER_BYTES)
    try:
        said = json.loads(raw)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _how_it_ended(exit_code: int) -> str:
    if exit_code >= 0:
        return f"ended its process with exit code {exit_code}; it must return instead"
    name = signal.Signals(-exit_code).name
    if name == "SIGKILL":
        return "was killed (SIGKILL); perhaps the machine ran out of memory"
    return f"crashed its process ({name})"


# ---- the child -------------------------------------------------------------------------------


def _main() -> None:
    """Do the task on stdin, and write the answer to the file that argv names."""
    answer = int(sys.argv[1])
    os.set_inheritable(answer, False)
    task = json.loads(sys.stdin.buffer.read())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    _limit(task["memory_mib"], task["timeout_s"])
    me = os.getpid()
    said = _answer(task)
    if os.getpid() == me:  # not a copy that the code forked
        with os.fdopen(answer, "wb") as file:
            file.write(said)
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)  # threads and exit handlers of the code cannot hold us up


def _limit(memory_mib: int, timeout_s: float) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = memory_mib * _MIB
    if most == resource.RLIM_INFINITY or limit < most:
        # Private writable memory. Libraries and files that are only mapped do not count.
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    signal.alarm(int(timeout_s) + 5)  # in case nobody is left to stop us


def _answer(task: dict[str, Any]) -> bytes:
    try:
        value = getattr(import_module(task["module"]), task["function"])(task["payload"])
        return json.dumps({"value": value}).encode()
    except BaseException as error:
        try:
            said = {"memory": True} if _out_of_memory(error) else {"error": _explain(error)}
        except MemoryError:
            said = {"memory": True}
        return json.dumps(said).encode()


def _out_of_memory(error: BaseException) -> bool:
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(sign in text for sign in _NO_MEMORY)


def _explain(error: BaseException) -> str:
    """One line: what went wrong, and where in the user's own code."""
    if isinstance(error, PresageError):
        return str(error)
    message = " ".join(str(error).split())
    if isinstance(error, SystemExit):
        message = f"the code called sys.exit({message})"
    elif isinstance(error, SyntaxError):
        message = f"{type(error).__name__}: {error.msg}"
        if error.filename and error.lineno:
            return f"{message} ({Path(error.filename).name}:{error.lineno})"
    else:
        message = f"{type(error).__name__}: {message}".rstrip(": ")
    if len(message) > _MESSAGE_SIGNS:
        message = f"{message[:_MESSAGE_SIGNS]}…"
    return f"{message}{_where(error.__traceback__)}"


def _where(traceback: TracebackType | None) -> str:
    """The innermost line of the user's code, in brackets; of all code if none is the user's."""
    places = []
    while traceback is not None:
        places.append((Path(traceback.tb_frame.f_code.co_filename), traceback.tb_lineno))
        traceback = traceback.tb_next
    theirs = [(file, line) for file, line in places if _is_users(file)]
    chosen = (theirs or places)[-1:]
    return "".join(f" ({file.name}:{line})" for file, line in chosen)


@cache
def _is_users(file: Path) -> bool:
    """Neither ours nor the standard library's nor installed."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    roots = [Path(sysconfig.get_path(name)) for name in names]
    roots.append(Path(__file__).resolve().parents[1])
    return not str(file).startswith("<") and not any(map(file.is_relative_to, roots))


if __name__ == "__main__":
    _main()
