"""A real Prometheus with hours of samples in it, asked by commands too; servers that misbehave."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from presage.control.watch.watcher import ClusterWatcher
from presage.layout import Layout
from presage.model.cluster import Node, Resources
from presage.model.errors import TelemetryError
from presage.model.job import Role
from presage.model.watched import SeenCluster, SeenJob, SeenNode, SeenRun, SeenWorker
from presage.store import open_store
from presage.telemetry import prometheus
from presage.telemetry.prometheus import (
    TOKEN_VARIABLE,
    Prometheus,
    bearer_token,
    pod_queries,
    read_prometheus,
    step_for,
)
from presage.telemetry.series import Series
from tests.cli.telemetry import refused, run
from tests.real_prometheus import prometheus_with

Answer = Callable[[BaseHTTPRequestHandler], tuple[int, str]]

HOURS = 6
EVERY_S = 30
EMPTY = '{"data": {"resultType": "matrix", "result": []}}'


@contextmanager
def serving(answer: Answer) -> Iterator[int]:
    """An HTTP server on a free port of the loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            self.rfile.read(length)
            status, text = answer(self)
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", text)
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(text.encode())

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def recorded(end: float) -> Iterator[str]:
    """What exporters told over the last hours, as OpenMetrics. In `train`, six pods that rest and
    work in turns; in `n`, pods with two containers, with GPUs, and with GPUs whose labels
    Prometheus has renamed; and a job of Presage."""
    times = [end - HOURS * 3600 + EVERY_S * k for k in range(HOURS * 3600 // EVERY_S)]
    a, b = 'namespace="n",pod="a"', 'namespace="n",pod="b"'
    rest = {0: 0.2, 1: 3.2}
    cpu: dict[str, Callable[[int], float]] = {
        f'{a},container="x"': lambda k: 1.5,
        f'{a},container="y"': lambda k: 0.5,
        f'{a},container=""': lambda k: 2.0,
        f'{b},container="x"': lambda k: 0.5,
    }
    gauges: dict[str, dict[str, Callable[[int], float]]] = {
        "container_memory_working_set_bytes": {
            f'{a},container="x"': lambda k: 1000,
            f'{a},container="POD"': lambda k: 7,
            f'{b},container="x"': lambda k: 2000,
        },
        "DCGM_FI_DEV_GPU_UTIL": {
            f'{b},gpu="0"': lambda k: 30,
            f'{b},gpu="1"': lambda k: 50,
            'namespace="ops",pod="dcgm",exported_namespace="n",exported_pod="c",gpu="0"': (
                lambda k: 90
            ),
        },
        "DCGM_FI_DEV_FB_USED": {f'{b},gpu="0"': lambda k: 512},
        "presage_worker_cpu_cores": {'job_id="j7",worker="worker-0"': lambda k: 1.25},
        "presage_worker_memory_bytes": {'job_id="j7",worker="worker-0"': lambda k: 3 << 30},
    }
    for pod in range(6):
        labels = f'namespace="train",pod="w-{pod}",container="main"'

        def works(k: int, pod: int = pod) -> int:
            return (k + 7 * pod) // (20 + 2 * pod) % 2

        cpu[labels] = lambda k, works=works: rest[works(k)]  # type: ignore[misc]
        gauges["container_memory_working_set_bytes"][labels] = (
            lambda k, works=works: (400 + 500 * works(k)) * 2**20  # type: ignore[misc]
        )
    yield "# TYPE container_cpu_usage_seconds counter\n"
    for labels, cores in cpu.items():
        total = 0.0
        for k, at in enumerate(times):
            total += cores(k) * EVERY_S
            yield f"container_cpu_usage_seconds_total{{{labels}}} {total} {at}\n"
    for metric, series in gauges.items():
        yield f"# TYPE {metric} gauge\n"
        for labels, level in series.items():
            for k, at in enumerate(times):
                yield f"{metric}{{{labels}}} {level(k)} {at}\n"
    yield "# EOF\n"


@pytest.fixture(scope="module")
def server(
    program: Callable[..., str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    """A Prometheus that was fed the samples of hours."""
    folder = tmp_path_factory.mktemp("prometheus")
    with prometheus_with(recorded(time.time()), "DCGM_FI_DEV_FB_USED", folder, program) as found:
        yield found


def read(server: Prometheus, select: str, **options: Any) -> dict[str, Series]:
    """An hour that ended ten minutes ago, a sample a minute."""
    end = time.time() - 600
    found = read_prometheus(server, pod_queries(select), end - 3600, end, 60.0, **options)
    return {pod.pod: pod for pod in found}


@pytest.mark.engine
def test_a_range_of_a_real_prometheus(server: Prometheus) -> None:
    told: list[tuple[int, int]] = []
    pods = read(server, 'namespace="n"', report=lambda done, total: told.append((done, total)))
    assert list(pods) == ["n/a", "n/b", "n/c"]
    a, b, c = pods.values()
    assert set(a.resources) == {"cpu", "memory"}
    assert set(b.resources) == {"cpu", "memory", "gpu", "gpu_memory"}
    assert len(a) == 61
    np.testing.assert_allclose(np.diff(a.times), 60.0)
    np.testing.assert_allclose(a.column("cpu"), 2.0, rtol=0.01)
    np.testing.assert_allclose(b.column("cpu"), 0.5, rtol=0.01)
    assert set(a.column("memory")) == {1000.0}
    assert set(b.column("gpu")) == {40.0}
    assert set(b.column("gpu_memory")) == {512.0 * 1024 * 1024}
    assert (set(c.resources), set(c.column("gpu"))) == ({"gpu"}, {90.0})  # under its own name
    assert told == [(k, 8) for k in range(1, 9)]


@pytest.mark.engine
def test_the_workers_of_presage_itself(server: Prometheus) -> None:
    (pod,) = read(server, 'job_id=~"j.*"').values()
    assert (pod.pod, set(pod.resources)) == ("j7/worker-0", {"cpu", "memory"})
    assert set(pod.column("cpu")) == {1.25}
    assert len(read(server, "")) == 10  # everybody


@pytest.mark.engine
def test_a_long_range_is_asked_for_in_parts(
    server: Prometheus, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = round(time.time() - 600, 3)
    queries = {"gpu_util_pct": "DCGM_FI_DEV_GPU_UTIL{gpu='0',pod='b'}"}
    (pod,) = read_prometheus(server, queries, end - 12.5, end, 0.001)
    assert len(pod) == 12_501
    np.testing.assert_allclose(np.diff(pod.times), 0.001, atol=1e-6)
    monkeypatch.setattr(prometheus, "MOST_POINTS", 20_000)
    with pytest.raises(TelemetryError, match="400: exceeded maximum resolution of 11,000 points"):
        read_prometheus(server, queries, end - 12.5, end, 0.001)


@pytest.mark.engine
def test_what_a_real_prometheus_refuses(server: Prometheus) -> None:
    now = time.time()
    with pytest.raises(TelemetryError, match=r"400: .*parse error") as caught:
        server.range("sum by (", now, now, 1)
    assert "\n" not in str(caught.value)
    with pytest.raises(TelemetryError, match=r"400: .*error parsing regexp"):
        read(server, 'pod=~"("')
    with pytest.raises(TelemetryError, match="gives a string, not series"):
        _typed(server)
    with pytest.raises(TelemetryError, match=r"has no such samples; check --select"):
        read(server, 'namespace="nobody"')


def _typed(server: Prometheus) -> None:
    """An answer of another type; `query_range` itself gives nothing but series."""
    body = '{"data": {"resultType": "string", "result": [1, "x"]}}'
    with serving(lambda _: (200, body)) as port:
        Prometheus(f"http://127.0.0.1:{port}").range("x", 0, 1, 1)


# -- commands -------------------------------------------------------------------------------------


@pytest.mark.engine
def test_right_sizing_from_prometheus(server: Prometheus) -> None:
    words = ("--prometheus", server.url, "--select", 'namespace="train"', "--since", "7d")
    done = run("rightsize", *words, "--policies", "adaptive,dynamic", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["dynamic"]["cpu"]["fulfilment_pct"] > found["adaptive"]["cpu"]["fulfilment_pct"]
    assert found["adaptive"]["memory"]["alloc_over_use"] > 0.9
    assert "6 pods, " in done.stderr
    assert f"one every 60 s, from {server.shown}" in done.stderr
    done = run("rightsize", *words, "--every", "30s", "--policies", "adaptive", "--patch")
    assert done.exit_code == 0, done.output
    assert "one every 30 s" in done.stderr
    patches = list(yaml.safe_load_all(done.stdout))
    assert len(patches) == 6
    assert patches[0]["spec"]["containers"][0]["resources"]["limits"]["memory"].endswith("Mi")


class PodsSource:
    """A cluster in which pods of `train` run."""

    name = "made"

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def look(self, since: float, alive: Collection[str]) -> SeenCluster:
        ask = Resources(cpu_milli=8000, memory_mib=4096)
        node = Node("n", (), 64_000, 65_536)
        runs = (SeenRun(1, 1000.0, (SeenWorker("n", ask),)),)
        jobs = [
            SeenJob(f"train/w-{k}@0{k}", "w", "train", "train", 990.0, Role(resources=ask), runs)
            for k in range(2)
        ]
        return SeenCluster(1010.0, tuple(jobs), (SeenNode(node),))

    def annotate(self, job: str, text: str) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


def watched_into(data: Path, kind: str = "kubernetes") -> Path:
    data.mkdir()
    store = open_store(f"sqlite:///{Layout(data).database}")
    watcher = ClusterWatcher(store, PodsSource(kind), "test")
    watcher.turn()
    watcher.close()
    store.close()
    return data


@pytest.mark.engine
def test_what_watched_pods_asked_for_beside_what_they_need(
    server: Prometheus, tmp_path: Path
) -> None:
    data = watched_into(tmp_path / "pods")
    words = ("--prometheus", server.url, "--watch", str(data), "--since", "4h")
    done = run("rightsize", *words, "--policies", "adaptive", "--json")
    assert done.exit_code == 0, done.output
    rows = {(row["pod"], row["resource"]): row for row in json.loads(done.stdout)}
    assert {pod for pod, _ in rows} == {"train/w-0", "train/w-1"}, "of six that are measured"
    assert rows["train/w-0", "cpu"]["asked"] == 8.0
    assert 0 < rows["train/w-0", "cpu"]["recommended"] < 8.0
    assert rows["train/w-0", "memory"]["asked"] == 4 << 30
    assert 0 < rows["train/w-0", "memory"]["recommended"] < 2 << 30
    done = run("rightsize", "w-1", *words, "--policies", "adaptive")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["POD", "RESOURCE", "ASKED", "RECOMMENDED"]
    assert [line.split()[:3] for line in lines[1:]] == [
        ["train/w-1", "cpu", "8_cores"],
        ["train/w-1", "memory", "4_GiB"],
    ]
    done = run("rightsize", "w-7", *words)
    assert (done.exit_code, done.stderr) == (1, "error: no job w-7 runs in made\n")
    assert "--watch goes with --prometheus" in refused(run("rightsize", *words[2:]))
    slurm = watched_into(tmp_path / "slurm", "slurm")
    line = refused(run("rightsize", "--prometheus", server.url, "--watch", str(slurm)))
    assert "the labels namespace and pod, which Slurm jobs do not have" in line


@pytest.mark.engine
def test_phases_from_prometheus(server: Prometheus, tmp_path: Path) -> None:
    words = ("--prometheus", server.url, "--select", 'namespace="train"', "--since", "4h")
    bundle = tmp_path / "train.npz"
    done = run("phases", "fit", *words, "--out", bundle, "--every", "30s", "--features", "cpu")
    assert done.exit_code == 0, done.output
    assert 'namespace="train": 6 pods, ' in done.stdout
    for command in (("show",), ("forecast",), ("graph", "--json"), ("expand", "--phase", "0")):
        name, *more = command
        done = run("phases", name, bundle, *words, *more)
        assert done.exit_code == 0, (command, done.output)
        assert "6 pods, " in done.stderr
        assert "one every 30 s" in done.stderr  # as the bundle has it


@pytest.mark.engine
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--select", "namespace=train"], "does not select pods; write label matchers"),
        (["--select", 'pod=~"("'], "regexp: missing closing ): `^(?:()$`; check --select"),
        (["--select", 'namespace="nobody"'], "has no such samples; check --select and --since"),
        (["--since", "soon"], "--since: "),
        (["--every", "0"], "--every: give a time above 0"),
        (["--token-file", "nowhere"], "the token in nowhere cannot be read"),
        (["pods.csv"], "give TELEMETRY (files) or --prometheus URL, one of the two"),
    ],
)
def test_what_is_wrong_is_one_line(server: Prometheus, words: list[str], says: str) -> None:
    assert says in refused(run("rightsize", "--prometheus", server.url, *words))


def test_options_of_prometheus_belong_to_it(tmp_path: Path) -> None:
    assert "give TELEMETRY (files) or --prometheus URL" in refused(run("rightsize"))
    for option, value in (("--select", "x"), ("--since", "1d"), ("--token-file", "t")):
        done = run("phases", "fit", "pods.csv", "--out", tmp_path / "b.npz", option, value)
        assert f"{option} belongs to --prometheus" in refused(done)
    with socket.create_server(("127.0.0.1", 0)) as gone:
        url = f"http://127.0.0.1:{gone.getsockname()[1]}"
    line = refused(run("rightsize", "--prometheus", url))
    assert line == f"error: {url} does not answer: Connection refused"


# -- servers that misbehave -----------------------------------------------------------------------


def test_a_busy_server_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "_PAUSES_S", (0.0, 0.0))
    answers = [(429, '{"error": "busy"}'), (500, "oh"), (200, EMPTY)]
    with serving(lambda _: answers.pop(0)) as port:
        server = Prometheus(f"http://127.0.0.1:{port}")
        assert server.range("up", 0, 1, 1) == []
        answers = [(503, '{"error": "busy"}')] * 3
        with pytest.raises(TelemetryError, match="503: busy"):
            server.range("up", 0, 1, 1)
        assert answers == []
        answers = [(422, '{"error": "too many samples"}'), (200, EMPTY)]
        with pytest.raises(TelemetryError, match="422: too many samples; ask for fewer pods"):
            server.range("up", 0, 1, 1)
        assert len(answers) == 1  # it would say the same again


def test_the_token_goes_to_the_server_alone(tmp_path: Path) -> None:
    seen: list[str | None] = []
    elsewhere: list[str] = []

    def answer(request: BaseHTTPRequestHandler) -> tuple[int, str]:
        seen.append(request.headers["Authorization"])
        return 401, "no"

    (tmp_path / "token").write_text("s3cret\n")

    def stranger(request: BaseHTTPRequestHandler) -> tuple[int, str]:
        elsewhere.append(request.path)
        return 200, "{}"

    with serving(stranger) as other:
        with serving(answer) as port:
            server = Prometheus(f"http://127.0.0.1:{port}", bearer_token(tmp_path / "token"))
            with pytest.raises(
                TelemetryError, match="401: Unauthorized; give a token with"
            ) as said:
                server.range("up", 0, 1, 1)
        with serving(lambda _: (302, f"http://127.0.0.1:{other}/")) as port:
            server = Prometheus(f"http://127.0.0.1:{port}", "s3cret")
            with pytest.raises(TelemetryError, match="302: Found"):
                server.range("up", 0, 1, 1)
    assert seen == ["Bearer s3cret"]
    assert elsewhere == []
    assert "s3cret" not in f"{said.value}{server}"


@pytest.mark.parametrize(
    "body", ["<html>", "[]", "{}", '{"data": {"resultType": "matrix", "result": [{}]}}']
)
def test_something_that_is_no_prometheus(body: str) -> None:
    with (
        serving(lambda _: (200, body)) as port,
        pytest.raises(TelemetryError, match="does not answer as a Prometheus does"),
    ):
        Prometheus(f"http://127.0.0.1:{port}").range("up", 0, 1, 1)


def test_a_server_that_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = Prometheus(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.05)
        with pytest.raises(TelemetryError, match="does not answer: timed out"):
            server.range("up", 0, 1, 1)
    with pytest.raises(TelemetryError, match="does not answer: Connection refused"):
        server.range("up", 0, 1, 1)


@pytest.mark.parametrize("url", ["localhost:9090", "file:///etc/passwd", "http://", ""])
def test_addresses_that_make_no_sense(url: str) -> None:
    with pytest.raises(TelemetryError, match="is no address of a Prometheus"):
        Prometheus(url)


def test_secrets_do_not_belong_into_addresses() -> None:
    with pytest.raises(TelemetryError, match="leave user and password out") as caught:
        Prometheus("http://me:s3cret@host:9090/?key=s3cret")
    assert "s3cret" not in str(caught.value)


def test_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    assert bearer_token() is None
    monkeypatch.setenv(TOKEN_VARIABLE, " abc\n")
    assert bearer_token() == "abc"
    for text in ("", "a b", "a\nb"):
        (tmp_path / "token").write_text(text)
        with pytest.raises(TelemetryError, match="holds no token"):
            bearer_token(tmp_path / "token")
    with pytest.raises(TelemetryError, match="cannot be read: No such file"):
        bearer_token(tmp_path / "none")


def test_ranges_that_make_no_sense() -> None:
    server = Prometheus("http://127.0.0.1:1")
    for start, end, step in ((1.0, 0.0, 1.0), (0.0, 1.0, 0.0)):
        with pytest.raises(TelemetryError, match="a range needs"):
            read_prometheus(server, {"x": "up"}, start, end, step)


def test_samples_that_nobody_asked_for_are_left_out() -> None:
    points = [[-60, "1"], [0, "2"], [60, "NaN"], [120, "4"], [180, "5"]]
    result = [{"metric": {"pod": "p"}, "values": points}]
    body = json.dumps({"data": {"resultType": "matrix", "result": result}})
    with serving(lambda _: (200, body)) as port:
        server = Prometheus(f"http://127.0.0.1:{port}")
        (pod,) = read_prometheus(server, {"cpu_cores": "x"}, 0.0, 120.0, 60.0)
    assert (pod.times.tolist(), pod.column("cpu").tolist()) == ([0.0, 120.0], [2.0, 4.0])


@pytest.mark.parametrize(
    ("select", "matchers"),
    [
        ("", []),
        ('namespace="train"', ['namespace="train"']),
        (' a = "x,y" , b!~ \'p"q\', ', ['a="x,y"', "b!~'p\"q'"]),
        (r'a="\"}"', [r'a="\"}"']),
    ],
)
def test_selections(select: str, matchers: list[str]) -> None:
    assert prometheus._matchers(select) == matchers


@pytest.mark.parametrize("select", ["train", 'a="b" c="d"', 'a="b"}', "a=b", '"a"', 'a="b', "{}"])
def test_selections_that_make_no_sense(select: str) -> None:
    with pytest.raises(TelemetryError, match="does not select pods"):
        pod_queries(select)


def test_a_step_suits_its_range() -> None:
    day = 86_400.0
    assert [step_for(days * day) for days in (0.1, 1, 2, 7, 30, 365)] == [
        15,
        15,
        30,
        60,
        300,
        3600,
    ]
    assert step_for(7 * day, most_s=20.0) == 20.0
