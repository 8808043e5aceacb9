"""The executor `local` beyond the port: dead guardians, limits, secrets, data, and its cost."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from presage.executors.local.executor import LocalExecutor
from presage.executors.node.messages import LimitOrder
from presage.executors.node.processes import all_pids, read_stat
from presage.executors.node.runs import make_run
from presage.layout import Layout
from presage.model import event as ev
from presage.model.cluster import Worker
from presage.model.event import Outcome
from presage.model.job import ReasonCode
from presage.testing.executors import RoleWork, Watcher
from tests.counting import opcodes
from tests.executors.kit import NODES, LocalKit
from tests.waiting import eventually

LONG = "import time\nprint('up')\ntime.sleep(600)"
WITH_CHILDREN = """
import subprocess, sys, time
sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
subprocess.Popen(sleeper)
subprocess.Popen(sleeper, start_new_session=True, env={})
print("up")
time.sleep(600)
"""


# -- when somebody dies ------------------------------------------------------------------------


def test_a_killed_guardian_takes_its_run_along(kit: LocalKit, watch: Watcher) -> None:
    watch.run("orphan", RoleWork(WITH_CHILDREN))
    watch.until_log("orphan", "up")
    guardian = kit.guardian_pid("orphan")
    sleepers = _descendants(guardian)
    assert len(sleepers) == 3
    watch.until(lambda: len(kit.worker_pids("orphan")) == 3, "all written down")
    os.kill(guardian, signal.SIGKILL)
    exited = watch.end("orphan")
    assert exited.outcome is Outcome.LOST
    assert exited.reason is not None
    assert exited.reason.code is ReasonCode.NODE_LOST
    watch.assert_nothing_left("orphan")
    assert not [pid for pid in sleepers if _runs(pid)]


def test_nothing_is_lost_or_run_twice_when_the_server_dies_at_any_moment(kit: LocalKit) -> None:
    jobs = [f"j{n}" for n in range(8)]
    for job in jobs:
        kit.add_job(job, RoleWork(program=("sh", "-c", "echo ran; sleep 0.2")))
    journal = kit.data / "journal"
    journal.touch()
    server = _SERVER.format(data=str(kit.data), jobs=jobs)
    for wait_s in (0.12, 0.25, 0.4, 0.5):  # the last ones see the ends
        with subprocess.Popen([sys.executable, "-c", server], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            time.sleep(wait_s)
            process.kill()
    watch = Watcher(kit)
    for job in set(jobs) - set(journal.read_text().split()):
        watch.executor.launch(ev.Launch(job, 1, (Worker(0, 0, "n0"),)))
        assert watch.end(job).outcome is Outcome.SUCCEEDED
    for job in jobs:
        assert kit.log(job, 1, "worker-0") == "ran\n"
        watch.assert_nothing_left(job)


_SERVER = """
import sys, time
from pathlib import Path
from presage.executors.local.executor import LocalExecutor
from presage.model.cluster import Worker
from presage.model.event import JobExited, Launch
journal = Path({data!r}) / "journal"
executor = LocalExecutor(Path({data!r}), ())
print("up", flush=True)
for job in set({jobs!r}) - set(journal.read_text().split()):
    executor.launch(Launch(job, 1, (Worker(0, 0, "n0"),)))
while True:
    executor.wait(1)
    for fact in executor.poll(time.time()):
        if isinstance(fact, JobExited) and fact.outcome == "succeeded":  # a lost run comes again
            with journal.open("a") as file:
                file.write(fact.job + "\\n")
"""


def test_a_guardian_that_died_unwatched_is_found_at_the_start(
    kit: LocalKit, watch: Watcher
) -> None:
    watch.run("unseen", RoleWork(LONG))
    watch.until_log("unseen", "up")
    os.kill(kit.guardian_pid("unseen"), signal.SIGKILL)
    watch.restart()
    assert watch.end("unseen").outcome is Outcome.LOST
    watch.assert_nothing_left("unseen")


def test_jobs_go_on_when_the_server_is_killed(kit: LocalKit, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    wait = (
        f"import os, time\nprint('up')\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)"
    )
    (worker,) = kit.add_job("survivor", RoleWork(wait))
    (kit.data / "journal").touch()
    server = _SERVER.format(data=str(kit.data), jobs=["survivor"])
    with subprocess.Popen([sys.executable, "-c", server], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        eventually(lambda: "up" in kit.log("survivor", 1, "worker-0"))
        process.kill()
    watch = Watcher(kit)
    watch.executor.launch(ev.Launch("survivor", 1, (worker,)))  # as a new server does
    watch.settle()
    gate.touch()
    assert watch.end("survivor").outcome is Outcome.SUCCEEDED
    watch.assert_nothing_left("survivor")


def test_a_run_whose_directory_was_removed_is_lost(kit: LocalKit, watch: Watcher) -> None:
    watch.run("erased", RoleWork(LONG))
    watch.until_log("erased", "up")
    guardian = kit.guardian_pid("erased")
    shutil.rmtree(kit.data / "runs" / "erased")
    os.kill(guardian, signal.SIGKILL)
    assert watch.end("erased").outcome is Outcome.LOST
    watch.assert_nothing_left("erased")


def test_what_a_dead_executor_was_making_or_removing_goes_away(kit: LocalKit) -> None:
    runs = kit.data / "runs"
    for name in (".new-1-1", ".old-1-1/work", "job-without-runs"):
        (runs / name).mkdir(parents=True)
    (runs / ".old-1-1" / "lock").touch()
    kit.executor()
    assert list(runs.iterdir()) == []


def test_a_guardian_that_is_asked_to_end_saves_and_gives_back(
    kit: LocalKit, watch: Watcher
) -> None:
    """As when the machine shuts down."""
    watch.run("evening", RoleWork(LONG))
    watch.until_log("evening", "up")
    os.kill(kit.guardian_pid("evening"), signal.SIGTERM)
    exited = watch.end("evening")
    assert exited.outcome is Outcome.STOPPED
    assert exited.reason is not None
    assert "shutting down" in exited.reason.text


def test_a_guardian_that_cannot_start_is_no_endless_loop(kit: LocalKit, tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'no module named presage' >&2\nexit 1\n")
    broken.chmod(0o700)
    (worker,) = kit.add_job("broken", RoleWork(LONG))
    executor = LocalExecutor(kit.data, NODES, python=broken)
    executor.launch(ev.Launch("broken", 1, (worker,)))
    facts: list[ev.Fact] = []
    while not facts:
        executor.wait(1.0)
        facts = executor.poll(0.0)
    executor.close()
    (failed,) = facts
    assert isinstance(failed, ev.LaunchFailed)
    assert "no module named presage" in failed.reason.text


# -- limits ------------------------------------------------------------------------------------


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_workers_get_cores_of_their_own(kit: LocalKit, watch: Watcher) -> None:
    script = "import os\nprint(sorted(os.sched_getaffinity(0)))"
    command = [sys.executable, "-c", script]
    kit.write_job("pinned", command=command, workers=2, resources={"cpus": 0.5})
    watch.executor.launch(ev.Launch("pinned", 1, (Worker(0, 0, "n0"), Worker(0, 1, "n1"))))
    assert watch.end("pinned").outcome is Outcome.SUCCEEDED
    cores = [json.loads(kit.log("pinned", 1, f"worker-{i}")) for i in (0, 1)]
    assert [len(held) for held in cores] == [1, 1]
    assert cores[0] != cores[1]


def test_memory_of_children_counts_and_shared_memory_counts_once(
    kit: LocalKit, watch: Watcher
) -> None:
    share = """
import os, time
kept = b"x" * (64 << 20)
children = []
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        time.sleep(0.6)
        os._exit(0)
    children.append(pid)
for pid in children: os.waitpid(pid, 0)
"""
    watch.run("sharing", RoleWork(share, memory_mib=160))
    assert watch.end("sharing").outcome is Outcome.SUCCEEDED
    hoard = "import os, time\nos.fork()\nkept = b'x' * (90 << 20)\ntime.sleep(600)"
    watch.run("family", RoleWork(hoard, memory_mib=128))
    assert watch.end("family").outcome is Outcome.OUT_OF_MEMORY
    watch.assert_nothing_left("family")


def test_a_program_that_says_it_got_no_memory_ran_out_of_it(watch: Watcher) -> None:
    watch.run("honest", RoleWork("raise MemoryError('cannot hold 3 TiB')"))
    exited = watch.end("honest")
    assert exited.outcome is Outcome.OUT_OF_MEMORY
    assert exited.reason is not None
    assert "3 TiB" in exited.reason.text


def test_raised_memory_takes_the_place_of_the_manifests(kit: LocalKit, watch: Watcher) -> None:
    hold = "import time\nkept = b'x' * (64 << 20)\ntime.sleep(0.4)"
    watch.kit.add_job("raised", RoleWork(hold, memory_mib=32))
    path = kit.data / "jobs" / "raised" / "job.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "memory_mib": {"worker": 256}}))
    watch.executor.launch(ev.Launch("raised", 1, (Worker(0, 0, "n0"),)))
    assert watch.end("raised").outcome is Outcome.SUCCEEDED


# -- what goes in and out ----------------------------------------------------------------------


def test_secrets_reach_workers_and_nothing_else(
    kit: LocalKit, watch: Watcher, tmp_path: Path
) -> None:
    secret, gate = "s3cr3t-of-ada", tmp_path / "gate"
    (kit.data / "secrets").mkdir(parents=True)
    (kit.data / "secrets" / "hub").write_text(f"{secret}\n")
    script = (
        "import os, sys, time\n"
        "print('up', flush=True)\n"
        "sys.stdin.read()\n"
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)\n"
        "raise SystemExit('the hub refused ' + os.environ['HUB_TOKEN'])"
    )
    kit.write_job("keeper", command=[sys.executable, "-c", script], secrets={"HUB_TOKEN": "hub"})
    watch.executor.launch(ev.Launch("keeper", 1, (Worker(0, 0, "n0"),)))
    watch.until_log("keeper", "up")
    written = b"".join(p.read_bytes() for p in (kit.data / "runs").rglob("*") if p.is_file())
    commands = b"".join(
        Path(f"/proc/{pid}/cmdline").read_bytes() for pid in kit.processes("keeper")
    )
    assert b"hub" in written
    assert secret.encode() not in written + commands
    gate.touch()
    exited = watch.end("keeper")
    assert exited.reason is not None
    assert exited.reason.text == "worker-0 ended with exit code 1: the hub refused ***"


def test_a_secret_that_is_not_there_is_named(kit: LocalKit, watch: Watcher) -> None:
    kit.write_job("poor", command="true", secrets={"HUB_TOKEN": "nothing"})
    watch.executor.launch(ev.Launch("poor", 1, (Worker(0, 0, "n0"),)))
    watch.until(lambda: watch.of("poor", ev.LaunchFailed), "refused")
    assert "'nothing'" in watch.of("poor", ev.LaunchFailed)[0].reason.text


def test_credentials_of_the_server_stay_there(
    kit: LocalKit, watch: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PRESAGE_TOKEN", "PGPASSWORD", "AWS_SECRET_ACCESS_KEY", "HARMLESS"):
        monkeypatch.setenv(name, "value")
    watch.run("curious", RoleWork("import os\nprint(sorted(os.environ))"))
    watch.end("curious")
    said = kit.log("curious", 1, "worker-0")
    assert "HARMLESS" in said
    assert not any(n in said for n in ("PRESAGE_TOKEN", "PGPASSWORD", "AWS_SECRET_ACCESS_KEY"))


def test_work_folder_data_checkpoints_and_results(
    kit: LocalKit, watch: Watcher, tmp_path: Path
) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "rows").write_text("1 2 3")
    _pack(kit.data / "folders" / "abc.tar.gz", {"train.py": _TRAIN, "lib/net.py": "WIDTH = 4\n"})
    kit.write_job(
        "whole",
        command="python train.py",
        folder="abc",
        data={"here": str(tmp_path / "set"), "there": f"local://{tmp_path}/set"},
        results=f"local://{tmp_path}/out",
        checkpoint={"dir": "ckpt", "every": 1.5},
    )
    watch.executor.launch(ev.Launch("whole", 1, (Worker(0, 0, "n0"),)))
    assert watch.end("whole").outcome is Outcome.SUCCEEDED, kit.log("whole", 1, "worker-0")
    assert [fact.stage for fact in watch.of("whole", ev.StageChanged)] == [
        "downloading",
        "storing",
    ]
    said = json.loads(kit.log("whole", 1, "worker-0"))
    assert said == {"rows": ["1 2 3", "1 2 3"], "width": 4, "every": "1.5"}
    assert (kit.data / "jobs" / "whole" / "checkpoints" / "state").read_text() == "saved"
    assert (tmp_path / "out" / "model").read_text() == "weights"
    assert (tmp_path / "set" / "rows").exists()
    watch.assert_nothing_left("whole")


_TRAIN = """
import json, os, pathlib
from lib.net import WIDTH
data = pathlib.Path(os.environ["PRESAGE_DATA_DIR"])
rows = [(data / name / "rows").read_text() for name in ("here", "there")]
print(json.dumps({"rows": rows, "width": WIDTH, "every": os.environ["PRESAGE_CHECKPOINT_EVERY"]}))
pathlib.Path("ckpt/state").write_text("saved")
pathlib.Path(os.environ["PRESAGE_RESULT_DIR"], "model").write_text("weights")
"""


@pytest.mark.parametrize(
    ("manifest", "text"),
    [
        ({"data": {"set": "/no/such/place"}}, "data 'set': there is no /no/such/place"),
        ({"data": {"set": "local:///no/such/place"}}, "data 'set' from local:///no/such/place"),
        ({"data": {"set": "nosuch://x/y"}}, "nosuch"),
        ({"folder": "gone"}, "work folder cannot be unpacked"),
        ({"folder": "evil"}, "work folder cannot be unpacked"),
        ({"command": "presage-no-such-program --x"}, "there is no program"),
        ({"command": ["/"]}, "not executable"),
        ({"command": ""}, "cannot be used"),
        ({"secrets": {"A": "../../etc/passwd"}}, "cannot be the name of a secret"),
    ],
)
def test_what_cannot_be_started_is_refused_with_a_reason(
    kit: LocalKit, watch: Watcher, manifest: dict[str, Any], text: str
) -> None:
    _pack(kit.data / "folders" / "evil.tar.gz", {"../outside": "x"})
    kit.write_job("no", **{"command": "true", **manifest})
    watch.executor.launch(ev.Launch("no", 1, (Worker(0, 0, "n0"),)))
    watch.until(lambda: watch.of("no", ev.LaunchFailed), "refused")
    assert text in watch.of("no", ev.LaunchFailed)[0].reason.text
    watch.assert_nothing_left("no")


def test_an_image_needs_podman_or_docker(
    kit: LocalKit, watch: Watcher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    kit.write_job("boxed", command="true", image="python:3.11")
    watch.executor.launch(ev.Launch("boxed", 1, (Worker(0, 0, "n0"),)))
    watch.until(lambda: watch.of("boxed", ev.LaunchFailed), "refused")
    text = watch.of("boxed", ev.LaunchFailed)[0].reason.text
    assert "python:3.11" in text
    assert "neither podman nor docker" in text


def test_results_that_cannot_be_stored_fail_the_job(kit: LocalKit, watch: Watcher) -> None:
    kit.write_job("lossy", command="true", results="/dev/null/out")
    watch.executor.launch(ev.Launch("lossy", 1, (Worker(0, 0, "n0"),)))
    exited = watch.end("lossy")
    assert exited.outcome is Outcome.FAILED
    assert exited.reason is not None
    assert "results to /dev/null/out" in exited.reason.text


def test_a_stop_reaches_the_program_behind_a_shell(kit: LocalKit, watch: Watcher) -> None:
    """Before its helpers, without which it may not be able to save."""
    script = """
import os, signal, sys, time
def handle(*_):
    if name == "program": time.sleep(0.3)
    sys.stdout.write(name + " stops\\n")
    sys.exit(143)
name = "program" if os.fork() else "helper"
signal.signal(signal.SIGTERM, handle)
sys.stdout.write(name + " up\\n")
while True: time.sleep(0.01)
"""
    _pack(kit.data / "folders" / "f.tar.gz", {"train.py": script})
    kit.write_job("shelled", command="cd . && python train.py; echo $?", folder="f", grace=60)
    watch.executor.launch(ev.Launch("shelled", 1, (Worker(0, 0, "n0"),)))
    watch.until_log("shelled", "program up")
    watch.until_log("shelled", "helper up")
    watch.stop("shelled")
    assert watch.end("shelled").outcome is Outcome.STOPPED
    lines = kit.log("shelled", 1, "worker-0").splitlines()
    assert lines.index("program stops") < lines.index("helper stops")


def test_a_stop_reaches_the_program_behind_a_wrapper(kit: LocalKit, watch: Watcher) -> None:
    program = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("saved"), sys.exit(143)))
print("up")
while True: time.sleep(0.01)
"""
    wrapper = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {program!r}])"
    watch.run("wrapped", RoleWork(wrapper))
    watch.until_log("wrapped", "up")
    watch.stop("wrapped")
    assert watch.end("wrapped").outcome is Outcome.STOPPED
    assert "saved" in kit.log("wrapped", 1, "worker-0")


def test_telemetry_is_kept(kit: LocalKit, watch: Watcher, tmp_path: Path) -> None:
    burn = """
import os
kept = b"x" * (32 << 20)
while not os.path.exists(os.environ["GATE"]): pass
"""
    gate = tmp_path / "gate"
    watch.run("busy", RoleWork(burn), env={"GATE": str(gate)})
    path = kit.data / "jobs" / "busy" / "telemetry" / "1.jsonl"
    watch.until(lambda: path.exists() and path.read_text().count("\n") >= 2, "sampled twice")
    gate.touch()
    watch.end("busy")
    samples = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(samples) >= 2
    assert {sample["worker"] for sample in samples} == {"worker-0"}
    assert samples[-1]["rss_mib"] > 32
    first, second = samples[:2]
    assert first["cpu_s"] < second["cpu_s"]
    rate = (second["cpu_s"] - first["cpu_s"]) / (second["at"] - first["at"])
    assert second["cpu_cores"] == pytest.approx(rate, rel=0.01)


# -- what it costs -----------------------------------------------------------------------------


def test_a_guardian_stays_small(kit: LocalKit, watch: Watcher) -> None:
    watch.run("small", RoleWork(LONG, memory_mib=512))
    watch.until_log("small", "up")
    status = Path(f"/proc/{kit.guardian_pid('small')}/status").read_text()
    peak_kib = int(status.partition("VmHWM:")[2].split()[0])
    assert peak_kib <= 25 * 1024


def test_polling_many_quiet_runs_is_cheap(kit: LocalKit) -> None:
    layout = Layout(kit.data)
    layout.runs.mkdir(parents=True)
    own = read_stat(os.getpid())
    assert own is not None
    locks = []
    for n in range(200):
        lock = make_run(layout.runs, layout.run(f"j{n}", 1), LimitOrder(cpu_milli=0, memory_mib=0))
        assert lock is not None
        os.write(lock, f"{os.getpid()} {own.start}".encode())
        locks.append(lock)
    executor = kit.executor()
    assert executor.poll(0.0) == []
    executor._next_scan = 0.0  # the dear kind of poll: every run is looked at
    assert opcodes(lambda: executor.poll(0.0)) <= 500 * len(locks)
    for lock in locks:
        os.close(lock)


def test_a_server_that_sees_some_gpus_hands_out_those(
    kit: LocalKit, watch: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, GPU-abc")
    kit.add_job("some", RoleWork(program=("sh", "-c", "echo $CUDA_VISIBLE_DEVICES")))
    watch.executor.launch(ev.Launch("some", 1, (Worker(0, 0, "n0", (1, 0)),)))
    assert watch.end("some").outcome is Outcome.SUCCEEDED
    assert kit.log("some", 1, "worker-0") == "GPU-abc,5\n"


def _descendants(pid: int) -> list[int]:
    found = [p for p in all_pids() if (stat := read_stat(p)) and stat.parent == pid]
    return [*found, *(deeper for child in found for deeper in _descendants(child))]


def _runs(pid: int) -> bool:
    stat = read_stat(pid)
    return stat is not None and stat.state != "Z"


def _pack(path: Path, files: dict[str, str], mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text.encode()), mode
            archive.addfile(entry, io.BytesIO(text.encode()))


@pytest.mark.parametrize(
    ("manifest", "text"),
    [
        ({"environment": "/opt/conda/envs/none"}, "environment /opt/conda/envs/none is not there"),
        ({"environment": "bare", "command": "python -c pass"}, "has no python in"),
        ({"command": "./train.sh"}, "names an interpreter that is not there: /no/such/bash"),
        (
            {"command": "trainn --x", "launcher": "torchrun", "workers": "1..2"},
            "there is no program 'trainn'",
        ),
    ],
)
def test_what_is_named_and_missing_is_refused_for_good(
    kit: LocalKit, watch: Watcher, tmp_path: Path, manifest: dict[str, Any], text: str
) -> None:
    (tmp_path / "bare" / "bin").mkdir(parents=True)
    if manifest.get("environment") == "bare":
        manifest = {**manifest, "environment": str(tmp_path / "bare")}
    _pack(kit.data / "folders" / "f.tar.gz", {"train.sh": "#!/no/such/bash\n"}, mode=0o755)
    kit.write_job("no", folder="f", **{"command": "true", **manifest})
    watch.executor.launch(ev.Launch("no", 1, (Worker(0, 0, "n0"),)))
    watch.until(lambda: watch.of("no", ev.LaunchFailed), "refused")
    reason = watch.of("no", ev.LaunchFailed)[0].reason
    assert text in reason.text
    assert reason.code is ReasonCode.LAUNCH_FAILED
    watch.assert_nothing_left("no")


def test_a_shell_that_finds_no_command_says_so_and_is_not_started_again(
    kit: LocalKit, watch: Watcher
) -> None:
    kit.write_job("no", command="presage-no-such-program | cat; presage-nor-this-one")
    watch.executor.launch(ev.Launch("no", 1, (Worker(0, 0, "n0"),)))
    exited = watch.end("no")
    assert exited.reason is not None
    assert (exited.exit_code, exited.reason.code) == (127, ReasonCode.LAUNCH_FAILED)
    assert "a program of its command is not there" in exited.reason.text
    assert "presage-nor-this-one" in exited.reason.text


def test_a_download_that_may_work_the_next_time_is_no_refusal_for_good(
    kit: LocalKit, watch: Watcher
) -> None:
    kit.write_job("far", command="true", data={"set": "http://127.0.0.1:9/set"})
    watch.executor.launch(ev.Launch("far", 1, (Worker(0, 0, "n0"),)))
    watch.until(lambda: watch.of("far", ev.LaunchFailed), "refused")
    assert watch.of("far", ev.LaunchFailed)[0].reason.code is ReasonCode.ERROR
