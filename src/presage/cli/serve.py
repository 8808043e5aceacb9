"""`presage serve`: the control plane."""

from __future__ import annotations

import gc
import logging
import os
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from presage.cli._output import say
from presage.edge import read_yaml
from presage.model.cluster import Device, Node
from presage.model.errors import ConfigError, MissingExtra, UserError
from presage.observe.telemetry.nvml import open_gpus
from presage.policy import registry
from presage.policy.config import ConfigFile
from presage.sim.clusters import describe, read_cluster

__all__ = ["serve"]

EXECUTORS = ("local",)


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
    policy: Annotated[
        str, typer.Option(help=f"{', '.join(registry.names())}, or one of --config.")
    ] = "fifo",
    config: Annotated[Path | None, typer.Option(help="Policies and queues in YAML.")] = None,
    lease: Annotated[
        float, typer.Option(min=0.5, max=300, help="Seconds until another server takes over.")
    ] = 5.0,
) -> None:
    """Run the control plane: take jobs, decide, run them, until it is stopped."""
    try:
        import uvicorn

        from presage.server.app import create_app
        from presage.server.settings import Settings, default_data, is_loopback
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("presage"):
            raise
        raise MissingExtra("server", "the control plane") from None
    if executor not in EXECUTORS:
        raise UserError(f"unknown executor '{executor}'; there are: {', '.join(EXECUTORS)}")
    file = read_yaml(config, ConfigFile, ConfigError) if config else ConfigFile()
    pipeline = registry.policy_config(policy, registry.pipelines(file))
    there = read_cluster(nodes) if nodes else (_this_machine(),)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    # Threads wait for each other at most this long: reads stay quick while others submit.
    sys.setswitchinterval(0.001)
    gc.collect()
    gc.freeze()  # what is imported stays: do not look through it again and again
    gc.set_threshold(50_000, 20, 100)
    with _listen(host, port) as listener:
        settings = Settings(
            data=(data or default_data()).expanduser().absolute(),
            nodes=there,
            policy=pipeline,
            host=host,
            port=listener.getsockname()[1],
            db=db or "",
            executor=executor,
            queues={**file.queues, **pipeline.queues},
            lease_s=lease,
            first_token=os.environ.get("PRESAGE_TOKEN", ""),
        )
        app = create_app(settings)
        if not is_loopback(host) and app.state.service.accounts.open():
            raise UserError(
                f"--host {host} can be reached by others and there are no users: set "
                "PRESAGE_TOKEN to a secret of yours (it becomes the admin's token), or make a "
                "user on loopback first"
            )
        say(f"Presage answers at {settings.url}  ({describe(there)}, policy {policy})")
        say(f"data: {settings.data}   API: {settings.url}/docs   stop: Ctrl-C, jobs go on")
        if find_spec("nicegui") is not None:
            say(f"dashboard: {settings.url}/ui/")
        uvicorn.Server(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=3,
                server_header=False,
                h11_max_incomplete_event_size=64 << 10,
            )
        ).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    """Take the address now, so that a wrong or used one is told before anything is opened."""
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
