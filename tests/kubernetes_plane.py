"""A Kubernetes control plane for tests and benchmarks: etcd, kube-apiserver, controller-manager
and, if asked for, kube-scheduler, on loopback, from `KUBEBUILDER_ASSETS` or the cache of
`tools/engines`.

There is no kubelet: nodes are API objects. `Plane.kubeconfig(user)` is a file for the official
client and for KUBECONFIG; `admin` may do everything, the users in `USERS` nothing until
`Plane.allow` says so. Files that use the fixture `plane` belong to the group "kubernetes" in
`tests/order.py`, so that one plane serves a whole test run.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from presage.executors.node.guardian import free_port
from presage.executors.node.limits import die_with_parent
from tests.waiting import PATIENCE_S, eventually

__all__ = ["USERS", "Plane", "PlaneError", "find_programs", "plane_for_tests"]

USERS = ("executor", "scheduler", "watcher", "webhook", "nobody")
"""Users who may do nothing but what a test allows them."""
VERSION = "1.20.2"
"""What `tools/engine-kubernetes` builds."""
Json = dict[str, Any]


class PlaneError(Exception):
    """A program of the control plane is not there, or does not come up."""


def find_programs() -> Path:
    """The directory with the programs; raises PlaneError where there is none."""
    given = os.environ.get("KUBEBUILDER_ASSETS")
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    engines = os.environ.get("PRESAGE_ENGINES") or f"{cache}/presage/engines"
    place = Path(given) if given else Path(engines) / f"kubernetes-{VERSION}"
    if not (place / "kube-apiserver").is_file():
        raise PlaneError(f"no Kubernetes in {place}; tools/engines kubernetes builds it")
    return place


def plane_for_tests() -> Iterator[Plane]:
    """A plane for a session of tests."""
    plane = Plane()
    try:
        plane.start()
        yield plane
    finally:
        plane.close()


class Plane:
    """One control plane. Start and restart it from the main thread: its programs die with it."""

    def __init__(self, *, grace: str = "24h", flags: Sequence[str] = ()) -> None:
        """`grace`: how long a node without a heartbeat stays Ready; `flags`: further ones for the
        API server."""
        self.programs = find_programs()
        self.home = Path(mkdtemp(prefix="presage-plane-"))
        self.grace = grace
        self.flags = tuple(flags)
        self.port = free_port("127.0.0.1")
        self.url = f"https://127.0.0.1:{self.port}"
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._etcd = f"http://127.0.0.1:{free_port('127.0.0.1')}"
        self._peer = f"http://127.0.0.1:{free_port('127.0.0.1')}"
        self._tls: ssl.SSLContext | None = None

    # -- programs -------------------------------------------------------------------------------

    def start(self, *, scheduler: bool = False) -> None:
        """Bring all of it up."""
        self._write_credentials()
        self._run(
            "etcd",
            f"--data-dir={self.home}/etcd",
            f"--listen-client-urls={self._etcd}",
            f"--advertise-client-urls={self._etcd}",
            f"--listen-peer-urls={self._peer}",
            f"--initial-advertise-peer-urls={self._peer}",
            f"--initial-cluster=default={self._peer}",
            "--quota-backend-bytes=4000000000",
        )
        self.start_api()
        if (self.programs / "kube-controller-manager").is_file():
            self._run(
                "kube-controller-manager",
                f"--kubeconfig={self.kubeconfig()}",
                "--leader-elect=false",
                "--port=0",
                "--secure-port=0",
                f"--node-monitor-grace-period={self.grace}",
                f"--service-account-private-key-file={self.home}/sa.key",
                "--kube-api-qps=500",
                "--kube-api-burst=1000",
            )
        if scheduler:
            self.start_scheduler()

    def start_api(self) -> None:
        """Start the API server, and wait until it is ready."""
        self._run(
            "kube-apiserver",
            "--bind-address=127.0.0.1",
            "--insecure-port=0",
            f"--secure-port={self.port}",
            f"--cert-dir={self.home}/certs",
            f"--etcd-servers={self._etcd}",
            "--authorization-mode=Node,RBAC",
            f"--token-auth-file={self.home}/tokens.csv",
            "--service-account-issuer=https://presage.test",
            f"--service-account-key-file={self.home}/sa.key",
            f"--service-account-signing-key-file={self.home}/sa.key",
            "--disable-admission-plugins=ServiceAccount",
            "--max-requests-inflight=3000",
            "--max-mutating-requests-inflight=1000",
            "--service-cluster-ip-range=10.0.0.0/16",
            *self.flags,
        )
        eventually(self._ready)

    def kill_api(self) -> None:
        """SIGKILL to the API server."""
        self.kill("kube-apiserver")

    def restart_api(self) -> None:
        """Kill the API server and start it again on the same port."""
        self.kill_api()
        self.start_api()

    def start_scheduler(self) -> None:
        """Start kube-scheduler."""
        self._run(
            "kube-scheduler",
            f"--kubeconfig={self.kubeconfig()}",
            "--leader-elect=false",
            "--port=0",
            "--secure-port=0",
            "--kube-api-qps=1000",
            "--kube-api-burst=2000",
        )

    def kill(self, name: str) -> None:
        """SIGKILL to one of the programs, and wait until it is gone."""
        process = self.running.pop(name, None)
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def close(self) -> None:
        """End everything and leave no file."""
        for name in list(self.running):
            self.kill(name)
        shutil.rmtree(self.home, ignore_errors=True)

    def said(self, name: str) -> str:
        """The last lines that one of the programs wrote."""
        log = self.home / f"{name}.log"
        return "\n".join(log.read_text(errors="replace").splitlines()[-20:])

    def _run(self, name: str, *flags: str) -> None:
        program = self.programs / name
        if not program.is_file():
            raise PlaneError(f"there is no {name} in {self.programs}")
        parent = os.getpid()
        with (self.home / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [str(program), *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.home,
                preexec_fn=lambda: die_with_parent(parent),
            )

    def _ready(self) -> bool:
        for name in ("etcd", "kube-apiserver"):
            if self.running[name].poll() is not None:
                raise PlaneError(f"{name} ended:\n{self.said(name)}")
        if not (self.home / "certs" / "apiserver.crt").is_file():
            return False
        try:
            self.call("GET", "/readyz")
            self.call("GET", "/api/v1/namespaces/default")
        except (OSError, ValueError):
            return False
        return True

    # -- users ----------------------------------------------------------------------------------

    def kubeconfig(self, user: str = "admin") -> Path:
        """A kubeconfig for a user, with one context called `test`."""
        path = self.home / f"{user}.kubeconfig"
        if not path.exists():
            server = {
                "server": self.url,
                "certificate-authority": f"{self.home}/certs/apiserver.crt",
            }
            config = {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "test", "cluster": server}],
                "users": [{"name": user, "user": {"token": f"token-{user}"}}],
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
                "current-context": "test",
            }
            path.write_text(json.dumps(config))
        return path

    def allow(self, user: str, *rules: Mapping[str, Sequence[str]]) -> None:
        """Let a user do what these RBAC rules say, in the whole cluster, and nothing else."""
        meta = {"name": f"test-{user}"}
        role = {"metadata": meta, "rules": [{"apiGroups": [""], **rule} for rule in rules]}
        binding = {
            "metadata": meta,
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": meta["name"],
            },
            "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}],
        }
        group = "/apis/rbac.authorization.k8s.io/v1"
        for resource, body in (("clusterroles", role), ("clusterrolebindings", binding)):
            try:
                self.call("POST", f"{group}/{resource}", body)
            except urllib.error.HTTPError as error:
                if error.code != 409:
                    raise
                self.call("PUT", f"{group}/{resource}/{meta['name']}", body)

    def _write_credentials(self) -> None:
        lines = ['token-admin,admin,admin,"system:masters"']
        lines += [f"token-{user},{user},{user}" for user in USERS]
        (self.home / "tokens.csv").write_text("\n".join(lines) + "\n")
        key = str(self.home / "sa.key")
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)

    # -- objects --------------------------------------------------------------------------------

    def call(self, method: str, path: str, body: Any = None, user: str = "admin") -> Json:
        """One request, without any client of ours; raises urllib's HTTPError."""
        if self._tls is None:
            self._tls = ssl.create_default_context(cafile=f"{self.home}/certs/apiserver.crt")
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        request = urllib.request.Request(
            f"{self.url}{path}",
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer token-{user}", "Content-Type": kind},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S, context=self._tls) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:  # it would hold its connection open
            with error:
                said = io.BytesIO(error.read())
            raise urllib.error.HTTPError(
                error.url, error.code, error.reason, error.headers, said
            ) from None
        return dict(json.loads(text)) if text.startswith(b"{") else {}

    def add_node(
        self,
        name: str,
        gpus: int = 0,
        *,
        cpus: int = 64,
        memory: str = "512Gi",
        taint: Json | None = None,
        **labels: str,
    ) -> None:
        """A node that is Ready and has so many `nvidia.com/gpu`; a `_` in the name of a label is
        `-`, two are `/`. The taint is there from the beginning: of a node that is new, controllers
        may write the taints anew as they knew them a moment ago."""
        named = {key.replace("__", "/").replace("_", "-"): value for key, value in labels.items()}
        named |= {"kubernetes.io/hostname": name}
        resources = {"cpu": str(cpus), "memory": memory, "pods": "250"}
        if gpus:
            resources["nvidia.com/gpu"] = str(gpus)
        spec = {"taints": [taint] if taint else None}
        metadata = {"name": name, "labels": named}
        self.call("POST", "/api/v1/nodes", {"metadata": metadata, "spec": spec})
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        status = {"capacity": resources, "allocatable": resources, "conditions": [ready]}
        self.call("PATCH", f"/api/v1/nodes/{name}/status", {"status": status})
        self.call("PATCH", f"/api/v1/nodes/{name}", {"spec": spec})

    def remove_node(self, name: str) -> None:
        """Delete a node; no error if it is not there."""
        try:
            self.call("DELETE", f"/api/v1/nodes/{name}")
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise

    def clear(self, *, nodes: bool = True) -> None:
        """Remove all nodes, and everything in the namespace `default`, so that the next test finds
        nothing."""
        if nodes:
            self.call("DELETE", "/api/v1/nodes")
        for group, kinds in _CLEARED.items():
            for kind in kinds:
                now: Json = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
                self.call("DELETE", f"{group}/namespaces/default/{kind}", now)


_CLEARED = {
    "/api/v1": ("pods", "configmaps", "secrets", "events", "persistentvolumeclaims"),
    "/apis/batch/v1": ("jobs",),
    "/apis/networking.k8s.io/v1": ("networkpolicies",),
    "/apis/coordination.k8s.io/v1": ("leases",),
}
