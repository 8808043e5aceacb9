"""The file that `presage serve --config` reads: a section for each concern, each key once.

`effective` lays the options of the command line over it; what comes out is checked like a file.
Nothing here opens a port or a database. A new concern is a new section class and one line in
`ServerFile`; docs/reference/server-config.md describes every key (a test walks the schema).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, cast, get_args

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator
from pydantic.fields import FieldInfo

from presage.control.people.access_config import AccessConfig, OidcConfig
from presage.edge import check, misplaced, read_yaml
from presage.executors.kubernetes.settings import ClusterUse
from presage.executors.node.messages import SlurmSetup
from presage.executors.node.shares.methods import EnforcementMethod, MigSlice, ShareSetup
from presage.manifest.quantities import duration_s, memory, memory_mib
from presage.model.errors import ConfigError
from presage.policy import registry
from presage.policy.config import ConfigFile

__all__ = [
    "EXECUTORS",
    "OPTIONS",
    "ServeOption",
    "ServerFile",
    "effective",
    "read_server_file",
    "shown",
]

ExecutorName = Literal["local", "ray", "kubernetes", "slurm"]
EXECUTORS = get_args(ExecutorName)

NodeNetwork = Literal["none", "100mbit", "1gbit", "10gbit"]
"""Those of settings of distributed trainings (`foresee.bursts.settings`), which take long to
import."""

_Mib = Annotated[float, Field(gt=0, le=1 << 20, allow_inf_nan=False)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class AddressSection(_Section):
    """Where the server answers, and how others call it."""

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8265
    url: str | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    proxy_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    proxy_url: str | None = None
    lease_s: Annotated[float, Field(ge=0.5, le=300)] = 5.0

    @field_validator("url")
    @classmethod
    def _is_address(cls, url: str | None) -> str | None:
        if url is not None and not re.fullmatch(r"https?://[^/\s]+", url.rstrip("/")):
            raise ValueError("write an address such as https://presage.example.org:8265")
        return url.rstrip("/") if url is not None else None

    @model_validator(mode="after")
    def _both_of_tls(self) -> Self:
        if self.tls_cert is not None and self.tls_key is None:
            raise misplaced("needs tls_key (--tls-key), the key of the certificate", "tls_cert")
        if self.tls_key is not None and self.tls_cert is None:
            raise misplaced("needs tls_cert (--tls-cert), the certificate of the key", "tls_key")
        return self


class StorageSection(_Section):
    """Where everything is kept."""

    data: Path | None = None
    db: str | None = None


class KubernetesSection(_Section):
    """How jobs use a Kubernetes cluster; `ClusterUse` says what each is."""

    image: str = ""
    helper_image: str = ""
    claim: str = ""
    host_path: str = ""
    service_account: str = ""
    pull_secrets: tuple[str, ...] = ()
    host_network: bool = False
    network_policy: bool = True
    patience_s: Annotated[float, Field(gt=0)] = 600.0

    def use(self) -> ClusterUse:
        """The same for the executor."""
        if self.claim and self.host_path:
            raise ConfigError("executor.kubernetes: name either a claim or a host_path")
        return ClusterUse(**self.model_dump())


class SlurmSection(_Section):
    """How jobs use a Slurm; `SlurmSetup` says what each is."""

    mode: Literal["jobs", "pilot"] = "jobs"
    partition: str | None = None
    options: tuple[str, ...] = ()
    time_limit: str | None = None
    nodes: int | str = 1
    idle: str = "10m"
    pause: str = "30s"
    gpus: Annotated[int | None, Field(ge=0)] = None
    cpus: Annotated[int | None, Field(ge=1)] = None
    memory: str | None = None

    @model_validator(mode="after")
    def _readable(self) -> Self:
        readers: dict[str, Callable[[str], object]] = {"nodes": _span, "memory": memory_mib}
        readers |= dict.fromkeys(("time_limit", "idle", "pause"), duration_s)
        for name, read in readers.items():
            given = getattr(self, name)
            try:
                if given is not None:
                    read(given)
            except ValueError as error:
                raise misplaced(str(error), name) from None
        return self

    def setup(self, data: Path) -> SlurmSetup:
        """The same for the executor."""
        return SlurmSetup(
            data=str(data),
            mode=self.mode,
            partition=self.partition,
            options=self.options,
            time_limit_s=duration_s(self.time_limit) if self.time_limit else None,
            pilot_nodes=_span(self.nodes)[0],
            pilot_most=_span(self.nodes)[1],
            pilot_idle_s=duration_s(self.idle),
            pilot_pause_s=duration_s(self.pause),
            pilot_gpus=self.gpus,
            pilot_cpus=self.cpus,
            pilot_memory_mib=memory_mib(self.memory) if self.memory else None,
        )


def _span(nodes: int | str) -> tuple[int, int]:
    """Least and most nodes that pilots hold: `4`, or `0..16`."""
    match = re.fullmatch(r"(\d{1,5})(?:\.\.(\d{1,5}))?", str(nodes).strip())
    least, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not (0 <= least <= most and 1 <= most <= 10_000):
        text = "write a number of nodes such as 4, or a span such as 0..16, the smaller first"
        raise ValueError(f"{text}, not {str(nodes)[:40]!r}")
    return least, most


class SliceSection(_Section):
    """A MIG slice; `MigSlice` says what each is."""

    uuid: Annotated[str, Field(pattern=r"^MIG-[\w./-]{1,120}$")]
    gpu: Annotated[int, Field(ge=0, le=1023)] = 0
    part: Annotated[float, Field(gt=0, le=1)]
    memory: str

    def known(self) -> MigSlice:
        """The same for the executor."""
        return MigSlice(self.gpu, self.part, memory_mib(memory(self.memory)), self.uuid)


class SharesSection(_Section):
    """By what shares of GPUs are enforced; `ShareSetup` says what each is."""

    method: EnforcementMethod = EnforcementMethod.PRESAGE
    mps_pipe: Path = ShareSetup().mps_pipe
    hami_library: Path = ShareSetup().hami_library
    slices: tuple[SliceSection, ...] = ()

    @model_validator(mode="after")
    def _slices_are_known(self) -> Self:
        if (self.method is EnforcementMethod.MIG) != bool(self.slices):
            raise misplaced("goes with method: mig, which needs it", "slices")
        try:
            known = [one.known() for one in self.slices]
        except ValueError as error:
            raise misplaced(str(error), "slices") from None
        if len({one.uuid for one in known}) < len(known):
            raise misplaced("names a slice twice", "slices")
        return self

    def setup(self) -> ShareSetup:
        """The same for the executor."""
        slices = tuple(one.known() for one in self.slices)
        return ShareSetup(self.method, self.mps_pipe, self.hami_library, slices)


class ExecutorSection(_Section):
    """What runs the jobs."""

    kind: ExecutorName = "local"
    nodes: str | None = None
    ray_address: str | None = None
    ray_shared: Path | None = None
    context: str | None = None
    namespace: str | None = None
    adopt: bool = False
    kubernetes: KubernetesSection = KubernetesSection()
    slurm: SlurmSection = SlurmSection()
    shares: SharesSection = SharesSection()
    rightsize: bool = False


class LoggingSection(_Section):
    """The server's own log, and how long those of jobs may grow."""

    file: Path | None = None
    max_mib: _Mib = 50.0
    keep: Annotated[int, Field(ge=1, le=1000)] = 5
    job_max_mib: Annotated[float, Field(ge=0.0625, le=1 << 20, allow_inf_nan=False)] = 256.0


class LimitsSection(_Section):
    """What a request may bring."""

    request_mib: _Mib = 1.0
    folder_mib: _Mib = 256.0
    results_gib: Annotated[float, Field(ge=0, le=1 << 20, allow_inf_nan=False)] = 50.0


class RetentionSection(_Section):
    """What is kept of jobs that are over: for how long, and how much in all (`90d,500Gi`)."""

    logs: str | None = None
    results: str | None = None
    telemetry: str | None = None
    checkpoints: str | None = None
    folders: str | None = None

    @field_validator("*")
    @classmethod
    def _is_rule(cls, text: str | None) -> str | None:
        if text is not None:
            _bounds(text)
        return text

    def settings(self) -> dict[str, Any]:
        """The same as fields of the settings."""
        settings: dict[str, Any] = {}
        for kind in type(self).model_fields:
            age_s, size = _bounds(getattr(self, kind) or "")
            settings |= {f"keep_{kind}_s": age_s, f"keep_{kind}_bytes": size}
        return settings


def _bounds(text: str) -> tuple[float | None, int | None]:
    """A longest age in seconds and a largest size in bytes; either may be left out."""
    age_s, size = None, None
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            age_s = duration_s(part)
        except ValueError:
            try:
                size = memory_mib(memory(part)) << 20
            except ValueError:
                raise ValueError(
                    f"write an age, a size or both, such as 90d,500Gi, not {part!r}"
                ) from None
    return age_s, size


class TrackingSection(_Section):
    """Where the metrics of all jobs go, too."""

    mlflow: str | None = None
    tensorboard: Path | None = None


class HealthSection(_Section):
    """How jobs and nodes are watched for trouble, and who is told of all of it."""

    every_s: Annotated[float, Field(ge=0.5, le=600)] = 5.0
    pace: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] = 1.0
    webhooks: tuple[Annotated[str, Field(pattern=r"^https?://[^/\s]+\S*$")], ...] = ()


class ServerFile(ConfigFile):
    """A whole file. `policies` and `queues` are those of a file of policies, so that one will
    do."""

    server: AddressSection = AddressSection()
    storage: StorageSection = StorageSection()
    executor: ExecutorSection = ExecutorSection()
    logging: LoggingSection = LoggingSection()
    limits: LimitsSection = LimitsSection()
    access: AccessConfig = AccessConfig()
    oidc: OidcConfig = OidcConfig()
    retention: RetentionSection = RetentionSection()
    tracking: TrackingSection = TrackingSection()
    health: HealthSection = HealthSection()
    network: NodeNetwork = "none"
    policy: str = "fifo"


class ServeOption(NamedTuple):
    """An option of `presage serve`: the key it stands for, what its help says, and the default it
    shows where that of the key says too little."""

    key: str
    help: str
    default: str = ""

    def field(self) -> FieldInfo:
        """The key in the schema."""
        *sections, name = self.key.split(".")
        model: type[BaseModel] = ServerFile
        for section in sections:
            model = cast("type[BaseModel]", model.model_fields[section].annotation)
        return model.model_fields[name]


_KEPT = "kept so long and so much: 90d,500Gi."
_POLICIES = ", ".join(registry.names())
_ROWS = (
    ("host", "server.host", "Address to answer at."),
    ("port", "server.port", "Port; 0 takes a free one."),
    ("url", "server.url", "Where others reach this server: https://HOST.", "host and port"),
    ("tls_cert", "server.tls_cert", "Certificate in PEM: answer with TLS. SIGHUP reloads it."),
    ("tls_key", "server.tls_key", "The key of that certificate."),
    ("data", "storage.data", "Where jobs and the journal are.", "~/.local/share/presage/server"),
    ("db", "storage.db", "postgresql://… or sqlite:///PATH.", "SQLite in --data"),
    ("executor", "executor.kind", f"{', '.join(EXECUTORS)}."),
    ("nodes", "executor.nodes", "2x4 (two of four GPUs), or a file.", "this machine"),
    ("ray_address", "executor.ray_address", "Ray: HOST:PORT, auto, local (start one).", "auto"),
    ("ray_shared", "executor.ray_shared", "Ray: a directory that all its nodes see."),
    ("context", "executor.context", "Kubernetes: the kubeconfig's context.", "its current one"),
    ("namespace", "executor.namespace", "Kubernetes: where jobs run.", "that of the context"),
    ("adopt", "executor.adopt", "Kubernetes: schedule pods of others that name us, too."),
    ("slurm_mode", "executor.slurm.mode", "Slurm: jobs (each a Slurm job) or pilot."),
    ("partition", "executor.slurm.partition", "Slurm: the partition.", "Slurm's default"),
    ("slurm_nodes", "executor.slurm.nodes", "Slurm: nodes that pilots hold, or 0..16."),
    ("policy", "policy", f"{_POLICIES}; of --config; FILE.py:NAME; learned:FILE; A@fifo."),
    ("oidc_issuer", "oidc.issuer", "Identity provider to sign in with: its issuer."),
    ("oidc_client_id", "oidc.client_id", "What the provider calls this server."),
    ("oidc_secret_file", "oidc.secret_file", "File with the secret that the provider gave it."),
    ("proxy_port", "server.proxy_port", "Where browsers reach ports of jobs.", "--port + 1"),
    ("proxy_url", "server.proxy_url", "What browsers call that port: https://{job}.HOST."),
    ("rightsize", "executor.rightsize", "Hold running jobs to what their phases need."),
    ("keep_logs", "retention.logs", f"Logs of jobs that are over: {_KEPT}", "for ever"),
    ("keep_results", "retention.results", f"Results of jobs that are over: {_KEPT}", "for ever"),
    ("keep_telemetry", "retention.telemetry", f"Telemetry of jobs over: {_KEPT}", "for ever"),
    (
        "keep_checkpoints",
        "retention.checkpoints",
        f"Checkpoints of jobs over: {_KEPT}",
        "for ever",
    ),
    ("keep_folders", "retention.folders", f"Work folders no job needs: {_KEPT}", "for ever"),
    ("track_mlflow", "tracking.mlflow", "MLflow server that gets the metrics of all jobs."),
    ("track_tensorboard", "tracking.tensorboard", "Directory for TensorBoard's files."),
    ("lease", "server.lease_s", "Seconds until another server takes over."),
    ("log_file", "logging.file", "Where the log goes, rotated at 50 MiB.", "standard error"),
)
OPTIONS: Mapping[str, ServeOption] = {name: ServeOption(*about) for name, *about in _ROWS}
"""The options of `presage serve`."""

_PATHS = (
    ("server", "tls_cert"),
    ("server", "tls_key"),
    ("storage", "data"),
    ("executor", "ray_shared"),
    ("logging", "file"),
    ("oidc", "secret_file"),
    ("tracking", "tensorboard"),
)


def read_server_file(path: Path) -> ServerFile:
    """A file; its relative paths are seen from the folder it is in."""
    file, home = read_yaml(path, ServerFile, ConfigError), path.absolute().parent
    changes: dict[tuple[str, ...], Any] = {}
    for section, key in _PATHS:
        given = getattr(getattr(file, section), key)
        if given is not None:
            changes[section, key] = home / given.expanduser()
    nodes = file.executor.nodes
    if nodes is not None and (home / nodes).is_file():
        changes["executor", "nodes"] = str(home / nodes)
    return _changed(file, changes)


def effective(file: ServerFile, options: Mapping[str, Any]) -> ServerFile:
    """The file with what the command line says besides; None says nothing."""
    given = {
        tuple(OPTIONS[name].key.split(".")): value
        for name, value in options.items()
        if value is not None
    }
    made = _changed(file, given)
    data = made.model_dump(warnings=False)  # nothing has looked at the options yet
    return check(data, ServerFile, ConfigError, "presage serve")


def shown(file: ServerFile) -> dict[str, Any]:
    """Every key with the value that counts, fit for a screen: secrets are stars."""
    hidden: dict[str, Any] = _hidden(file.model_dump(mode="json"))
    return hidden


def _changed(file: ServerFile, values: Mapping[tuple[str, ...], Any]) -> ServerFile:
    sections: dict[str, dict[str, Any]] = {}
    update: dict[str, Any] = {}
    for (first, *rest), value in values.items():
        if len(rest) == 2:  # a section in a section
            inner = sections.get(first, {}).get(rest[0]) or getattr(getattr(file, first), rest[0])
            value = inner.model_copy(update={rest[1]: value})
        if rest:
            sections.setdefault(first, {})[rest[0]] = value
        else:
            update[first] = value
    for name, changes in sections.items():
        update[name] = getattr(file, name).model_copy(update=changes)
    return file.model_copy(update=update)


_PASSWORD = re.compile(r"(?<=://)([^:@/\s]*):[^@/\s]+@")


def _hidden(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _hidden(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_hidden(item) for item in value]
    if isinstance(value, SecretStr):
        return str(value)
    return _PASSWORD.sub(r"\1:***@", value) if isinstance(value, str) else value
