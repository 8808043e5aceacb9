"""A real Prometheus that scrapes an exporter written here, and servers that misbehave."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from presage.observe.telemetry import prometheus
from presage.observe.telemetry.archive import Archive
from presage.observe.telemetry.collect import record
from presage.observe.telemetry.prometheus import (
    TOKEN_VARIABLE,
    Prometheus,
    PrometheusCollector,
    bearer_token,
    pod_queries,
    read_prometheus,
)
from presage.observe.telemetry.series import TelemetryError

Answer = Callable[[BaseHTTPRequestHandler], tuple[int, str]]

CONFIG = """
global: {{scrape_interval: 100ms, scrape_timeout: 100ms}}
scrape_configs:
  - job_name: pods
    honor_labels: true
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""
WINDOW = "1s"


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


def exported(start: float) -> str:
    """Two pods: `a` uses 2 cores in two containers, `b` half a core and a GPU."""
    since = time.time() - start
    a, b = 'namespace="n",pod="a"', 'namespace="n",pod="b"'
    return "".join(
        f"{line}\n"
        for line in (
            f'container_cpu_usage_seconds_total{{{a},container="x"}} {1.5 * since}',
            f'container_cpu_usage_seconds_total{{{a},container="y"}} {0.5 * since}',
            f'container_cpu_usage_seconds_total{{{a},container=""}} {2.0 * since}',
            f'container_cpu_usage_seconds_total{{{b},container="x"}} {0.5 * since}',
            f'container_memory_working_set_bytes{{{a},container="x"}} 1000',
            f'container_memory_working_set_bytes{{{a},container="POD"}} 7',
            f'container_memory_working_set_bytes{{{b},container="x"}} 2000',
            f"container_network_transmit_bytes_total{{{a},interface=\"eth0\"}} {100 * since}",
            f'DCGM_FI_DEV_GPU_UTIL{{{b},gpu="0"}} 30',
            f'DCGM_FI_DEV_GPU_UTIL{{{b},gpu="1"}} 50',
            f'DCGM_FI_DEV_FB_USED{{{b},gpu="0"}} 512',
        )
    )  # fmt: skip


@pytest.fixture(scope="module")
def server(
    program: Callable[..., str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    """A Prometheus with about two seconds of samples in it."""
    path = program("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start = time.time()
    with serving(lambda _: (200, exported(start))) as exporter:
        (folder / "prometheus.yml").write_text(CONFIG.format(port=exporter))
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [
                    path,
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            found = Prometheus(f"http://127.0.0.1:{port}/", timeout_s=5)
            _wait_for_samples(found, process, folder / "log")
            yield found
        finally:
            process.kill()
            process.wait()


def _wait_for_samples(server: Prometheus, process: subprocess.Popen[bytes], log: Path) -> None:
    query = "count_over_time(DCGM_FI_DEV_FB_USED[1h]) >= 16"
    end = time.monotonic() + 30
    while time.monotonic() < end and process.poll() is None:
        with suppress(TelemetryError):
            if server.instant(query, time.time()):
                return
        time.sleep(0.1)
    pytest.fail(f"Prometheus has no samples: {log.read_text()[-2000:]}")


@pytest.mark.engine
def test_a_range_of_a_real_prometheus(server: Prometheus) -> None:
    now = time.time()
    a, b = sorted(
        read_prometheus(server, pod_queries(WINDOW), now - 0.4, now, 0.1), key=lambda pod: pod.pod
    )
    assert (a.pod, b.pod) == ("n/a", "n/b")
    assert set(a.resources) == {"cpu", "memory", "net_tx"}
    assert set(b.resources) == {"cpu", "memory", "gpu", "gpu_memory"}
    assert len(a) == 5
    np.testing.assert_allclose(a.column("cpu"), 2.0, rtol=0.2)
    np.testing.assert_allclose(b.column("cpu"), 0.5, rtol=0.2)
    np.testing.assert_allclose(a.column("net_tx"), 100, rtol=0.2)
    assert set(a.column("memory")) == {1000.0}
    assert set(b.column("gpu")) == {40.0}
    assert set(b.column("gpu_memory")) == {512.0 * 1024 * 1024}
    assert a.rows is None


@pytest.mark.engine
def test_a_long_range_is_asked_for_in_parts(
    server: Prometheus, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = round(time.time(), 3)
    queries = {"gpu_util_pct": "DCGM_FI_DEV_GPU_UTIL{gpu='0'}"}
    (pod,) = read_prometheus(server, queries, now, now + 12.5, 0.001)
    assert len(pod) == 12_501
    np.testing.assert_allclose(np.diff(pod.times), 0.001, atol=1e-6)
    monkeypatch.setattr(prometheus, "MOST_POINTS", 20_000)
    with pytest.raises(TelemetryError, match="400: exceeded maximum resolution of 11,000 points"):
        read_prometheus(server, queries, now, now + 12.5, 0.001)


@pytest.mark.engine
def test_collecting_from_a_real_prometheus(server: Prometheus, tmp_path: Path) -> None:
    collector = PrometheusCollector(server, pod_queries(WINDOW))
    rows = {row.pod: row.values for row in collector.sample(time.time())}
    assert rows.keys() == {"n/a", "n/b"}
    assert rows["n/b"]["gpu_util_pct"] == 40
    assert rows["n/a"]["cpu_cores"] == pytest.approx(2.0, rel=0.2)
    with Archive(tmp_path) as archive:
        assert record([collector], archive, every=0.05, seconds=0.1).failures == 0
        assert [pod.pod for pod in archive.read()] == ["n/a", "n/b"]


@pytest.mark.engine
def test_what_a_real_prometheus_refuses(server: Prometheus) -> None:
    now = time.time()
    with pytest.raises(TelemetryError, match=r"400: .*parse error") as caught:
        server.instant("sum by (", now)
    assert "\n" not in str(caught.value)
    with pytest.raises(TelemetryError, match="gives a scalar, not series: 1"):
        server.instant("1", now)
    with pytest.raises(TelemetryError, match="no samples of these queries"):
        read_prometheus(server, {"x": "nothing_at_all"}, now - 1, now, 1)


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
            with pytest.raises(TelemetryError, match="401: Unauthorized; give a token in") as said:
                server.instant("up", 0.0)
        with serving(lambda _: (302, f"http://127.0.0.1:{other}/")) as port:
            server = Prometheus(f"http://127.0.0.1:{port}", "s3cret")
            with pytest.raises(TelemetryError, match="302: Found"):
                server.instant("up", 0.0)
    assert seen == ["Bearer s3cret"]
    assert elsewhere == []
    assert "s3cret" not in f"{said.value}{server}"


@pytest.mark.parametrize("body", ["<html>", "[]", "{}", '{"data": {"resultType": "vector"}}'])
def test_something_that_is_no_prometheus(body: str) -> None:
    with (
        serving(lambda _: (200, body)) as port,
        pytest.raises(TelemetryError, match="does not answer as a Prometheus does"),
    ):
        Prometheus(f"http://127.0.0.1:{port}").instant("up", 0.0)


def test_a_server_that_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = Prometheus(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.05)
        with pytest.raises(TelemetryError, match="does not answer: timed out"):
            server.instant("up", 0.0)
    with pytest.raises(TelemetryError, match="does not answer: Connection refused"):
        server.instant("up", 0.0)


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
            server.range("up", start, end, step)
