"""A real kubelet with containerd and runc beside a control plane for tests, on this machine.

Needs root, runc and busybox, and programs that `tools/engines kubernetes` built. Pods use the
network of the machine, since there is no CNI plugin. The one image, IMAGE, is made here: busybox,
this Python with its standard library, and Presage's source; nothing is pulled from anywhere.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import presage
from presage.executors.node.guardian import free_port
from presage.executors.node.limits import die_with_parent
from tests.kubernetes_plane import Plane, PlaneError
from tests.waiting import PATIENCE_S, eventually

__all__ = ["IMAGE", "Kubelet", "cannot_run"]

IMAGE = "presage.test/python:1"
_PAUSE = "presage.test/pause:1"
_SYSCTLS = {"vm/overcommit_memory": "1", "kernel/panic": "10", "kernel/panic_on_oops": "1"}
"""What a kubelet wants of the kernel and cannot set in every container."""
_CONTAINERD = """
version = 2
root = "{home}/containerd"
state = "{run}/state"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
  address = "{run}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{snapshotter}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{home}/cni-bin"
    conf_dir = "{home}/cni"
"""


def cannot_run(plane: Plane) -> str:
    """Why no kubelet can run here; empty if one can."""
    if os.geteuid() != 0:
        return "a kubelet needs root"
    for program in ("kubelet", "containerd", "containerd-shim-runc-v2", "ctr"):
        if not (plane.programs / program).is_file():
            return f"there is no {program} in {plane.programs}"
    missing = [
        name for name in ("runc", "busybox", "unshare", "nsenter") if not shutil.which(name)
    ]
    return f"{missing[0]} is not on PATH" if missing else ""


class Kubelet:
    """One node that runs pods."""

    def __init__(self, plane: Plane, name: str = "real") -> None:
        self.plane = plane
        self.name = name
        self.home = plane.home / f"kubelet-{name}"
        self._run = Path(f"/run/presage-test-{os.getpid()}")  # sockets have short names
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, gpus: int = 0) -> None:
        """Bring it up; the node is Ready when this returns, and has so many GPUs in name."""
        for part in ("cni", "cni-bin", "kubelet", "logs"):
            (self.home / part).mkdir(parents=True)
        self._run.mkdir(exist_ok=True)
        loop = {"cniVersion": "0.3.1", "name": "lo", "type": "loopback"}
        (self.home / "cni" / "10-lo.conf").write_text(json.dumps(loop))
        self._start_containerd()
        self._import_images()
        self._start_kubelet()
        eventually(self._ready)
        if gpus:
            have = {"capacity": {"nvidia.com/gpu": str(gpus)}}
            self.plane.call("PATCH", f"/api/v1/nodes/{self.name}/status", {"status": have})
            eventually(lambda: "nvidia.com/gpu" in self._node()["status"]["allocatable"])

    def close(self) -> None:
        """End it, and every container that it left."""
        for process in reversed(self._running[1:]):
            process.kill()
            process.wait()
        if self._running:
            with suppress(subprocess.SubprocessError):
                listed = self._ctr("tasks", "list", "-q").split()
                for task in listed:
                    with suppress(subprocess.SubprocessError):
                        self._ctr("tasks", "kill", "-s", "SIGKILL", "-a", task)
                for task in listed:
                    with suppress(subprocess.SubprocessError):
                        self._ctr("tasks", "delete", "-f", task)
            self._running[0].kill()
            self._running[0].wait()
        shutil.rmtree(self._run, ignore_errors=True)
        shutil.rmtree(self.home, ignore_errors=True)

    def said(self, program: str) -> str:
        """The last lines that containerd or the kubelet wrote."""
        log = (self.home / "logs" / program).read_text(errors="replace")
        return "\n".join(log.splitlines()[-25:])

    # -- programs -------------------------------------------------------------------------------

    def _start_containerd(self) -> None:
        config = self.home / "containerd.toml"
        config.write_text(
            _CONTAINERD.format(
                home=self.home, run=self._run, pause=_PAUSE, snapshotter=_snapshotter(self.home)
            )
        )
        # Both see the same mounts: those that the kubelet makes for volumes are for containers.
        steps = []
        for number, (name, value) in enumerate(_SYSCTLS.items()):
            fake = self.home / f"sysctl-{number}"
            fake.write_text(f"{value}\n")
            steps.append(f"mount --bind {fake} /proc/sys/{name}")
        steps.append(f"exec {self.plane.programs}/containerd -c {config}")
        self._start("containerd", ["unshare", "-m", "sh", "-c", " && ".join(steps)])
        socket = self._run / "containerd.sock"

        def answers() -> bool:
            if self._running[0].poll() is not None:
                raise PlaneError(f"containerd ended:\n{self.said('containerd')}")
            if not socket.exists():
                return False
            with suppress(subprocess.SubprocessError):
                self._ctr("version")
                return True
            return False

        eventually(answers)

    def _start_kubelet(self) -> None:
        flags = [
            f"--kubeconfig={self.plane.kubeconfig()}",
            "--container-runtime=remote",
            f"--container-runtime-endpoint=unix://{self._run}/containerd.sock",
            f"--hostname-override={self.name}",
            f"--root-dir={self.home}/kubelet",
            f"--cert-dir={self.home}/kubelet-certs",
            "--address=127.0.0.1",
            f"--port={free_port('127.0.0.1')}",
            "--read-only-port=0",
            "--healthz-port=0",
            "--cgroups-per-qos=false",
            "--enforce-node-allocatable=",
            "--fail-swap-on=false",
            "--anonymous-auth=true",
            "--authorization-mode=AlwaysAllow",
            "--eviction-hard=",
            "--resolv-conf=",
            f"--pod-infra-container-image={_PAUSE}",
            "--sync-frequency=1s",
            "--v=2",
        ]
        within = ["nsenter", "-m", "-t", str(self._running[0].pid)]
        self._start("kubelet", [*within, str(self.plane.programs / "kubelet"), *flags])

    def _start(self, name: str, argv: list[str]) -> None:
        parent = os.getpid()
        path = f"{self.plane.programs}:{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
        with (self.home / "logs" / name).open("ab") as log:
            self._running.append(
                subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, "PATH": path},
                    preexec_fn=lambda: die_with_parent(parent),
                )
            )

    def _ctr(self, *words: str) -> str:
        argv = [str(self.plane.programs / "ctr"), "-a", f"{self._run}/containerd.sock"]
        done = subprocess.run(
            [*argv, "-n", "k8s.io", *words], check=True, capture_output=True, timeout=PATIENCE_S
        )
        return done.stdout.decode()

    def _node(self) -> dict[str, Any]:
        return self.plane.call("GET", f"/api/v1/nodes/{self.name}")

    def _ready(self) -> bool:
        if self._running[1].poll() is not None:
            raise PlaneError(f"the kubelet ended:\n{self.said('kubelet')}")
        try:
            conditions = self._node()["status"].get("conditions") or ()
        except OSError:
            return False
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def _import_images(self) -> None:
        wait = ["/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 3600 & wait; done"]
        busy = {f"bin/{name}": Path(shutil.which("busybox") or "") for name in _APPLETS}
        for name, files, command in ((_PAUSE, busy, wait), (IMAGE, {**busy, **_python()}, [])):
            tar = self.home / "image.tar"
            _write_image(tar, name, files, command)
            self._ctr("images", "import", str(tar))
            tar.unlink()


_APPLETS = ("busybox", "sh", "sleep", "ls", "true", "cat", "echo")


def _snapshotter(home: Path) -> str:
    """Overlays where the file system allows them, copies elsewhere."""
    for part in ("lower", "upper", "work", "merged"):
        (home / "probe" / part).mkdir(parents=True)
    probe = home / "probe"
    options = f"lowerdir={probe}/lower,upperdir={probe}/upper,workdir={probe}/work"
    argv = ["mount", "-t", "overlay", "overlay", "-o", options, f"{probe}/merged"]
    if subprocess.run(argv, check=False, capture_output=True).returncode != 0:
        return "native"
    subprocess.run(["umount", f"{probe}/merged"], check=True)
    return "overlayfs"


def _python() -> dict[str, Path]:
    """This Python, its standard library, the libraries they need, and Presage's source."""
    base = Path(sys.base_prefix)
    program = Path(os.path.realpath(sys.executable))
    library = base / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    files = {str(program)[1:]: program, "bin/python3": program}
    skipped = {
        "test",
        "site-packages",
        "__pycache__",
        "idlelib",
        "ensurepip",
        "lib2to3",
        "tkinter",
    }
    for path in library.rglob("*"):
        if path.is_file() and not skipped & set(path.relative_to(library).parts):
            files[str(path)[1:]] = path
    for binary in (program, *library.glob("lib-dynload/_*.so")):
        listed = subprocess.run(["ldd", str(binary)], check=False, capture_output=True).stdout
        for word in listed.decode().split():
            if word.startswith("/") and Path(word).is_file():
                files[word[1:]] = Path(os.path.realpath(word))
    source = Path(presage.__file__).parent
    for path in source.rglob("*.py"):
        files[f"opt/presage/{path.relative_to(source.parent)}"] = path
    return files


def _write_image(tar: Path, name: str, files: dict[str, Path], command: list[str]) -> None:
    """An image of one layer, in the form that docker saves."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as packed:
        for directory in ("tmp", "proc", "sys", "dev", "etc"):
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o777
            packed.addfile(entry)
        for path, source in files.items():
            packed.add(source, path, recursive=False)
    body = layer.getvalue()
    home = str(Path(sys.base_prefix))
    config = {
        "architecture": "amd64" if os.uname().machine == "x86_64" else "arm64",
        "os": "linux",
        "config": {
            "Cmd": command,
            "Env": ["PATH=/bin", f"PYTHONHOME={home}", "PYTHONPATH=/opt/presage"],
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(body).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    parts = {
        "layer.tar": body,
        "config.json": json.dumps(config).encode(),
        "manifest.json": json.dumps(manifest).encode(),
    }
    with tarfile.open(tar, "w") as packed:
        for part, content in parts.items():
            entry = tarfile.TarInfo(part)
            entry.size = len(content)
            packed.addfile(entry, io.BytesIO(content))
