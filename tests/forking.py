"""`presage` commands that start in milliseconds: forked by a process that has imported it all.

Each command is a process of its own with the arguments, environment, directory and files that it
was given; only its seconds of imports are saved. All workers of a test run share that process (a
zygote): it begins with the first who asks, and ends with the last. In a run of all tests the
workers themselves are forked by it. Run as a script, this is that process: the address of its
socket is the argument.

On a connection, a command comes as its three files and the words that describe it; the answers are
its PID and, when it is over, how it ended. A byte sent meanwhile is a signal for it, and a
connection that is closed before its end kills it. One that sends nothing keeps the process alive.
"""

from __future__ import annotations

import atexit
import gc
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from presage import cli

__all__ = ["Forked", "Forker"]

_WANTED = (
    "alembic.command",
    "httpcore",
    "httptools",
    "numpy.random",
    "plotly.graph_objects",
    "psycopg",
    "rich.table",
    "sklearn.ensemble",
    "torch._dynamo",  # the first trace imports it, and it takes longer than the rest of torch
    "typer.rich_utils",
    "uvicorn.lifespan.on",
    "uvicorn.loops.uvloop",
    "uvicorn.protocols.http.httptools_impl",
    "uvloop",
    "presage.control.replay",
    "presage.control.simulated",
    "presage.foresee.fitting",
    "presage.foresee.graph.onnx_reader",
    "presage.foresee.predict",
    "presage.server.app",
    "presage.web.pages",
    *(f"presage.cli.{file.stem}" for file in sorted(Path(cli.__file__).parent.glob("[a-z]*.py"))),
)
"""What commands and servers import, sooner or later."""

_WANTED_BY_TESTS = (
    "joserfc.jwt",
    "playwright.sync_api",
    "schemathesis.openapi",
    "presage.testing.machine",
)
"""What they import besides: all that takes long."""

_CALLER = """\
#!{python} -IS
import os, signal, socket, sys
link = socket.socket(socket.AF_UNIX)
link.connect({address!r})
given = [{kind!r}, os.getcwd(), str(len(sys.argv) - 1), *sys.argv[1:]]
given += [name + "=" + text for name, text in os.environ.items()]
body = os.fsencode("\\0".join(given))
socket.send_fds(link, [len(body).to_bytes(4, "big")], [0, 1, 2])
link.sendall(body)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, frame: link.sendall(bytes([number])))
link.recv(5, socket.MSG_WAITALL)
kind, number = link.recv(2, socket.MSG_WAITALL) or b"e\\1"
if kind == ord("s"):
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
sys.exit(number)
"""


@dataclass(frozen=True, slots=True)
class Forked:
    """A command that was started."""

    pid: int
    link: socket.socket

    def wait(self, timeout_s: float) -> int:
        """Its exit code, or minus the signal that ended it; TimeoutError if it goes on."""
        self.link.settimeout(timeout_s)
        kind, number = _exactly(self.link, 2)
        self.link.close()
        return -number if kind == ord("s") else number


class Forker:
    """The process that forks: one for a test run, or one of its own that has this environment
    from its beginning, and has imported nothing."""

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        run = os.environ.get("FORKER_OF_TESTS") or os.environ.get("PYTEST_XDIST_TESTRUNUID")
        own = "" if env is None else f"-{os.getpid()}-{id(self)}"
        self.address = f"\0presage-tests-{run or os.getpid()}{own}"
        self._stay = self._connect() or self._begin(env or {})
        _exactly(self._stay, 1)  # it has imported everything

    def start(
        self,
        argv: Iterable[str],
        env: Mapping[str, str],
        cwd: Path,
        files: tuple[int, int, int],
        *,
        strict: bool = True,
    ) -> Forked:
        """Start a command; `strict`: warnings are errors."""
        link = self._connect()
        assert link is not None, "the process that forks commands died"
        _exactly(link, 1)
        kind = "strict" if strict else "presage"
        given = [kind, str(cwd), str(len(words := list(argv))), *words]
        body = os.fsencode("\0".join([*given, *(f"{name}={text}" for name, text in env.items())]))
        socket.send_fds(link, [len(body).to_bytes(4, "big")], files)
        link.sendall(body)
        return Forked(int.from_bytes(_exactly(link, 4), "big"), link)

    def program(self, folder: Path, kind: str) -> Path:
        """A program that is started like this: `presage`, or `python` for `python -c CODE`."""
        caller = folder / kind
        text = _CALLER.format(python=sys.executable, address=self.address, kind=kind)
        caller.write_text(text)
        caller.chmod(0o700)
        return caller

    def close(self) -> None:
        """Nobody here needs it any longer."""
        self._stay.close()

    def _connect(self) -> socket.socket | None:
        link = socket.socket(socket.AF_UNIX)
        with suppress(ConnectionRefusedError):
            link.connect(self.address)
            return link
        link.close()
        return None

    def _begin(self, env: Mapping[str, str]) -> socket.socket:
        """Start the process. It listens before it imports anything, and ends at once if another
        worker's does already."""
        one_core = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
        with subprocess.Popen(
            [
                sys.executable,
                __file__,
                self.address[1:],
                *([] if env else _WANTED + _WANTED_BY_TESTS),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            cwd=tempfile.gettempdir(),
            env={**os.environ, **one_core, **env},
            start_new_session=True,
        ) as process:
            assert process.stdout is not None
            process.stdout.read(1)
            link = self._connect()
            assert link is not None
            process.returncode = 0  # it is left to itself
        return link


def _exactly(link: socket.socket, size: int) -> bytes:
    found = link.recv(size, socket.MSG_WAITALL)
    assert len(found) == size, "the process that forks commands died"
    return found


# -- that process ---------------------------------------------------------------------------------


class _Zygote:
    """Forks for every caller, until the last one is gone."""

    def __init__(self, door: socket.socket) -> None:
        self._door = door
        self._ready = selectors.DefaultSelector()
        self._ready.register(door, selectors.EVENT_READ)
        self._children: dict[int, tuple[int, socket.socket]] = {}
        """PID and connection of each command, by the descriptor that tells its end."""
        self._links: dict[int, int] = {}
        """PID of a connection's command; 0 without one."""

    def run(self) -> None:
        """Until nobody is connected and nothing runs."""
        met = False
        while not met or self._links or self._children:
            for key, _ in self._ready.select():
                if key.fileobj is self._door:
                    link, _ = self._door.accept()
                    link.sendall(b"+")
                    self._ready.register(link, selectors.EVENT_READ)
                    self._links[link.fileno()] = 0
                    met = True
                elif key.fd in self._children:
                    self._bury(key.fd)
                elif key.fd in self._links:
                    assert isinstance(key.fileobj, socket.socket)
                    self._hear(key.fileobj)

    def _hear(self, link: socket.socket) -> None:
        """A command, a signal for one, or the end of a connection."""
        child = self._links[link.fileno()]
        if not child:
            size, files, _, _ = socket.recv_fds(link, 4, 3)
            if size:
                body = _exactly(link, int.from_bytes(size, "big"))
                self._fork(link, files, os.fsdecode(body).split("\0"))
                return
        told = b""
        with suppress(OSError):
            told = link.recv(1) if child else b""
        if child:
            with suppress(ProcessLookupError):
                os.kill(child, told[0] if told else signal.SIGKILL)
        if not told:
            self._ready.unregister(link)
            del self._links[link.fileno()]
            link.close()

    def _fork(self, link: socket.socket, files: list[int], given: list[str]) -> None:
        child = os.fork()
        if child == 0:
            for key in [*self._ready.get_map().values()]:
                os.close(key.fd)
            self._ready.close()
            _be(files, given)
        for file in files:
            os.close(file)
        ended = os.pidfd_open(child)
        self._ready.register(ended, selectors.EVENT_READ)
        self._children[ended] = child, link
        self._links[link.fileno()] = child
        link.sendall(child.to_bytes(4, "big"))

    def _bury(self, ended: int) -> None:
        child, link = self._children.pop(ended)
        self._ready.unregister(ended)
        os.close(ended)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if self._links.get(link.fileno()) == child:
            with suppress(OSError):
                link.sendall(b"s" + bytes([-code]) if code < 0 else b"e" + bytes([code]))
            self._ready.unregister(link)
            del self._links[link.fileno()]
            link.close()


def _be(files: list[int], given: list[str]) -> NoReturn:
    """Become the command."""
    os.setsid()
    kind, folder, count, *words = given
    os.chdir(folder)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    if kind == "strict":
        warnings.simplefilter("error")
    argv = words[: int(count)]
    os.environ.clear()
    for word in words[int(count) :]:
        name, _, text = word.partition("=")
        os.environ[name] = text
    code = 1
    try:
        if kind == "python":
            _run_code(argv)
        else:
            _run_presage(argv)
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


def _run_presage(argv: list[str]) -> None:
    from presage.cli.main import main

    sys.argv = ["presage", *argv]
    main()


def _run_code(argv: list[str]) -> None:
    """`python [OPTIONS] -c CODE`, in a main module of its own."""
    sys.argv = ["-c"]
    sys.modules["__main__"] = own = ModuleType("__main__")
    exec(argv[argv.index("-c") + 1], vars(own))


def _may_be_imported_before_pytest() -> None:
    """Else pytest warns that it came too late to rewrite the assertions of its plugins."""
    plugins = [plugin.dist for plugin in entry_points(group="pytest11") if plugin.dist]
    files = [file for plugin in plugins for file in plugin.files or ()]
    for name in {file.parts[0].removesuffix(".py") for file in files} & {*sys.modules}:
        module = sys.modules[name]
        module.__doc__ = f"{module.__doc__ or ''}\nPYTEST_DONT_REWRITE"


def _main(address: str, *wanted: str) -> None:
    with socket.socket(socket.AF_UNIX) as door:
        try:
            door.bind(f"\0{address}")
        except OSError:  # another worker's is there
            return
        door.listen(100)
        os.dup2(2, 1)  # whoever waits for it can connect
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for name in wanted:
                import_module(name)
        _may_be_imported_before_pytest()
        gc.collect()
        gc.freeze()
        _Zygote(door).run()


if __name__ == "__main__":
    _main(*sys.argv[1:])
