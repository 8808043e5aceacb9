"""`presage foresee serve`: the page *Foresee* without a cluster."""

from __future__ import annotations

import logging
import socket
from typing import Annotated

import typer

from presage.cli._output import say
from presage.model.errors import MissingExtra, UserError

__all__ = ["foresee"]

foresee = typer.Typer(no_args_is_help=True, help="Foresee trainings in a browser.")


@foresee.callback()
def _foresee() -> None:
    """Foresee trainings in a browser."""


@foresee.command()
def serve(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8266,
) -> None:
    """Serve the page Foresee on this machine alone: no cluster, no store, no users."""
    from presage import web

    if not web.installed():
        raise MissingExtra("dashboard", "the page")
    import uvicorn

    from presage.server.alone import create_foresee_app

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    with _listen(port) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}{web.HOME}/foresee"
        say(f"Foresee: {address}   stop: Ctrl-C")
        config = uvicorn.Config(
            create_foresee_app(),
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=3,
            server_header=False,
        )
        uvicorn.Server(config).run(sockets=[listener])


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise UserError(f"--port {port}: {error.strerror or error}; give another") from None
