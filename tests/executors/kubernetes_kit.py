"""The kit that runs the conformance suite on the executor `kubernetes`: pods of a real kubelet."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from presage.core.ports import Executor
from presage.executors.kubernetes.api import CONFIG_MAPS, PODS, SECRETS, KubeApi, connect
from presage.executors.kubernetes.executor import KubernetesExecutor
from presage.executors.kubernetes.pods import JOB, RUN
from presage.executors.kubernetes.settings import ClusterUse
from presage.executors.node.processes import all_pids, environment, read_stat
from presage.model.cluster import Worker
from presage.testing.executors import RoleWork
from tests.kubernetes_kubelet import IMAGE
from tests.kubernetes_plane import Plane
from tests.waiting import PATIENCE_S

__all__ = ["KubernetesKit", "write_job"]

ROLES = ("worker", "ps")


class KubernetesKit:
    """Jobs are files under the data directory; workers are containers of one node."""

    timeout_s = PATIENCE_S

    def __init__(self, data: Path, plane: Plane, node: str, **options: Any) -> None:
        self.data = data
        self.node = node
        self.api: KubeApi = connect(kubeconfig=plane.kubeconfig())
        self._use = ClusterUse(
            image=IMAGE, helper_image=IMAGE, host_network=True, host_path=str(data)
        )
        self._options = options
        self._executors: list[KubernetesExecutor] = []

    def executor(self) -> KubernetesExecutor:
        """A new executor; the one before it is as dead as its server would be."""
        self.close()
        executor = KubernetesExecutor(self.data, self.api, self._use, **self._options)
        self._executors.append(executor)
        return executor

    def add_job(
        self,
        job: str,
        *roles: RoleWork,
        time_limit_s: float | None = None,
        grace_s: float = 10.0,
        env: dict[str, str] | None = None,
        **manifest: Any,
    ) -> tuple[Worker, ...]:
        """Write the file of a job."""
        named = {name: _role(role) for name, role in zip(ROLES, roles, strict=False)}
        times = {"time_limit": time_limit_s, "grace": grace_s}
        write_job(self.data, job, roles=named, env=env or {}, **times, **manifest)
        workers: list[Worker] = []
        device = 0
        for number, role in enumerate(roles):
            for index in range(max(role.workers, role.most)):
                held = tuple(range(device, device + role.gpus))
                device += role.gpus
                workers.append(Worker(number, index, self.node, held))
        return tuple(workers)

    def wait(self, executor: Executor, timeout_s: float) -> None:
        """Until there may be something to poll."""
        assert isinstance(executor, KubernetesExecutor)
        executor.wait(timeout_s)

    def log(self, job: str, attempt: int, worker: str) -> str:
        """What was read of a worker's log."""
        path = self.data / "jobs" / job / "logs" / str(attempt) / f"{worker}.log"
        return path.read_text() if path.exists() else ""

    def kill_worker(self, job: str, attempt: int, rank: int) -> None:
        """SIGKILL to its first process."""
        os.kill(self._pids(job, f"PRESAGE_RANK={rank}")[0], signal.SIGKILL)

    def leftovers(self, job: str) -> list[str]:
        """Processes of the job, and objects in the cluster."""
        found = [str(pid) for pid in self._pids(job)]
        for kind in (PODS, CONFIG_MAPS, SECRETS):
            for item in self.api.list(kind, "default", labels=RUN).items:
                if (item["metadata"].get("annotations") or {}).get(JOB) == job:
                    found.append(f"{kind.plural}/{item['metadata']['name']}")
        return found

    def close(self) -> None:
        """Let go of every executor."""
        for executor in self._executors:
            executor.close()
        self._executors.clear()

    def _pids(self, job: str, *marks: str) -> list[int]:
        wanted = [f"PRESAGE_JOB_ID={job}".encode(), *(mark.encode() for mark in marks)]
        return [
            pid
            for pid in sorted(all_pids())
            if all(mark in environment(pid) for mark in wanted)
            and (stat := read_stat(pid))
            and stat.state != "Z"
        ]


def write_job(data: Path, job: str, /, **manifest: Any) -> None:
    """Write the file of a job from its manifest."""
    home = data / "jobs" / job
    home.mkdir(parents=True, exist_ok=True)
    body = {"manifest": {"name": job, **manifest}, "folder": None, "owner": "ada"}
    (home / "job.json").write_text(json.dumps(body))


def _role(role: RoleWork) -> dict[str, Any]:
    command = list(role.program) or ["python3", "-c", role.script]
    resources: dict[str, Any] = {"gpus": role.gpus}
    if role.memory_mib:
        resources["memory"] = f"{role.memory_mib}Mi"
    workers = f"{role.workers}..{role.most}" if role.most else role.workers
    return {"workers": workers, "command": command, "resources": resources}
