"""Commands that submit a job and stay with it: run, notebook. What they submit is a manifest like
any other; `presage init` writes one for what shall last."""

from __future__ import annotations

import json as jsonlib
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from presage.cli._output import print_json, say
from presage.cli._terminal import on_a_terminal, raw, size, told_of, write
from presage.cli.live import port_url
from presage.client import Attached, Client, Input, JobHandle, open_socket
from presage.client._http import path_of
from presage.executors.node import frames
from presage.manifest.quantities import duration_s
from presage.model.answers import JobStatus
from presage.model.errors import ApiError, PresageError, Unreachable, UserError

__all__ = ["notebook", "run"]

Gpus = Annotated[float | None, typer.Option(min=0, help="GPUs, or a part of one.")]
Cpus = Annotated[float | None, typer.Option(min=0.001, help="CPUs.")]
Memory = Annotated[str | None, typer.Option(help="Memory, such as 8Gi.")]
Queue = Annotated[str, typer.Option(help="Queue.")]
Image = Annotated[str | None, typer.Option(help="Container image to run in.")]
Environment = Annotated[
    str | None, typer.Option(help="Virtual or Conda environment on the node to run in.")
]
Folder = Annotated[
    bool, typer.Option("--folder/--no-folder", help="Send a copy of this folder along.")
]

_WAIT_S = 0.3
_AGAIN_S = 0.2
_TWICE_S = 1.0
"""Two Ctrl-C within this end the job."""
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(
    command: Annotated[list[str], typer.Argument(help="The command, after the options and --.")],
    gpus: Gpus = None,
    cpus: Cpus = None,
    memory: Memory = None,
    name: Annotated[str | None, typer.Option(help="Name of the job.", show_default="run")] = None,
    queue: Queue = "default",
    image: Image = None,
    environment: Environment = None,
    port: Annotated[
        list[int] | None, typer.Option(min=1, max=65_535, help="Port to reach; may be repeated.")
    ] = None,
    grace: Annotated[
        str, typer.Option(help="How long the job outlives a lost connection or this command.")
    ] = "30s",
    folder: Folder = True,
) -> None:
    """Run COMMAND as a job, here: its output, its input, its exit code. It ends with the terminal.

    Files that it makes in its folder go with it: what is to stay goes to $PRESAGE_RESULT_DIR."""
    try:
        grace_s = duration_s(grace)
    except ValueError as error:
        raise UserError(f"--grace: {error}") from None
    tty = on_a_terminal()
    manifest = {
        **_manifest(name or "run", gpus, cpus, memory, queue, image, environment),
        "command": command,
        "ports": port or [],
        "console": "tty" if tty else "pipe",
        "heartbeat": max(1.0, grace_s),
    }
    with Client() as client:
        job = _submit(client, manifest, folder)
        say(f"{job.id}")
        raise typer.Exit(_Stay(client, job, tty, max(1.0, grace_s)).to_the_end())


def notebook(
    gpus: Gpus = None,
    cpus: Cpus = None,
    memory: Memory = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the job.", show_default="notebook")
    ] = None,
    queue: Queue = "default",
    image: Image = None,
    environment: Environment = None,
    folder: Folder = True,
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Run Jupyter as a job, and print the address for a browser.

    Notebooks are kept with the job's checkpoints. It goes on until `presage stop ID`."""
    port = random.SystemRandom().randrange(20_000, 30_000)
    manifest = {
        **_manifest(name or "notebook", gpus, cpus, memory, queue, image, environment),
        "command": ["/bin/sh", "-c", _JUPYTER.replace("@PORT@", str(port))],
        "ports": [port],
        "labels": {"app": "jupyter"},
    }
    with Client() as client:
        job = _submit(client, manifest, folder)
        if not json:
            typer.echo(job.id)
        with _ended_by_signals(client, job):
            _wait_until_it_runs(job)
            _wait_until_it_listens(client, job, port)
        url = port_url(client, job.id, port)
        if json:
            print_json({"id": job.id, "port": port, "url": url})
            return
        typer.echo(url)
        say(f"the address works for 5 minutes; another one: presage forward {job.id} {port} --url")
        say(f"end it with: presage stop {job.id}")


_JUPYTER = """\
if python -c 'import jupyterlab' 2>/dev/null; then app=jupyterlab
elif python -c 'import jupyter_server' 2>/dev/null; then app=jupyter_server
else echo "there is no Jupyter in the environment of the job: pip install jupyterlab" >&2; exit 127
fi
home="$PRESAGE_CHECKPOINT_DIR/work"
mkdir -p "$home" && cp -Rn . "$home/" && cd "$home" || exit 1
export JUPYTER_TOKEN="$PRESAGE_PORT_TOKEN"
exec python -m "$app" --no-browser --allow-root --ServerApp.ip=127.0.0.1 --ServerApp.port=@PORT@ \
  --ServerApp.port_retries=0 --ServerApp.root_dir="$home" \
  --ServerApp.base_url="/jobs/$PRESAGE_JOB_ID/absolute/@PORT@/"
"""


def _manifest(
    name: str,
    gpus: float | None,
    cpus: float | None,
    memory: str | None,
    queue: str,
    image: str | None,
    environment: str | None,
) -> dict[str, Any]:
    asked = {"gpus": gpus, "cpus": cpus, "memory": memory}
    resources: dict[str, Any] = {key: value for key, value in asked.items() if value is not None}
    if gpus is not None and gpus == int(gpus):
        resources["gpus"] = int(gpus)
    places = {"image": image, "environment": environment}
    return {
        "name": name,
        "queue": queue,
        "preemptible": False,
        "grace": 10,
        **({"resources": resources} if resources else {}),
        **{key: value for key, value in places.items() if value is not None},
    }


def _submit(client: Client, manifest: dict[str, Any], folder: bool) -> JobHandle:
    from presage.manifest import Manifest

    Manifest.from_json(manifest)  # a mistake is told before anything is sent
    sent = client.upload(Path.cwd()) if folder else None
    return client.submit_text(jsonlib.dumps(manifest), "application/json", folder=sent)


class _Signalled(Exception):
    """Somebody wants this command to end."""

    def __init__(self, number: int) -> None:
        self.number = number


@contextmanager
def _ended_by_signals(client: Client, job: JobHandle) -> Iterator[None]:
    """While this lasts, a signal ends the job and this command."""

    def end(number: int, frame: FrameType | None) -> None:
        raise _Signalled(number)

    before = {number: signal.signal(number, end) for number in _ENDING}
    try:
        yield
    except _Signalled as told:
        _cancel(client, job)
        raise typer.Exit(128 + told.number) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _cancel(client: Client, job: JobHandle) -> None:
    with suppress(PresageError):
        client.tell(job.id, "stop")
        say(f"{job.id} is stopped")


def _wait_until_it_runs(job: JobHandle) -> JobStatus:
    """Says why it waits, whenever that changes."""
    told = ""
    while True:
        with suppress(Unreachable):
            info = job.refresh().info
            if info.status not in ("QUEUED", "DOWNLOADING"):
                return info
            text = info.reason.text if info.status == "QUEUED" else "its folder is prepared"
            if text and text != told:
                told = text
                say(f"{job.id} is {info.status}: {text}")
        time.sleep(_WAIT_S)


def _wait_until_it_listens(client: Client, job: JobHandle, port: int) -> None:
    while True:
        info = job.refresh().info
        if info.ended_at is not None:
            raise UserError(f"job {job.id} is {info.status}: {info.reason.text}")
        with suppress(ApiError), open_socket(client, f"/jobs/{path_of(job.id)}/ports/{port}"):
            return
        time.sleep(_WAIT_S)


class _Stay:
    """A job in the foreground."""

    def __init__(self, client: Client, job: JobHandle, tty: bool, grace_s: float) -> None:
        self._client, self._job, self._tty, self._grace_s = client, job, tty, grace_s
        self._input = Input(0)
        self._offset = 0
        self._attempt = 0
        self._ended_by = 0
        self._interrupted_at = 0.0
        self._over = threading.Event()
        self._heard = time.monotonic()
        """When the server last answered."""

    def to_the_end(self) -> int:
        """The exit code for this command."""
        beating = threading.Thread(target=self._beat, daemon=True)
        beating.start()
        try:
            with _ended_by_signals(self._client, self._job):
                info = _wait_until_it_runs(self._job)
            while info.ended_at is None and not self._ended_by:
                self._attach(info)
                info = self._look()
        finally:
            self._over.set()
        if self._ended_by:
            _cancel(self._client, self._job)
            return 128 + self._ended_by
        self._rest(info)
        return self._code(info)

    def _beat(self) -> None:
        """Keep the job alive."""
        with Client(patience_s=0.0) as client:
            while not self._over.is_set():
                with suppress(PresageError):
                    client.call("POST", f"/jobs/{path_of(self._job.id)}/heartbeat")
                    self._heard = time.monotonic()
                self._over.wait(self._grace_s / 4)

    def _attach(self, info: JobStatus) -> None:
        """Relay while the connection lasts."""
        if info.attempt != self._attempt:
            if self._attempt:
                say(f"{self._job.id} was started again, attempt {info.attempt}")
            self._attempt, self._offset = info.attempt, 0
        rows, columns = size()
        order = {"offset": self._offset, "rows": rows, "columns": columns}
        path = f"/jobs/{path_of(self._job.id)}/console"
        try:
            with open_socket(self._client, path) as link:
                attached = Attached(link, order)
                with told_of(attached), raw() if self._tty else nullcontext():
                    attached.run(
                        write(lambda: self._end(signal.SIGPIPE, attached)),
                        self._input,
                        lambda number: self._on_signal(number, attached),
                    )
                self._offset += attached.received
        except (ApiError, Unreachable):
            if not self._ended_by:
                time.sleep(_AGAIN_S)

    def _on_signal(self, number: int, attached: Attached) -> None:
        if number == signal.SIGWINCH:
            attached.resize(*size())
        elif number == signal.SIGINT:
            now = time.monotonic()
            if now - self._interrupted_at < _TWICE_S:
                self._end(number, attached)
            self._interrupted_at = now
            attached.signal(number)
        else:
            self._end(number, attached)

    def _end(self, number: int, attached: Attached) -> None:
        self._ended_by = number
        attached.leave()

    def _look(self) -> JobStatus:
        """How the job is, as soon as the server says so; it has the grace period to do so."""
        while not self._ended_by:
            with suppress(Unreachable):
                info = self._job.refresh().info
                if info.status != "QUEUED":
                    return info
                with _ended_by_signals(self._client, self._job):
                    return _wait_until_it_runs(self._job)
            if time.monotonic() - self._heard > self._grace_s:
                raise Unreachable(
                    f"the server was not heard of for {self._grace_s:g} s; {self._job.id} ends"
                )
            time.sleep(_AGAIN_S)
        return self._job.info

    def _rest(self, info: JobStatus) -> None:
        """What it wrote after the connection ended."""
        attempt = max(1, info.attempt)
        if attempt != self._attempt:
            self._offset = 0
        query = {"worker": "0", "attempt": attempt, "offset": self._offset}
        put = write(lambda: None)
        with self._client.stream(f"/jobs/{path_of(self._job.id)}/logs", query) as answer:
            for chunk in answer.iter_bytes():
                put(frames.STDOUT, chunk)

    def _code(self, info: JobStatus) -> int:
        if info.status == "COMPLETED":
            return 0
        if info.exit_code is None or info.reason.code != "error":
            say(f"{info.id} {info.status}: {info.reason.text}")
        return info.exit_code or 1
