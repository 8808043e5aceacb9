"""What a server is started with, checked before anything is opened."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from presage.control.people.access_config import AccessConfig, OidcConfig
from presage.control.records.retention import KINDS, KeepRule
from presage.executors.kubernetes.settings import KubernetesLink
from presage.executors.node.shares.methods import ShareSetup
from presage.executors.ray.executor import RayLink
from presage.executors.slurm.executor import SlurmLink
from presage.layout import Layout
from presage.model.cluster import Node
from presage.model.errors import UserError
from presage.policy.config import PolicyConfig, QueueConfig
from presage.policy.own import OwnPolicy

__all__ = ["Settings", "default_data", "is_loopback"]


def default_data() -> Path:
    """`$PRESAGE_HOME/server`; without the variable, below `~/.local/share/presage`."""
    home = os.environ.get("PRESAGE_HOME") or "~/.local/share/presage"
    return Path(home).expanduser() / "server"


@lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, slots=True)
class Settings:
    """One server."""

    data: Path
    nodes: tuple[Node, ...]
    """Those that the executor `local` pretends to have."""
    policy: PolicyConfig
    """What decides, also where a policy of one's own raises."""
    policy_name: str = ""
    """What it is called, where it has a name."""
    own: OwnPolicy | None = None
    """A policy of one's own that decides instead."""
    pipelines: Mapping[str, PolicyConfig] = field(default_factory=dict)
    """Others that can be chosen by name while it runs, beside those there always are."""
    host: str = "127.0.0.1"
    port: int = 8265
    public_url: str = ""
    """Where others reach this server; empty: host and port, as they are."""
    tls_cert: Path | None = None
    """The certificate it shows (PEM, with those between it and the CA)."""
    tls_key: Path | None = None
    db: str = ""
    """URL of the database; empty: SQLite in the data directory."""
    ray: RayLink | None = None
    """The cluster that the executor `ray` runs jobs on; None for the executor `local`."""
    ray_shared: Path | None = None
    """Where all nodes of that cluster and this machine find the same files."""
    kubernetes: KubernetesLink | None = None
    """The cluster that the executor `kubernetes` runs jobs in."""
    slurm: SlurmLink | None = None
    """The Slurm that the executor `slurm` runs jobs under."""
    queues: Mapping[str, QueueConfig] = field(default_factory=dict)
    network: str = "none"
    """Between nodes, by its speed, as in settings of distributed trainings; none: nobody said."""
    shares: ShareSetup = field(default_factory=ShareSetup)
    """By what shares of GPUs are enforced on this machine."""
    rightsize: bool = False
    """Whether running jobs are held to the CPU and memory that they need."""
    health_every_s: float = 5.0
    """How often it is looked whether jobs and nodes are well."""
    health_pace: float = 1.0
    """How long healthy jobs take to start using their GPUs, against two minutes."""
    alert_webhooks: tuple[str, ...] = ()
    """Addresses that are told of every alert."""
    lease_s: float = 5.0
    most_body: int = 1 << 20
    """Bytes of a request, uploads of folders aside."""
    most_folder: int = 256 << 20
    """Bytes of an uploaded work folder."""
    proxy_port: int = 0
    """Where browsers reach ports of jobs, apart from the dashboard; 0 for nowhere."""
    proxy_url: str = ""
    """What browsers call that, if not by this server's name; {job} stands for the job's."""
    access: AccessConfig = field(default_factory=AccessConfig)
    """Limits, Unix users and containers."""
    oidc: OidcConfig = field(default_factory=OidcConfig)
    """The identity provider to sign in with, if it has an issuer."""
    most_log: int = 256 << 20
    """Bytes of a worker's log; the beginning of a longer one is cut off."""
    most_results: int = 50 << 30
    """Bytes of results that a job may keep; 0 for any number."""
    keep_logs_s: float | None = None
    """Of jobs that are over, logs go when they are older; None keeps them for ever."""
    keep_logs_bytes: int | None = None
    """The oldest go when all are more than this."""
    keep_results_s: float | None = None
    keep_results_bytes: int | None = None
    keep_telemetry_s: float | None = None
    keep_telemetry_bytes: int | None = None
    keep_checkpoints_s: float | None = None
    keep_checkpoints_bytes: int | None = None
    keep_folders_s: float | None = None
    """Of work folders that no job needs any more, since their last use."""
    keep_folders_bytes: int | None = None
    track_mlflow: str = ""
    """An MLflow tracking server that gets the metrics of all jobs, unless a manifest names one."""
    track_tensorboard: Path | None = None
    """Where TensorBoard's event files of all jobs go, each in a directory of its own."""
    first_token: str = ""
    """Token of the admin that is made when there are no users yet."""

    @property
    def layout(self) -> Layout:
        """Where everything is in the data directory."""
        return Layout(self.data)

    @property
    def retention(self) -> dict[str, KeepRule]:
        """What is kept of jobs that are over, by kind."""
        return {
            kind: KeepRule(getattr(self, f"keep_{kind}_s"), getattr(self, f"keep_{kind}_bytes"))
            for kind in KINDS
        }

    @property
    def database(self) -> str:
        """The URL of the database."""
        return self.db or f"sqlite:///{self.layout.database}"

    @property
    def url(self) -> str:
        """Where this server answers, as others are told."""
        if self.public_url:
            return self.public_url
        name = os.uname().nodename if self.host in ("0.0.0.0", "::") else self.host
        host = f"[{name}]" if ":" in name else name
        return f"{'https' if self.tls_cert else 'http'}://{host}:{self.port}"

    def prepare(self) -> None:
        """Make the data directory, for its owner alone; refuse one that cannot be written to."""
        try:
            self.layout.prepare(ways_through=self.access.run_as is not None)
        except OSError as error:
            raise UserError(
                f"--data {self.data} cannot be used: {error.strerror or error}"
            ) from None
        if not os.access(self.data, os.W_OK | os.X_OK):
            raise UserError(f"--data {self.data} cannot be written to")
