"""`presage serve`: the control plane."""

from __future__ import annotations

import gc
import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from presage.cli._output import say
from presage.edge import read_yaml
from presage.model.cluster import Device, Node
from presage.model.errors import ConfigError, MissingExtra, UserError
from presage.policy import registry
from presage.policy.config import ConfigFile
from presage.policy.own import find_own
from presage.sim.clusters import describe, read_cluster
from presage.telemetry.nvml import open_gpus

if TYPE_CHECKING:
    from presage.executors.ray.executor import RayLink
    from presage.server.settings import Settings

__all__ = ["serve"]

EXECUTORS = ("local", "ray")


def serve(
    host: Annotated[str, typer.Option(help="Address to answer at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8265,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Where jobs, logs and the journal are kept.",
            show_default="~/.local/share/presage/server",
        ),
    ] = None,
    db: Annotated[
        str | None,
        typer.Option(
            help="Database URL; postgresql://… or sqlite:///PATH.", show_default="SQLite in --data"
        ),
    ] = None,
    executor: Annotated[str, typer.Option(help=f"{', '.join(EXECUTORS)}.")] = "local",
    nodes: Annotated[
        str | None,
        typer.Option(
            help="Nodes: 2x4 (two of four GPUs), or a file.", show_default="this machine"
        ),
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(
            help="Ray cluster: HOST:PORT of its head, auto (that of this machine), or local "
            "(start one here).",
            show_default="auto",
        ),
    ] = None,
    ray_shared: Annotated[
        Path | None,
        typer.Option(help="Directory that all nodes of the Ray cluster and this machine see."),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(help=f"{', '.join(registry.names())}, one of --config, or file.py:name."),
    ] = "fifo",
    config: Annotated[Path | None, typer.Option(help="Policies and queues in YAML.")] = None,
    access: Annotated[
        Path | None, typer.Option(help="Limits, sign-in and Unix users in YAML.")
    ] = None,
    oidc_issuer: Annotated[
        str | None, typer.Option(help="Identity provider to sign in with: its issuer.")
    ] = None,
    oidc_client_id: Annotated[
        str | None, typer.Option(help="What the provider calls this server.")
    ] = None,
    oidc_secret_file: Annotated[
        Path | None, typer.Option(help="File with the secret that the provider gave it.")
    ] = None,
    rightsize: Annotated[
        bool, typer.Option("--rightsize", help="Hold running jobs to what their phases need.")
    ] = False,
    lease: Annotated[
        float, typer.Option(min=0.5, max=300, help="Seconds until another server takes over.")
    ] = 5.0,
) -> None:
    """Run the control plane: take jobs, decide, run them, until it is stopped."""
    _import_server()
    from presage.server.access import AccessConfig
    from presage.server.settings import Settings, default_data

    wish = _ExecutorOptions(executor, nodes, ray_address, ray_shared, rightsize)
    wish.check()
    file = read_yaml(config, ConfigFile, ConfigError) if config else ConfigFile()
    known = registry.pipelines(file)
    own = find_own(policy, known, file.queues)
    pipeline = registry.policy_config(policy, known) if own is None else own.base()
    place = (data or default_data()).expanduser().absolute()
    rules = read_yaml(access, AccessConfig, ConfigError) if access else AccessConfig()
    rules = rules.with_oidc(oidc_issuer, oidc_client_id, oidc_secret_file)
    if rules.isolated and executor != "local":
        raise UserError("run_as and containers_only go with --executor local")
    _set_up_process()
    with _listen(host, port) as listener, _world(wish, place) as (there, ray):
        settings = Settings(
            data=place,
            nodes=there,
            policy=pipeline,
            policy_name=policy if own is None else own.name,
            own=own,
            host=host,
            port=listener.getsockname()[1],
            db=db or "",
            ray=ray,
            ray_shared=ray_shared,
            queues={**file.queues, **pipeline.queues},
            rightsize=rightsize,
            lease_s=lease,
            access=rules,
            first_token=os.environ.get("PRESAGE_TOKEN", ""),
        )
        _run(settings, listener, f"{describe(there)}, policy {settings.policy_name}")


@dataclass(frozen=True, slots=True)
class _ExecutorOptions:
    """What is to run the jobs."""

    executor: str
    nodes: str | None
    ray_address: str | None
    ray_shared: Path | None
    rightsize: bool

    def check(self) -> None:
        """Refuse what does not go together."""
        if self.executor not in EXECUTORS:
            raise UserError(
                f"unknown executor '{self.executor}'; there are: {', '.join(EXECUTORS)}"
            )
        if self.executor == "ray":
            if self.nodes:
                raise UserError(
                    "--nodes goes with --executor local; with ray, the nodes are those of the "
                    "cluster: leave it out"
                )
            if self.rightsize:
                raise UserError(
                    "--rightsize goes with --executor local: on Ray nobody can change what a "
                    "running worker may use; leave it out"
                )
            if self.ray_shared is not None and not self.ray_shared.is_dir():
                raise UserError(f"--ray-shared {self.ray_shared} is not a directory here")
        elif self.ray_address or self.ray_shared:
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
    """Logging, and a Python that answers quickly."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    os.umask(0o077)  # whatever a server writes is its own
    # Threads wait for each other at most this long: reads stay quick while others submit.
    sys.setswitchinterval(0.001)
    gc.freeze()  # what is imported stays: do not look through it again and again


@contextmanager
def _world(
    wish: _ExecutorOptions, data: Path
) -> Iterator[tuple[tuple[Node, ...], RayLink | None]]:
    """The nodes there are, and the connection to Ray if they are Ray's."""
    if wish.executor == "local":
        yield read_cluster(wish.nodes) if wish.nodes else (_this_machine(),), None
        return
    link = _connect(wish.ray_address or "auto", data)
    try:
        yield tuple(node for _, node in link.nodes), link
    finally:
        link.close()


def _connect(address: str, data: Path) -> RayLink:
    from presage.executors.ray.executor import RayHead, RayLink

    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    log = data / "ray-driver.log"
    if address != "local":
        return RayLink(address, log=log)
    head = RayHead(data)
    link = RayLink(address, head=head, log=log)
    say(f"Ray cluster of this machine: {link.address}   it outlives the server: kill {head.pid}")
    return link


def _run(settings: Settings, listener: socket.socket, about: str) -> None:
    """Answer until somebody stops it."""
    import uvicorn

    from presage.server.front import Front
    from presage.server.service import Service
    from presage.server.settings import is_loopback

    service = Service(settings)
    if not is_loopback(settings.host) and service.accounts.open():
        raise UserError(
            f"--host {settings.host} can be reached by others and there are no users: set "
            "PRESAGE_TOKEN to a secret of yours (it becomes the admin's token), or make a "
            "user on loopback first"
        )
    say(f"Presage answers at {settings.url}  ({about})")
    say(f"data: {settings.data}   API: {settings.url}/docs   stop: Ctrl-C, jobs go on")
    if os.geteuid() == 0 and settings.ray is None and not settings.access.isolated:
        say("warning: jobs run as root, whoever submits them: see run_as in `serve --access`")
    if find_spec("nicegui") is not None:
        say(f"dashboard: {settings.url}/ui/")
    uvicorn.Server(
        uvicorn.Config(
            Front(service),
            lifespan="on",
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=3,
            # Longer than clients keep an idle connection (5 s): it never closes under a request.
            timeout_keep_alive=30,
            server_header=False,
            h11_max_incomplete_event_size=64 << 10,
        )
    ).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    """Take the address now, so that a wrong or used one is an error before anything is opened."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise UserError(f"--host {host} --port {port}: {error.strerror or error}") from None


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
