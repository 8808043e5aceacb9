"""A job that asks for an enforced share: its manifest, and a run on the executor `local`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from presage.executors.node.runspec import RoleSpec, RunSpec
from presage.executors.node.shares.environment import ShareService, share_environment
from presage.executors.node.shares.terms import call, read_terms, write_terms
from presage.executors.node.shares.turns import ShareTerms
from presage.manifest import parse_manifest
from presage.manifest.spec import to_spec
from presage.model import event as ev
from presage.model.cluster import Worker
from presage.model.errors import ManifestError, RunSpecError
from presage.model.event import Outcome
from presage.model.parts import enforced_limit
from presage.testing.executors import Watcher
from tests.executors.kit import LocalKit
from tests.standin import Machine, build
from tests.waiting import eventually

MANIFEST = """
name: a
command: python a.py
resources: {gpu: {request: 0.3, limit: 0.6, memory: 8Gi}}
"""
GPUS = "{name: a, command: a, resources: {gpus: 0.3}}"
CODE = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuInit(0)
context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
print("told", total.value >> 20, flush=True)
"""


def test_the_scheduler_counts_the_request() -> None:
    spec = to_spec(parse_manifest(MANIFEST), "a", "ada")
    assert spec.roles[0].resources.gpu_milli == 300
    assert spec.roles[0].resources.gpu_memory_mib == 8192
    assert enforced_limit(spec) == 0.6
    assert enforced_limit(to_spec(parse_manifest(GPUS), "a", "ada")) is None


def test_a_manifest_that_was_read_is_read_again() -> None:
    first = parse_manifest(MANIFEST)
    assert parse_manifest(first.model_dump_json(exclude_none=True), "application/json") == first


@pytest.mark.parametrize(
    ("share", "said"),
    [
        ("{request: 0.6, limit: 0.3}", "below the request"),
        ("{request: 2}", "request"),
        ("{limit: 0.5}", "request"),
        ("{request: 0.3}, gpus: 0.5", "gpus"),
    ],
)
def test_a_share_that_makes_no_sense_is_refused(share: str, said: str) -> None:
    with pytest.raises(ManifestError, match=said):
        to_spec(parse_manifest(f"name: a\ncommand: a\nresources: {{gpu: {share}}}"), "a", "ada")


def test_shares_are_not_enforced_in_containers(tmp_path: Path) -> None:
    role = RoleSpec("worker", ("true",), 1, 1, share=ShareTerms())
    spec = RunSpec((role,), image="an/image")
    with pytest.raises(RunSpecError, match="in containers"):
        ShareService(tmp_path, sys.executable).open("a", role, spec, (0,), None)


def test_without_the_library_a_job_is_told_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRESAGE_SHARE_LIBRARY", "/nowhere")
    with pytest.raises(RunSpecError, match="install gcc"):
        share_environment(tmp_path, "a", ShareTerms(), None)


def test_a_run_is_held_to_its_share(
    kit: LocalKit,
    watch: Watcher,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: Callable[..., str],
) -> None:
    program("gcc")
    (tmp_path / "gpu").mkdir()
    built = build(tmp_path / "gpu")
    machine = Machine(tmp_path / "gpu" / "machine")
    monkeypatch.setenv("PRESAGE_SHARE_LIBRARY", str(built.interposer))
    found = machine.environment(built)
    names = ("STANDIN_GPU", "STANDIN_LIBRARY", "LD_LIBRARY_PATH")
    kit.write_job(
        "held",
        roles={
            "worker": {
                "command": [sys.executable, "-c", CODE],
                "workers": 1,
                "resources": {"gpu": {"request": 0.3, "limit": 0.6, "memory": "512Mi"}},
            }
        },
        env={name: found[name] for name in names},
    )
    watch.executor.launch(ev.Launch("held", 1, (Worker(0, 0, "n0", (0,)),)))
    home = kit.data / "shares"
    eventually(lambda: call(home, {"ask": "status"}) is not None)
    terms = ShareTerms(0.3, 0.6, 512 << 20)
    assert read_terms(home, "held.1.worker-0") in (terms, None)
    assert watch.end("held").outcome is Outcome.SUCCEEDED
    daemon = (call(home, {"ask": "status"}) or {})["pid"]
    os.kill(daemon, signal.SIGKILL)
    eventually(lambda: (watch.executor.poll(0.0), call(home, {"ask": "status"}))[1] is not None)
    assert kit.log("held", 1, "worker-0").split() == ["told", "512"]
    os.kill((call(home, {"ask": "status"}) or {})["pid"], signal.SIGTERM)


def test_a_later_server_revives_and_ends_the_daemon_it_was_left(tmp_path: Path) -> None:
    def pid() -> int:
        return int((call(tmp_path, {"ask": "status"}) or {"pid": 0})["pid"])

    write_terms(tmp_path, "a", ShareTerms(0.5))
    first = ShareService(tmp_path, sys.executable)
    first.ensure()
    left = eventually(pid)
    first.close(keep=True)
    second = ShareService(tmp_path, sys.executable)
    os.kill(left, signal.SIGKILL)
    os.waitpid(left, 0)
    second.revive()
    new = eventually(pid)
    assert new != left
    second.close(keep=True)
    third = ShareService(tmp_path, sys.executable)
    third.revive()
    third.close(keep=False)
    assert os.waitpid(new, 0) == (new, 0)
