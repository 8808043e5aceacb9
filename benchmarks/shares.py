"""Enforced shares of a GPU on the stand-in device (tests/standin): what tenants get beside what
the rules promise, what a launch costs, and how long a process hangs when the daemon or a neighbour
is killed. The device is no real GPU; only CPU times and the rules mean anything elsewhere.

    python -m benchmarks.shares [grid|rules|overhead|kills|memory] [--sample 60] [--piece 1/1]
        [--at-once 1] [--kernel-us 2000] [--every 64] [--rows FILE] [--priority]

With `--priority` all of it, the programs that are measured included, goes before other work on the
machine (SCHED_RR): so what is measured is not how long a process waits for a core. The grid is
2,310 mixes of two tenants and 12 of three; a sample of them is drawn, and may be measured in
pieces, several mixes at once on a device each. `--rows` collects the pieces.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

from presage.executors.node.shares.page import FOREVER, SharedPage
from presage.executors.node.shares.terms import call, socket_path, write_terms
from presage.executors.node.shares.turns import ShareTerms, promised
from tests.executors.test_share_turns import play
from tests.standin import Machine, StandIn, build, start

_DAEMON = (
    "import sys; from pathlib import Path;"
    "from presage.executors.node.shares.daemon import ShareDaemon;"
    "ShareDaemon(Path(sys.argv[1])).run()"
)
_STEPS = [step / 10 for step in range(1, 11)]


class _Node:
    def __init__(self, built: StandIn, home: Path) -> None:
        self.built, self.shares = built, home / "shares"
        self.shares.mkdir()
        self.machine = Machine(home / "gpu")
        self.daemon: subprocess.Popen[str] | None = None

    def serve(self) -> None:
        self.daemon = start([sys.executable, "-c", _DAEMON, self.shares], dict(os.environ))
        while call(self.shares, {"ask": "status"}) is None:
            time.sleep(0.005)

    def kill(self) -> None:
        if self.daemon is not None:
            self.daemon.kill()
            self.daemon.communicate()

    def environment(self, share: str | None) -> dict[str, str]:
        env = self.machine.environment(self.built)
        if share is not None:
            env |= {"LD_PRELOAD": str(self.built.interposer), "PRESAGE_SHARE": share}
            env["PRESAGE_SHARE_SOCKET"] = str(socket_path(self.shares))
        return env

    def tenant(self, share: str | None, *options: object) -> subprocess.Popen[str]:
        return start([self.built.tenant, *options], self.environment(share))


@contextmanager
def _node(built: StandIn) -> Iterator[_Node]:
    with tempfile.TemporaryDirectory(prefix="shares-") as home:
        node = _Node(built, Path(home))
        try:
            yield node
        finally:
            node.kill()


def _shares(
    built: StandIn, terms: list[ShareTerms], seconds: float, program: tuple[object, ...]
) -> tuple[list[float], float]:
    """What hungry tenants got of the device, and how much of the time it was idle."""
    with _node(built) as node:
        for number, asked in enumerate(terms):
            write_terms(node.shares, f"t{number}", asked)
        node.serve()
        tenants = [node.tenant(f"t{number}", *program) for number in range(len(terms))]
        while len(node.machine.users()) < len(terms):
            time.sleep(0.01)
        time.sleep(0.5)
        begin, before = time.monotonic_ns(), node.machine.users()
        time.sleep(seconds)
        passed, after = time.monotonic_ns() - begin, node.machine.users()
        for tenant in tenants:
            tenant.kill()
            tenant.communicate()
        got = [(after[one.pid].busy_ns - before[one.pid].busy_ns) / passed for one in tenants]
        return got, 1.0 - sum(got)


_THREES = [
    ((0.2, 0.2), (0.3, 0.6), (0.5, 1.0)),
    ((0.1, 1.0), (0.1, 1.0), (0.1, 1.0)),
    ((0.1, 0.1), (0.1, 0.3), (0.2, 1.0)),
    ((0.3, 0.4), (0.3, 0.4), (0.3, 0.4)),
    ((0.6, 0.7), (0.1, 0.2), (0.1, 0.1)),
    ((0.8, 1.0), (0.1, 1.0), (0.1, 1.0)),
    ((0.1, 0.2), (0.1, 0.2), (0.1, 0.2)),
    ((0.4, 0.5), (0.2, 1.0), (0.1, 0.6)),
    ((0.5, 1.0), (0.3, 0.3), (0.2, 0.9)),
    ((0.1, 0.8), (0.2, 0.5), (0.4, 0.4)),
    ((0.2, 1.0), (0.2, 0.4), (0.6, 0.6)),
    ((0.3, 1.0), (0.1, 0.1), (0.1, 0.1)),
]


def mixes(sample: int) -> list[tuple[tuple[float, float], ...]]:
    """So many mixes of two tenants, drawn once and for all, and those of three."""
    pairs = [
        ((r1, l1), (r2, l2))
        for r1, l1, r2, l2 in product(_STEPS, _STEPS, _STEPS, _STEPS)
        if r1 <= l1 and r2 <= l2 and r1 + r2 <= 1.0 + 1e-9
    ]
    drawn = random.Random(23).sample(pairs, min(sample, len(pairs)))
    return [*drawn, *_THREES]


def grid(built: StandIn, options: argparse.Namespace) -> dict[str, Any]:
    """Mixes of request and limit: how far what was had is from what was promised."""
    number, pieces = (int(word) for word in options.piece.split("/"))
    chosen = mixes(options.sample)[number - 1 :: pieces]
    program = (options.kernel_us, 600, "--every", options.every)

    def measure(mix: tuple[tuple[float, float], ...]) -> dict[str, Any]:
        terms = [ShareTerms(*pair) for pair in mix]
        got, idle = _shares(built, terms, 10.0, program)
        due = promised(terms)
        print(f"{mix}  due {_pct(due)}  got {_pct(got)}", file=sys.stderr)
        return {"asked": mix, "due": due, "got": got, "idle": idle}

    with ThreadPoolExecutor(options.at_once) as pool:
        rows = list(pool.map(measure, chosen))
    if options.rows is not None:
        with options.rows.open("a") as file:
            file.writelines(f"{json.dumps(row)}\n" for row in rows)
        rows = [json.loads(line) for line in options.rows.read_text().splitlines()]
    return {f"{count} tenants": _off(rows, count) for count in (2, 3)}


def rules() -> dict[str, Any]:
    """The whole grid in simulated time, where nothing waits for a core."""
    rows = []
    for mix in mixes(len(_STEPS) ** 4):
        terms = [ShareTerms(*pair) for pair in mix]
        got = play(terms)
        rows.append({"asked": mix, "due": promised(terms), "got": got, "idle": 1.0 - sum(got)})
    return {f"{count} tenants": _off(rows, count) for count in (2, 3)}


def _off(rows: list[dict[str, Any]], tenants: int) -> dict[str, Any]:
    mine = [row for row in rows if len(row["asked"]) == tenants]
    if not mine:
        return {"mixes": 0}
    off = [100 * max(abs(a - b) for a, b in zip(r["got"], r["due"], strict=True)) for r in mine]
    over = [
        100 * max(a - limit for a, (_, limit) in zip(r["got"], r["asked"], strict=True))
        for r in mine
    ]
    idle = [100 * (r["idle"] - (1.0 - sum(r["due"]))) for r in mine]
    return {
        "mixes": len(mine),
        "within_3_points": sum(one <= 3.0 for one in off),
        "off_points": _spread(off),
        "limit_passed_points": _spread(over),
        "needlessly_idle_points": _spread(idle),
    }


def _spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    at = {"median": 0.5, "p95": 0.95, "worst": 1.0}
    return {name: round(ordered[round(q * (len(ordered) - 1))], 2) for name, q in at.items()}


def overhead(built: StandIn) -> dict[str, Any]:
    """Alone: wall time at 20,000 launches a second, and CPU time of a launch; with and without."""
    cases = {
        "20000_a_second": (50, 600, "--count", 40_000, "--every", 100),
        "free_kernels": (0, 600, "--count", 1_000_000, "--every", 0),
        "graphs": (50, 600, "--count", 800, "--graph", 50, "--every", 4),
    }
    found: dict[str, Any] = {}
    with _node(built) as node:
        write_terms(node.shares, "t", ShareTerms(0.5, 1.0))
        node.serve()
        for name, options in cases.items():
            walls: dict[str, list[float]] = {"with": [], "without": []}
            cpus: dict[str, list[float]] = {"with": [], "without": []}
            for _ in range(7):
                for kind, share in (("without", None), ("with", "t")):
                    out, _ = node.tenant(share, *options).communicate()
                    said = json.loads(out)
                    walls[kind].append(said["wall_ns"] / said["launches"])
                    cpus[kind].append(said["cpu_ns"] / said["launches"])
            wall = {kind: min(times) for kind, times in walls.items()}
            cpu = {kind: min(times) for kind, times in cpus.items()}
            found[name] = {
                "wall_pct": 100 * (wall["with"] / wall["without"] - 1),
                "wall_ns": wall,
                "cpu_ns_more": cpu["with"] - cpu["without"],
            }
    return found


def kills(built: StandIn, times: int) -> dict[str, Any]:
    """The daemon, and the process that has the turn, are killed under load; how long those that
    stay hang, and whether all that is counted is right afterwards. Who comes new asks for so much
    memory that it gets it only if that of the one before it came back."""
    quota, mine, yours = 1 << 30, 256, 700
    with _node(built) as node:
        for name in ("stay", "go"):
            write_terms(node.shares, name, ShareTerms(0.4, 1.0, memory=quota))
        node.serve()
        stay = node.tenant("stay", 500, 600, "--memory", mine)
        pauses: dict[str, list[float]] = {"the daemon": [], "who has the turn": []}
        off, refused, stopped = 0, 0, 0
        for number in range(times):
            go = node.tenant("go", 500, 600, "--memory", yours)
            while go.pid not in node.machine.users() and go.poll() is None:
                time.sleep(0.002)
            time.sleep(0.03)
            refused += go.poll() is not None
            if number % 2:
                node.kill()
                pauses["the daemon"].append(_pause(node, stay.pid, go.pid))
                node.serve()
            else:
                _wait_for_turn(node, "go", go.pid)
                go.kill()
                pauses["who has the turn"].append(_pause(node, stay.pid))
            go.kill()
            go.communicate()
            until = time.monotonic() + 2
            while not (right := _counted(node, mine << 20)) and time.monotonic() < until:
                time.sleep(0.002)
            off += not right
            stopped += stay.poll() is not None
        before, begin = node.machine.users()[stay.pid].busy_ns, time.monotonic_ns()
        time.sleep(2)
        alone = (node.machine.users()[stay.pid].busy_ns - before) / (time.monotonic_ns() - begin)
        stay.kill()
        stay.communicate()
        return {
            "kills": times,
            **{
                f"hung after a kill of {who}, ms": {
                    "median": statistics.median(each),
                    "longest": max(each),
                }
                for who, each in pauses.items()
            },
            "accounts_off": off,
            "refused": refused,
            "stopped": stopped,
            "what_the_one_that_stays_gets_alone": alone,
        }


def _counted(node: _Node, held: int) -> bool:
    """Whether the daemon counts one process with its memory, and nobody else."""
    rows = {row["share"]: row for row in (call(node.shares, {"ask": "status"}) or {})["shares"]}
    told = {name: (row["processes"], row["memory_bytes"]) for name, row in rows.items()}
    return told.get("stay") == (1, held) and told.get("go", (0, 0)) == (0, 0)


def _wait_for_turn(node: _Node, share: str, pid: int) -> None:
    """Until a process has its turn."""
    (path,) = (node.shares / "pages").glob(f"{share}@*")
    page = SharedPage(path)
    try:
        until = time.monotonic() + 5
        while time.monotonic() < until:
            for slot in page.slots:
                if slot.pid == pid and time.monotonic_ns() < slot.until_ns < FOREVER:
                    return
    finally:
        os.close(page.fd)


def memory(built: StandIn, sequences: int, killed: int) -> dict[str, Any]:
    """Random sequences over all allocation calls, one process alone and two with one quota; then
    processes that are killed among theirs, and what is counted and held afterwards."""
    quota = 64 << 20
    program = Path(__file__).parents[1] / "tests" / "standin" / "sequences.py"
    with _node(built) as node:
        write_terms(node.shares, "t", ShareTerms(0.5, memory=quota))
        node.serve()

        def run(*arguments: object) -> subprocess.Popen[str]:
            env = {**node.environment("t"), "PYTHONUNBUFFERED": "1"}
            return start([sys.executable, program, quota, *arguments], env)

        def left() -> tuple[int, int]:
            (row,) = (call(node.shares, {"ask": "status"}) or {})["shares"]
            held = sum(user.memory for pid, user in node.machine.users().items() if _lives(pid))
            return row["memory_bytes"], held

        found = {}
        for name, seeds in (("alone", [(0,)]), ("two beside", [(1, "beside"), (2, "beside")])):
            each = [run(seed, sequences // len(seeds), *word) for seed, *word in seeds]
            said = [json.loads(one.communicate()[0]) for one in each]
            assert not any(one.returncode for one in each), name
            found[name] = {
                "asked": sum(sum(one["asked"].values()) for one in said),
                "refused": sum(one["refused"] for one in said),
                "peak_bytes": max(one["peak"] for one in said),
                "quota_bytes": quota,
                "left": left(),
            }
        wrong = 0
        for number in range(killed):
            one = run(100 + number, 1_000_000)
            while not node.machine.users().get(one.pid) or not left()[0]:
                time.sleep(0.005)
            one.kill()
            one.communicate()
            until = time.monotonic() + 5
            while left() != (0, 0) and time.monotonic() < until:
                time.sleep(0.005)
            wrong += left() != (0, 0)
        return found | {"killed": killed, "wrong_after_a_kill": wrong}


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _pause(node: _Node, *pids: int) -> float:
    """How long until all of some processes launch again, in ms."""
    begin, before = time.monotonic(), node.machine.users()
    waits = set(pids)
    while waits:
        now = node.machine.users()
        waits = {pid for pid in waits if now[pid].launches == before[pid].launches}
        time.sleep(0.0005)
    return 1000 * (time.monotonic() - begin)


def _pct(values: list[float]) -> str:
    return " ".join(f"{100 * value:5.1f}" for value in values)


def main() -> None:
    """Run what is named, else all."""
    parser = argparse.ArgumentParser(description="Enforced shares on the stand-in device.")
    parser.add_argument("part", nargs="*", help="grid, rules, overhead, kills, memory")
    parser.add_argument("--sample", type=int, default=60)
    parser.add_argument("--piece", default="1/1")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--kernel-us", type=int, default=2000)
    parser.add_argument("--every", type=int, default=64, help="launches before it waits")
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--priority", action="store_true")
    options = parser.parse_args()
    if shutil.which("gcc") is None:
        sys.exit("benchmarks.shares needs a C compiler: install gcc and libc6-dev")
    with tempfile.TemporaryDirectory(prefix="standin-") as home:
        built = build(Path(home))
        parts: dict[str, Callable[[], dict[str, Any]]] = {
            "grid": lambda: grid(built, options),
            "rules": rules,
            "overhead": lambda: overhead(built),
            "kills": lambda: kills(built, 200),
            "memory": lambda: memory(built, 10_000, 50),
        }
        if unknown := set(options.part) - set(parts):
            parser.error(f"unknown part {', '.join(unknown)}")
        if options.priority:
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        found = {name: parts[name]() for name in options.part or parts}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
