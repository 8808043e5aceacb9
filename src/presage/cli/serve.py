"""`presage serve`: the control plane."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, cast, get_args

import typer

from presage.cli._output import say
from presage.control.site.config import (
    EXECUTORS,
    OPTIONS,
    ExecutorSection,
    ServeOption,
    ServerFile,
    effective,
    read_server_file,
    shown,
)
from presage.layout import Layout
from presage.model.cluster import Device, Node
from presage.model.errors import MissingExtra, UserError
from presage.policy import registry
from presage.policy.config import PolicyConfig
from presage.policy.own import OwnPolicy, find_own
from presage.sim.clusters import describe, read_cluster
from presage.telemetry.nvml import open_gpus

if TYPE_CHECKING:
    import uvicorn

    from presage.control.site.settings import Settings
    from presage.executors.kubernetes.settings import KubernetesLink
    from presage.executors.ray.executor import RayLink
    from presage.executors.slurm.executor import SlurmLink

    ClusterLink: TypeAlias = KubernetesLink | RayLink | SlurmLink

__all__ = ["serve"]

_MIB = 1 << 20


def serve(
    *,
    config: Annotated[
        Path | None, typer.Option(help="The configuration in YAML; options go before it.")
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print what it would run with, and end.")
    ] = False,
    **given: Any,
) -> None:
    """Run the control plane: take jobs, decide, run them, until it is stopped."""
    executor = given["executor"]
    if executor is not None and executor not in EXECUTORS:
        raise UserError(f"unknown executor '{executor}'; there are: {', '.join(EXECUTORS)}")
    wanted = effective(read_server_file(config) if config else ServerFile(), given)
    known = registry.pipelines(wanted)
    own = find_own(wanted.policy, known, wanted.queues, wanted.guard)
    pipeline = (
        own.base()
        if own is not None
        else registry.live(
            wanted.policy,
            registry.policy_config(wanted.policy, known, section=wanted.guard),
            wanted.guard,
        )
    )
    if print_config:
        _print(wanted)
        return
    _import_server()
    from presage.control.site.server_log import log_to

    wish = wanted.executor
    _check_executor(wish)
    if wanted.access.isolated and wish.kind != "local":
        raise UserError("access.run_as and access.containers_only go with --executor local")
    address, logs = wanted.server, wanted.logging
    if address.tls_cert is not None and address.tls_key is not None:
        from presage.control.site.certificates import check_certificate

        check_certificate(address.tls_cert, address.tls_key)
    log_to(logs.file, round(logs.max_mib * _MIB), logs.keep)
    _set_up_process()
    place = _place(wanted)
    with (
        _listen(address.host, address.port) as listener,
        _listen_beside(address.host, address.proxy_port, listener) as beside,
        _world(wish, place) as (there, link),
    ):
        ports = listener.getsockname()[1], beside.getsockname()[1]
        settings = _settings(wanted, pipeline, own, place, there, link, *ports)
        about = f"{describe(there)}, policy {settings.policy_name}"
        _run(settings, [listener, beside], about, quiet=logs.file is not None)


def _option(name: str, about: ServeOption) -> Parameter:
    """An option of the command line; it is checked as its key in a file is."""
    field = about.field()
    parts = get_args(field.annotation) or (field.annotation,)
    asked = {getattr(part, "__origin__", part) for part in parts}  # without Annotated
    kind = next((kind for kind in (str, bool, int, float, Path) if kind in asked), str)
    default = about.default or ("no" if field.default is False else str(field.default or ""))
    word = name.replace("_", "-")
    flags = [f"--{word}/--no-{word}"] if kind is bool else []
    told = typer.Option(*flags, help=about.help, show_default=default or True)
    annotation = Annotated[kind | None, told]  # type: ignore[valid-type]  # from a table
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _with_options(command: Callable[..., None]) -> None:
    """Typer reads the options of a command from its signature."""
    own = [
        each
        for each in signature(command, eval_str=True).parameters.values()
        if each.name != "given"
    ]
    rest = [_option(name, about) for name, about in OPTIONS.items()]
    vars(command)["__signature__"] = Signature([*rest, *own])


_with_options(serve)


def _settings(
    wanted: ServerFile,
    pipeline: PolicyConfig,
    own: OwnPolicy | None,
    place: Path,
    nodes: tuple[Node, ...],
    link: ClusterLink | None,
    port: int,
    proxy_port: int,
) -> Settings:
    from presage.control.site.settings import Settings

    address, limits, kind = wanted.server, wanted.limits, wanted.executor.kind
    return Settings(
        data=place,
        nodes=nodes,
        policy=pipeline,
        policy_name=wanted.policy if own is None else own.name,
        own=own,
        pipelines=wanted.policies,
        host=address.host,
        port=port,
        proxy_port=proxy_port,
        proxy_url=(address.proxy_url or "").rstrip("/"),
        public_url=address.url or "",
        tls_cert=address.tls_cert,
        tls_key=address.tls_key,
        db=wanted.storage.db or "",
        ray=cast("RayLink", link) if kind == "ray" else None,
        slurm=cast("SlurmLink", link) if kind == "slurm" else None,
        kubernetes=cast("KubernetesLink", link) if kind == "kubernetes" else None,
        ray_shared=wanted.executor.ray_shared,
        queues={**wanted.queues, **pipeline.queues},
        network=wanted.network,
        rightsize=wanted.executor.rightsize,
        shares=wanted.executor.shares.setup(),
        lease_s=address.lease_s,
        most_body=round(limits.request_mib * _MIB),
        most_folder=round(limits.folder_mib * _MIB),
        most_results=round(limits.results_gib * 1024 * _MIB),
        most_log=round(wanted.logging.job_max_mib * _MIB),
        access=wanted.access,
        oidc=wanted.oidc,
        **wanted.retention.settings(),
        health_every_s=wanted.health.every_s,
        health_pace=wanted.health.pace,
        alert_webhooks=wanted.health.webhooks,
        track_mlflow=wanted.tracking.mlflow or "",
        track_tensorboard=wanted.tracking.tensorboard,
        first_token=os.environ.get("PRESAGE_TOKEN", ""),
    )


def _place(wanted: ServerFile) -> Path:
    from presage.control.site.settings import default_data

    return (wanted.storage.data or default_data()).expanduser().absolute()


def _print(wanted: ServerFile) -> None:
    """The configuration that counts, as a file that would do the same; secrets are stars."""
    import yaml

    made = shown(wanted)
    made["storage"]["data"] = str(_place(wanted))
    typer.echo(yaml.safe_dump(made, sort_keys=False, allow_unicode=True), nl=False)


def _check_executor(wish: ExecutorSection) -> None:
    """Refuse what does not go together."""
    if wish.kind != "kubernetes" and (wish.context or wish.namespace or wish.adopt):
        text = "--context, --namespace and --adopt go with --executor kubernetes: add it"
        raise UserError(text)
    if wish.kind in ("kubernetes", "slurm") and (wish.nodes or wish.rightsize):
        whose = "the cluster" if wish.kind == "kubernetes" else "the partition"
        raise UserError(
            f"--nodes and --rightsize go with --executor local; with {wish.kind}, the nodes are "
            f"those of {whose}: leave them out"
        )
    slurm = wish.slurm
    if wish.kind != "slurm" and (slurm.partition or slurm.mode != "jobs" or slurm.nodes != 1):
        raise UserError(
            "--slurm-mode, --partition and --slurm-nodes go with --executor slurm: add it"
        )
    if wish.kind == "ray":
        if wish.nodes:
            raise UserError(
                "--nodes goes with --executor local; with ray, the nodes are those of the "
                "cluster: leave it out"
            )
        if wish.rightsize:
            raise UserError(
                "--rightsize goes with --executor local: on Ray nobody can change what a "
                "running worker may use; leave it out"
            )
        if wish.ray_shared is not None and not wish.ray_shared.is_dir():
            raise UserError(f"--ray-shared {wish.ray_shared} is not a directory here")
    if wish.kind != "ray" and (wish.ray_address or wish.ray_shared):
        raise UserError("--ray-address and --ray-shared go with --executor ray: add it")


def _import_server() -> None:
    """Bring in what only a server needs, but for its API, which comes when it decides. Nothing of
    it is garbage, so nobody looks for any."""
    gc.disable()
    try:
        if find_spec("fastapi") is None:
            raise MissingExtra("server", "the control plane")
        import uvicorn  # noqa: F401

        import presage.server.front  # noqa: F401
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("presage"):
            raise
        raise MissingExtra("server", "the control plane") from None
    finally:
        gc.enable()


def _set_up_process() -> None:
    """A Python that answers quickly, and whose files are nobody else's."""
    os.umask(0o077)
    # Threads wait for each other at most this long: reads stay quick while others submit.
    sys.setswitchinterval(0.001)
    gc.freeze()  # what is imported stays: do not look through it again and again


@contextmanager
def _world(
    wish: ExecutorSection, data: Path
) -> Iterator[tuple[tuple[Node, ...], ClusterLink | None]]:
    """The nodes there are, and the connection to the cluster whose they are."""
    if wish.kind == "local":
        yield read_cluster(wish.nodes) if wish.nodes else (_this_machine(),), None
        return
    if wish.kind == "kubernetes":
        from presage.executors.kubernetes.executor import usable_nodes
        from presage.executors.kubernetes.settings import KubernetesLink

        there = KubernetesLink.to(
            wish.context, wish.namespace, wish.kubernetes.use(), adopt=wish.adopt
        )
        yield usable_nodes(there.api), there
        return
    link: RayLink | SlurmLink
    if wish.kind == "slurm":
        from presage.executors.slurm.executor import SlurmLink

        link = SlurmLink(wish.slurm.setup(data))
    else:
        link = _connect(wish.ray_address or "auto", data)
    try:
        yield tuple(node for _, node in link.nodes), link
    finally:
        link.close()


def _connect(address: str, data: Path) -> RayLink:
    from presage.executors.ray.executor import RayHead, RayLink

    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    log = Layout(data).ray_driver_log
    if address != "local":
        return RayLink(address, log=log)
    head = RayHead(data)
    link = RayLink(address, head=head, log=log)
    say(f"Ray cluster of this machine: {link.address}   it outlives the server: kill {head.pid}")
    return link


def _run(settings: Settings, listeners: list[socket.socket], about: str, *, quiet: bool) -> None:
    """Answer until somebody stops it; `quiet`: the log is somewhere else."""
    import uvicorn

    from presage.control.site.service import Service
    from presage.control.site.settings import is_loopback
    from presage.server.front import Front

    service = Service(settings)
    if not is_loopback(settings.host) and service.accounts.open():
        raise UserError(
            f"--host {settings.host} can be reached by others and there are no users: set "
            "PRESAGE_TOKEN to a secret of yours (it becomes the admin's token), or make a "
            "user on loopback first"
        )
    say(f"Presage answers at {settings.url}  ({about})")
    say(f"data: {settings.data}   API: {settings.url}/docs   stop: Ctrl-C, jobs go on")
    if os.geteuid() == 0 and not (settings.ray or settings.slurm) and not settings.access.isolated:
        say("warning: jobs run as root, whoever submits them: see access.run_as of --config")
    if find_spec("nicegui") is not None:
        say(f"dashboard: {settings.url}/ui/")
    config = uvicorn.Config(
        Front(service),
        lifespan="on",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=3,
        # Longer than clients keep an idle connection (5 s): it never closes under a request.
        timeout_keep_alive=30,
        server_header=False,
        h11_max_incomplete_event_size=64 << 10,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        log_config=None if quiet else uvicorn.config.LOGGING_CONFIG,
    )
    config.load()
    _reload_on_hangup(config, settings)
    uvicorn.Server(config).run(sockets=listeners)


def _reload_on_hangup(config: uvicorn.Config, settings: Settings) -> None:
    """SIGHUP reads the certificate again. In a terminal it ends the server, as ever."""
    if config.ssl is None or settings.tls_cert is None or settings.tls_key is None:
        if not os.isatty(0):
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        return
    from presage.control.site.certificates import reloader

    reload = reloader(config.ssl, settings.tls_cert, settings.tls_key)
    signal.signal(signal.SIGHUP, lambda *_: reload())


def _listen(host: str, port: int) -> socket.socket:
    """Take the address now, so that a wrong or used one is an error before anything is opened."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise UserError(f"--host {host} --port {port}: {error.strerror or error}") from None


def _listen_beside(host: str, port: int | None, listener: socket.socket) -> socket.socket:
    """The address of the proxy: the one that was asked for, or the next one, or any."""
    if port is not None:
        return _listen(host, port)
    following = listener.getsockname()[1] + 1
    with suppress(UserError):
        if following <= _LAST_PORT:
            return _listen(host, following)
    return _listen(host, 0)


_LAST_PORT = 65_535


def _this_machine() -> Node:
    """The machine this runs on, with the GPUs that its driver names."""
    import psutil

    probe, _ = open_gpus()
    devices: tuple[Device, ...] = ()
    if probe is not None:
        devices = tuple(Device(type=name, memory_mib=mib) for name, mib in probe.devices())
        probe.close()
    cores = len(os.sched_getaffinity(0))
    memory = psutil.virtual_memory().total >> 20
    return Node(os.uname().nodename, devices, cores * 1000, memory)
