"""A machine with GPUs, as far as its driver goes: a fake driver, and everything else real."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from presage.foresee.champions import Champions
from presage.layout import Layout
from presage.store import open_store
from tests import gpu_driver
from tests.server.kit import Server, Zygote, eventually, running


@pytest.fixture(scope="module")
def machine(
    tmp_path_factory: pytest.TempPathFactory, program: Callable[..., str]
) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("gpus")
    env = gpu_driver.build(home, program)
    zygote = Zygote(home, env)
    with running(Server(zygote, home / "data", nodes=None)) as server:
        yield server
    zygote.close()


def _run(server: Server, mib: int, busy_pct: int, **manifest: Any) -> str:
    """A job that has a GPU for as long as its gate is shut."""
    say = gpu_driver.SAY.format(mib=mib, busy_pct=busy_pct)
    wait = f"while [ ! -e {server.data}/$PRESAGE_JOB_ID.gate ]; do sleep 0.05; done"
    return server.submit(f"{say}; {wait}", resources={"gpus": 1}, **manifest)


def _measured(server: Server, job: str) -> None:
    """Let a job end when enough was seen of it to learn from."""

    def seen() -> bool:
        series = server.http.get(f"/api/v1/jobs/{job}/telemetry").json()["series"]
        return bool(series) and len(series[0]["at"]) >= 4

    eventually(seen)
    (server.data / f"{job}.gate").touch()
    server.wait(job)


def test_the_driver_says_which_gpus_there_are(machine: Server) -> None:
    (node,) = machine.http.get("/api/v1/cluster-map").json()["nodes"]
    assert node["gpu_type"] == "NVIDIA A100-SXM4-40GB"
    assert len(node["devices"]) == 2


@pytest.fixture
def champions(machine: Server) -> Iterator[Champions]:
    store = open_store(f"sqlite:///{Layout(machine.data).database}")
    yield Champions(store.knowledge)
    store.close()


def test_a_run_alone_teaches_what_it_used_of_its_gpu(
    machine: Server, champions: Champions
) -> None:
    other = _run(machine, 100, 40)  # on the other GPU
    job = _run(machine, 5000, 75, model={"ref": "zoo:resnet50", "batch": 32})
    _measured(machine, job)
    eventually(lambda: _latest(machine)["gpus_busy"] == 0.4)
    machine.tell(other, "stop")
    (series,) = machine.http.get(f"/api/v1/jobs/{job}/telemetry").json()["series"]
    assert max(series["gpu_util_pct"]) == 75
    assert max(series["gpu_memory_mib"]) == 5000
    on_gpu, beside = eventually(lambda: _runs(champions, "memory", 2))
    assert (on_gpu.device, on_gpu.actual) == ("a100-40g", 5000)
    assert on_gpu.foreseen is not None  # from the model's graph, to learn a factor from
    assert beside.device == "host"
    assert 0 < beside.actual < 100  # a shell
    (busy,) = _runs(champions, "utilization", 1)
    assert (busy.device, busy.actual) == ("a100-40g", 0.75)


def test_with_somebody_else_on_the_gpu_nothing_is_learned(
    machine: Server, champions: Champions
) -> None:
    before = len(champions.runs("utilization"))
    (machine.data.parent / "gpus").write_text("0 1 900 20\n1 1 900 20\n")  # process 1 is on both
    runs = len(champions.runs("memory"))
    _measured(machine, _run(machine, 5000, 75))
    assert eventually(lambda: champions.runs("memory")[runs:])[0].device == "host"
    assert len(champions.runs("utilization")) == before


def _runs(champions: Champions, quantity: str, count: int) -> list[Any]:
    found = champions.runs(quantity)
    return found if len(found) >= count else []


def _latest(server: Server) -> dict[str, float]:
    found = server.http.get("/api/v1/utilization").json()
    return {name: values[-1] for name, values in found.items() if values} or {"gpus_busy": 0.0}
