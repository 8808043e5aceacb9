"""A `presage` on PATH that starts in milliseconds: it asks a process that has imported everything
to fork (a zygote).

The command is a process of its own with the caller's arguments, environment, directory and files;
signals go to it, and its end is the caller's end. Only the second of imports is saved. Run as a
script, this is that process: the path of its socket is the argument.
"""

from __future__ import annotations

import atexit
import gc
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import NoReturn

__all__ = ["forked_presage"]

_CALLER = """\
#!{python} -IS
import os, signal, socket, sys
link = socket.socket(socket.AF_UNIX)
link.connect({address!r})
given = [os.getcwd(), str(len(sys.argv) - 1), *sys.argv[1:]]
given += [name + "=" + text for name, text in os.environ.items()]
body = os.fsencode("\\0".join(given))
socket.send_fds(link, [len(body).to_bytes(4, "big")], [0, 1, 2])
link.sendall(body)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, frame: link.sendall(bytes([number])))
kind, number = link.recv(2) or b"e\\1"
if kind == ord("s"):
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
sys.exit(number)
"""


@contextmanager
def forked_presage(folder: Path) -> Iterator[Path]:
    """A directory for PATH with such a `presage`, for as long as the block."""
    address, programs = folder / "socket", folder / "bin"
    programs.mkdir()
    caller = programs / "presage"
    caller.write_text(_CALLER.format(python=sys.executable, address=str(address)))
    caller.chmod(0o700)
    with subprocess.Popen(
        [sys.executable, __file__, str(address)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield programs
        process.stdin.close()


def _serve(address: str) -> None:
    """Fork for every caller, until the standard input is closed."""
    import presage.cli
    import presage.server.app
    import presage.web.pages

    for module in pkgutil.iter_modules(presage.cli.__path__, "presage.cli."):
        import_module(module.name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, _reap)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(address)
        door.listen(100)
        print("ready", flush=True)
        while 0 not in select.select([0, door.fileno()], [], [])[0]:
            link, _ = door.accept()
            if os.fork() == 0:
                door.close()
                _look_after(link)
            link.close()


def _reap(*_: object) -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _look_after(link: socket.socket) -> NoReturn:
    """Start the caller's command, pass signals on, and tell its end; without a caller, end it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, files, _, _ = socket.recv_fds(link, 4, 3)
    body, wanted = b"", int.from_bytes(size, "big")
    while len(body) < wanted:
        body += link.recv(wanted - len(body))
    child = os.fork()
    if child == 0:
        link.close()
        _be(files, os.fsdecode(body).split("\0"))
    ended = os.pidfd_open(child)
    while ended not in select.select([ended, link.fileno()], [], [])[0]:
        told = link.recv(1)
        os.kill(child, told[0] if told else signal.SIGKILL)
        if not told:
            os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(OSError):
        link.sendall(b"s" + bytes([-code]) if code < 0 else b"e" + bytes([code]))
    os._exit(0)


def _be(files: list[int], given: list[str]) -> NoReturn:
    """Become the command."""
    from presage.cli.main import main

    os.setsid()
    folder, count, *words = given
    os.chdir(folder)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.argv = ["presage", *words[: int(count)]]
    os.environ.clear()
    for word in words[int(count) :]:
        name, _, text = word.partition("=")
        os.environ[name] = text
    code = 1
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    _serve(sys.argv[1])
