"""Gangs on Kubernetes start whole or not at all, whatever goes wrong around them."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import pytest

from presage.executors.kubernetes.api import PODS, KubeApi, connect
from presage.executors.kubernetes.executor import KubernetesExecutor
from presage.executors.kubernetes.pods import RUN
from presage.executors.kubernetes.settings import ClusterUse
from presage.model.cluster import Worker
from presage.model.event import JobExited, Launch, Stop
from presage.model.job import Reason, ReasonCode, StopIntent
from tests.kubernetes_fire import RESET_IN_HANDSHAKE, Fire, StandIn, gang_job, under_fire
from tests.kubernetes_plane import Plane
from tests.waiting import eventually

pytestmark = pytest.mark.engine


@pytest.mark.filterwarnings(RESET_IN_HANDSHAKE)
@pytest.mark.parametrize(
    "fire",
    [
        pytest.param(
            Fire(
                gangs=12,
                nodes=4,
                api_kills=2,
                pod_deletes=4,
                node_losses=1,
                watch_drops=4,
                lost_answers=0.05,
                restarts=1,
                runs_s=0.1,
            ),
            marks=pytest.mark.slow,
            id="short",
        ),
        pytest.param(Fire(), marks=pytest.mark.soak, id="whole"),
    ],
)
def test_gangs_under_fire(plane: Plane, tmp_path: Path, fire: Fire) -> None:
    result = under_fire(plane, tmp_path, fire, lambda line: None)
    gc.collect()
    assert result.breaches == []
    assert result.half == []
    assert result.left == []
    assert result.succeeded == fire.gangs
    assert result.done["kill the API server"] == fire.api_kills


def test_runs_of_another_server_are_left_alone(plane: Plane, tmp_path: Path) -> None:
    plane.add_node("n0", 4)
    api = connect(kubeconfig=plane.kubeconfig())
    use = ClusterUse(logs=False)
    gang_job(tmp_path / "one", "theirs", 2)
    first = KubernetesExecutor(tmp_path / "one", api, use)
    workers = tuple(Worker(0, index, "n0", (index,)) for index in range(2))
    first.launch(Launch("theirs", 1, workers))
    eventually(lambda: _bound(api) == 2)
    first.close()
    second = KubernetesExecutor(tmp_path / "two", api, use)
    second.poll(time.time())
    second.close()
    again = KubernetesExecutor(tmp_path / "one", api, use)
    assert _bound(api) == 2
    again.stop(Stop("theirs", 1, StopIntent.CANCEL, Reason(ReasonCode.REQUESTED, "enough")))
    standin = StandIn(api, lambda pod: None)
    eventually(lambda: any(isinstance(fact, JobExited) for fact in again.poll(time.time())))
    again.poll(time.time())
    eventually(lambda: not api.list(PODS, "default", labels=RUN).items)
    standin.close()
    again.close()


def _bound(api: KubeApi) -> int:
    pods = api.list(PODS, "default", labels=RUN).items
    return sum(bool(pod["spec"].get("nodeName")) for pod in pods)
