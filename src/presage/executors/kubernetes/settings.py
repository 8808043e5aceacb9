"""How the executor `kubernetes` uses a cluster: what a server's settings say about it.

Nothing here talks to the cluster but `KubernetesLink.to`, which connects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from presage.executors.kubernetes.api import KubeApi

__all__ = ["ClusterUse", "KubernetesLink"]


@dataclass(frozen=True, slots=True)
class ClusterUse:
    """What operators decide once for all jobs."""

    image: str = ""
    """What jobs run in whose manifest names no image."""
    helper_image: str = ""
    """Presage's own image: its steps bring data in and keep results. Without it, jobs that need
    such a step are refused."""
    claim: str = ""
    """A PersistentVolumeClaim (ReadWriteMany) with the server's data directory: checkpoints and
    results outlive a run there."""
    host_path: str = ""
    """The same as a directory that every node sees."""
    scheduler_name: str = "presage"
    service_account: str = ""
    pull_secrets: tuple[str, ...] = ()
    host_network: bool = False
    """Pods use the network of their node: no headless Service, no NetworkPolicy."""
    network_policy: bool = True
    """Only the workers of a run reach each other."""
    logs: bool = True
    """Logs are read from the kubelets into the data directory."""
    patience_s: float = 600.0
    """How long a worker may be bound without starting before the launch has failed."""

    @property
    def lasting(self) -> bool:
        """Whether anything outlives a run."""
        return bool(self.claim or self.host_path)


@dataclass(frozen=True, slots=True)
class KubernetesLink:
    """A cluster, and how it is used."""

    api: KubeApi
    use: ClusterUse
    adopt: bool = False
    """Whether pods that others made and that name our scheduler are scheduled, too."""

    @classmethod
    def to(
        cls,
        context: str | None,
        namespace: str | None,
        use: ClusterUse,
        *,
        adopt: bool = False,
    ) -> KubernetesLink:
        """The cluster of a context; raises KubernetesError when it does not answer."""
        from presage.executors.kubernetes.api import connect

        return cls(connect(context, namespace=namespace), use, adopt)
