"""A machine with GPUs, as far as its driver goes: a fake driver, and everything else real."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from presage.foresee.champions import Champions
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


def _run(server: Server, mib: int, busy_pct: int, seconds: float = 3.5, **manifest: Any) -> str:
    say = gpu_driver.SAY.format(mib=mib, busy_pct=busy_pct)
    return server.submit(f"{say}; sleep {seconds}", resources={"gpus": 1}, **manifest)


def test_the_driver_says_which_gpus_there_are(machine: Server) -> None:
    (node,) = machine.http.get("/api/v1/cluster-map").json()["nodes"]
    assert node["gpu_type"] == "NVIDIA A100-SXM4-40GB"
    assert len(node["devices"]) == 2


def test_a_run_alone_teaches_what_it_used_of_its_gpu(machine: Server) -> None:
    other = _run(machine, 100, 40, seconds=60)  # on the other GPU
    job = _run(machine, 5000, 75, model={"ref": "zoo:resnet50", "batch": 32})
    machine.wait(job)
    eventually(lambda: _latest(machine)["gpus_busy"] == 0.4)
    machine.tell(other, "stop")
    (series,) = machine.http.get(f"/api/v1/jobs/{job}/telemetry").json()["series"]
    assert max(series["gpu_util_pct"]) == 75
    assert max(series["gpu_memory_mib"]) == 5000
    champions = Champions(machine.data / "models")
    on_gpu, beside = eventually(lambda: _runs(champions, "memory", 2))
    assert (on_gpu.device, on_gpu.actual) == ("a100-40g", 5000)
    assert on_gpu.foreseen is not None  # from the model's graph, to learn a factor from
    assert beside.device == "host"
    assert 0 < beside.actual < 100  # a shell
    (busy,) = _runs(champions, "utilization", 1)
    assert (busy.device, busy.actual) == ("a100-40g", 0.75)


def test_with_somebody_else_on_the_gpu_nothing_is_learned(machine: Server) -> None:
    champions = Champions(machine.data / "models")
    before = len(champions.runs("utilization"))
    (machine.data.parent / "gpus").write_text("0 1 900 20\n1 1 900 20\n")  # process 1 is on both
    runs = len(champions.runs("memory"))
    machine.wait(_run(machine, 5000, 75))
    assert eventually(lambda: champions.runs("memory")[runs:])[0].device == "host"
    assert len(champions.runs("utilization")) == before


def _runs(champions: Champions, quantity: str, count: int) -> list[Any]:
    found = champions.runs(quantity)
    return found if len(found) >= count else []


def _latest(server: Server) -> dict[str, float]:
    found = server.http.get("/api/v1/utilization").json()
    return {name: values[-1] for name, values in found.items() if values} or {"gpus_busy": 0.0}
