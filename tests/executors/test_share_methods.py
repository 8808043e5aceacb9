"""Shares by what a site has already (MPS, MIG, time-slicing, HAMi): what workers get of it in
their environment, on the executor `local`, and what each method guarantees."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from presage.executors.node.runspec import RoleSpec, RunSpec
from presage.executors.node.shares.environment import ShareService
from presage.executors.node.shares.methods import (
    METHODS,
    EnforcementMethod,
    Guarantee,
    MigSlice,
    ShareSetup,
    check_guarantees,
    pick_slice,
)
from presage.executors.node.shares.turns import ShareTerms
from presage.model import event as ev
from presage.model.cluster import Worker
from presage.model.errors import RunSpecError
from presage.model.event import Outcome
from presage.testing.executors import Watcher
from tests.executors.kit import LocalKit

SHOW = "import json, os; print(json.dumps(dict(os.environ)), flush=True)"
SLICES = (
    MigSlice(0, 3 / 7, 20_000, "MIG-large"),
    MigSlice(0, 1 / 7, 5_000, "MIG-small"),
    MigSlice(1, 2 / 7, 10_000, "MIG-other"),
)
ASK = {"request": 0.1, "limit": 0.5, "memory": "4Gi"}


@pytest.fixture
def setup(request: pytest.FixtureRequest, tmp_path: Path) -> ShareSetup:
    (tmp_path / "mps").mkdir()
    (tmp_path / "mps" / "control").touch()
    library = tmp_path / "libvgpu.so"
    library.touch()
    return ShareSetup(request.param, tmp_path / "mps", library, SLICES)


@pytest.fixture
def kit(setup: ShareSetup, tmp_path: Path) -> Iterator[LocalKit]:
    kit = LocalKit(tmp_path / "server", shares=setup)
    yield kit
    kit.close()


def seen(kit: LocalKit, watch: Watcher, gpu: dict[str, Any]) -> dict[str, str]:
    """The environment that a worker saw which asked for a share."""
    # The dynamic linker says on stderr that our stand-in for HAMi's library is none.
    command = [sys.executable, "-c", SHOW]
    role = {"command": command, "workers": 1, "resources": {"gpu": gpu}}
    kit.write_job("a", roles={"worker": role})
    watch.executor.launch(ev.Launch("a", 1, (Worker(0, 0, "n0", (0,)),)))
    assert watch.end("a").outcome is Outcome.SUCCEEDED
    lines = kit.log("a", 1, "worker-0").splitlines()
    found: dict[str, str] = json.loads(next(line for line in lines if line.startswith("{")))
    return found


@pytest.mark.parametrize("setup", [EnforcementMethod.MPS], indirect=True)
def test_mps_limits_threads_and_memory(kit: LocalKit, watch: Watcher, setup: ShareSetup) -> None:
    env = seen(kit, watch, ASK)
    assert env["CUDA_MPS_PIPE_DIRECTORY"] == str(setup.mps_pipe)
    assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=4096M"
    assert "PRESAGE_SHARE" not in env


@pytest.mark.parametrize("setup", [EnforcementMethod.MIG], indirect=True)
def test_mig_gives_the_smallest_slice_that_will_do(kit: LocalKit, watch: Watcher) -> None:
    assert seen(kit, watch, ASK)["CUDA_VISIBLE_DEVICES"] == "MIG-small"


@pytest.mark.parametrize("setup", [EnforcementMethod.TIME_SLICING], indirect=True)
def test_time_slicing_changes_nothing(kit: LocalKit, watch: Watcher) -> None:
    env = seen(kit, watch, ASK)
    assert env["CUDA_VISIBLE_DEVICES"] == "0"
    assert "LD_PRELOAD" not in env


@pytest.mark.parametrize("setup", [EnforcementMethod.HAMI], indirect=True)
def test_hami_is_told_its_limits(kit: LocalKit, watch: Watcher, setup: ShareSetup) -> None:
    env = seen(kit, watch, ASK)
    assert env["LD_PRELOAD"] == str(setup.hami_library)
    assert env["CUDA_DEVICE_SM_LIMIT"] == "50"
    assert env["CUDA_DEVICE_MEMORY_LIMIT"] == "4096m"


@pytest.mark.parametrize(
    ("setup", "said"),
    [
        (ShareSetup(EnforcementMethod.MPS, mps_pipe=Path("/nowhere")), "nvidia-cuda-mps-control"),
        (ShareSetup(EnforcementMethod.HAMI, hami_library=Path("/nowhere")), "install HAMi-core"),
        (ShareSetup(EnforcementMethod.MIG), "executor.shares.slices"),
    ],
)
def test_what_is_not_there_is_said(setup: ShareSetup, said: str, tmp_path: Path) -> None:
    role = RoleSpec("worker", ("true",), 1, 1, share=ShareTerms(0.1))
    with pytest.raises(RunSpecError, match=said):
        ShareService(tmp_path, sys.executable, setup).open("a", role, RunSpec((role,)), (0,), None)


def test_a_slice_is_one_workers_and_none_passes_a_limit() -> None:
    small, large = ShareTerms(0.1, 0.5), ShareTerms(0.3, 0.5)
    first = pick_slice(SLICES, (), 0, small)
    assert first is not None
    assert first.uuid == "MIG-small"
    second = pick_slice(SLICES, {"MIG-small"}, 0, small)
    assert second is not None
    assert second.uuid == "MIG-large"
    assert pick_slice(SLICES, {"MIG-large"}, 0, large) is None
    with pytest.raises(RunSpecError, match="no MIG slice of GPU 1"):
        pick_slice(SLICES, (), 1, ShareTerms(0.1, 0.2))
    with pytest.raises(RunSpecError, match="no MIG slice of GPU 0"):
        pick_slice(SLICES, (), 0, ShareTerms(0.1, 1.0, 30_000 << 20))


def test_a_demand_that_is_not_met_names_who_would() -> None:
    check_guarantees(["limit"], METHODS[EnforcementMethod.MPS].gives, "MPS")
    with pytest.raises(RunSpecError, match=r"request cannot be given by MPS.*presage or mig"):
        check_guarantees(["request"], METHODS[EnforcementMethod.MPS].gives, "MPS")
    everything = [guarantee.value for guarantee in Guarantee]
    with pytest.raises(RunSpecError) as error:
        check_guarantees(everything, METHODS[EnforcementMethod.PRESAGE].gives, "Presage")
    assert "\n" not in str(error.value)
