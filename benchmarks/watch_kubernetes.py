"""A day of a Kubernetes with the default scheduler, watched: are its starts foreseen, and is the
journal what happened?

    python -m benchmarks.watch_kubernetes [--faster 60] [--hours 24] [--nodes 8] [--load 1.05]
                                          [--seed 1] [--json]

A control plane of its own (etcd, kube-apiserver, kube-scheduler; nodes are API objects) gets the
pods of a day, so many times faster. There is no kubelet: a stand-in sets the status of pods that
are bound, Running at once and Succeeded when their time is over. The watcher sees times stretched
back. Its token has get, list and watch on pods and nodes; the API server's audit log has every
request, and those of the watcher are counted. The watcher is killed (SIGKILL) twice and the API
server once, in the middle. At the end, the journal is compared with the pods.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from benchmarks._watching import Task, a_day, watch
from presage.control.watch.scores import read_scores, report
from presage.executors.kubernetes.watching import KubernetesSource, pod_id, seen_pod
from presage.layout import Layout
from presage.store import open_store
from tests.kubernetes_plane import Plane
from tests.watched_slurm import Told, journal_of

SIZES = {1: 0.6, 2: 0.2, 4: 0.2}
PODS = "/api/v1/namespaces/default/pods"
AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "users": ["watcher"]}, {"level": "None"}],
}


class Kubelets:
    """Runs pods: those that are bound are Running at once, and Succeeded when their time is
    over."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._ends: list[tuple[float, str]] = []
        self._known: set[str] = set()

    def step(self) -> None:
        """Look once."""
        now = time.time()
        for pod in self._plane.call("GET", PODS)["items"]:
            name = pod["metadata"]["name"]
            if pod["spec"].get("nodeName") and name not in self._known:
                self._known.add(name)
                self._set(name, "Running", {"running": {"startedAt": _text(now)}})
                run_s = float(pod["metadata"]["annotations"]["run-s"])
                heappush(self._ends, (now + run_s, name))
        while self._ends and self._ends[0][0] <= now:
            _, name = heappop(self._ends)
            done = {"exitCode": 0, "finishedAt": _text(now), "startedAt": _text(now)}
            self._set(name, "Succeeded", {"terminated": done})

    def _set(self, name: str, phase: str, state: dict[str, Any]) -> None:
        one = {"name": "c", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
        status = {"phase": phase, "containerStatuses": [{**one, "state": state}]}
        self._plane.call("PATCH", f"{PODS}/{name}/status", {"status": status})


def _text(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def submit(plane: Plane, number: int, task: Task, faster: float) -> None:
    """One pod."""
    limits = {"nvidia.com/gpu": str(task.gpus), "cpu": "1"}
    container = {"name": "c", "image": "x", "resources": {"limits": limits}}
    meta = {
        "name": f"{task.name}-{number}",
        "generateName": f"{task.name}-",
        "annotations": {"run-s": f"{task.run_s / faster:.2f}"},
    }
    plane.call("POST", PODS, {"metadata": meta, "spec": {"containers": [container]}})


class Day:
    """One run of the benchmark."""

    def __init__(self, plane: Plane, options: argparse.Namespace) -> None:
        self.plane, self.options = plane, options
        self.data = plane.home / "watched"
        self.data.mkdir()
        self.began = 0.0
        self.watcher: subprocess.Popen[bytes] | None = None

    def start_watcher(self) -> None:
        """With a token that may only look."""
        words = [str(self.data), repr(self.began), repr(self.options.faster)]
        command = [sys.executable, "-m", "benchmarks.watch_kubernetes", "--watcher", *words]
        env = {**os.environ, "KUBECONFIG": str(self.plane.kubeconfig("watcher"))}
        self.watcher = subprocess.Popen(command, env=env)

    def kill_watcher(self, how: signal.Signals = signal.SIGKILL) -> None:
        """And wait for its end."""
        assert self.watcher is not None
        self.watcher.send_signal(how)
        self.watcher.wait()

    def run(self) -> None:
        """Create the day's pods, with accidents on the way, and wait for the last to end."""
        options, plane = self.options, self.plane
        tasks = a_day(options.hours, options.nodes * 4, options.load, options.seed, SIZES)
        print(f"{len(tasks)} pods in {options.hours * 60 / options.faster:.0f} min", flush=True)
        accidents: list[tuple[float, str, Callable[[], None]]] = [
            (0.35, "the watcher is killed", self.kill_watcher),
            (0.37, "the watcher starts again", self.start_watcher),
            (0.50, "the API server is killed, and starts again", plane.restart_api),
            (0.70, "the watcher is killed", self.kill_watcher),
            (0.75, "the watcher starts again", self.start_watcher),
        ]
        self.began = float(int(time.time()))
        self.start_watcher()
        kubelets = Kubelets(plane)
        waiting = list(enumerate(tasks))
        while waiting or accidents or self._alive():
            at_s = (time.time() - self.began) * options.faster
            if accidents and at_s >= accidents[0][0] * options.hours * 3600:
                _, what, act = accidents.pop(0)
                print(f"{at_s / 3600:.1f} h: {what}", flush=True)
                act()
            while waiting and at_s >= waiting[0][1].at_s:
                number, task = waiting.pop(0)
                submit(plane, number, task, options.faster)
            kubelets.step()
            time.sleep(0.2)
        time.sleep(8)
        self.kill_watcher(signal.SIGTERM)

    def _alive(self) -> bool:
        pods = self.plane.call("GET", PODS)["items"]
        return any(pod["status"]["phase"] != "Succeeded" for pod in pods)

    def results(self) -> dict[str, Any]:
        """What is to be shown."""
        store = open_store(f"sqlite:///{Layout(self.data).database}")
        scored = read_scores(store.knowledge)
        ours = journal_of(store, self._fast)
        store.close()
        half = self.began + self.options.hours * 1800
        lines = (self.plane.home / "audit.log").read_text().splitlines()
        verbs = Counter(str(json.loads(line)["verb"]) for line in lines)
        return {
            "faster": self.options.faster,
            "report": report(scored),
            "second_half": report(scored, half),
            "journal": self._compare(ours),
            "asked": dict(verbs),
            "refused": self._refused(),
        }

    def _compare(self, ours: dict[str, Told]) -> dict[str, int]:
        counts = Counter[str](pods=0, missing=0, other=0)
        for pod in self.plane.call("GET", PODS)["items"]:
            counts["pods"] += 1
            seen = seen_pod(pod)
            run = seen.runs[-1]
            assert run.end is not None
            outcome = str(run.end.outcome)
            created, started, ended = map(round, (seen.submitted_at, run.started_at, run.end.at))
            truth = Told(created, started, ended, outcome)
            mine = ours.pop(pod_id(pod), None)
            counts["missing"] += mine is None
            if mine is not None and mine != truth:
                counts["other"] += 1
                print(f"{seen.id}: {mine} here, {truth} there", file=sys.stderr)
        counts["more"] = len(ours)
        return dict(counts)

    def _fast(self, at: float) -> int:
        return round(self.began + (at - self.began) / float(self.options.faster))

    def _refused(self) -> int:
        """The status of an answer to a watcher who tries to change something."""
        pod = self.plane.call("GET", PODS)["items"][0]["metadata"]["name"]
        try:
            self.plane.call("DELETE", f"{PODS}/{pod}", user="watcher")
        except urllib.error.HTTPError as error:
            return error.code
        return 200


def main() -> None:
    """Run a day and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faster", type=float, default=60.0)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--load", type=float, default=1.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--watcher", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.watcher:
        data, began, faster = options.watcher
        watch(KubernetesSource, Path(data), float(began), float(faster), 1.0)
        return
    plane = Plane()
    (plane.home / "audit.json").write_text(json.dumps(AUDIT))
    plane.flags = (
        f"--audit-policy-file={plane.home}/audit.json",
        f"--audit-log-path={plane.home}/audit.log",
    )
    try:
        plane.start(scheduler=True)
        rule = {"resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]}
        plane.allow("watcher", rule)
        for number in range(options.nodes):
            plane.add_node(f"n{number}", 4)
        day = Day(plane, options)
        day.run()
        results = day.results()
    finally:
        plane.close()
    print(json.dumps(results, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
