"""The conformance suite on Kubernetes: a real API server, and a real kubelet with containerd where
this machine can run one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from presage.model.event import Outcome
from presage.testing.executors import ExecutorKit, ExecutorSuite, RoleWork, Watcher
from presage.testing.runs import dedented
from tests.executors.kubernetes_kit import KubernetesKit
from tests.kubernetes_kubelet import Kubelet, cannot_run
from tests.kubernetes_plane import Plane, PlaneError, find_programs

pytestmark = [pytest.mark.engine, pytest.mark.soak]


@pytest.fixture(scope="module")
def kubelet() -> Iterator[Kubelet]:
    """A node that runs pods, with a control plane of its own."""
    try:
        find_programs()
    except PlaneError as error:
        pytest.skip(str(error))
    # The node is called localhost, so that the API server finds its kubelet for logs.
    plane = Plane(flags=["--kubelet-preferred-address-types=Hostname"])
    try:
        if why := cannot_run(plane):
            pytest.skip(why)
        plane.start()
        node = Kubelet(plane, "localhost")
        try:
            node.start(gpus=8)
            yield node
        finally:
            node.close()
    finally:
        plane.close()


class TestKubernetes(ExecutorSuite):
    """Jobs are containers."""

    @pytest.fixture
    def kit(self, kubelet: Kubelet, tmp_path: Path) -> Iterator[ExecutorKit]:
        kit = KubernetesKit(tmp_path, kubelet.plane, kubelet.name, log_cap=self.log_cap)
        yield kit
        kit.close()
        kubelet.plane.clear(nodes=False)

    def test_logs_are_complete(self, watch: Watcher) -> None:
        """As the suite has it, but for the order of lines of two streams: a container has two."""
        script = """
            import os, sys
            for n in range(5000):
                print(os.environ["PRESAGE_RANK"], n, file=(sys.stdout, sys.stderr)[n % 2])
            sys.stderr.write("the end, without a line break")
        """
        watch.run("chatty", RoleWork(dedented(script), workers=2))
        watch.end("chatty")
        for rank in (0, 1):
            lines = watch.kit.log("chatty", 1, f"worker-{rank}").splitlines()
            numbers = [int(line.split()[1]) for line in lines if line.startswith(str(rank))]
            for odd in (0, 1):
                assert [n for n in numbers if n % 2 == odd] == list(range(odd, 5000, 2))
            assert "the end, without a line break" in lines

    def test_a_worker_finds_its_place_in_the_environment(self, watch: Watcher) -> None:
        """As the suite has it, but for devices: a device plugin shows a container those it got."""
        script = "import json, os\nprint(json.dumps(dict(os.environ)), flush=True)"
        watch.run("env", RoleWork(script, workers=2, gpus=2), env={"GREETING": "hello world"})
        assert watch.end("env").outcome is Outcome.SUCCEEDED
        for rank in range(2):
            env = json.loads(watch.kit.log("env", 1, f"worker-{rank}"))
            assert (env["PRESAGE_JOB_ID"], env["PRESAGE_ATTEMPT"]) == ("env", "1")
            assert (env["PRESAGE_RANK"], env["PRESAGE_WORKERS"]) == (str(rank), "2")
            assert env["GREETING"] == "hello world"
            assert {"PRESAGE_CHECKPOINT_DIR", "PRESAGE_DATA_DIR", "PRESAGE_RESULT_DIR"} <= set(env)
            assert "CUDA_VISIBLE_DEVICES" not in env
        watch.run("without", RoleWork(script))
        assert watch.end("without").outcome is Outcome.SUCCEEDED
        env = json.loads(watch.kit.log("without", 1, "worker-0"))
        assert (env["NVIDIA_VISIBLE_DEVICES"], env["CUDA_VISIBLE_DEVICES"]) == ("void", "")
