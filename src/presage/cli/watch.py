"""`presage watch`: a cluster that somebody else schedules, watched without changing anything."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from presage.cli._input import seconds
from presage.cli._job_words import span_words, starts_in
from presage.cli._output import print_json, say
from presage.cli._tables import Column, show_facts, show_table
from presage.layout import Layout
from presage.model.answers import Eta
from presage.model.errors import MissingExtra, TelemetryError, UserError, WatchError
from presage.model.words import duration, share, short_duration

if TYPE_CHECKING:
    from presage.control.watch.answers import WatchedCluster
    from presage.control.watch.busy import Busy
    from presage.control.watch.watcher import ClusterWatcher, Note
    from presage.core.ports import ClusterSource

__all__ = ["explain_watched", "watch", "watched"]

DATA = Path("presage-watch")


def watch(
    slurm: Annotated[bool, typer.Option("--slurm", help="Watch a Slurm cluster.")] = False,
    kubernetes: Annotated[
        bool, typer.Option("--kubernetes", help="Watch a Kubernetes cluster.")
    ] = False,
    cluster: Annotated[
        str | None,
        typer.Option(help="With --slurm: its name.", show_default="this machine's"),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(help="With --kubernetes: its context.", show_default="the current one"),
    ] = None,
    data: Annotated[Path, typer.Option(help="Where what was seen is kept.")] = DATA,
    every: Annotated[str, typer.Option(help="How often to look.")] = "10s",
    past: Annotated[
        str, typer.Option(help="How far back to read accounts at the first look.")
    ] = "30d",
    once: Annotated[bool, typer.Option("--once", help="Look once, and end.")] = False,
    serve: Annotated[
        int | None,
        typer.Option(
            metavar="PORT", min=0, max=65535, help="Show it in a browser of this machine."
        ),
    ] = None,
    prometheus: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Ask this Prometheus how busy GPUs are (DCGM)."),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the token for that Prometheus.")
    ] = None,
    annotate: Annotated[
        bool,
        typer.Option("--annotate", help="Write when a job starts to the job itself; off."),
    ] = False,
    report: Annotated[
        bool, typer.Option("--report", help="Say how well starts were foreseen so far.")
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Show what was last seen; look at nothing.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Watch a Slurm or Kubernetes cluster, and foresee when its jobs start.

    It needs no privilege and changes nothing there. `presage explain --watch DIR JOB` says when
    a job starts and what would help; --report, how well that was foreseen so far.
    """
    if report or status:
        with watched(data) as known:
            body = (
                known.report(-1.0)
                if report
                else known.overview(time.time(), _busy(prometheus, token_file)())
            )
        if json:
            print_json(body)
        elif report:
            _show_report(body)
        else:
            _show_overview(body)
        return
    if slurm == kubernetes:
        raise UserError("say which cluster: --slurm or --kubernetes")
    every_s, past_s = seconds(every, "--every"), seconds(past, "--past")
    kind = "slurm" if slurm else "kubernetes"
    source = _reach(
        lambda: _source(slurm, cluster, context),
        None if once or not _watches(data, kind) else every_s,
    )
    busy = _busy(prometheus, token_file)
    note = source.annotate if annotate else None
    with _watcher(data, source, past_s, note) as watcher, _pages(data, serve, busy):
        _loop(watcher, source, data, every_s, once=once)
    if once:
        with watched(data) as known:
            body = known.overview(time.time(), busy())
        print_json(body) if json else _show_overview(body)


def _busy(url: str | None, token_file: Path | None) -> Callable[[], Busy | None]:
    """Asks how busy GPUs are; a Prometheus that does not answer leaves it open."""
    if url is None:
        return lambda: None
    from presage.control.watch.busy import read_busy
    from presage.telemetry.prometheus import Prometheus, bearer_token

    server = Prometheus(url, bearer_token(token_file))

    def ask() -> Busy | None:
        try:
            return read_busy(server, time.time())
        except TelemetryError as error:
            say(f"note: {error}")
            return None

    return ask


@contextmanager
def _pages(data: Path, port: int | None, busy: Callable[[], Busy | None]) -> Iterator[None]:
    """Answer browsers beside the loop, if that is wanted."""
    if port is None:
        yield
        return
    import socket

    try:
        import uvicorn

        from presage.server.watching import create_watch_app
    except ModuleNotFoundError:
        raise MissingExtra("server", "--serve") from None
    try:
        listener = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise UserError(f"--serve {port}: {error.strerror or error}; give another") from None
    with watched(data) as known:
        app = create_watch_app(known, busy)
        config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        say(f"in a browser: http://127.0.0.1:{listener.getsockname()[1]}/")
        try:
            yield
        finally:
            server.should_exit = True
            thread.join(timeout=5)
            listener.close()


def _watches(data: Path, kind: str) -> bool:
    """Whether a directory has the journal of such a cluster."""
    try:
        with watched(data) as known:
            return known.kind == kind
    except WatchError:
        return False


def _reach(connect: Callable[[], ClusterSource], every_s: float | None) -> ClusterSource:
    """The cluster; one that was watched before and is down is tried again after so long."""
    said = ""
    while True:
        try:
            source = connect()
        except WatchError as error:
            # An API server that comes up refuses everybody for a moment.
            if every_s is None or not (error.down or said):
                raise
            if str(error) != said:
                said = str(error)
                say(f"the cluster does not answer, still trying: {error}")
            time.sleep(every_s)
        else:
            if said:
                say("the cluster answers again")
            return source


def _source(slurm: bool, cluster: str | None, context: str | None) -> ClusterSource:
    if slurm:
        if context is not None:
            raise UserError("--context belongs to --kubernetes")
        from presage.executors.slurm.watching import SlurmSource

        return SlurmSource(cluster)
    if cluster is not None:
        raise UserError("--cluster belongs to --slurm; name a --context")
    from presage.executors.kubernetes.watching import KubernetesSource

    return KubernetesSource(context)


@contextmanager
def _watcher(
    data: Path, source: ClusterSource, past_s: float, note: Note | None
) -> Iterator[ClusterWatcher]:
    """A watcher, and the directory to itself."""
    from presage.control.seat import Seat
    from presage.control.watch.watcher import ClusterWatcher
    from presage.store import open_store

    layout = Layout(data.expanduser().absolute())
    try:
        layout.data.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UserError(f"--data {data}: {error.strerror or error}") from None
    seat = Seat(layout.lock)
    store = open_store(f"sqlite:///{layout.database}")
    try:
        try:
            watcher = ClusterWatcher(store, source, seat.take(), past_s=past_s, note=note)
        except WatchError as error:
            raise WatchError(f"--data {data}: {error}") from None
        try:
            yield watcher
        finally:
            watcher.close()
    finally:
        store.close()
        seat.leave()


def _loop(
    watcher: ClusterWatcher, source: ClusterSource, data: Path, every_s: float, *, once: bool
) -> None:
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    say(f"watching {source.kind} cluster {source.name} into {data}, every {duration(every_s)}")
    silent, noted = False, False
    while True:
        began = time.monotonic()
        try:
            news = watcher.turn()
        except WatchError as error:
            if once:
                raise
            if not silent:
                say(f"the cluster does not answer, still trying: {error}")
            silent = True
        else:
            if silent:
                say("the cluster answers again")
            silent = False
            if not noted:
                for note in news.sight.notes:
                    say(f"note: {note}")
                noted = True
            if once:
                return
        left = began + every_s - time.monotonic()
        while not stopping.is_set() and left > 0:
            stopping.wait(min(left, 5.0))
            watcher.keep_lease()
            left = began + every_s - time.monotonic()
        if stopping.is_set():
            return


@contextmanager
def watched(data: Path) -> Iterator[WatchedCluster]:
    """What is known of the cluster that was watched into a directory."""
    from presage.control.watch.answers import WatchedCluster
    from presage.store import open_store

    database = Layout(data.expanduser().absolute()).database
    if not database.is_file():
        raise WatchError(f"nothing is watched into {data}: presage watch --slurm --data {data}")
    store = open_store(f"sqlite:///{database}")
    try:
        yield WatchedCluster(store)
    except WatchError as error:
        raise WatchError(f"{data}: {error}") from None
    finally:
        store.close()


def explain_watched(data: Path, job: str, json: bool) -> None:
    """`presage explain --watch`."""
    with watched(data) as known:
        about = known.explain(job, time.time())
    if json:
        print_json(about)
        return
    typer.echo(f"{about['id']} is {about['status']}: {about['reason'] or 'all is well'}")
    if about["status"] != "QUEUED":
        return
    for one in about["after"]:
        typer.echo(f"after {one['id']} ({one['on']})")
    if not about["takes_part"]:
        typer.echo("it does not start before that changes")
        return
    if about["ahead"]:
        more = ", …" if len(about["ahead_jobs"]) < about["ahead"] else ""
        jobs = "1 job is" if about["ahead"] == 1 else f"{about['ahead']} jobs are"
        typer.echo(f"ahead of it {jobs} waiting: {', '.join(about['ahead_jobs'])}{more}")
    typer.echo(f"it {starts_in(_eta(about['eta_s']))}")
    if about["theirs_s"] is not None:
        typer.echo(f"the scheduler there says: in {duration(max(0.0, about['theirs_s']))}")
    for option in about["helps"]:
        typer.echo(f"{option['change']} it {starts_in(_eta(option['eta_s']), age=False)}")
    if not about["helps"]:
        typer.echo("nothing that was tried lets it start notably earlier")


def _eta(body: dict[str, Any] | None) -> Eta | None:
    return None if body is None else Eta(**body)


def _show_report(body: dict[str, Any]) -> None:
    if not body["foreseen"]:
        say("no job that was foreseen has started yet")
        return

    def time_of(name: str) -> str:
        return "-" if body[name] is None else duration(body[name])

    facts = [("foreseen", f"{body['foreseen']:,} starts, {body['waited']:,} of jobs that waited")]
    facts.append(("in the 80 % interval", share(body["coverage"])))
    if body["waited"]:
        facts.append(("of those that waited", share(body["coverage_waited"])))
        facts.append(("median error", f"{time_of('median_error_waited_s')} of those that waited"))
        facts.append(("", f"they waited {time_of('median_wait_s')} (median)"))
    if body["compared"]:
        facts.append(("beside the scheduler", f"{body['compared']:,} starts that it told as well"))
        facts.append(("", f"median error {time_of('compared_error_s')} here"))
        facts.append(("", f"median error {time_of('their_error_s')} there"))
        if body["closer"] is not None:
            facts.append(("", f"closer here for {share(body['closer'])} of them"))
    show_facts(facts)


def _show_overview(body: dict[str, Any]) -> None:
    nodes, gpus = body["nodes"], body["gpus"]
    away = [f"{nodes[name]} {name}" for name in ("draining", "down") if nodes[name]]
    idle = "" if gpus["idle"] is None else f", {gpus['idle']} of them idle"
    facts = [
        ("cluster", f"{body['kind']} {body['cluster']}, seen {body['age_s']:.0f} s ago"),
        ("nodes", ", ".join([f"{nodes['up']} up", *away])),
        ("GPUs", f"{gpus['held']} of {gpus['total']} held{idle}"),
    ]
    for name, count in body["queues"].items():
        running, waits = count.get("running", 0), count.get("waiting", 0)
        facts.append((f"queue {name}", f"{running} running, {waits} waiting"))
    for note in body["notes"]:
        facts.append(("note", note))
    show_facts(facts)
    rows = [
        [
            one["job"],
            one["owner"],
            one["queue"],
            short_duration(body["seen_at"] - one["submitted_at"]),
            span_words(_eta(one["eta_s"])),
            one["why"],
        ]
        for one in body["waiting"][:_SHOWN]
    ]
    if rows:
        typer.echo()
        heads = [Column("JOB"), Column("OWNER", spare=3), Column("QUEUE", spare=2)]
        heads += [Column("WAITS", right=True), Column("STARTS"), Column("WHY")]
        show_table(heads, rows)
    if len(body["waiting"]) > _SHOWN:
        say(f"and {len(body['waiting']) - _SHOWN:,} more that wait")


_SHOWN = 50
