"""The executor `kubernetes`: one pod a worker, placed by us alone.

Launches and stops become runs (`run.PodRun`), which a few threads take further, step by step;
watches of pods and nodes say when there is something to do. What the cluster holds is the truth: a
new executor lists the records of runs there and goes on with them.
"""

from __future__ import annotations

import heapq
import logging
import os
import select
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from socket import socket

from presage.executors.kubernetes.api import CONFIG_MAPS, NODES, PODS, KubeApi
from presage.executors.kubernetes.attaching import PodDoors
from presage.executors.kubernetes.context import RunContext
from presage.executors.kubernetes.devices import is_usable, run_node
from presage.executors.kubernetes.limiting import RESIZE
from presage.executors.kubernetes.logs import LogReaders
from presage.executors.kubernetes.monitor import Key, has_begun, over
from presage.executors.kubernetes.pods import ATTEMPT, JOB, MANAGED, RECORD, WORKER
from presage.executors.kubernetes.reflect import Reflector
from presage.executors.kubernetes.run import PodRun
from presage.executors.kubernetes.settings import ClusterUse
from presage.executors.node.plan import LOG_CAP
from presage.executors.node.runspec import RunSpec
from presage.layout import Layout
from presage.model.cluster import Node
from presage.model.errors import KubernetesError, RunSpecError
from presage.model.event import (
    Fact,
    JobExited,
    Launch,
    LaunchFailed,
    Limit,
    NodeChanged,
    NodeDown,
    NodeDraining,
    NodeUp,
    Outcome,
    Resize,
    ScaleRequested,
    Stop,
)
from presage.model.job import Reason, ReasonCode

__all__ = ["KubernetesExecutor", "usable_nodes"]

log = logging.getLogger("presage.kubernetes")

_HANDS = 16
"""Runs that are taken further at the same time."""
_LONGEST_PAUSE_S = 2.0
_WISHES_S = 1.0


class KubernetesExecutor:
    """Runs jobs in one namespace of a Kubernetes cluster."""

    def __init__(
        self,
        data: Path,
        api: KubeApi,
        use: ClusterUse | None = None,
        *,
        log_cap: int = LOG_CAP,
        hands: int = _HANDS,
    ) -> None:
        self.prepare: Callable[[str], object] = lambda job: None
        """Called before a launch, to put the job's file where it is read."""
        self.follow_up: Callable[[Sequence[Fact]], list[Fact]] = lambda facts: []
        """Facts that follow from those of a poll."""
        self._layout = Layout(Path(data).absolute())
        self._api = api
        self._use = use or ClusterUse()
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._logs = LogReaders(api, self._layout, api.namespace, log_cap)
        self._doors = PodDoors(api)
        self._lock = threading.Lock()
        self._facts: list[Fact] = []
        self._told: list[PodRun] = []
        """Runs whose end the last poll returned."""
        self._wished: list[PodRun] = []
        """Runs whose wish for workers the last poll returned."""
        self._wishes_at = 0.0
        if not self._use.lasting:
            # No checkpoint outlives a pod: a job of another size would begin anew.
            self.resize = None  # type: ignore[method-assign,assignment]
        if not api.offers(f"pods/{RESIZE}"):
            self.limit = None  # type: ignore[method-assign,assignment]
        self._runs: dict[Key, PodRun] = {}
        self._waiting: dict[Key, Launch] = {}
        """Launches that wait for the rest of their workers."""
        self._known: dict[str, Node] = {}
        """Nodes as the caller knows them."""
        self._before: dict[str, Node] = {}
        """Every node that was ever told, as it was then."""
        self._late: dict[str, Node] = {}
        """Nodes that are others than before and wait until no run is left on them."""
        self._draining: set[str] = set()
        self._due = threading.Condition()
        self._agenda: list[tuple[float, int, Key]] = []
        self._next: dict[Key, float] = {}
        self._serial = 0
        self._closed = False
        self._nodes = Reflector(api, NODES, on_change=self.wake)
        self._pods = Reflector(
            api, PODS, api.namespace, labels=f"{MANAGED}=presage", on_change=self._sort_pods
        )
        self._context = RunContext(
            api=api,
            use=self._use,
            layout=self._layout,
            namespace=api.namespace,
            node=self._nodes.get,
            tell=self._tell,
            follow=self._logs.follow if self._use.logs else lambda *_: None,
            listen=self._logs.listen if self._use.logs else lambda *_: None,
            logs_are_in=self._logs.are_in,
            forget_logs=self._logs.forget,
        )
        self._nodes.start()
        self._node_changes()
        self._adopt_all()
        self._pods.start()
        self._sort_pods()
        self._threads = [
            threading.Thread(target=self._work, name=f"kubernetes-{n}", daemon=True)
            for n in range(hands)
        ]
        for thread in self._threads:
            thread.start()

    # -- the port -------------------------------------------------------------------------------

    def nodes(self) -> Sequence[Node]:
        """The nodes of the cluster that take pods."""
        return tuple(self._known.values())

    def launch(self, decision: Launch) -> None:
        """Start these workers; JobStarted or LaunchFailed follows."""
        key = (decision.job, decision.attempt)
        if key in self._runs:
            self._plan(key)
            return
        self.prepare(decision.job)
        before = self._waiting.get(key)
        workers = dict.fromkeys((*(before.workers if before else ()), *decision.workers))
        launch = Launch(*key, tuple(workers))
        try:
            if self._layout.logs(*key).is_dir():
                text = "the run was started before and is gone; the job starts again"
                self._tell(JobExited(*key, Outcome.LOST, Reason(ReasonCode.NODE_LOST, text)))
            elif not _complete(RunSpec.load(self._layout.job_file(decision.job)), launch):
                self._waiting[key] = launch
                return
            else:
                run = PodRun(key, self._context)
                run.workers = launch.workers
                self._runs[key] = run
                self._plan(key)
        except RunSpecError as error:
            self._tell(LaunchFailed(*key, Reason(ReasonCode.LAUNCH_FAILED, str(error))))
        self._waiting.pop(key, None)

    def stop(self, decision: Stop) -> None:
        """Stop a run after a checkpoint; JobExited follows, also when there is no such run."""
        key = (decision.job, decision.attempt)
        self._waiting.pop(key, None)
        run = self._runs.get(key)
        if run is not None:
            run.stop = run.stop or decision.reason
            self._plan(key)
            return
        if self._layout.job(decision.job).is_dir():
            with suppress(OSError):
                self._layout.logs(*key).mkdir(parents=True, exist_ok=True)  # a late Launch sees it
        self._tell(JobExited(*key, Outcome.STOPPED, decision.reason))

    def resize(self, decision: Resize) -> None:
        """Change a run to exactly these workers; JobResized follows, or JobExited if it ends
        first. None where pods see no storage that outlives them."""
        run = self._runs.get((decision.job, decision.attempt))
        if run is not None:
            run.change.asked = decision.workers
            self._plan(run.key)

    def limit(self, decision: Limit) -> None:
        """Hold the workers of the first role to these limits while they go on. None where the API
        server has no `pods/resize`."""
        run = self._runs.get((decision.job, decision.attempt))
        if run is not None:
            run.limits.ask(decision.limits)
            self._plan(run.key)

    def poll(self, now: float) -> list[Fact]:
        """Facts since the last poll, in the order they happened, nodes first. Asking again says
        that those of the last poll are safely written down."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._event)
        for run in self._told:
            self._plan(run.key)  # its remains are removed
        for run in self._wished:
            run.change.wish_is_safe()
        self._told, self._wished = [], []
        facts = self._node_changes()
        with self._lock:
            taken, self._facts = self._facts, []
        facts += taken
        for fact in taken:
            if isinstance(fact, JobExited | LaunchFailed):
                run_of = self._runs.get((fact.job, fact.attempt))
                if run_of is not None:
                    run_of.heard = True
                    self._told.append(run_of)
        facts += self._wishes()
        if self._told:
            self.wake()
        return facts + self.follow_up(facts)

    def _wishes(self) -> list[Fact]:
        """What programs of elastic runs ask for, looked for now and then."""
        if time.monotonic() < self._wishes_at:
            return []
        self._wishes_at = time.monotonic() + _WISHES_S
        wishes = [(run, run.wish()) for run in list(self._runs.values())]
        self._wished = [run for run, workers in wishes if workers is not None]
        return [ScaleRequested(run.key[0], count) for run, count in wishes if count is not None]

    def attach(self, job: str, attempt: int, worker: str) -> socket:
        """A connection to the pod of a worker; any thread may ask."""
        run = self._runs.get((job, attempt))
        pod = run.pods.get(worker) if run is not None else None
        if run is None or pod is None or not has_begun(pod) or over(pod):
            raise ConnectionRefusedError(f"{worker} of job {job} does not run")
        return self._doors.open(pod, worker, run.ports)

    # -- beyond the port ------------------------------------------------------------------------

    def fileno(self) -> int:
        """Readable when there is something to poll, for `select` and event loops."""
        return self._event

    def wait(self, timeout_s: float) -> bool:
        """Block until there may be something to poll, `wake` is called, or the time has passed;
        says whether one of the first two."""
        return bool(select.select([self._event], [], [], timeout_s)[0])

    def wake(self) -> None:
        """End a `wait`; may be called from any thread."""
        with suppress(OSError):  # it was just closed
            os.eventfd_write(self._event, 1)

    def logs(self, job: str, attempt: int, worker: str) -> Path:
        """Where the log of a worker is ("worker-0")."""
        return self._layout.log(job, attempt, worker)

    def close(self) -> None:
        """Let go; jobs go on."""
        with self._due:
            self._closed = True
            self._due.notify_all()
        self._logs.close()
        self._doors.close()
        self._pods.close()
        self._nodes.close()
        for thread in self._threads:
            thread.join()
        os.close(self._event)

    # -- runs -----------------------------------------------------------------------------------

    def _adopt_all(self) -> None:
        """Go on with the runs that the cluster has records of. Those of jobs that this data
        directory does not have are another server's, and left alone."""
        labels = f"{MANAGED}=presage,{RECORD}=true"
        for record in self._api.list(CONFIG_MAPS, self._api.namespace, labels=labels).items:
            notes = record["metadata"].get("annotations") or {}
            with suppress(KeyError, ValueError, TypeError):  # not written by us, then
                key = (notes[JOB], int(notes[ATTEMPT]))
                if not self._layout.job_file(key[0]).exists():
                    log.warning("run %d of job %s in the cluster is not ours", key[1], key[0])
                    continue
                self._runs[key] = PodRun(key, self._context, record)
                self._plan(key)

    def _sort_pods(self) -> None:
        """Hand what the watch saw to the runs it is about."""
        for change in self._pods.changes():
            meta = change.object["metadata"]
            notes = meta.get("annotations") or {}
            name = (meta.get("labels") or {}).get(WORKER)
            with suppress(KeyError, ValueError):
                run = self._runs.get((notes[JOB], int(notes[ATTEMPT])))
                if run is not None and name:
                    run.saw(name, change.object, deleted=change.deleted)
                    self._plan(run.key)

    def _plan(self, key: Key, after_s: float = 0.0) -> None:
        """Have a run taken further, now or in a while."""
        at = time.monotonic() + after_s
        with self._due:
            if self._next.get(key, float("inf")) <= at:
                return
            self._next[key] = at
            self._serial += 1
            heapq.heappush(self._agenda, (at, self._serial, key))
            self._due.notify()

    def _take(self) -> Key | None:
        """The run whose turn it is; None when there will be none any more."""
        with self._due:
            while not self._closed:
                now = time.monotonic()
                if self._agenda and self._agenda[0][0] <= now:
                    at, _, key = heapq.heappop(self._agenda)
                    if self._next.get(key) == at:
                        del self._next[key]
                        return key
                    continue
                self._due.wait(self._agenda[0][0] - now if self._agenda else None)
        return None

    def _work(self) -> None:
        while (key := self._take()) is not None:
            run = self._runs.get(key)
            if run is None:
                continue
            if not run.lock.acquire(blocking=False):
                self._plan(key, 0.01)
                continue
            try:
                self._advance(run)
            except Exception:  # one run must not end the thread that takes all others further
                log.exception("run %d of job %s", run.key[1], run.key[0])
                self._plan(key, _LONGEST_PAUSE_S)
            finally:
                run.lock.release()

    def _advance(self, run: PodRun) -> None:
        try:
            if run.heard:
                run.remove()
                self._runs.pop(run.key, None)
                self._logs.forget(run.key)
                return
            again_s = run.advance()
            run.tries = 0
        except KubernetesError as error:
            run.tries += 1
            again_s = min(_LONGEST_PAUSE_S, 0.02 * 2 ** min(run.tries, 8))
            if run.tries == 1:
                log.info("run %d of job %s: %s", run.key[1], run.key[0], error)
        if again_s is not None:
            self._plan(run.key, again_s)

    def _tell(self, fact: Fact) -> None:
        with self._lock:
            self._facts.append(fact)
        self.wake()

    # -- nodes ----------------------------------------------------------------------------------

    def _node_changes(self) -> list[Fact]:
        """Nodes that came, went, or are to be left; the runs on them are looked at."""
        facts: list[Fact] = []
        for change in self._nodes.changes():
            item = change.object
            name = item["metadata"]["name"]
            usable = not change.deleted and is_usable(item)
            cordoned = bool(item.get("spec", {}).get("unschedulable"))
            known = self._known.get(name)
            if usable:
                facts += self._came(run_node(item))
                continue
            self._late.pop(name, None)
            if known is not None and cordoned and not change.deleted:
                if name not in self._draining:
                    self._draining.add(name)
                    facts.append(NodeDraining(name))
            elif known is not None:
                del self._known[name]
                self._draining.discard(name)
                facts.append(NodeDown(name))
            for run in list(self._runs.values()):
                if run.on(name):
                    self._plan(run.key)
        for node in list(self._late.values()):
            facts += self._came(node)
        return facts

    def _came(self, node: Node) -> list[Fact]:
        """A node takes pods, perhaps as before. One that offers something else than it did is
        told when no run is left on it: until then it is not what those were placed on."""
        name = node.name
        known, before = self._known.get(name), self._before.get(name)
        away = known is None or name in self._draining
        self._late.pop(name, None)
        if known == node and not away:
            return []
        facts: list[Fact] = []
        if before is None or before == node:
            facts.append(NodeUp(node))
        elif replace(before, labels=node.labels, taints=node.taints, taken=node.taken) == node:
            facts += [NodeUp(before), NodeChanged(node)] if away else [NodeChanged(node)]
        elif any(run.on(name) for run in list(self._runs.values())):
            self._late[name] = node
            return []
        else:
            facts += [NodeUp(node)] if known is None else [NodeDown(name), NodeUp(node)]
        self._known[name] = self._before[name] = node
        self._draining.discard(name)
        return facts


def usable_nodes(api: KubeApi) -> tuple[Node, ...]:
    """The nodes of a cluster that take pods now."""
    return tuple(run_node(item) for item in api.list(NODES).items if is_usable(item))


def _complete(spec: RunSpec, launch: Launch) -> bool:
    """Whether every role has the workers it needs; a policy may launch them in parts."""
    have = Counter(worker.role for worker in launch.workers)
    if any(role >= len(spec.roles) for role in have):
        raise RunSpecError(f"the job has {len(spec.roles)} roles; another was launched")
    return all(have[number] >= role.min for number, role in enumerate(spec.roles))
