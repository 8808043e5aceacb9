"""Clients of pods: commands and ports through a real API server; the kubelet behind it is a
stand-in that starts processes here (`StreamingNode`)."""

from __future__ import annotations

import gc
import http.server
import json
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from presage.core.ports import CanAttach
from presage.executors.kubernetes.api import PODS, Json, KubeApi, connect
from presage.executors.kubernetes.attaching import PodDoors
from presage.executors.kubernetes.executor import KubernetesExecutor
from presage.executors.node import frames
from tests.kubernetes_plane import Plane
from tests.kubernetes_streams import AttachedClient, StreamingNode
from tests.waiting import eventually

pytestmark = pytest.mark.engine


@pytest.fixture
def node(plane: Plane) -> Iterator[StreamingNode]:
    node = StreamingNode(plane)
    yield node
    node.close()


@pytest.fixture
def api(plane: Plane) -> KubeApi:
    return connect(kubeconfig=plane.kubeconfig())


@pytest.fixture
def pod(plane: Plane, node: StreamingNode) -> Json:
    """One that runs, as far as the API server knows."""
    env = [{"name": "PRESAGE_PORT_TOKEN", "value": "sesame"}]
    spec = {"nodeName": node.name, "containers": [{"name": "main", "image": "x", "env": env}]}
    body = {"metadata": {"name": "gang-worker-0", "namespace": "default"}, "spec": spec}
    plane.call("POST", PODS.path("default"), body)
    plane.call(
        "PATCH", PODS.path("default", "gang-worker-0", "status"), {"status": {"phase": "Running"}}
    )
    return plane.call("GET", PODS.path("default", "gang-worker-0"))


@pytest.fixture
def doors(api: KubeApi) -> Iterator[PodDoors]:
    doors = PodDoors(api)
    yield doors
    doors.close()


def test_a_command_prints_and_ends(doors: PodDoors, pod: Json, node: StreamingNode) -> None:
    script = 'echo here; echo "there $TERM" >&2; exit 3'
    client = AttachedClient(
        doors.open(pod, "worker-0", ()), argv=["sh", "-c", script], term="vt100"
    )
    client.say(frames.EOF)
    client.begin()
    assert client.rest() == (3, b"here\n", b"there vt100\n")
    path, query = node.asked[0]
    assert path == "/exec/default/gang-worker-0/main"
    assert "input" not in query  # it was said before the start that there is none
    client.leave()


def test_several_clients_at_the_same_time(doors: PodDoors, pod: Json) -> None:
    clients = [
        AttachedClient(
            doors.open(pod, "worker-0", ()), argv=["sh", "-c", f"read line; echo {n} $line"]
        )
        for n in range(4)
    ]
    for client in clients:
        client.begin()
    for client in reversed(clients):
        client.say(frames.STDIN, b"typed\n")
    for n, client in enumerate(clients):
        assert client.rest() == (0, f"{n} typed\n".encode(), b"")
        client.leave()


def test_a_server_that_cannot_end_input_says_so(doors: PodDoors, pod: Json) -> None:
    client = AttachedClient(
        doors.open(pod, "worker-0", ()), argv=["sh", "-c", "read a; read b; echo $a"]
    )
    client.say(frames.STDIN, b"one\n")
    client.begin()
    client.say(frames.EOF)
    kind = b""
    while kind != frames.STDERR:
        kind, body = client.next()
    assert b"cannot tell a command that its input has ended" in body
    client.say(frames.SIGNAL, bytes([signal.SIGTERM]))
    assert client.rest()[0] == 128 + signal.SIGTERM
    client.leave()


def test_a_newer_server_ends_input(api: KubeApi, pod: Json) -> None:
    api.version = (1, 30)  # what is new there is between us and the kubelet alone
    with closing(PodDoors(api)) as doors:
        client = AttachedClient(doors.open(pod, "worker-0", ()), argv=["cat"])
        data = bytes(range(256)) * 1500
        client.begin()
        for start in range(0, len(data), frames.LARGEST):
            client.say(frames.STDIN, data[start : start + frames.LARGEST])
        client.say(frames.EOF)
        assert client.rest() == (0, data, b"")
        client.leave()


def test_a_terminal_has_a_size_and_is_resized(doors: PodDoors, pod: Json) -> None:
    order: dict[str, Any] = {"argv": ["sh"], "tty": True, "rows": 33, "columns": 77}
    client = AttachedClient(doors.open(pod, "worker-0", ()), **order)
    client.begin()
    client.say(frames.STDIN, b"while [ \"$(stty size)\" != '33 77' ]; do :; done; echo se''en\n")
    client.until(b"seen")
    client.say(frames.WINDOW, (44).to_bytes(2, "big") + (99).to_bytes(2, "big"))
    client.say(frames.STDIN, b"while [ \"$(stty size)\" != '44 99' ]; do :; done; echo lar''ger\n")
    client.until(b"larger")
    client.say(frames.STDIN, b"exit 5\n")
    assert client.rest()[0] == 5
    client.leave()


def test_a_command_ends_with_its_client(doors: PodDoors, pod: Json, node: StreamingNode) -> None:
    client = AttachedClient(
        doors.open(pod, "worker-0", ()), argv=["sh", "-c", "echo up; sleep 1000"]
    )
    client.begin()
    client.until(b"up")
    assert node.running[0].poll() is None
    client.leave()
    eventually(lambda: node.running[0].poll() == -signal.SIGHUP)


def test_what_cannot_be_is_one_line(doors: PodDoors, pod: Json) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"console": True}, "a console cannot be offered"),
        ({"port": 80}, "port 80 is not among the ports of the job's manifest: 6006"),
    ]
    for order, says in cases:
        client = AttachedClient(doors.open(pod, "worker-0", (6006,)), **order)
        kind, body = client.next()
        assert kind == frames.REFUSED
        assert says in json.loads(body)["text"]
        client.leave()
    gone = {"metadata": {"name": "gone", "namespace": "default"}, "spec": {"containers": []}}
    client = AttachedClient(doors.open(gone, "worker-0", ()), argv=["true"])
    kind, body = client.next()
    assert kind == frames.REFUSED
    assert 'pods "gone" not found' in json.loads(body)["text"]
    client.leave()


def test_without_the_right_it_is_said_which(plane: Plane, pod: Json) -> None:
    plane.allow("executor", {"resources": ["pods"], "verbs": ["get"]})
    with closing(PodDoors(connect(kubeconfig=plane.kubeconfig("executor")))) as doors:
        client = AttachedClient(doors.open(pod, "worker-0", ()), argv=["true"])
        kind, body = client.next()
        assert kind == frames.REFUSED
        assert "pods/exec" in json.loads(body)["text"]
        client.leave()


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"page " * 50_000
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def test_a_port_is_reached(doors: PodDoors, pod: Json) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        link = doors.open(pod, "worker-0", (port,))
        client = AttachedClient(link, port=port)
        assert client.begin() == {"token": "sesame"}
        link.sendall(b"GET / HTTP/1.0\r\n\r\n")
        answer = b""
        while data := link.recv(65536):
            answer += data
        assert answer.endswith(b"page page ")
        assert len(answer) > 250_000
        client.leave()
        server.shutdown()


def test_the_executor_lets_clients_in_only_while_a_worker_runs(
    api: KubeApi, node: StreamingNode, tmp_path: Any
) -> None:
    with closing(KubernetesExecutor(tmp_path, api)) as executor:
        assert isinstance(executor, CanAttach)
        with pytest.raises(OSError, match="worker-0 of job j does not run"):
            executor.attach("j", 1, "worker-0")


def test_who_leaves_as_the_server_ends_leaves_nothing_open(api: KubeApi, pod: Json) -> None:
    for _ in range(5):
        with closing(PodDoors(api)) as doors:
            client = AttachedClient(doors.open(pod, "worker-0", ()), argv=["sleep", "1000"])
            client.begin()
            client.leave()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        gc.collect()
    assert [str(one.message) for one in told] == []
