"""Commands that attach to a job that runs: exec, shell, forward."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from contextlib import nullcontext, suppress
from typing import Annotated
from urllib.parse import urlencode

import typer

from presage.cli._output import print_json, say
from presage.cli._terminal import on_a_terminal, raw, size, told_of, write
from presage.client import Attached, Client, Input, open_socket
from presage.client._http import path_of
from presage.model.errors import ApiError, PresageError, UserError

__all__ = ["execute", "forward", "shell"]

JobId = Annotated[str, typer.Argument(metavar="ID", help="A job that runs.")]
Rank = Annotated[str, typer.Option("--worker", help="A rank, or a role and a number: ps-0.")]

_SHELL = ["/bin/sh", "-c", 'exec "$(command -v bash || echo sh)" -i']
_NOT_FOUND = 127
_LOST = 1
_CHUNK = 64 << 10


def execute(
    id: JobId,
    command: Annotated[list[str], typer.Argument(help="The command, after --.")],
    worker: Rank = "0",
    tty: Annotated[bool, typer.Option("--tty", "-t", help="Give it a terminal.")] = False,
) -> None:
    """Run COMMAND beside a worker of a job: in its folder, with its environment and its limits.

    The exit code is the command's own; 127 when there is no such command."""
    if tty and not on_a_terminal():
        raise UserError("--tty needs a terminal on stdin and stdout; leave it out in a pipe")
    raise typer.Exit(_attached(id, command, worker, tty))


def shell(id: JobId, worker: Rank = "0") -> None:
    """Open a shell beside a worker of a job."""
    if not on_a_terminal():
        raise UserError(
            "a shell needs a terminal on stdin and stdout; in a script: presage exec ID -- COMMAND"
        )
    raise typer.Exit(_attached(id, _SHELL, worker, True))


def _attached(job: str, command: list[str], worker: str, tty: bool) -> int:
    rows, columns = size()
    order = {"argv": command, "worker": worker, "tty": tty, "rows": rows, "columns": columns}
    if tty and (term := os.environ.get("TERM", "")):
        order["term"] = term
    with Client() as client, open_socket(client, f"/jobs/{path_of(job)}/exec") as link:
        try:
            attached = Attached(link, order)
        except ApiError as error:
            if str(error).startswith("there is no program"):
                say(f"error: {error}")
                return _NOT_FOUND
            raise
        hung_up: list[int] = []

        def on_signal(number: int) -> None:
            if number == signal.SIGWINCH:
                attached.resize(*size())
            elif number == signal.SIGHUP:
                hung_up.append(number)
                attached.leave()
            else:
                attached.signal(number)

        with told_of(attached), raw() if tty else nullcontext():
            code = attached.run(write(attached.leave), Input(0), on_signal)
        if code is not None:
            return code
        if hung_up:
            return 128 + hung_up[0]
        say(f"error: {_what_happened(client, job)}")
        return _LOST


def _what_happened(client: Client, job: str) -> str:
    """Why a connection ended before its command did."""
    with suppress(PresageError):
        info = client.job(job).info
        if info.ended_at is not None or info.status != "PROCESSING":
            return f"job {job} is {info.status}, and what was attached to it has ended"
    return "the connection to the server was lost, and what was attached has ended"


def forward(
    id: JobId,
    port: Annotated[
        str, typer.Argument(metavar="PORT[:LOCAL]", help="A port of its manifest; a local one.")
    ],
    worker: Rank = "0",
    url: Annotated[
        bool, typer.Option("--url", help="Print an address for a browser instead, and end.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Have a local port lead to one of a job's, until Ctrl-C; with --url, say where a browser
    finds it."""
    remote, local = _ports(port)
    with Client() as client:
        if url:
            address = port_url(client, id, remote)
            if json:
                print_json({"id": id, "port": remote, "url": address})
            else:
                typer.echo(address)
            return
        path = f"/jobs/{path_of(id)}/ports/{remote}?{urlencode({'worker': worker})}"
        with open_socket(client, path):
            pass  # whoever may not, or a port that is not there, is told now
        with _listener(local) as listener:
            here = listener.getsockname()[1]
            if json:
                print_json({"id": id, "port": remote, "local": here})
            else:
                typer.echo(f"127.0.0.1:{here} leads to port {remote} of {id}; end with Ctrl-C")
            sys.stdout.flush()
            while True:
                connection, _ = listener.accept()
                threading.Thread(
                    target=_serve, args=(client, path, connection), daemon=True
                ).start()


def port_url(client: Client, job: str, port: int) -> str:
    """An address under which a browser reaches a port of a job."""
    manifest = client.call("GET", f"/jobs/{path_of(job)}/manifest")
    absolute = manifest.get("labels", {}).get("app") == "jupyter"
    path = f"/jobs/{path_of(job)}/ports/{port}"
    return str(client.call("POST", path, params={"absolute": absolute})["url"])


def _ports(text: str) -> tuple[int, int]:
    remote, colon, local = text.partition(":")
    numbers = [int(part) if part.isdecimal() else -1 for part in (remote, local or remote)]
    if (colon and not local) or not all(0 <= number <= 65_535 for number in numbers):
        raise UserError(f"write a port such as 6006, or 6006:7007 for local port 7007, not {text}")
    return numbers[0], numbers[1]


def _listener(port: int) -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        why = os.strerror(error.errno or 0).lower()
        raise UserError(
            f"local port {port} cannot be used ({why}); choose another one: PORT:LOCAL, or "
            "PORT:0 for any"
        ) from None


def _serve(client: Client, path: str, connection: socket.socket) -> None:
    """One local connection, to its end."""
    with connection:
        try:
            with open_socket(client, path) as link:

                def onwards() -> None:
                    with suppress(Exception):  # whichever side ends first ends both
                        while data := connection.recv(_CHUNK):
                            link.send(data)
                        link.send(b"")

                threading.Thread(target=onwards, daemon=True).start()
                for data in link:
                    if data:
                        connection.sendall(data if isinstance(data, bytes) else data.encode())
                    else:
                        connection.shutdown(socket.SHUT_WR)
        except PresageError as error:
            say(f"error: {error}")
        except OSError:
            pass  # the local program went away
