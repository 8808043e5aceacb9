"""One run in a cluster: from a launch to the moment that nothing of it is left.

How a run ends is written into its record (a ConfigMap) before anything follows from it, and how
far it got before that its pods say: whoever comes after a crash goes on from there. `advance` does
the next step and may be called at any time, as often as one likes; one thread at a time. What the
API server refuses for now is tried again by who calls.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from presage.executors.kubernetes.api import (
    CONFIG_MAPS,
    EVENTS,
    NETWORK_POLICIES,
    PODS,
    SECRETS,
    SERVICES,
    Json,
    Resource,
)
from presage.executors.kubernetes.context import RunContext, may_pass
from presage.executors.kubernetes.devices import HAMI_SCHEDULER, is_usable
from presage.executors.kubernetes.hearing import StepsHeard
from presage.executors.kubernetes.limiting import PodLimits
from presage.executors.kubernetes.monitor import (
    Key,
    Sight,
    bound,
    has_begun,
    has_steps,
    judge,
    last_word,
    over,
    silent_s,
    started_at,
    stuck,
    trouble,
    why_gone,
)
from presage.executors.kubernetes.pods import (
    RUN,
    SIZE,
    RunObjects,
    placed_json,
    placed_workers,
    ranked,
    run_name,
    secrets_of,
    worker_name,
)
from presage.executors.kubernetes.resizing import SizeChange
from presage.executors.node.messages import ProgressReport, StepWord
from presage.executors.node.runspec import RunSpec
from presage.model.cluster import Worker
from presage.model.errors import KubernetesError, RunSpecError
from presage.model.event import (
    JobExited,
    JobResized,
    JobStarted,
    LaunchFailed,
    Outcome,
    Progress,
    StageChanged,
    event_from_json,
    event_to_json,
)
from presage.model.job import Reason, ReasonCode
from presage.telemetry.rows import Row

__all__ = ["PodRun"]

_LOOK_AT_EVENTS_S = 20.0
"""When events are first looked at for why a pod does not start; then half as often each time."""
_MOST_S = 300.0
_SILENT_S = 300.0
"""A node that was not heard of for so long runs nothing any more, as far as we are concerned."""


class PodRun:
    """One run."""

    def __init__(self, key: Key, context: RunContext, record: Json | None = None) -> None:
        self.key = key
        self.name = run_name(*key)
        self.workers: tuple[Worker, ...] = ()
        self.pods: dict[str, Json] = {}
        """By name of the worker, as last seen; the watch writes here, from its own thread."""
        self.gone: dict[str, Json] = {}
        """Pods that were there and are not any more, as they were."""
        self.stop: Reason | None = None
        self.end: JobExited | LaunchFailed | None = None
        self.told_end = False
        self.heard = False
        """Whether its end was polled, and the poll after that has come or is about to."""
        self.lock = threading.Lock()
        self.tries = 0
        self._context = context
        self._adopted = record is not None
        self._record = record
        self._spec: RunSpec | None = None
        self._told_start = False
        self._placed = False
        """Whether all its pods are bound, so that a missing one has vanished."""
        self._stage = ""
        self.change = SizeChange(context.layout.run(*key) / "progress")
        self._log_base: dict[str, int] = {}
        """How long our logs were when the present pods began, by worker."""
        self._began: float | None = None
        """When the first workers of this attempt began, once there were others."""
        self._heard = StepsHeard(context.layout.telemetry(*key), self._tell_progress)
        self.limits = PodLimits()
        self._since = time.monotonic()
        self._look_at = self._since + _LOOK_AT_EVENTS_S
        if record is not None:
            self._read(record)

    # -- what others ask ------------------------------------------------------------------------

    def on(self, node: str) -> bool:
        """Whether a worker of it is, or is to be, on a node."""
        return any(worker.node == node for worker in (*self.workers, *(self.change.next or ())))

    @property
    def recorded(self) -> bool:
        """Whether the cluster knows of it."""
        return self._record is not None

    @property
    def ports(self) -> tuple[int, ...]:
        """Where its program may be reached."""
        return tuple(self._spec_now().ports)

    def wish(self) -> int | None:
        """How many workers its program asks for, if it has just asked."""
        try:
            elastic = any(role.max > role.min for role in self._spec_now().roles)
        except RunSpecError:
            return None
        wants = elastic and self._context.use.lasting and self.end is None
        return self.change.wish() if wants else None

    def saw(self, worker: str, pod: Json, *, deleted: bool) -> None:
        """The watch saw a pod of it."""
        if int(pod["metadata"]["labels"].get(SIZE) or 0) != self.change.number:
            return  # of the workers before
        if not deleted:
            self.pods[worker] = pod
            return
        known = self.pods.get(worker)
        if known is None or known["metadata"]["uid"] == pod["metadata"]["uid"]:
            self.gone[worker] = pod
            self.pods.pop(worker, None)

    def remove(self) -> None:
        """Its end is written down elsewhere: take away what is left."""
        api, where = self._context.api, self._context.namespace
        if self.pods:
            query = {"labelSelector": f"{RUN}={self.name}"}
            body = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
            api.request("DELETE", PODS.path(where), query=query, body=body)
        if self._record is not None:
            api.delete(CONFIG_MAPS, self.name, where, uid=self._record["metadata"]["uid"])
        self.change.remove()

    # -- the next step --------------------------------------------------------------------------

    def advance(self) -> float | None:
        """Do what is to be done next; in how many seconds to look again although nothing was
        heard, if so. Raises KubernetesError for what may pass."""
        if self.told_end:
            return None
        try:
            if self._record is None and self.stop is None and self.end is None:
                self._make_record()
            self._tell_start()
            self._decide()
            if self.end is not None:
                return self._finish()
            if (again_s := self._change_workers()) is not None:
                return again_s
            if not self._placed:
                self._place()
                self._tell_start()
            return self._watch()
        except RunSpecError as error:
            self._refuse(str(error), ReasonCode.LAUNCH_FAILED)
        except KubernetesError as error:
            if may_pass(error):
                raise
            quota = "exceeded quota" in str(error)
            self._refuse(str(error), ReasonCode.ERROR if quota else ReasonCode.LAUNCH_FAILED)
        return self._finish()

    def _tell_start(self) -> None:
        """Tell that all workers are up, once they are; a short one may be over already."""
        change = self.change
        if not self.workers or self.end is not None or change.next is not None:
            return
        if self._told_start and not change.owed:
            return
        began = started_at(self._sights())
        if began is None:
            return
        tell, started = self._context.tell, not self._told_start
        self._told_start = True
        self._say("")
        if started:
            tell(JobStarted(*self.key, (self._began or began) if self._adopted else None))
        if change.owed:
            change.owed = False
            tell(JobResized(*self.key))

    def _decide(self) -> None:
        """See how the run ends, if it does, and write that down before anything follows."""
        if self.end is not None:
            return
        if self.stop is not None:
            self._note_end(JobExited(*self.key, Outcome.STOPPED, self.stop))
            return
        if self.change.next is not None:
            return  # they end because they were told to
        spec, sights = self._spec_now(), self._sights()
        missing = [sight.name for sight in sights if sight.pod is None]
        began = [name for name, pod in self.gone.items() if has_begun(pod)]
        if self._adopted and any(bound(pod) for pod in self.pods.values()):
            began += missing  # those who made it before us had bound all of it, or it is half gone
        if missing and (self._placed or began):
            # A worker does not start once more beside the others.
            self._note_end(self._vanished(missing[0] if self._placed else began[0]))
            return
        end = judge(
            self.key, sights, started=self._has_run, time_limit_s=spec.time_limit_s
        ) or self._taken_away(sights)
        if end is not None:
            if isinstance(end, LaunchFailed) and self._has_run:
                end = JobExited(*self.key, Outcome.FAILED, end.reason)
            self._note_end(end)

    def _taken_away(self, sights: Sequence[Sight]) -> JobExited | None:
        """What becomes of a run whose pod somebody deletes, or whose node went away."""
        for sight in sights:
            pod, place = sight.pod, self._node_of(sight.name)
            node = self._context.node(place)
            leaving = pod is not None and pod["metadata"].get("deletionTimestamp") is not None
            if leaving and pod is not None and not over(pod):
                text = why_gone(sight.name, pod, node or {})
            elif node is None and (self._placed or pod is not None):
                text = f"node {place} of {sight.name} went away"
            elif node is not None and silent_s(node) > _SILENT_S:
                text = f"node {place} of {sight.name} does not answer"
            else:
                continue
            return self._lost(text)
        return None

    def _vanished(self, name: str) -> JobExited:
        place = self._context.node(self._node_of(name))
        return self._lost(why_gone(name, self.gone.get(name), place))

    def _lost(self, text: str) -> JobExited:
        return JobExited(*self.key, Outcome.LOST, Reason(ReasonCode.NODE_LOST, text))

    # -- placing --------------------------------------------------------------------------------

    def _make_record(self) -> None:
        objects = self._objects()
        objects.check()
        secrets_of(self._context.layout, self._spec_now())  # one that is missing is found now
        logs = self._context.layout.logs(*self.key)
        logs.mkdir(parents=True, exist_ok=True)  # from here on, the run was started
        if self._context.use.lasting:
            self.change.prepare()
        self._record = self._made(CONFIG_MAPS, objects.record())
        self._read(self._record)

    def _place(self) -> None:
        """Make all objects, then bind every pod: all or none, since `_decide` has the rest removed
        when one is refused."""
        cluster, objects, record = self._context, self._objects(), self._record
        assert record is not None
        if not self.pods:
            if secrets := secrets_of(cluster.layout, self._spec_now()):
                self._made(SECRETS, objects.secret(secrets, record))
            if not cluster.use.host_network:
                if len(self.workers) > 1:
                    self._made(SERVICES, objects.service(record))
                if cluster.use.network_policy:
                    self._made(NETWORK_POLICIES, objects.policy(record))
        for name, body in objects.pods(record).items():
            if name not in self.pods:
                self.pods.setdefault(name, self._made(PODS, body))
        unbound = [w for w in self.workers if not bound(self.pods.get(self._called(w)))]
        for worker in unbound:
            node = cluster.node(worker.node)
            if node is None or not is_usable(node):
                why = "went away" if node is None else "takes no pods now"
                self._note_end(self._lost(f"node {worker.node} {why}"))
                return
        for worker in unbound:
            if self.stop is not None:
                return
            self._bind(worker, objects)
        self._placed = True

    def _bind(self, worker: Worker, objects: RunObjects) -> None:
        cluster = self._context
        name = self._called(worker)
        pod = self.pods.get(name)
        if pod is None:
            raise KubernetesError(f"the pod of {name} is gone; it is made again", 409)
        called = pod["metadata"]["name"]
        if pod["spec"].get("schedulingGates"):
            ungated = [{"op": "remove", "path": "/spec/schedulingGates"}]
            with suppress(KubernetesError):  # it was removed before; else the binding says so
                cluster.api.patch(PODS, called, ungated, cluster.namespace)
        if pod["spec"]["schedulerName"] == HAMI_SCHEDULER:
            return  # that binds it, to the same node
        body = objects.binding(pod, worker.node)
        try:
            cluster.api.create(PODS, body, cluster.namespace, name=called, sub="binding")
        except KubernetesError as error:
            if error.status not in (404, 409):
                raise
            self._look_again(name, called, worker.node)

    def _look_again(self, name: str, called: str, node: str) -> None:
        """A binding was refused: it was bound before (fine), or is not what we think it is."""
        try:
            pod = self._context.api.get(PODS, called, self._context.namespace)
        except KubernetesError as error:
            if error.status == 404:
                self.pods.pop(name, None)
                raise KubernetesError(
                    f"the pod of {name} is gone; it is made again", 409
                ) from None
            raise
        self.pods[name] = pod
        place = pod["spec"].get("nodeName")
        if place == node:
            return
        if place:
            self._note_end(self._lost(f"{name} was bound to node {place} by somebody else"))
        raise KubernetesError(f"{name} cannot be bound now", 409)

    # -- other workers --------------------------------------------------------------------------

    def _change_workers(self) -> float | None:
        """Take a resize further; in how many seconds to look again, None when there is nothing to
        do about one now."""
        change = self.change
        if change.next is None:
            if change.asked is None or not (self._told_start and self._placed) or change.owed:
                return None
            if set(change.asked) == set(self.workers):
                change.asked, change.owed = None, True
                self._tell_start()
                return None
            if not change.begun:
                self._say("resizing")
            grace_s = self._spec_now().grace_s
            if not change.stands_still(len(self.workers), len(change.asked), grace_s):
                return 0.05
            asked = tuple(ranked(change.asked))
            self._note(next=placed_json(asked))
            change.asked, change.next = None, asked
        for name, pod in list(self.pods.items()):
            self._end_pod(name, pod)
        if self.pods:
            return 1.0
        if not self._context.logs_are_in(self.key):
            return 0.1
        self._take_over(change.next)
        return None

    def _take_over(self, workers: tuple[Worker, ...]) -> None:
        """Nothing of the present workers is left: be the run of those that were asked for."""
        cluster = self._context
        logs = cluster.layout.logs(*self.key)
        self._log_base = {path.stem: path.stat().st_size for path in logs.glob("*.log")}
        begun = [began for pod in self.gone.values() if (began := started_at([Sight("", pod)]))]
        self._began = self._began or min(begun, default=time.time())
        self._note(
            workers=placed_json(workers),
            size=str(self.change.number + 1),
            next=None,
            logs=json.dumps(self._log_base),
            began=str(self._began),
        )
        cluster.forget_logs(self.key)
        self.change.done(workers)
        self.workers, self.gone, self.pods, self._placed = workers, {}, {}, False
        self._since = time.monotonic()
        self._look_at = self._since + _LOOK_AT_EVENTS_S

    @property
    def _has_run(self) -> bool:
        """Whether its workers were up at some time."""
        return self._told_start or self.change.number > 0

    # -- while it runs --------------------------------------------------------------------------

    def _watch(self) -> float | None:
        """Tell what is new of a run that goes on."""
        if self.end is not None:
            return self._finish()
        cluster, sights = self._context, self._sights()
        for sight in sights:
            if sight.pod is not None and has_begun(sight.pod):
                self._follow(sight.name, sight.pod)
            if has_steps(sight.pod):
                called = sight.pod["metadata"]["name"]
                cluster.listen(self.key, sight.name, called, partial(self._hear, sight.name))
        if self._told_start and self.limits.wanted is not None:
            self._hold_to_limits()
        if not self._told_start or self.change.owed:
            return self._look_for_trouble(sights)
        return None

    def _follow(self, name: str, pod: Json) -> None:
        called, base = pod["metadata"]["name"], self._log_base.get(name, 0)
        self._context.follow(self.key, name, called, base)

    def _look_for_trouble(self, sights: Sequence[Sight]) -> float:
        """Say what keeps workers from starting; after a while, the launch has failed."""
        cluster, clock = self._context, time.monotonic()
        left_s = self._look_at - clock
        if left_s > 0:
            return left_s
        again_s = min(_MOST_S, max(_LOOK_AT_EVENTS_S, clock - self._since))
        self._look_at = clock + again_s
        said = ""
        for sight in sights:
            if sight.pod is None or sight.pod["status"].get("phase") != "Pending":
                continue
            fields = f"involvedObject.uid={sight.pod['metadata']['uid']}"
            events: Sequence[Json] = ()
            with suppress(KubernetesError):  # without permission for events, the pod itself tells
                events = cluster.api.list(EVENTS, cluster.namespace, fields=fields).items
            said = trouble(sight.pod, events)
            if said:  # one is enough: a look at events costs the API server a lot
                break
        if clock - self._since > cluster.use.patience_s:
            text = (
                f"not started after {cluster.use.patience_s:g} s: {said or 'no reason is given'}"
            )
            self._refuse(text, ReasonCode.ERROR)
        else:
            self._say(said)
        return again_s

    def _say(self, stage: str) -> None:
        """What the run is at now, if that is new."""
        if stage != self._stage:
            self._stage = stage
            self._context.tell(StageChanged(*self.key, stage))

    def _hold_to_limits(self) -> None:
        """Hold the workers of the first role to less, or to all that the job asked for again."""
        api, spec = self._context.api, self._spec_now()
        if self.limits.unwritten:
            self._note(limits=self.limits.json())
            self.limits.unwritten = False
        for worker in self.workers:
            name = self._called(worker)
            pod = self.pods.get(name) if worker.role == 0 else None
            if pod is not None and not over(pod):
                held = self.limits.hold(api, pod, spec.roles[0], self._heard.used_mib.get(name))
                self.pods[name] = held or self.pods.get(name, pod)

    # -- ending ---------------------------------------------------------------------------------

    def _finish(self) -> float | None:
        """End what still runs; once nothing does, tell the end."""
        assert self.end is not None
        cluster = self._context
        left = [(name, pod) for name, pod in list(self.pods.items()) if not over(pod)]
        for name, pod in left:
            self._end_pod(name, pod)
        if any(name in self.pods for name, _ in left):
            self._say(next(filter(None, (stuck(name, pod) for name, pod in left)), self._stage))
            return 1.0
        for name, pod in list(self.pods.items()):
            if has_begun(pod):
                self._follow(name, pod)
        if not cluster.logs_are_in(self.key):
            return 0.1
        self.told_end = True
        for name, pod in sorted(self.pods.items()):
            if (word := last_word(Sight(name, pod))) is not None:
                self._hear(name, word)
        cluster.tell(self.end)
        return None

    def _hear(self, worker: str, word: StepWord | Row) -> None:
        self._heard.hear(worker, word, self._called(self.workers[0]))

    def _tell_progress(self, report: ProgressReport) -> None:
        self._context.tell(Progress(*self.key, report.done, report.detail, report.not_finite))

    def _end_pod(self, name: str, pod: Json) -> None:
        """Ask a pod to end; where no kubelet can, remove it."""
        cluster, meta = self._context, pod["metadata"]
        place = pod["spec"].get("nodeName")
        node = cluster.node(place) if place else None
        deserted = place is None or node is None or silent_s(node) > _SILENT_S
        grace_s = 0 if deserted else pod["spec"].get("terminationGracePeriodSeconds", 30)
        if meta.get("deletionTimestamp") is not None and not deserted:
            return
        cluster.api.delete(PODS, meta["name"], cluster.namespace, uid=meta["uid"], grace_s=grace_s)
        if deserted:
            self.saw(name, pod, deleted=True)

    # -- the record -----------------------------------------------------------------------------

    def _read(self, record: Json) -> None:
        data, change = record["data"], self.change
        self.workers = placed_workers(data["workers"])
        change.number = int(data.get("size") or 0)
        self._log_base = json.loads(data.get("logs") or "{}")
        if "limits" in data:
            self.limits.read(data["limits"])
        self._began = float(data["began"]) if "began" in data else None
        if "next" in data:
            change.next = placed_workers(data["next"])
        if "end" in data:
            end = event_from_json(json.loads(data["end"]))
            assert isinstance(end, JobExited | LaunchFailed)
            self.end = end

    def _note_end(self, end: JobExited | LaunchFailed) -> None:
        """Decide how the run ends, and write it down."""
        if self._record is not None:
            try:
                self._note(end=json.dumps(event_to_json(end)))
            except KubernetesError as error:
                if error.status != 404:
                    raise  # somebody removed the record: there is nothing to write into
        self.end = end

    def _note(self, **data: str | None) -> None:
        where = self._context.namespace
        self._record = self._context.api.patch(CONFIG_MAPS, self.name, {"data": data}, where)

    def _refuse(self, text: str, code: ReasonCode) -> None:
        if self.change.number:
            reason = Reason(ReasonCode.ERROR, f"it could not be resized: {text}")
            self._note_end(JobExited(*self.key, Outcome.FAILED, reason))
        else:
            self._note_end(LaunchFailed(*self.key, Reason(code, text)))

    # -- helpers --------------------------------------------------------------------------------

    def _made(self, resource: Resource, body: Json) -> Json:
        """Make an object of the run; one that was made before is taken as it is."""
        api, where = self._context.api, self._context.namespace
        try:
            return api.create(resource, body, where)
        except KubernetesError as error:
            if error.status != 409 or "exceeded quota" in str(error):
                raise
        return api.get(resource, body["metadata"]["name"], where)

    def _sights(self) -> list[Sight]:
        spec = self._spec_now()
        sights = []
        for worker in self.workers:
            role, name = spec.roles[worker.role], worker_name(spec, worker)
            pod = self.pods.get(name)
            sights.append(Sight(name, pod, role.memory_mib, serves=role.name == "ps"))
        return sights

    def _node_of(self, name: str) -> str:
        spec = self._spec_now()
        return next((w.node for w in self.workers if worker_name(spec, w) == name), "")

    def _called(self, worker: Worker) -> str:
        return worker_name(self._spec_now(), worker)

    def _spec_now(self) -> RunSpec:
        if self._spec is None:
            self._spec = RunSpec.load(self._context.layout.job_file(self.key[0]))
        return self._spec

    def _objects(self) -> RunObjects:
        cluster = self._context
        self.workers = tuple(ranked(self.workers))
        nodes = {worker.node: cluster.node(worker.node) for worker in self.workers}
        gone: Json = {"metadata": {"name": "gone"}}
        items = {name: node if node is not None else gone for name, node in nodes.items()}
        spec = self._spec_now()
        ran_s = 0.0 if self._began is None else time.time() - self._began
        use, where, size = cluster.use, cluster.namespace, self.change.number
        return RunObjects(*self.key, spec, self.workers, use, where, items, size, ran_s)
