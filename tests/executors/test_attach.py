"""What clients attach to a run of the executor `local`: commands, a console, ports."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from presage.executors.local.executor import LocalExecutor
from presage.executors.node import frames
from presage.executors.node.frames import Frames, frame
from presage.executors.node.processes import read_stat
from presage.testing.executors import RoleWork, Watcher
from tests.executors.kit import LocalKit
from tests.server.kit import free_port
from tests.waiting import PATIENCE_S, eventually

SLEEP = "import time; time.sleep(600)"
SERVE = """\
import os, socket, time
door = socket.create_server(("127.0.0.1", int(os.environ["PORT"])))
print("listening", flush=True)
while True:
    link, _ = door.accept()
    while data := link.recv(65536):
        link.sendall(data)
    link.close()
"""


class Attached:
    """A client, as the server is one."""

    def __init__(self, link: socket.socket, **order: Any) -> None:
        link.settimeout(PATIENCE_S)
        self.link, self._frames = link, Frames()
        self._read: list[tuple[bytes, bytes]] = []
        link.sendall(frame(frames.ORDER, order))

    def next(self) -> tuple[bytes, bytes] | None:
        """The next frame; None at the end."""
        while not self._read:
            data = self.link.recv(1 << 16)
            if not data:
                return None
            self._read += self._frames.feed(data)
        return self._read.pop(0)

    def all(self) -> dict[bytes, bytes]:
        """What came of each kind, to the end."""
        found: dict[bytes, bytes] = {}
        while (one := self.next()) is not None:
            found[one[0]] = found.get(one[0], b"") + one[1]
        return found

    def until(self, text: bytes) -> bytes:
        """Output up to and with a text."""
        seen = b""
        while text not in seen:
            one = self.next()
            assert one is not None, seen
            seen += one[1] if one[0] == frames.STDOUT else b""
        return seen

    def send(self, kind: bytes, body: bytes = b"") -> None:
        """Say something."""
        self.link.sendall(frame(kind, body))


class Runs:
    """Runs to attach to."""

    def __init__(self, kit: LocalKit, watch: Watcher) -> None:
        self.kit, self.watch = kit, watch
        self.links: list[socket.socket] = []

    def start(self, script: str = SLEEP, job: str = "j", **more: Any) -> None:
        """Start a job, and wait until it runs."""
        self.watch.run(job, RoleWork(script, gpus=1), **more)
        self.watch.until_started(job)

    def attach(self, **order: Any) -> Attached:
        """Attach something to it."""
        return Attached(self.connect(), **order)

    def connect(self) -> socket.socket:
        """Come to the door."""
        executor = self.watch.executor
        assert isinstance(executor, LocalExecutor)
        self.links.append(executor.attach("j", 1, "worker-0"))
        return self.links[-1]

    def run(self, *argv: str, **order: Any) -> dict[bytes, bytes]:
        """Run a command beside it, to its end."""
        return self.attach(argv=argv, **order).all()

    def refused(self, **order: Any) -> str:
        """Why something cannot be attached."""
        answer = self.attach(**order).all()
        assert answer.keys() == {frames.REFUSED}
        return str(json.loads(answer[frames.REFUSED])["text"])


@pytest.fixture
def runs(kit: LocalKit, watch: Watcher) -> Iterator[Runs]:
    """Somebody who starts runs."""
    made = Runs(kit, watch)
    yield made
    for link in made.links:
        link.close()


def code(answer: dict[bytes, bytes]) -> int:
    """The exit code."""
    return int(json.loads(answer[frames.EXIT])["code"])


def test_a_command_has_what_its_worker_has_and_its_streams_stay_apart(runs: Runs) -> None:
    runs.start(env={"COLOUR": "blue"})
    script = "echo $COLOUR $CUDA_VISIBLE_DEVICES; pwd; ulimit -c; echo wrong >&2; exit 7"
    answer = runs.run("sh", "-c", script)
    lines = answer[frames.STDOUT].decode().splitlines()
    assert lines[:2] == ["blue 0", str(runs.kit.data / "runs" / "j" / "1" / "work")]
    assert answer[frames.STDERR] == b"wrong\n"
    assert code(answer) == 7
    assert code(runs.run("sh", "-c", "kill -9 $$")) == 137
    assert runs.refused(argv=["nonsense"]) == (
        "there is no program 'nonsense'; check the command and its PATH"
    )
    assert runs.refused(argv=["true"], worker="worker-7") == (
        "there is no worker 'worker-7'; there are worker-0"
    )
    assert runs.refused() == "nothing to run: name a command"
    assert "is not known here" in runs.refused(argv=["true"], root=True)
    assert runs.refused(console=True).startswith("worker-0 has no console")


def test_input_reaches_a_command_and_its_end_too(runs: Runs) -> None:
    runs.start()
    data = bytes(range(256)) * 3000
    client = runs.attach(argv=["cat"])
    sent = taken = 0
    out = b""
    while len(out) < len(data):
        while sent < len(data) and sent - taken < frames.MOST_AHEAD:
            chunk = data[sent : sent + min(frames.LARGEST, frames.MOST_AHEAD - (sent - taken))]
            client.send(frames.STDIN, chunk)
            sent += len(chunk)
        one = client.next()
        assert one is not None
        if one[0] == frames.TAKEN:
            taken += int.from_bytes(one[1], "big")
        elif one[0] == frames.STDOUT:
            out += one[1]
    assert out == data
    client.send(frames.EOF)
    assert code(client.all()) == 0


def test_input_that_nobody_reads_is_bounded_and_a_signal_passes_it(runs: Runs) -> None:
    runs.start()
    client = runs.attach(argv=["sleep", "600"])
    for _ in range(frames.MOST_AHEAD // frames.LARGEST):
        client.send(frames.STDIN, bytes(frames.LARGEST))
    client.send(frames.SIGNAL, bytes([signal.SIGINT]))
    assert code(client.all()) == 130
    flood = runs.attach(argv=["sleep", "600"])
    much = frame(frames.STDIN, bytes(frames.LARGEST)) * 1000
    with pytest.raises(OSError, match=r"reset|Broken"):
        flood.link.sendall(much)


@pytest.mark.parametrize("mib", [4, pytest.param(100, marks=pytest.mark.soak)])
def test_a_client_that_does_not_read_makes_nothing_grow(runs: Runs, mib: int) -> None:
    runs.start()
    client = runs.attach(argv=["sh", "-c", f"echo $$; exec head -c {mib << 20} /dev/zero"])
    first = client.until(b"\n")
    pid = int(first.split()[0])
    # It stands still: what was not taken is still to be written.
    eventually(lambda: (stat := read_stat(pid)) is not None and stat.state == "S")
    watched = runs.kit.guardian_pid("j"), parent_of(pid)
    zeros, most = first.count(0), 0
    while (one := client.next()) is not None and one[0] != frames.EXIT:
        zeros += one[1].count(0)
        most = max([most, *(stat.rss for pid in watched if (stat := read_stat(pid)))])
    assert one is not None
    assert zeros == mib << 20
    assert most < 40 << 20


def test_a_command_ends_when_its_client_goes_away(runs: Runs) -> None:
    runs.start()
    script = "trap '' HUP; sleep 600 & echo $$ $!; wait"
    client = runs.attach(argv=["sh", "-c", script])
    pids = [int(word) for word in client.until(b"\n").split()]
    client.link.close()
    eventually(lambda: not any(alive(pid) for pid in pids))


def test_a_command_ends_with_its_run_and_leaves_no_process(runs: Runs) -> None:
    runs.start()
    client = runs.attach(argv=["sh", "-c", "setsid sleep 600 & echo $!; wait"])
    pid = int(client.until(b"\n").split()[0])
    runs.watch.stop("j")
    assert frames.EXIT not in client.all()
    runs.watch.end("j")
    assert not alive(pid)
    runs.watch.until(lambda: not runs.kit.leftovers("j"), "all is gone")


def test_memory_of_a_command_counts_as_its_workers(runs: Runs) -> None:
    role = RoleWork(SLEEP, memory_mib=200)
    runs.watch.run("j", role)
    runs.watch.until_started("j")
    eat = "x = bytearray(400 << 20); import time; time.sleep(600)"
    runs.attach(argv=[sys.executable, "-c", eat])
    assert runs.watch.end("j").outcome == "out_of_memory"


def test_a_terminal_has_a_size_job_control_and_ctrl_c(runs: Runs) -> None:
    runs.start()
    shell = runs.attach(
        argv=["bash", "--norc", "-i"], tty=True, rows=30, columns=101, term="xterm"
    )
    shell.send(frames.STDIN, b"PS1=; stty -echo; echo rea''dy; stty size; echo $TERM\n")
    assert b"30 101" in shell.until(b"xterm")
    shell.send(frames.WINDOW, (50).to_bytes(2, "big") + (120).to_bytes(2, "big"))
    shell.send(frames.STDIN, b"stty size\n")
    shell.until(b"50 120")
    shell.send(frames.STDIN, b"sh -c 'echo be''gun; exec sleep 600'\n")
    shell.until(b"begun")
    shell.send(frames.STDIN, b"\x1a")  # Ctrl-Z
    shell.until(b"Stopped")
    shell.send(frames.STDIN, b"kill %1; wait; sh -c 'echo se''cond; exec sleep 600'\n")
    shell.until(b"second")
    shell.send(frames.STDIN, b"\x03")  # Ctrl-C
    shell.send(frames.STDIN, b"echo code $?\n")
    shell.until(b"code 130")
    shell.send(frames.STDIN, b"exit 5\n")
    assert code(shell.all()) == 5


def test_only_so_many_clients_are_let_in(runs: Runs) -> None:
    runs.start()
    waiting = [runs.connect() for _ in range(64)]
    eventually(lambda: "64 clients are attached" in str(runs.attach(argv=["true"]).all()))
    for link in waiting:
        link.close()
    eventually(lambda: frames.EXIT in runs.attach(argv=["true"]).all())


# -- the console --------------------------------------------------------------------------------


def test_a_worker_reads_what_clients_type_and_they_may_come_and_go(runs: Runs) -> None:
    runs.start("import sys\nfor line in sys.stdin: print('got', line, end='')", console="pipe")
    first = runs.attach(console=True)
    first.send(frames.STDIN, b"one\n")
    assert first.until(b"got one\n") == b"got one\n"
    first.link.close()
    second = runs.attach(console=True, offset=4)
    assert second.until(b"one\n") == b"one\n"
    second.send(frames.STDIN, b"two\n")
    second.until(b"got two\n")
    second.send(frames.EOF)
    assert runs.watch.end("j").outcome == "succeeded"
    assert runs.kit.log("j", 1, "worker-0") == "got one\ngot two\n"


def test_a_terminal_of_a_worker_is_kept_in_its_log_to_the_last_line(runs: Runs) -> None:
    script = (
        "import os\nprint(input('name? '), os.isatty(1), os.get_terminal_size().columns)\n"
        "print('x' * 100000)\nprint('last')"
    )
    runs.start(script, console="tty")
    client = runs.attach(console=True, rows=20, columns=66)
    client.until(b"name? ")
    client.send(frames.STDIN, b"ada\n")
    assert runs.watch.end("j").outcome == "succeeded"
    log = runs.kit.log("j", 1, "worker-0")
    assert "ada True 66" in log
    assert log.count("x") == 100000
    assert log.endswith("last\n")


def test_a_signal_reaches_the_worker_of_a_console(runs: Runs) -> None:
    runs.start("print('ready'); import time; time.sleep(600)", console="pipe")
    client = runs.attach(console=True)
    client.until(b"ready")
    client.send(frames.SIGNAL, bytes([signal.SIGINT]))
    reason = runs.watch.end("j").reason
    assert reason is not None
    assert reason.text == "worker-0 was killed by SIGINT: KeyboardInterrupt"


# -- ports --------------------------------------------------------------------------------------


def test_a_port_of_the_job_is_reached_and_no_other(runs: Runs) -> None:
    port = free_port()
    runs.start(SERVE, env={"PORT": str(port)}, ports=[port, port + 1])
    runs.watch.until_log("j", "listening")
    client = runs.attach(port=port)
    kind, body = client.next() or (b"", b"")
    assert kind == frames.STARTED
    token = json.loads(body)["token"]
    assert token.encode() in Path(f"/proc/{runs.kit.worker_pids('j')[0]}/environ").read_bytes()
    data = os.urandom(1 << 20)
    echoed = b""
    client.link.setblocking(False)
    rest = data
    while len(echoed) < len(data):
        with suppress(BlockingIOError):
            rest = rest[client.link.send(rest[:65536]) :] if rest else rest
        with suppress(BlockingIOError):
            echoed += client.link.recv(65536)
    assert echoed == data
    client.link.setblocking(True)
    client.link.shutdown(socket.SHUT_WR)
    assert client.link.recv(1) == b""
    assert runs.refused(port=port + 1) == (
        f"port {port + 1} of worker-0: nothing listens there yet"
    )
    assert runs.refused(port=22) == (
        f"port 22 is not among the ports of the job's manifest: it has {port}, {port + 1}"
    )


def test_a_port_that_somebody_elses_program_has_is_not_reached(runs: Runs) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        runs.start(ports=[port])
        said = runs.refused(port=port)
    assert said == f"port {port} of worker-0 is used by a program of somebody else"


def alive(pid: int) -> bool:
    """Whether a process runs."""
    stat = read_stat(pid)
    return stat is not None and stat.state != "Z"


def parent_of(pid: int) -> int:
    """The process that started another."""
    stat = read_stat(pid)
    assert stat is not None
    return stat.parent
