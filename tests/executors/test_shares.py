"""Shares of a GPU, enforced in real processes on the stand-in device."""

from __future__ import annotations

import ctypes
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from presage.executors.node.shares.page import SharedPage
from presage.executors.node.shares.terms import call, socket_path, write_terms
from presage.executors.node.shares.turns import ShareTerms
from tests.standin import Machine, StandIn, answer, build, python, start
from tests.waiting import eventually

MIB = 1 << 20
SEQUENCES = Path(__file__).parents[1] / "standin" / "sequences.py"
DAEMON = (
    "import sys; from pathlib import Path;"
    "from presage.executors.node.shares.daemon import ShareDaemon; ShareDaemon(Path(sys.argv[1])).run()"
)
CUDA = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
u64, size = ctypes.c_uint64, ctypes.c_size_t
cuda.cuInit(0)
context = ctypes.c_void_p()
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
cuda.cuMemFree_v2.argtypes = [u64]
def info():
    free, total = size(), size()
    assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    return free.value, total.value
def alloc(count):
    at = u64()
    return cuda.cuMemAlloc_v2(ctypes.byref(at), size(count)), at.value
"""


class Node:
    """A machine with a device, shares and their daemon."""

    def __init__(self, built: StandIn, home: Path, devices: int = 1) -> None:
        self.built, self.machine = built, Machine(home / "gpu", devices)
        self.shares = home / "shares"
        self.shares.mkdir()
        self.running: list[subprocess.Popen[str]] = []
        self.daemon: subprocess.Popen[str] | None = None

    def serve(self) -> None:
        self.daemon = start([sys.executable, "-c", DAEMON, self.shares], dict(os.environ))
        eventually(lambda: call(self.shares, {"ask": "status"}) is not None)

    def kill_daemon(self) -> None:
        assert self.daemon is not None
        self.daemon.kill()
        self.daemon.communicate()

    def environment(self, share: str, **env: str) -> dict[str, str]:
        return {
            **self.machine.environment(self.built),
            "LD_PRELOAD": str(self.built.interposer),
            "PRESAGE_SHARE": share,
            "PRESAGE_SHARE_SOCKET": str(socket_path(self.shares)),
            **env,
        }

    def tenant(self, share: str, *options: object, **env: str) -> subprocess.Popen[str]:
        process = start([self.built.tenant, *options], self.environment(share, **env))
        self.running.append(process)
        return process

    def python(self, share: str, code: str, **env: str) -> subprocess.Popen[str]:
        process = python(CUDA + code, self.environment(share, **env))
        self.running.append(process)
        return process

    def status(self, share: str) -> dict[str, float]:
        rows = (call(self.shares, {"ask": "status"}) or {})["shares"]
        return next((row for row in rows if row["share"] == share), {})

    def close(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.kill()
                process.communicate()
        if self.daemon is not None and self.daemon.poll() is None:
            self.kill_daemon()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, program: Callable[..., str]) -> StandIn:
    program("gcc")
    return build(tmp_path_factory.mktemp("standin"))


@pytest.fixture
def node(built: StandIn, tmp_path: Path) -> Iterator[Node]:
    node = Node(built, tmp_path)
    yield node
    node.close()


def test_two_processes_get_their_shares(node: Node) -> None:
    write_terms(node.shares, "small", ShareTerms(0.2, 0.25))
    write_terms(node.shares, "large", ShareTerms(0.5, 1.0))
    node.serve()
    tenants = [node.tenant(name, 2000, 600) for name in ("small", "large")]
    eventually(lambda: len(node.machine.users()) == 2)
    begin, before = time.monotonic_ns(), node.machine.users()
    eventually(lambda: time.monotonic_ns() - begin > 2.5e9)
    after, passed = node.machine.users(), time.monotonic_ns() - begin
    got = [(after[one.pid].busy_ns - before[one.pid].busy_ns) / passed for one in tenants]
    # A machine with other work may leave the device idle; a limit holds all the same.
    assert got[0] <= 0.25 + 0.05
    assert got[1] > 1.5 * got[0]


def _sequences(node: Node, share: str, *arguments: object) -> subprocess.Popen[str]:
    """A program that allocates by all calls there are (tests/standin/sequences.py)."""
    command = [sys.executable, SEQUENCES, 64 * MIB, *arguments]
    node.running.append(start(command, node.environment(share)))
    return node.running[-1]


def test_nothing_is_had_beyond_the_quota(node: Node) -> None:
    write_terms(node.shares, "a", ShareTerms(0.5, memory=64 * MIB))
    node.serve()
    said = answer(_sequences(node, "a", 23, 150))
    assert len(said["asked"]) == 11
    assert min(said["asked"].values()) > 10
    assert said["refused"] > 20
    assert 32 * MIB < said["peak"] <= 64 * MIB
    assert said["left"] == 0


def test_processes_that_ask_at_once_do_not_pass_their_quota_together(node: Node) -> None:
    write_terms(node.shares, "a", ShareTerms(0.5, memory=64 * MIB))
    node.serve()
    both = [_sequences(node, "a", seed, 80, "beside") for seed in (1, 2)]
    assert all(answer(one)["peak"] <= 64 * MIB for one in both)
    eventually(lambda: node.status("a")["memory_bytes"] == 0)


@pytest.mark.soak
def test_nothing_is_had_beyond_the_quota_in_many_sequences(node: Node) -> None:
    write_terms(node.shares, "a", ShareTerms(0.5, memory=64 * MIB))
    node.serve()
    assert answer(_sequences(node, "a", random.randrange(1 << 30), 10_000), 900)["left"] == 0


def test_a_quota_is_for_all_processes_of_a_share_and_comes_back_after_a_kill(node: Node) -> None:
    write_terms(node.shares, "a", ShareTerms(0.5, memory=100 * MIB))
    node.serve()
    first = node.python("a", "assert alloc(70 << 20)[0] == 0; import signal; signal.pause()")
    eventually(lambda: node.status("a").get("memory_bytes") == 70 * MIB)
    second = (
        "assert info() == (30 << 20, 100 << 20), info(); assert alloc(40 << 20)[0] == 2;"
        "assert alloc(20 << 20)[0] == 0; print('{}')"
    )
    assert answer(node.python("a", second)) == {}
    first.send_signal(signal.SIGKILL)
    first.communicate()
    eventually(lambda: node.status("a")["memory_bytes"] == 0)
    assert answer(node.python("a", "assert alloc(100 << 20)[0] == 0; print('{}')")) == {}


def test_nvml_and_modern_lookups_tell_the_quota(node: Node) -> None:
    write_terms(node.shares, "a", ShareTerms(0.5, memory=100 * MIB))
    node.serve()
    code = """
assert alloc(10 << 20)[0] == 0
nvml = ctypes.CDLL("libnvidia-ml.so.1")
nvml.nvmlInit_v2()
handle = ctypes.c_void_p()
nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle))
memory = (u64 * 3)()
assert nvml.nvmlDeviceGetMemoryInfo(handle, memory) == 0
assert list(memory) == [100 << 20, 90 << 20, 10 << 20], list(memory)
class Later(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint), *((name, u64) for name in ("total", "reserved", "free", "used"))]
later = Later()
assert nvml.nvmlDeviceGetMemoryInfo_v2(handle, ctypes.byref(later)) == 0
assert (later.total, later.free, later.used) == (100 << 20, 90 << 20, 10 << 20)
for name, arguments in (("cuGetProcAddress_v2", (12040, u64(0), None)), ("cuGetProcAddress", (12040, u64(0)))):
    found = ctypes.c_void_p()
    assert getattr(cuda, name)(b"cuMemAlloc", ctypes.byref(found), *arguments) == 0
    ask = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, size)(found.value)
    at = u64()
    assert ask(ctypes.addressof(at), 95 << 20) == 2
    assert ask(ctypes.addressof(at), 1 << 20) == 0
print('{}')
"""
    assert answer(node.python("a", code)) == {}


LAUNCHES = """
import os
length = u64(1000)
parameters = (ctypes.c_void_p * 1)(ctypes.addressof(length))
class Config(ctypes.Structure):
    _fields_ = [("sizes", ctypes.c_uint * 7), ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint)]
stream, drawn, graph = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
cuda.cuStreamCreate(ctypes.byref(stream), 1)
ones = (ctypes.c_uint(1),) * 6
def plain(call, *more): return call(ctypes.c_void_p(1), *ones, 0, stream, parameters, *more)
def looked_up(name, flags=0):
    found = ctypes.c_void_p()
    assert cuda.cuGetProcAddress_v2(name, ctypes.byref(found), 12040, u64(flags), None) == 0
    return ctypes.CFUNCTYPE(ctypes.c_int)(found.value)
def named(name):
    find = ctypes.CDLL(None).dlsym
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]
    return ctypes.CFUNCTYPE(ctypes.c_int)(find(cuda._handle, name))
config = Config((ctypes.c_uint * 7)(*(1,) * 6, 0), stream, None, 0)
assert cuda.cuStreamBeginCapture_v2(stream, 0) == 0
plain(cuda.cuLaunchKernel, None)  # it becomes a part of the graph, and does not run
assert cuda.cuStreamEndCapture(stream, ctypes.byref(drawn)) == 0
cuda.cuGraphInstantiateWithFlags(ctypes.byref(graph), drawn, u64(0))
ways = [
    lambda: plain(cuda.cuLaunchKernel, None),
    lambda: plain(looked_up(b"cuLaunchKernel"), None),
    lambda: plain(looked_up(b"cuLaunchKernel", 2), None),
    lambda: plain(named(b"cuLaunchKernel"), None),
    lambda: plain(cuda.cuLaunchCooperativeKernel),
    lambda: cuda.cuLaunchKernelEx(ctypes.byref(config), ctypes.c_void_p(1), parameters, None),
    lambda: cuda.cuGraphLaunch(graph, stream),
    lambda: looked_up(b"cuGraphLaunch")(graph, stream),
]
for way in ways:
    for _ in range(3):
        assert way() == 0
cuda.cuCtxSynchronize()
print(3 * len(ways), flush=True)
sys.stdin.readline()
"""


def test_every_way_to_launch_is_counted(node: Node) -> None:
    write_terms(node.shares, "a", ShareTerms(0.3, 0.9))
    node.serve()
    process = node.python("a", LAUNCHES)
    assert process.stdout is not None
    launched = int(process.stdout.readline())
    (path,) = (node.shares / "pages").glob("a@*")
    slots = SharedPage(path).slots
    eventually(lambda: sum(slot.launches for slot in slots) == launched)
    assert node.machine.users()[process.pid].launches == launched


def test_without_a_daemon_processes_go_on_and_come_back(node: Node) -> None:
    for name in "ab":
        write_terms(node.shares, name, ShareTerms(0.5, 1.0, memory=100 * MIB))
    node.serve()
    tenants = [node.tenant(name, 500, 600) for name in "ab"]
    eventually(lambda: node.status("a").get("processes") and node.status("b").get("processes"))

    def launches() -> dict[int, int]:
        return {pid: user.launches for pid, user in node.machine.users().items()}

    def gone_on(then: dict[int, int]) -> bool:
        return all(count > then.get(pid, -1) for pid, count in launches().items())

    for _ in range(int(os.environ.get("SHARES_KILLS", "5"))):
        node.kill_daemon()
        then = launches()
        eventually(partial(gone_on, then))
        node.serve()
        eventually(lambda: node.status("a").get("processes") and node.status("b").get("processes"))
    third = node.tenant("b", 500, 600)
    eventually(lambda: node.status("b")["processes"] == 2)
    for one in (third, tenants[0]):
        one.kill()
        one.communicate()
    eventually(lambda: node.status("b")["processes"] == 1 and node.status("a")["processes"] == 0)
    before = launches()[tenants[1].pid]
    eventually(lambda: launches()[tenants[1].pid] > before + 100)


def test_by_choice_processes_wait_for_a_daemon(node: Node) -> None:
    write_terms(node.shares, "a", ShareTerms(0.5))
    waits = node.python("a", "print('here', flush=True)" + LAUNCHES, PRESAGE_SHARE_ALONE="wait")
    assert waits.stdout is not None
    assert waits.stdout.readline() == "here\n"
    assert not select.select([waits.stdout], [], [], 0.3)[0]
    assert waits.pid not in node.machine.users()
    node.serve()
    launched = int(waits.stdout.readline())
    assert node.machine.users()[waits.pid].launches == launched


BOTH = """
contexts = [ctypes.c_void_p(), ctypes.c_void_p()]
for number, one in enumerate(contexts):
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(one), number)
    cuda.cuCtxSetCurrent(one)
    assert alloc((60 + 10 * number) << 20)[0] == 0
    assert alloc(50 << 20)[0] == 2
    assert info() == ((40 - 10 * number) << 20, 100 << 20), info()
    length = u64(1000)
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(length))
    for _ in range(5 + number):
        ones = (ctypes.c_uint(1),) * 6
        assert cuda.cuLaunchKernel(ctypes.c_void_p(1), *ones, 0, None, parameters, None) == 0
    cuda.cuCtxSynchronize()
print("done", flush=True)
sys.stdin.readline()
"""


def test_each_device_has_turns_and_a_quota_of_its_own(built: StandIn, tmp_path: Path) -> None:
    node = Node(built, tmp_path, devices=2)
    try:
        write_terms(node.shares, "a", ShareTerms(0.5, memory=100 * MIB))
        node.serve()
        process = node.python("a", BOTH, CUDA_VISIBLE_DEVICES="0,1")
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
        used = [node.machine.users(device)[process.pid] for device in (0, 1)]
        assert [(one.launches, one.memory) for one in used] == [(5, 60 * MIB), (6, 70 * MIB)]
        pages = [SharedPage(path) for path in sorted((node.shares / "pages").glob("a@*"))]
        assert [page.memory for page in pages] == [60 * MIB, 70 * MIB]
        eventually(lambda: [sum(s.launches for s in page.slots) for page in pages] == [5, 6])
    finally:
        node.close()


def test_threads_streams_graphs_and_a_fork(node: Node) -> None:
    write_terms(node.shares, "a", ShareTerms(0.3, 0.9))
    node.serve()
    for options in (
        ("--threads", 4, "--streams", 3),
        ("--graph", 20),
        ("--fork", 1),
    ):
        done = node.tenant("a", 200, 0.3, *options)
        out, _ = done.communicate(timeout=60)
        assert done.returncode == 0
        assert '"launches"' in out


def test_a_share_that_is_not_there_is_refused_and_runs_without(node: Node) -> None:
    node.serve()
    done = subprocess.run(
        [str(node.built.tenant), "100", "0.1"],
        env=node.environment("nobody"),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.count("knows no share nobody") == 1


def test_a_quota_holds_without_a_daemon(node: Node) -> None:
    code = "assert alloc(11 << 20)[0] == 2; assert alloc(10 << 20)[0] == 0; print('{}')"
    assert answer(node.python("a", code, PRESAGE_SHARE_MEMORY=str(10 * MIB))) == {}


def test_the_page_is_laid_out_as_in_c() -> None:
    from presage.executors.node.shares.page import Slot, _PageLayout

    assert ctypes.sizeof(Slot) == 128
    assert ctypes.sizeof(_PageLayout) == 128 + 64 * 128
