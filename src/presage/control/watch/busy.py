"""How busy the GPUs of a watched cluster are, from the Prometheus that scrapes its DCGM exporter.

Where the exporter says which pod has a GPU, that is believed; else the node and the number of the
GPU, which the scheduler there gave to somebody."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from presage.model.watched import SeenRun
from presage.telemetry.prometheus import Prometheus

__all__ = ["Busy", "read_busy"]

_METRIC = "DCGM_FI_DEV_GPU_UTIL"
_NODES = ("Hostname", "node", "instance")
_PODS = (("exported_namespace", "exported_pod"), ("namespace", "pod"))


@dataclass(frozen=True, slots=True)
class Busy:
    """Shares of time, 0 to 1, in which GPUs did something."""

    devices: Mapping[tuple[str, int], float] = field(default_factory=dict)
    """By node and number."""
    pods: Mapping[str, float] = field(default_factory=dict)
    """By namespace/name; the mean of its GPUs."""

    def of(self, job: str, run: SeenRun) -> float | None:
        """How busy the GPUs of a run are; None where nobody measures them."""
        pod = self.pods.get(job.partition("@")[0])
        if pod is not None:
            return pod
        used = [
            self.devices[worker.node, device]
            for worker in run.workers
            for device in worker.devices
            if (worker.node, device) in self.devices
        ]
        return sum(used) / len(used) if used else None


def read_busy(server: Prometheus, now: float, window_s: float = 1800.0) -> Busy:
    """The mean of the last half hour."""
    devices: dict[tuple[str, int], float] = {}
    pods: dict[str, list[float]] = {}
    query = f"avg_over_time({_METRIC}[{window_s:.0f}s])"
    for labels, _, values in server.range(query, now, now, 60.0):
        share = float(values[-1]) / 100.0
        for namespace, pod in _PODS:
            if labels.get(pod):
                pods.setdefault(f"{labels.get(namespace, '')}/{labels[pod]}", []).append(share)
                break
        node = next((labels[name] for name in _NODES if labels.get(name)), "")
        if str(labels.get("gpu", "")).isdecimal():
            devices[node.partition(":")[0], int(labels["gpu"])] = share
    return Busy(devices, {pod: sum(those) / len(those) for pod, those in pods.items()})
