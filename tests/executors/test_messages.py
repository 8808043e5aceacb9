"""What the processes that run jobs tell each other, over versions of Presage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

import pytest

from presage.executors.node import messages as msg
from presage.executors.node import wire
from presage.executors.node.processes import read_stat
from presage.layout import Layout
from presage.model import event as ev
from presage.model.cluster import Worker
from presage.model.event import Outcome
from presage.testing.executors import Watcher
from tests.executors.kit import LocalKit

_IDENTITY = [0, 0, "n0", [0]]
_WORKER = {
    "name": "worker-0",
    "is": _IDENTITY,
    "argv": ["python", "-c", "print(1)"],
    "resume": None,
    "agent": False,
    "env": {"PRESAGE_RANK": "0", "CUDA_VISIBLE_DEVICES": "0"},
    "cpus": [1],
    "memory": 1 << 30,
    "serves": False,
    "log": "/data/jobs/old/logs/1/worker-0.log",
    "progress": "/data/runs/old/1/progress/worker-0.json",
    "container": None,
    "cgroup": "presage-9fed31a2b00d2959a3ac8656",
}
_PLAN = {
    "job": "old",
    "attempt": 1,
    "run": "/data/runs/old/1",
    "wake": "/data/wake",
    "work": "/data/runs/old/1/work",
    "folder": None,
    "data": {},
    "data_dir": "/data/runs/old/1/data",
    "progress_dir": "/data/runs/old/1/progress",
    "results": None,
    "result_dir": "/data/jobs/old/results",
    "checkpoint_dir": "/data/jobs/old/checkpoints",
    "checkpoint_link": "",
    "log_dir": "/data/jobs/old/logs/1",
    "log_cap": 268435456,
    "telemetry": "/data/jobs/old/telemetry/1.jsonl",
    "gpus": [],
    "nvml": None,
    "secrets": {"HUB_TOKEN": "/data/secrets/hub"},
    "env": {},
    "time_limit_s": None,
    "grace_s": 30.0,
    "torchrun": False,
    "agents": False,
    "live": False,
    "engine": None,
    "image": None,
    "cgroup": None,
    "workers": [_WORKER],
}
_GO = {"address": "10.0.0.1", "port": 59543, "ran_s": 1.6, "logs": {"worker-0": 155}}
_MANIFEST = {"name": "old", "command": ["sleep", "600"], "workers": "1..2"}
FIRST: list[tuple[type[wire.Message], Any]] = [
    (msg.RunPlan, _PLAN),
    (msg.RunPlan, {**_PLAN, "warm": True}),
    (msg.JobFile, {"manifest": _MANIFEST, "folder": "ab", "owner": "ada", "memory_mib": {"w": 1}}),
    (msg.ResizeOrder, {"number": 1, "target": [_IDENTITY], "workers": [_WORKER]}),
    (msg.StopOrder, {"code": "requested", "text": "halted"}),
    (msg.StopOrder, {"code": "requested", "text": "halted", "grace_s": 5.0}),
    (msg.LimitOrder, {"cpu_milli": 1500, "memory_mib": 900}),
    (msg.Members, {"number": 1, "members": ["worker-0", "worker-1"], "store": "store-7"}),
    (msg.ProgressReport, {"done": 0.5, "detail": {"loss": 0.5, "step": 1, "steps": 2}}),
    (msg.SizeRequest, 3),
    (msg.Processes, [[24399, 392643], [24400, 392643]]),
    (msg.Event, {"type": "JobStarted", "job": "old", "attempt": 1, "at": 1.5, "when": 2.5}),
    (msg.Event, {"type": "JobResized", "job": "old", "attempt": 1, "number": 1, "when": 2.5}),
    (
        msg.LaunchOrder,
        {"job": "old", "attempt": 1, "workers": [_IDENTITY], "shared": None, "log_cap": 9},
    ),
    (
        msg.Placed,
        {
            "nodes": {"n0": "7dd"},
            "serves": {"n0": False},
            "size": 1,
            "reservation": "presage/1a/old/1.1/9d",
            "grace_s": 30.0,
            "go": _GO,
            "changing": True,
        },
    ),
    (
        msg.Verdict,
        {
            "type": "JobExited",
            "outcome": "lost",
            "reason": {"code": "node_lost", "text": "gone"},
            "exit_code": 137,
        },
    ),
    (msg.GoOrder, _GO),
    (msg.Word, {"number": 2, "workers": 3, "apart": True}),
    (msg.Word, {"number": 2, "call": 41}),
    (msg.Cursor, {"logs": {"worker-0": 7}, "events": 2, "request": [5, 3], "drained": True}),
    (msg.HeadNote, {"pid": 7, "port": 6379, "start": 99}),
]
"""As they were written before messages had a version."""


@pytest.mark.parametrize(("kind", "body"), FIRST, ids=lambda value: getattr(value, "__name__", ""))
def test_the_first_version_is_read_and_its_readers_understand_what_is_written(
    kind: type[wire.Message], body: Any
) -> None:
    message = wire.unpack(kind, body)
    written = json.loads(wire.dumps(message))
    if isinstance(written, dict):
        assert written.pop("version") == wire.VERSION
    assert written == body


def _kinds(kind: type[wire.Message] = wire.Message) -> Iterator[type[wire.Message]]:
    for inner in kind.__subclasses__():
        if inner.__module__ == msg.__name__:
            yield inner
            yield from _kinds(inner)


def _sample(kind: Any) -> Any:
    """A value of a type; a message has every field set, and none to its default."""
    if isinstance(kind, UnionType):
        return _sample(get_args(kind)[0])
    inner = get_args(kind)
    if get_origin(kind) is tuple:
        return tuple(_sample(item) for item in inner if item is not ...)
    if get_origin(kind) is dict:
        return {"key": _sample(inner[1])}
    if issubclass(kind, wire.Message):
        return kind(**{name: _sample(field) for name, field in kind.KINDS.items()})
    plain: dict[Any, Any] = {str: "text", int: 7, float: 0.5, bool: True, Path: Path("/a")}
    return {**plain, Any: {"any": [1]}}[kind]


@pytest.mark.parametrize("kind", list(_kinds()), ids=lambda kind: kind.__name__)
def test_every_message_survives_its_journey(kind: type[wire.Message]) -> None:
    if kind is msg.RunNews:  # it has bytes: it travels in a call, not as text
        chunk = {"worker-0": (3, b"\xff\n")}
        news = msg.RunNews(cursor=msg.Cursor(logs={}), logs=chunk)
        assert wire.unpack(msg.RunNews, wire.pack(news)) == news
        return
    message = _sample(kind)
    assert wire.loads(kind, wire.dumps(message)) == message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 99}, ["limits.json", "version 99", "newer", "run the version that wrote it"]),
        ({"version": "x"}, ["limits.json", "version x"]),
        ({"colour": 1}, ["limits.json", "'colour' is not known here"]),
        ({"cpu_milli": None}, ["limits.json", "cpu_milli", "None is not of type int"]),
        ({"cpu_milli": "many"}, ["limits.json", "cpu_milli", "'many' is not of type int"]),
    ],
)
def test_what_is_not_understood_is_refused_in_one_line(
    change: dict[str, Any], words: list[str]
) -> None:
    body = {"cpu_milli": 1, "memory_mib": 1, **change}
    with pytest.raises(wire.MessageError) as refusal:
        wire.unpack(msg.LimitOrder, body)
    assert all(word in str(refusal.value) for word in words)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("text", [b"{", b"[" * 100_000, b"\xff", b"{}", b"[]", b"3"])
def test_nonsense_is_refused(text: bytes) -> None:
    with pytest.raises(wire.MessageError, match=r"plan\.json.* (is not JSON|is missing)"):
        wire.loads(msg.RunPlan, text)


def test_a_field_that_came_later_means_what_its_absence_meant() -> None:
    class Later(wire.Message):
        number: int
        colour: str = "grey"

    Later.KINDS = {"number": int, "colour": str}  # this file has its annotations as text
    assert wire.unpack(Later, {"number": 1}).colour == "grey"
    with pytest.raises(wire.MessageError, match="'number' is missing"):
        wire.unpack(Later, {"colour": "red"})


def test_a_message_is_never_changed() -> None:
    order = msg.LimitOrder(cpu_milli=1, memory_mib=2)
    with pytest.raises(AttributeError, match="never changed"):
        order.cpu_milli = 3  # type: ignore[misc]
    assert order.but(cpu_milli=3) == msg.LimitOrder(cpu_milli=3, memory_mib=2)
    with pytest.raises(TypeError, match="no field 'cpus'"):
        order.but(cpus=3)


# -- runs that were started before ---------------------------------------------------------------


class Before:
    """A run of the executor `local` as it was before messages had a version. The part of its
    guardian is played by a process that holds the lock."""

    def __init__(self, data: Path) -> None:
        layout = Layout(data)
        self.run = layout.run("old", 1)
        for path in (self.run, layout.job("old"), layout.logs("old", 1)):
            path.mkdir(parents=True)
        layout.job_file("old").write_text(json.dumps({"manifest": _MANIFEST, "owner": "ada"}))
        os.mkfifo(self.run / "control")
        self.worker = self._process("import time; time.sleep(600)", {})
        hold = "import fcntl, time; f = open('lock', 'r+'); fcntl.flock(f, fcntl.LOCK_EX)"
        lock = self.run / "lock"
        lock.touch()
        self.guardian = self._process(
            f"{hold}; print(flush=True); time.sleep(600)", {"PRESAGE_RUN": str(self.run)}
        )
        assert self.guardian.stdout is not None
        self.guardian.stdout.readline()
        lock.write_text(f"{self.guardian.pid} {_start(self.guardian.pid)}")
        self._put("plan.json", json.loads(json.dumps(_PLAN).replace("/data/", f"{data}/")))
        self._put("processes.json", [[self.worker.pid, _start(self.worker.pid)]])
        self._put("progress.json", {"done": 0.25, "detail": {"step": 1, "steps": 4}})
        started = {"type": "JobStarted", "job": "old", "attempt": 1, "at": 5.0, "when": 5.0}
        self._put("events.jsonl", started, "\n")

    def _put(self, name: str, body: Any, end: str = "") -> None:
        (self.run / name).write_text(json.dumps(body) + end)

    def _process(self, script: str, env: dict[str, str]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-I", "-S", "-c", script]
        return subprocess.Popen(
            command, cwd=self.run, env=env, stdout=subprocess.PIPE, start_new_session=True
        )

    def read(self, name: str) -> Any:
        return json.loads((self.run / name).read_bytes())

    def close(self) -> None:
        for process in (self.guardian, self.worker):
            process.kill()
            process.communicate()


@pytest.fixture
def before(kit: LocalKit) -> Iterator[Before]:
    run = Before(kit.data)
    yield run
    run.close()


def test_a_run_from_before_is_adopted_told_what_to_do_and_buried(
    kit: LocalKit, before: Before
) -> None:
    watch = Watcher(kit)
    watch.settle()
    assert [type(fact) for fact in watch.facts] == [ev.JobStarted, ev.Progress]
    watch.resize("old", (Worker(0, 0, "n0", (0,)), Worker(0, 1, "n0", (1,))))
    asked = before.read("resize.json")
    assert (asked["number"], len(asked["workers"])) == (1, 2)
    assert asked["workers"][0].keys() == _WORKER.keys()  # its guardian looks for these
    assert asked["workers"][0]["cpus"] == [1]  # a worker that stays keeps its cores
    watch.stop("old")
    assert before.read("stop.json")["code"] == "requested"
    before.guardian.kill()
    before.guardian.wait()
    exited = watch.end("old")
    assert exited.outcome is Outcome.LOST
    assert before.worker.wait(kit.timeout_s) == -9
    watch.assert_nothing_left("old")


def test_a_plan_of_a_newer_version_is_said_in_one_line_and_the_run_is_followed(
    kit: LocalKit, before: Before, caplog: pytest.LogCaptureFixture
) -> None:
    plan = before.read("plan.json")
    (before.run / "plan.json").write_text(json.dumps({**plan, "version": 99}))
    watch = Watcher(kit)
    watch.settle()
    (line,) = caplog.messages
    assert line.startswith("run 1 of job old: plan.json: version 99 is newer")
    assert watch.of("old", ev.JobStarted)


def test_a_guardian_starts_without_what_is_slow_to_import() -> None:
    """`dataclasses` alone, with the messages as dataclasses, would double its start."""
    slow = ("dataclasses", "inspect", "ast", "subprocess", "logging", "presage.model.event")
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import presage.executors.node.guardian\n"
        f"print([name for name in {slow} if name in sys.modules])"
    )
    source = str(Path(wire.__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script, source],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


def _start(pid: int) -> int:
    stat = read_stat(pid)
    assert stat is not None
    return stat.start
