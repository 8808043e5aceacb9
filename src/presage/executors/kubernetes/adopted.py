"""Drop-in scheduler: pods that others made and that name our scheduler are jobs of the one core.

Whole gangs (`gangs`) become `JobSubmitted`; a launch binds exactly their pods (`binding`); what
becomes of the pods becomes facts. Pods that somebody else placed are room that is taken
(`NodeChanged`). A job of pods is one run: when it is over, deleted or preempted, whoever made the
pods makes new ones, and these are a new job. While a run goes on, a pod that is made again in the
place of one that ended takes over its node, without a decision.

It holds a gang's room until its last pod has ended. It never changes a pod but by Binding and
deletion, and never touches pods of other schedulers. The local copy of the cluster may be old:
what is decided on it is checked by the API server when pods are bound. All methods but `wake` and
`note` belong to the deciding thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from presage.executors.kubernetes.api import NODES, PODS, KubeApi
from presage.executors.kubernetes.binding import (
    Binder,
    Bound,
    PodName,
    Slot,
    job_of_pod,
    pod_name,
    slot_of_pod,
)
from presage.executors.kubernetes.gangs import (
    FOREIGN,
    Gang,
    alone,
    gang_of,
    job_id,
    job_of,
    workers_of,
)
from presage.executors.kubernetes.others import OtherPods, held_devices
from presage.executors.kubernetes.owners import FRESH_S, Owners
from presage.executors.kubernetes.pod_ends import PodEnd, ended_as
from presage.executors.kubernetes.pod_events import PodEvents
from presage.executors.kubernetes.pods import MANAGED
from presage.executors.kubernetes.reading import Json, is_over, is_unbound, refusals
from presage.executors.kubernetes.reflect import Reflector
from presage.model import event as ev
from presage.model.cluster import Node, Worker
from presage.model.event import Outcome
from presage.model.job import Job, JobSpec, JobState, Reason, ReasonCode, StopIntent

__all__ = ["AdoptedPods"]

_MOST_CHANGES = 500
"""Pods that one poll takes in, so that a flood of them does not hold up what runs."""
_LONGEST_S = 60.0
"""Between two tries to bind a gang."""

Key = tuple[str, str, str, str]


@dataclass(slots=True, eq=False)
class _Waiting:
    """A job of pods that was submitted and has not been launched."""

    spec: JobSpec
    gang: Gang
    members: dict[Slot, str]
    """The uid of each pod."""
    again: int = 0
    rejected: int | None = None
    """The state of the nodes for which it was told no."""


@dataclass(slots=True, eq=False)
class _AdoptedRun:
    """A run: its workers, and the pod that each of them is now."""

    job: str
    attempt: int
    key: Key | None
    places: dict[Slot, Worker]
    members: dict[Slot, str]
    ends: dict[Slot, PodEnd] = field(default_factory=dict)
    """How the pod of a worker ended, until another takes its place."""
    started: bool = False
    bound: bool = False
    stop: ev.Stop | None = None


class AdoptedPods:
    """An executor of pods that others made. `jobs` are those of the state, on the deciding
    thread."""

    def __init__(
        self,
        api: KubeApi,
        *,
        scheduler_name: str = "presage",
        jobs: Callable[[], Mapping[str, Job]] = dict,
        was: Callable[[str], bool] = lambda job: False,
        on_news: Callable[[], object] = lambda: None,
    ) -> None:
        """`was`: whether there ever was a job of that name; `on_news` is called by any thread when
        there is something to poll."""
        self.scheduler_name = scheduler_name
        self._api, self._jobs, self._was = api, jobs, was
        self._owners = Owners(api)
        self._rung, self._on_news = threading.Event(), on_news
        self._nodes = Reflector(api, NODES, on_change=self.wake)
        self._watched = Reflector(api, PODS, keep=_slim, on_change=self.wake)
        self._binder = Binder(api, self.wake)
        self._events = PodEvents(api)
        self._others = OtherPods()
        self._pods: dict[str, Json] = {}
        """Pods that are ours to place or were, by uid."""
        self._gangs: dict[str, Gang] = {}
        self._ready: dict[Key, dict[str, None]] = {}
        """Pods that wait to be placed and are in no job yet, by gang, in the order they came."""
        self._touched: dict[Key, None] = {}
        self._waiting: dict[str, _Waiting] = {}
        self._runs: dict[str, _AdoptedRun] = {}
        self._by_uid: dict[str, tuple[str, Slot]] = {}
        self._by_key: dict[Key, str] = {}
        """The run of a gang."""
        self._failed: dict[Key, tuple[int, float]] = {}
        """How often a gang could not be bound, and when it is tried again."""
        self._due: dict[Key, float] = {}
        """When gangs are looked at again though nothing happened."""
        self._facts: list[ev.Fact] = []
        self._told: dict[str, Node] = {}
        self._ended: dict[str, dict[Slot, PodEnd]] = {}
        """How pods ended that were over when we came, by job."""
        self._first = True
        self._now = 0.0
        self._nodes.start()
        self._watched.start()
        self._take_changes()
        self._told = {node.name: node for node in self._others.nodes({})}

    # -- the port -------------------------------------------------------------------------------

    def nodes(self) -> Sequence[Node]:
        """All nodes, with what others hold there."""
        return list(self._told.values())

    def launch(self, decision: ev.Launch) -> None:
        """Bind the pods of a job to these nodes."""
        if decision.job in self._runs:
            return
        run = self._run_of(decision)
        self._runs[decision.job] = run
        for slot, uid in run.members.items():
            self._by_uid[uid] = decision.job, slot
        missing = [slot for slot in run.places if slot not in {*run.members, *run.ends}]
        if run.started:  # and pods of it went away while nobody looked
            run.ends |= {slot: PodEnd(None, "its pod was deleted") for slot in missing}
        elif missing or not all(map(self._can_be_bound, run.members.values())):
            self._undo(run, "some of its pods went away before they were bound")
            return
        if run.key is not None:
            self._by_key[run.key] = run.job
        self._look_at(run)
        members = [self._bound(run, slot) for slot in run.members]
        self._binder.bind(run.job, run.attempt, [member for member in members if member])

    def stop(self, decision: ev.Stop) -> None:
        """Delete the pods of a run."""
        run = self._runs.get(decision.job)
        if run is None:
            exited = ev.JobExited(decision.job, decision.attempt, Outcome.STOPPED, decision.reason)
            self._facts.append(exited)
            return
        if run.stop is not None:
            return
        run.stop = decision
        alive = [pod_name(self._pods[uid]) for uid in run.members.values() if uid in self._pods]
        for pod in alive:
            self._events.say(pod, "Preempted", decision.reason.text, warning=True)
        self._binder.delete(alive)
        self._look_at(run)

    def poll(self, now: float) -> list[ev.Fact]:
        """What happened to pods and nodes."""
        self._now = now
        self._take_changes(_MOST_CHANGES)
        for result in self._binder.results():
            run = self._runs.get(result.job)
            if run is None or run.attempt != result.attempt:
                continue
            if result.problem and run.stop is None:
                self._fail(run, result.problem, result.kept)
            else:
                run.bound = True
                self._look_at(run)
        if self._first:
            self._first = False
            self._ended.clear()
            self._forget_lost()
        self._form_all()
        self._resubmit()
        facts, self._facts = self._facts, []
        return self._node_facts() + facts

    def wait(self, timeout_s: float) -> bool:
        """Until something happened, or the time has passed."""
        rung = self._rung.wait(timeout_s)
        self._rung.clear()
        return rung

    def wake(self) -> None:
        """End a `wait`."""
        self._rung.set()
        self._on_news()

    def close(self) -> None:
        """Let go of the cluster; pods stay as they are."""
        self._watched.close()
        self._nodes.close()
        self._binder.close()
        self._events.close()

    def note(self, job: str, text: str) -> None:
        """Let the owners of the pods of a waiting job know why it waits; any thread may."""
        waiting = self._waiting.get(job)
        for uid in list(waiting.members.values()) if waiting else ():
            if (pod := self._pods.get(uid)) is not None:
                self._events.say(pod_name(pod), "Waiting", text)

    def knows(self, job: str) -> bool:
        """Whether a job is one of pods that others made."""
        return job in self._waiting or job in self._runs or self._is_foreign(job)

    # -- what the cluster says ------------------------------------------------------------------

    def _take_changes(self, most: int | None = None) -> None:
        for change in self._nodes.changes():
            self._others.node(change.object, gone=change.deleted)
        changes = self._watched.changes(most)
        if len(changes) == most:
            self.wake()  # there may be more
        active = self._active() if changes else ()
        for change in changes:
            pod = change.object
            self._others.pod(pod, ours=job_of_pod(pod) in active, gone=change.deleted)
            if self._is_ours(pod):
                if change.deleted:
                    self._pod_gone(pod, None)
                else:
                    self._pod_is(pod)

    def _is_ours(self, pod: Json) -> bool:
        """Whether a pod is ours to place, and not one that an executor of ours made."""
        made_by_us = (pod["metadata"].get("labels") or {}).get(MANAGED) == "presage"
        return pod["spec"].get("schedulerName") == self.scheduler_name and not made_by_us

    def _pod_is(self, pod: Json) -> None:
        """A pod of ours came, or is different now."""
        uid = pod["metadata"]["uid"]
        if is_over(pod):
            self._pod_gone(pod, ended_as(pod))
            return
        self._pods[uid] = pod
        if uid in self._by_uid:
            job, _ = self._by_uid[uid]
            if job in self._runs:
                self._look_at(self._runs[job])
            elif not is_unbound(pod):
                self._member_left(uid)
        elif is_unbound(pod):
            words = refusals(pod)
            if words:
                text = f"Presage does not place this pod: {'; '.join(words)}"
                self._events.say(pod_name(pod), "NotPlaced", text, warning=True)
                return
            gang = gang_of(pod, self._owners.find)
            self._gangs[uid] = gang
            self._ready.setdefault(gang.key, {})[uid] = None
            self._touched[gang.key] = None
        else:
            self._drop_ready(uid)

    def _pod_gone(self, pod: Json, end: PodEnd | None) -> None:
        """A pod ended (`end` says how) or was deleted."""
        uid = pod["metadata"]["uid"]
        self._drop_ready(uid)
        if uid in self._by_uid:
            job, slot = self._by_uid[uid]
            run = self._runs.get(job)
            if run is None:
                self._member_left(uid)
            elif run.members.get(slot) == uid:
                del self._by_uid[uid], run.members[slot]
                run.ends[slot] = end or PodEnd(None, f"pod {pod['metadata']['name']} was deleted")
                self._look_at(run)
        elif (
            self._first
            and end is not None
            and (slot_of := slot_of_pod(pod, job_of_pod(pod))) is not None
        ):
            self._ended.setdefault(job_of_pod(pod), {})[slot_of] = end
        self._pods.pop(uid, None)

    def _drop_ready(self, uid: str) -> None:
        gang = self._gangs.pop(uid, None)
        if gang is not None:
            members = self._ready.get(gang.key, {})
            members.pop(uid, None)
            if not members:
                self._ready.pop(gang.key, None)

    def _member_left(self, uid: str) -> None:
        """A pod of a job that waits went away, or somebody else bound it: the job is no more."""
        job, _ = self._by_uid[uid]
        waiting = self._waiting.pop(job, None)
        if waiting is None:
            return
        name = self._pods[uid]["metadata"]["name"] if uid in self._pods else "a pod"
        reason = Reason(ReasonCode.REQUESTED, f"{name} was deleted or bound by somebody else")
        if waiting.rejected is None:
            self._facts.append(ev.CancelRequested(job, reason))
        for other in waiting.members.values():
            self._by_uid.pop(other, None)
            if other != uid and other in self._pods:
                self._pod_is(self._pods[other])

    # -- gangs ----------------------------------------------------------------------------------

    def _form_all(self) -> None:
        """Look at all gangs that something happened to."""
        for key, due in list(self._due.items()):
            if due <= self._now:
                del self._due[key]
                for uid in list(self._ready.get(key, ())):
                    self._drop_ready(uid)
                    self._pod_is(self._pods[uid])  # its gang may be another by now
        touched, self._touched = self._touched, {}
        for key in touched:
            self._form(key)

    def _form(self, key: Key) -> None:
        """Make jobs of the pods of a gang that wait, if it is whole."""
        uids = list(self._ready.get(key, ()))
        if not uids:
            return
        gang = self._gangs[uids[0]]
        run = self._runs.get(self._by_key.get(key, ""))
        if run is not None and run.stop is None:
            for uid in uids:
                if not self._take_over(run, uid):
                    self._submit(alone(self._pods[uid]), [uid])
        elif gang.size == 0:
            self._due[key] = self._now + FRESH_S
            for uid in uids:
                text = f"Presage does not know how many pods belong together: {gang.problem}"
                self._events.say(pod_name(self._pods[uid]), "NotPlaced", text, warning=True)
        elif len(uids) < gang.size:
            for uid in uids:
                text = f"{len(uids)} of the {gang.size} pods of {gang.kind} {gang.name} are there"
                self._events.say(pod_name(self._pods[uid]), "GangIncomplete", text)
        elif key in self._failed and self._failed[key][1] > self._now:
            self._due[key] = self._failed[key][1]
        else:
            self._submit(gang, uids[: gang.size], self._failed.get(key, (0, 0.0))[0])
            for uid in uids[gang.size :]:
                self._submit(alone(self._pods[uid]), [uid])

    def _submit(self, gang: Gang, uids: Sequence[str], again: int = 0) -> None:
        pods = [self._pods[uid] for uid in uids]
        while (name := job_id(gang, pods, again)) not in self._jobs() and self._was(name):
            again += 1  # a job of that name is over: these pods are tried anew
        _, members = workers = workers_of(pods)
        spec = job_of(gang, pods, again=again, workers=workers)
        named = {slot: str(pod["metadata"]["uid"]) for slot, pod in members.items()}
        self._waiting[spec.id] = _Waiting(spec, gang, named, again)
        for slot, uid in named.items():
            self._drop_ready(uid)
            self._by_uid[uid] = spec.id, slot
        if spec.id not in self._jobs():
            self._facts.append(ev.JobSubmitted(spec))

    def _take_over(self, run: _AdoptedRun, uid: str) -> bool:
        """Whether a pod was put in the place of one of the same kind that ended."""
        (role,), _ = workers_of([self._pods[uid]])
        job = self._jobs().get(run.job)
        if job is None:
            return False
        for slot in sorted(run.ends):
            asked = job.spec.roles[slot[0]]
            if (asked.resources, asked.where) == (role.resources, role.where):
                del run.ends[slot]
                run.members[slot] = uid
                self._drop_ready(uid)
                self._by_uid[uid] = run.job, slot
                member = self._bound(run, slot)
                if member is not None:
                    self._binder.bind(run.job, -1, [member])
                return True
        return False

    def _resubmit(self) -> None:
        """Jobs that the core ended though their pods wait: they can never run on these nodes, and
        are submitted anew when the nodes are others."""
        jobs = self._jobs()
        new = {fact.spec.id for fact in self._facts if isinstance(fact, ev.JobSubmitted)}
        for name in [name for name in self._waiting if name not in jobs and name not in new]:
            waiting = self._waiting[name]
            if waiting.rejected is None:
                waiting.rejected = self._others.described
                text = "no state of this cluster could hold it; tried again when nodes change"
                for uid in waiting.members.values():
                    pod = pod_name(self._pods[uid])
                    self._events.say(pod, "NeverFits", text, warning=True)
            elif waiting.rejected != self._others.described:
                del self._waiting[name]
                uids = list(waiting.members.values())
                self._submit(waiting.gang, uids, waiting.again + 1)

    def _forget_lost(self) -> None:
        """After a start: jobs of pods that are not there any more."""
        for name, job in list(self._jobs().items()):
            if FOREIGN in job.spec.labels and name not in self._runs:
                self._form_all()
                if name not in self._waiting and job.state is JobState.PENDING:
                    reason = Reason(ReasonCode.REQUESTED, "its pods went away meanwhile")
                    self._facts.append(ev.CancelRequested(name, reason))

    # -- runs -----------------------------------------------------------------------------------

    def _run_of(self, decision: ev.Launch) -> _AdoptedRun:
        """The pods that a launch is about: those of the job that waits; after a restart, those
        that carry its name, and those of the gang that do not yet."""
        places = {(worker.role, worker.index): worker for worker in decision.workers}
        waiting = self._waiting.pop(decision.job, None)
        key: Key | None = None
        if waiting is not None:
            key, members = waiting.gang.key, dict(waiting.members)
        else:
            members = {}
            for uid, pod in self._pods.items():
                slot = slot_of_pod(pod, decision.job)
                if slot is not None:
                    members[slot] = uid
                    key = gang_of(pod, self._owners.find).key
            members = self._rest_of_gang(decision.job, members, key)
            for uid in members.values():
                gang = self._gangs.get(uid)
                key = gang.key if gang else key
                self._drop_ready(uid)
        run = _AdoptedRun(decision.job, decision.attempt, key, places, members)
        run.ends = {s: e for s, e in self._ended.get(run.job, {}).items() if s not in members}
        job = self._jobs().get(run.job)
        run.started = job is not None and job.state is JobState.RUNNING
        return run

    def _rest_of_gang(self, job: str, bound: dict[Slot, str], key: Key | None) -> dict[Slot, str]:
        """All pods of a job, found by the name that they give it together."""
        for gang_key, uids in self._ready.items():
            if key is not None and gang_key != key:
                continue
            pods = [self._pods[uid] for uid in {*uids, *bound.values()}]
            gang = gang_of(pods[0], self._owners.find)
            if any(job_id(gang, pods, again) == job for again in range(8)):
                _, members = workers_of(pods)
                return {slot: str(pod["metadata"]["uid"]) for slot, pod in members.items()}
        return bound

    def _can_be_bound(self, uid: str) -> bool:
        pod = self._pods.get(uid)
        if pod is None or pod["metadata"].get("deletionTimestamp"):
            return False
        job, slot = self._by_uid[uid]
        place = self._runs[job].places.get(slot)
        node = pod["spec"].get("nodeName")
        return place is not None and (not node or node == place.node)

    def _bound(self, run: _AdoptedRun, slot: Slot) -> Bound | None:
        """A pod that is still to be bound."""
        pod = self._pods[run.members[slot]]
        if pod["spec"].get("nodeName"):
            return None
        return Bound(pod_name(pod), run.places[slot].node, f"{slot[0]}/{slot[1]}")

    def _undo(self, run: _AdoptedRun, why: str) -> None:
        """A gang that cannot be whole: nothing of it stays that somebody would make again."""
        placed = [
            pod_name(self._pods[uid])
            for uid in run.members.values()
            if uid in self._pods and self._pods[uid]["spec"].get("nodeName")
        ]
        self._binder.delete([pod for pod in placed if pod.made_again])
        self._fail(run, why, tuple(pod for pod in placed if not pod.made_again))

    def _fail(self, run: _AdoptedRun, why: str, kept: Sequence[PodName] = ()) -> None:
        """A launch failed: pods that were not bound wait again."""
        for pod in kept:
            text = "runs without its gang: nobody would make it again, so it was not deleted"
            self._events.say(pod, "GangBroken", text, warning=True)
        reason = Reason(ReasonCode.LAUNCH_FAILED, why)
        self._facts.append(ev.LaunchFailed(run.job, run.attempt, reason))
        if run.key is not None:
            times = self._failed.get(run.key, (0, 0.0))[0] + 1
            self._failed[run.key] = times, self._now + min(_LONGEST_S, 0.5 * 2**times)
        for uid in run.members.values():
            if uid in self._pods:
                self._events.say(pod_name(self._pods[uid]), "NotBound", why, warning=True)
        self._forget(run)

    def _look_at(self, run: _AdoptedRun) -> None:
        """What the pods of a run say about it as a whole."""
        if not run.members:
            self._exit(run)
        elif not run.started and run.stop is None:
            there = len(run.members) + len(run.ends) == len(run.places)
            if there and all(_phase(self._pods[uid]) == "Running" for uid in run.members.values()):
                run.started = run.bound = True
                if run.key is not None:
                    self._failed.pop(run.key, None)
                self._facts.append(ev.JobStarted(run.job, run.attempt))

    def _exit(self, run: _AdoptedRun) -> None:
        """The last pod of a run has ended."""
        ends = list(run.ends.values())
        bad = [end for end in ends if end.outcome not in (None, Outcome.SUCCEEDED)]
        if run.stop is not None:
            fact = self._stopped(run, run.stop)
        elif bad:
            reason = Reason(bad[0].code, bad[0].text)
            fact = ev.JobExited(
                run.job, run.attempt, bad[0].outcome or Outcome.FAILED, reason, bad[0].exit_code
            )
        elif any(end.outcome is Outcome.SUCCEEDED for end in ends):
            fact = ev.JobExited(run.job, run.attempt, Outcome.SUCCEEDED)
        else:
            reason = Reason(ReasonCode.REQUESTED, "its pods were deleted")
            fact = ev.JobExited(run.job, run.attempt, Outcome.FAILED, reason)
        self._facts.append(fact)
        self._forget(run)

    def _stopped(self, run: _AdoptedRun, stop: ev.Stop) -> ev.JobExited:
        """A job of pods is not started again: those that are made instead are another job."""
        if stop.intent is StopIntent.CANCEL:
            return ev.JobExited(run.job, run.attempt, Outcome.STOPPED, stop.reason)
        text = f"{stop.reason.text}; pods that are made in its place are a new job"
        reason = Reason(stop.reason.code, text)
        return ev.JobExited(run.job, run.attempt, Outcome.FAILED, reason)

    def _forget(self, run: _AdoptedRun) -> None:
        del self._runs[run.job]
        if run.key is not None and self._by_key.get(run.key) == run.job:
            del self._by_key[run.key]
            self._touched[run.key] = None
        for uid in run.members.values():
            self._by_uid.pop(uid, None)
            pod = self._pods.get(uid)
            if pod is not None:
                self._others.pod(pod, ours=False, gone=False)
                if is_unbound(pod):
                    self._pod_is(pod)

    # -- nodes ----------------------------------------------------------------------------------

    def _node_facts(self) -> list[ev.Fact]:
        """Nodes that came, went or changed."""
        facts: list[ev.Fact] = []
        for name in self._others.gone():
            if self._told.pop(name, None) is not None:
                facts.append(ev.NodeDown(name))
        if not self._others.has_news:
            return facts
        for node in self._others.changed(held_devices(self._jobs().values())):
            known = self._told.get(node.name)
            self._told[node.name] = node
            if known is None:
                facts.append(ev.NodeUp(node))
            elif len(known.devices) != len(node.devices):  # and nothing of ours is there
                facts += [ev.NodeDown(node.name), ev.NodeUp(node)]
            elif known != node:
                facts.append(ev.NodeChanged(node))
        return facts

    def _active(self) -> set[str]:
        jobs = self._jobs()
        return {name for name, job in jobs.items() if job.allocation} | self._runs.keys()

    def _is_foreign(self, job: str) -> bool:
        known = self._jobs().get(job)
        return known is not None and FOREIGN in known.spec.labels


def _phase(pod: Json) -> str:
    return str((pod.get("status") or {}).get("phase", ""))


def _slim(pod: Json) -> dict[str, object]:
    """A pod without what nobody here reads, since there may be many."""
    meta = {key: value for key, value in pod["metadata"].items() if key != "managedFields"}
    return {**pod, "metadata": meta}
