"""Jobs with an image, in real containers: podman with an image made of a shell and little else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from presage.model import event as ev
from presage.model.cluster import Worker
from presage.model.event import Outcome
from presage.testing.executors import Watcher
from tests.executors.kit import LocalKit
from tests.waiting import PATIENCE_S

IMAGE = "localhost/presage/shell:1"
APPLETS = ("sh", "sleep", "echo", "cat", "tail", "env", "pwd", "true", "id")


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory with a short name: sockets are made in it."""
    with TemporaryDirectory(prefix="pod", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def podman(program: Callable[..., str], place: Path) -> Iterator[str]:
    """Podman with a storage of its own and an image that has a shell."""
    engine, shell = program("podman"), program("busybox")
    (place / "containers.conf").write_text(
        f'[engine]\nruntime = "{program("runc", "crun")}"\ncgroup_manager = "cgroupfs"\n'
        '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n'
    )
    (place / "storage.conf").write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{place}/graph"\nrunroot = "{place}/run"\n'
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_CONF", str(place / "containers.conf"))
        patch.setenv("CONTAINERS_STORAGE_CONF", str(place / "storage.conf"))
        archive = place / "image.tar"
        with tarfile.open(archive, "w") as tar:
            tar.add(shell, "bin/busybox")
            for name in APPLETS:
                link = tarfile.TarInfo(f"bin/{name}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                tar.addfile(link)
        subprocess.run([engine, "import", str(archive), IMAGE], capture_output=True, check=True)
        command = [engine, "run", "--rm", "--network", "host", IMAGE, "true"]
        try:
            subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
        except subprocess.SubprocessError as error:
            said = str(getattr(error, "stderr", "") or error).strip()
            pytest.skip(f"podman cannot run containers on this machine: {said}")
        yield engine
        subprocess.run([engine, "rm", "--all", "--force"], capture_output=True, check=False)
        subprocess.run([engine, "rmi", "--all", "--force"], capture_output=True, check=False)


class Boxed:
    """Runs shell scripts in containers."""

    def __init__(self, kit: LocalKit, watch: Watcher, engine: str) -> None:
        self.kit, self.watch, self.engine = kit, watch, engine

    def run(self, job: str, script: str, workers: int = 1, **manifest: Any) -> None:
        """Start a job whose workers run a script."""
        command = ["/bin/sh", "-c", script]
        self.kit.write_job(job, command=command, image=IMAGE, workers=workers, **manifest)
        gang = tuple(Worker(0, index, "n0") for index in range(workers))
        self.watch.executor.launch(ev.Launch(job, 1, gang))

    def containers(self) -> list[str]:
        """Those there are, running or not."""
        command = [self.engine, "ps", "--all", "--format", "{{.Names}}"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    def assert_nothing_left(self, job: str) -> None:
        """No process, no file, no container."""
        self.watch.assert_nothing_left(job)
        assert self.containers() == []


@pytest.fixture
def boxed(podman: str, kit: LocalKit, watch: Watcher) -> Boxed:
    """An executor that finds podman."""
    return Boxed(kit, watch, podman)


def test_a_worker_runs_in_its_container(boxed: Boxed, tmp_path: Path) -> None:
    script = (
        "echo rank $PRESAGE_RANK of $PRESAGE_WORKERS, $GREETING; pwd; "
        "echo made > $PRESAGE_RESULT_DIR/out-$PRESAGE_RANK; cat /etc/os-release"
    )
    boxed.run("inside", script, 2, env={"GREETING": "good day"})
    exited = boxed.watch.end("inside")
    assert exited.outcome is Outcome.FAILED  # the image has no such file, though the machine has
    boxed.run("good", script.replace("; cat /etc/os-release", ""), 2, env={"GREETING": "good day"})
    assert boxed.watch.end("good").outcome is Outcome.SUCCEEDED
    for rank in (0, 1):
        said = boxed.kit.log("good", 1, f"worker-{rank}").splitlines()
        assert said[0] == f"rank {rank} of 2, good day"
        assert said[1].endswith("/runs/good/1/work")
        made = boxed.kit.data / "jobs" / "good" / "results" / f"out-{rank}"
        assert made.read_text() == "made\n"
        assert made.stat().st_uid == os.getuid()
    boxed.assert_nothing_left("good")


def test_a_container_that_hoards_memory_is_told_apart(boxed: Boxed) -> None:
    boxed.run("hoarder", "tail /dev/zero", resources={"memory": "32Mi"})
    exited = boxed.watch.end("hoarder")
    assert exited.outcome is Outcome.OUT_OF_MEMORY
    assert exited.reason is not None
    assert "more than the 32 MiB it may use" in exited.reason.text
    boxed.assert_nothing_left("hoarder")


def test_an_error_inside_says_its_exit_code_and_last_words(boxed: Boxed) -> None:
    boxed.run("bad", "echo no such class; exit 3")
    exited = boxed.watch.end("bad")
    assert (exited.outcome, exited.exit_code) == (Outcome.FAILED, 3)
    assert exited.reason is not None
    assert "no such class" in exited.reason.text


def test_a_stop_reaches_the_program_and_leaves_it_time(boxed: Boxed) -> None:
    save = "echo saved > $PRESAGE_CHECKPOINT_DIR/state; exit 143"
    boxed.run("saver", f"trap '{save}' TERM; echo up; while true; do sleep 0.1; done")
    boxed.watch.until_log("saver", "up")
    boxed.watch.stop("saver")
    assert boxed.watch.end("saver").outcome is Outcome.STOPPED
    kept = boxed.kit.data / "jobs" / "saver" / "checkpoints" / "state"
    assert kept.read_text() == "saved\n"
    boxed.assert_nothing_left("saver")


def test_a_container_that_will_not_stop_is_killed(boxed: Boxed) -> None:
    boxed.run("stubborn", "trap '' TERM; echo up; while true; do sleep 0.1; done", grace="0.3s")
    boxed.watch.until_log("stubborn", "up")
    boxed.watch.stop("stubborn")
    assert boxed.watch.end("stubborn").outcome is Outcome.STOPPED
    boxed.assert_nothing_left("stubborn")


def test_a_dead_guardian_leaves_no_container(boxed: Boxed) -> None:
    boxed.run("orphan", "echo up; sleep 600")
    boxed.watch.until_log("orphan", "up")
    os.kill(boxed.kit.guardian_pid("orphan"), signal.SIGKILL)
    assert boxed.watch.end("orphan").outcome is Outcome.LOST
    boxed.assert_nothing_left("orphan")


def test_the_use_of_a_container_is_measured(boxed: Boxed) -> None:
    boxed.run("busy", "while true; do :; done")
    place = boxed.kit.data / "jobs" / "busy" / "telemetry" / "1.jsonl"

    def burnt() -> float:
        lines = place.read_text().splitlines() if place.exists() else []
        return max((json.loads(line)["cpu_s"] for line in lines), default=0.0)

    boxed.watch.until(lambda: burnt() > 1.0, "measured")
    boxed.watch.stop("busy")
    boxed.watch.end("busy")
    boxed.assert_nothing_left("busy")


def test_an_image_that_nobody_has_is_refused_with_a_reason(boxed: Boxed) -> None:
    boxed.kit.write_job("lost", command="true", image="localhost/presage/no-such-image:1")
    boxed.watch.executor.launch(ev.Launch("lost", 1, (Worker(0, 0, "n0"),)))
    boxed.watch.until(lambda: boxed.watch.of("lost", ev.LaunchFailed), "refused")
    text = boxed.watch.of("lost", ev.LaunchFailed)[0].reason.text
    assert "podman cannot fetch image localhost/presage/no-such-image:1" in text
    boxed.assert_nothing_left("lost")
