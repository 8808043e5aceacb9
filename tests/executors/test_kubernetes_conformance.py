"""The conformance suite on Kubernetes: a real API server, and a real kubelet with containerd where
this machine can run one."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from presage.core.ports import CanAttach
from presage.executors.node import frames
from presage.executors.node.guardian import free_port
from presage.layout import Layout
from presage.model.cluster import Worker
from presage.model.event import Launch, Outcome
from presage.telemetry.rows import rows
from presage.testing.executors import ExecutorKit, ExecutorSuite, RoleWork, Watcher
from presage.testing.runs import dedented
from tests.executors.kubernetes_kit import KubernetesKit
from tests.kubernetes_kubelet import Kubelet, cannot_run
from tests.kubernetes_plane import Plane, PlaneError, find_programs
from tests.kubernetes_streams import AttachedClient
from tests.waiting import eventually

pytestmark = [pytest.mark.engine, pytest.mark.soak]


@pytest.fixture(scope="module")
def kubelet() -> Iterator[Kubelet]:
    """A node that runs pods, with a control plane of its own."""
    try:
        find_programs()
    except PlaneError as error:
        pytest.skip(str(error))
    # The node is called localhost, so that the API server finds its kubelet for logs.
    plane = Plane(flags=["--kubelet-preferred-address-types=Hostname"])
    try:
        if why := cannot_run(plane):
            pytest.skip(why)
        plane.start()
        node = Kubelet(plane, "localhost")
        try:
            node.start(gpus=8)
            yield node
        finally:
            node.close()
    finally:
        plane.close()


class TestKubernetes(ExecutorSuite):
    """Jobs are containers."""

    @pytest.fixture
    def kit(self, kubelet: Kubelet, tmp_path: Path) -> Iterator[ExecutorKit]:
        kit = KubernetesKit(tmp_path, kubelet.plane, kubelet.name, log_cap=self.log_cap)
        yield kit
        kit.close()
        kubelet.plane.clear(nodes=False)

    def test_logs_are_complete(self, watch: Watcher) -> None:
        """As the suite has it, but for the order of lines of two streams: a container has two."""
        script = """
            import os, sys
            for n in range(5000):
                print(os.environ["PRESAGE_RANK"], n, file=(sys.stdout, sys.stderr)[n % 2])
            sys.stderr.write("the end, without a line break")
        """
        watch.run("chatty", RoleWork(dedented(script), workers=2))
        watch.end("chatty")
        for rank in (0, 1):
            lines = watch.kit.log("chatty", 1, f"worker-{rank}").splitlines()
            numbers = [int(line.split()[1]) for line in lines if line.startswith(str(rank))]
            for odd in (0, 1):
                assert [n for n in numbers if n % 2 == odd] == list(range(odd, 5000, 2))
            assert "the end, without a line break" in lines

    def test_a_worker_finds_its_place_in_the_environment(self, watch: Watcher) -> None:
        """As the suite has it, but for devices: a device plugin shows a container those it got."""
        script = "import json, os\nprint(json.dumps(dict(os.environ)), flush=True)"
        watch.run("env", RoleWork(script, workers=2, gpus=2), env={"GREETING": "hello world"})
        assert watch.end("env").outcome is Outcome.SUCCEEDED
        for rank in range(2):
            env = json.loads(watch.kit.log("env", 1, f"worker-{rank}"))
            assert (env["PRESAGE_JOB_ID"], env["PRESAGE_ATTEMPT"]) == ("env", "1")
            assert (env["PRESAGE_RANK"], env["PRESAGE_WORKERS"]) == (str(rank), "2")
            assert env["GREETING"] == "hello world"
            assert {"PRESAGE_CHECKPOINT_DIR", "PRESAGE_DATA_DIR", "PRESAGE_RESULT_DIR"} <= set(env)
            assert "CUDA_VISIBLE_DEVICES" not in env
        watch.run("without", RoleWork(script))
        assert watch.end("without").outcome is Outcome.SUCCEEDED
        env = json.loads(watch.kit.log("without", 1, "worker-0"))
        assert (env["NVIDIA_VISIBLE_DEVICES"], env["CUDA_VISIBLE_DEVICES"]) == ("void", "")


def test_a_command_and_a_port_of_a_pod(kubelet: Kubelet, tmp_path: Path) -> None:
    port = free_port("127.0.0.1")
    serves = f"""
        import http.server, os
        print("token", os.environ["PRESAGE_PORT_TOKEN"], flush=True)
        handler = http.server.SimpleHTTPRequestHandler
        http.server.HTTPServer(("127.0.0.1", {port}), handler).serve_forever()
    """
    with closing(KubernetesKit(tmp_path, kubelet.plane, kubelet.name)) as kit:
        watch = Watcher(kit)
        watch.run("serves", RoleWork(dedented(serves)), ports=[port], env={"A": "b"})
        watch.until_log("serves", "token")
        executor = watch.executor
        assert isinstance(executor, CanAttach)
        script = 'echo "$A $TERM $PWD"; cat /nothing; exit 7'
        command = AttachedClient(
            executor.attach("serves", 1, "worker-0"), argv=["sh", "-c", script], term="vt100"
        )
        command.say(frames.EOF)
        command.begin()
        code, out, err = command.rest()
        assert (code, out) == (7, b"b vt100 /presage/runs/serves/1/work\n")
        assert b"/nothing" in err
        command.leave()

        shell = AttachedClient(
            executor.attach("serves", 1, "worker-0"), argv=["sh"], tty=True, rows=33, columns=77
        )
        shell.begin()
        shell.say(frames.STDIN, b"echo ty''ped\n")
        shell.until(b"typed")
        shell.say(frames.STDIN, b"exit 5\n")
        assert shell.rest()[0] == 5
        shell.leave()

        leaver = AttachedClient(executor.attach("serves", 1, "worker-0"), argv=["sleep", "1000"])
        leaver.begin()
        assert _sleepers() == 1
        leaver.leave()
        eventually(lambda: _sleepers() == 0)

        link = executor.attach("serves", 1, "worker-0")
        client = AttachedClient(link, port=port)
        token = client.begin()["token"]
        assert f"token {token}\n" in kit.log("serves", 1, "worker-0")
        link.sendall(b"GET / HTTP/1.0\r\n\r\n")
        answer = b""
        while data := link.recv(65536):
            answer += data
        assert answer.startswith(b"HTTP/1.0 200")
        client.leave()
        watch.stop("serves")
        watch.end("serves")
    kubelet.plane.clear(nodes=False)


def _sleepers() -> int:
    told = subprocess.run(["pgrep", "-xf", "sleep 1000"], capture_output=True, check=False)
    return len(told.stdout.split())


def test_what_a_worker_uses_is_measured(kubelet: Kubelet, tmp_path: Path) -> None:
    busy = """
        held = b"x" * (96 << 20)
        while True: pass
    """
    file = Layout(tmp_path).telemetry("busy", 1)

    def measured() -> bool:
        text = file.read_bytes() if file.exists() else b""
        big = [row for row in rows(text.splitlines()) if (row.rss_mib or 0) > 96]
        return {row.worker for row in big if row.cpu_s} == {"worker-0", "worker-1"}

    with closing(KubernetesKit(tmp_path, kubelet.plane, kubelet.name)) as kit:
        watch = Watcher(kit)
        watch.run("busy", RoleWork(dedented(busy), workers=2))
        watch.until(measured, "measured")
        watch.stop("busy")
        watch.end("busy")
    kubelet.plane.clear(nodes=False)


def test_files_are_brought_and_kept(kubelet: Kubelet, tmp_path: Path) -> None:
    script = """
        import os, pathlib, sys
        data = pathlib.Path(os.environ["PRESAGE_DATA_DIR"], "set", "numbers.txt").read_text()
        print("data", data.strip(), "here", sorted(os.listdir()), flush=True)
        before = sorted(os.listdir("ckpt"))
        print("before", before, flush=True)
        pathlib.Path("ckpt", f"step-{len(before)}").write_text("saved")
        pathlib.Path("made.txt").write_text("made here")
        sys.exit(0 if before else 3)
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        entry = tarfile.TarInfo("given/numbers.txt")
        entry.size = 6
        archive.addfile(entry, io.BytesIO(b"1 2 3\n"))
    layout = Layout(tmp_path)
    layout.folders.mkdir(parents=True)
    layout.folder("0123abcd").write_bytes(packed.getvalue())
    with closing(KubernetesKit(tmp_path, kubelet.plane, kubelet.name)) as kit:
        watch = Watcher(kit)
        kit.add_job(
            "files",
            RoleWork(dedented(script)),
            data={"set": "given"},
            checkpoint={"dir": "ckpt"},
            results="/presage/jobs/files/checkpoints/stored",
        )
        file = layout.job_file("files")
        file.write_text(json.dumps({**json.loads(file.read_text()), "folder": "0123abcd"}))
        for attempt, outcome in ((1, Outcome.FAILED), (2, Outcome.SUCCEEDED)):
            watch.executor.launch(Launch("files", attempt, (Worker(0, 0, kubelet.name, ()),)))
            assert watch.end("files", attempt).outcome is outcome
        assert "data 1 2 3 here ['ckpt', 'given']" in kit.log("files", 1, "worker-0")
        kept = layout.checkpoints("files")
        assert (kept / "step-0").read_text() == "saved"
        assert (layout.results("files") / "made.txt").read_text() == "made here"
        assert (kept / "stored" / "made.txt").read_text() == "made here"
        assert not (layout.results("files") / "ckpt").exists()
    kubelet.plane.clear(nodes=False)
