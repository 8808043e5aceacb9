"""What became of a run's pods, in words that its owner understands. Pure: pods in, verdict out.

A pod tells in many places what is wrong with it: its phase and reason, the states of its
containers, conditions, and events beside it. This is the one place that reads them. Whose fault an
end was decides what follows: what others did to a pod (eviction, preemption, a node that went
away) is `lost` and started again; what the job did itself is not.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeGuard

from presage.executors.kubernetes.api import Json
from presage.executors.kubernetes.pods import COMPANION, MAIN
from presage.executors.node.messages import StepWord
from presage.executors.node.wire import MessageError, loads
from presage.executors.node.worker import is_memory_error, telling_line
from presage.model.event import JobExited, LaunchFailed, Outcome
from presage.model.job import Reason, ReasonCode

__all__ = [
    "Key",
    "Sight",
    "bound",
    "has_begun",
    "judge",
    "over",
    "seconds",
    "silent_s",
    "started_at",
    "stuck",
    "trouble",
    "why_gone",
]

Key = tuple[str, int]
"""A job and an attempt."""
End = JobExited | LaunchFailed

_NO_IMAGE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
_NO_START = ("StartError", "ContainerCannotRun", "RunContainerError")
_MISCONFIGURED = ("CreateContainerConfigError", "CreateContainerError", *_NO_START)
_BY_OTHERS = {
    "Evicted": "was evicted",
    "Preempting": "was preempted by a pod of higher priority",
    "Preempted": "was preempted by a pod of higher priority",
    "PreemptionByScheduler": "was preempted by a pod of higher priority",
    "EvictionByEvictionAPI": "was evicted through the API",
    "DeletionByTaintManager": "was evicted since its node got a taint",
    "DeletionByPodGC": "was removed since its node is gone",
    "TerminationByKubelet": "was ended by its node, which was short of something",
    "NodeLost": "is on a node that does not answer",
    "Shutdown": "was ended since its node is shutting down",
    "NodeShutdown": "was ended since its node is shutting down",
    "Terminated": "was ended since its node is shutting down",
}
_NO_ROOM = re.compile(r"OutOf.+|UnexpectedAdmissionError|NodeAffinity|MatchNodeSelector")
_LONGEST = 300
_SLOW_S = 30.0
"""What a kubelet has beyond the time that a pod is given to end."""


@dataclass(frozen=True, slots=True)
class Sight:
    """A worker as it is now."""

    name: str
    pod: Json | None
    """None when it is gone."""
    memory_mib: int = 0
    serves: bool = False
    """Whether it only works for the others and is ended with them."""


def judge(
    key: Key, sights: Sequence[Sight], *, started: bool, time_limit_s: float | None = None
) -> End | None:
    """How a run that was placed has ended, if it has: by the first worker that ended badly, or
    because all ended well."""
    ends = []
    for sight in sights:
        end = _end(key, sight, started, time_limit_s)
        if end is not None:
            ends.append((_when(sight.pod), end))
    if ends:
        return min(ends, key=lambda end: end[0])[1]
    if all(sight.serves or _ended_well(sight.pod) for sight in sights):
        kept = next(filter(None, (word.kept for word in map(last_word, sights) if word)), "")
        reason = Reason(ReasonCode.EXITED, f"every worker ended well{kept}")
        return JobExited(*key, Outcome.SUCCEEDED, reason, 0)
    return None


def last_word(sight: Sight) -> StepWord | None:
    """What the step beside a worker said when it ended."""
    for status in _statuses(sight.pod) if sight.pod else ():
        ended = (status.get("state") or {}).get("terminated") or {}
        if status["name"] == COMPANION and ended.get("exitCode") == 0:
            with suppress(MessageError):
                return loads(StepWord, str(ended.get("message") or "").encode())
    return None


def started_at(sights: Sequence[Sight]) -> float | None:
    """When the last worker began, if all have."""
    begun = [_begun(sight.pod) for sight in sights]
    return None if None in begun else max(filter(None, begun), default=None)


def has_begun(pod: Json | None) -> bool:
    """Whether the job's program has been started in a pod, so that there is a log."""
    return _begun(pod) is not None


def has_steps(pod: Json | None) -> TypeGuard[Json]:
    """Whether a step of Presage runs, or ran, beside the job."""
    statuses = _statuses(pod) if pod else []
    states = [each.get("state") or {} for each in statuses if each["name"] == COMPANION]
    return any("running" in state or "terminated" in state for state in states)


def bound(pod: Json | None) -> bool:
    """Whether a pod has a node."""
    return pod is not None and bool(pod["spec"].get("nodeName"))


def silent_s(node: Json) -> float:
    """For how long a node has not been ready."""
    for condition in node.get("status", {}).get("conditions") or ():
        if condition["type"] == "Ready" and condition["status"] != "True":
            return time.time() - seconds(condition["lastTransitionTime"])
    return 0.0


def over(pod: Json) -> bool:
    """Whether nothing of a pod runs any more."""
    if pod["status"].get("phase") in ("Succeeded", "Failed"):
        return True
    unbound = not pod["spec"].get("nodeName")
    return unbound and pod["metadata"].get("deletionTimestamp") is not None


def why_gone(name: str, pod: Json | None, node: Json | None) -> str:
    """Why a worker's pod is not there any more, from what was last seen of it."""
    if pod is not None:
        for condition in pod["status"].get("conditions") or ():
            if condition["type"] == "DisruptionTarget" and condition.get("reason") in _BY_OTHERS:
                return f"{name} {_BY_OTHERS[condition['reason']]}{_said(condition.get('message'))}"
        if node is None and (where := pod["spec"].get("nodeName")):
            return f"{name} was on node {where}, which is gone"
    return f"the pod of {name} was deleted, and not by Presage"


def trouble(pod: Json, events: Sequence[Json]) -> str:
    """What keeps a pod from starting, as its container or the newest warning beside it says; empty
    if nobody says anything."""
    for status in _statuses(pod):
        waiting = (status.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return _short(f"{waiting['reason']}{_said(waiting.get('message'))}")
    warnings = [event for event in events if event.get("type") == "Warning"]
    if not warnings:
        return ""
    last = max(warnings, key=lambda event: str(event.get("lastTimestamp") or ""))
    return _short(f"{last.get('reason')}{_said(last.get('message'))}")


def stuck(name: str, pod: Json) -> str:
    """That a pod does not end although its time to do so is over; empty if that is not so."""
    by = pod["metadata"].get("deletionTimestamp")  # when its grace period ends
    if by is None or time.time() - seconds(by) < _SLOW_S:
        return ""
    meta, place = pod["metadata"], pod["spec"].get("nodeName") or "nowhere"
    held = f"; it is held by {', '.join(meta['finalizers'])}" if meta.get("finalizers") else ""
    return f"stopping: node {place} does not end {name}{held}"


# -- one worker ---------------------------------------------------------------------------------


def _end(key: Key, sight: Sight, started: bool, time_limit_s: float | None) -> End | None:
    """How a worker ended the run, if it did so badly."""
    pod, name = sight.pod, sight.name
    if pod is None:
        return None  # whoever saw it vanish says why
    status = pod["status"]
    reason, message = status.get("reason"), status.get("message")
    if reason == "DeadlineExceeded":
        text = f"it ran longer than its time limit of {time_limit_s or 0:g} s"
        return JobExited(*key, Outcome.FAILED, Reason(ReasonCode.TIME_LIMIT, text))
    if status.get("phase") == "Failed" and reason in _BY_OTHERS:
        return _lost(key, f"{name} {_BY_OTHERS[reason]}{_said(message)}")
    if status.get("phase") == "Failed" and _NO_ROOM.fullmatch(reason or ""):
        return _lost(key, f"the node had no room for {name}{_said(message)}")
    for one in _statuses(pod):
        end = _container_end(key, sight, one, started)
        if end is not None:
            return end
    if status.get("phase") == "Failed" and not status.get("containerStatuses"):
        return _lost(key, f"{name} failed before it began: {reason}{_said(message)}")
    return None


def _container_end(key: Key, sight: Sight, status: Json, started: bool) -> End | None:
    state = status.get("state") or {}
    waiting, ended = state.get("waiting") or {}, state.get("terminated")
    why, said = waiting.get("reason"), waiting.get("message")
    if why in _NO_IMAGE:
        return _refused(key, f"image {status.get('image')} cannot be pulled{_said(said)}")
    if why in _MISCONFIGURED:
        return _refused(key, f"{sight.name} cannot be started{_said(said or why)}")
    if ended is None or ended.get("exitCode") == 0:
        return None
    if ended.get("reason") in _NO_START:
        return _refused(key, f"{sight.name} cannot be started{_said(_program(ended))}")
    if status["name"] != MAIN:
        text = f"{telling_line(ended.get('message') or '') or 'it was killed'}"
        if status["name"] != COMPANION:
            return _refused(key, text)
        reason = Reason(ReasonCode.ERROR, f"not stored: {text}")
        return JobExited(*key, Outcome.FAILED, reason, int(ended["exitCode"]))
    return _failure(key, sight, ended)


def _failure(key: Key, sight: Sight, ended: Mapping[str, Any]) -> JobExited:
    """Why a worker that ended badly did so."""
    code, name = int(ended["exitCode"]), sight.name
    words = telling_line(ended.get("message") or "")
    said = f": {words}" if words else ""
    number = int(ended.get("signal") or 0) or (code - 128 if code > 128 else 0)
    sign = f"signal {number}"
    with suppress(ValueError):
        sign = signal.Signals(number).name
    outcome, why = Outcome.FAILED, ReasonCode.ERROR
    if ended.get("reason") == "OOMKilled":
        outcome, why = Outcome.OUT_OF_MEMORY, ReasonCode.OUT_OF_MEMORY
        text = f"{name} needed more than the {sight.memory_mib} MiB it may use"
        if not sight.memory_mib:
            text = f"{name} was killed when the node ran out of memory"
    elif is_memory_error(words):
        outcome, why = Outcome.OUT_OF_MEMORY, ReasonCode.OUT_OF_MEMORY
        text = f"{name} ran out of memory{said}"
    elif sign in ("SIGKILL", "SIGTERM"):
        outcome, text = Outcome.LOST, f"{name} was killed by {sign}{said}"
    elif number > 0:
        text = f"{name} was killed by {sign}{said}"
    else:
        text = f"{name} ended with exit code {code}{said}"
    return JobExited(*key, outcome, Reason(why, text), code)


def _lost(key: Key, text: str) -> JobExited:
    return JobExited(*key, Outcome.LOST, Reason(ReasonCode.NODE_LOST, _short(text)))


def _refused(key: Key, text: str) -> LaunchFailed:
    return LaunchFailed(*key, Reason(ReasonCode.LAUNCH_FAILED, _short(text)))


def _program(ended: Mapping[str, Any]) -> str:
    """The part of a runtime's long message that a person can use."""
    message = str(ended.get("message") or "")
    match = re.search(r'exec: "([^"]+)": (.+?)(?:: unknown|$)', message)
    if match:
        return f"there is no program {match[1]!r}; check the command and the image ({match[2]})"
    return message


def _statuses(pod: Json) -> list[Json]:
    status = pod["status"]
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _main(pod: Json | None) -> Json:
    statuses = _statuses(pod) if pod else []
    status = next((each for each in statuses if each["name"] == MAIN), None)
    return (status or {}).get("state") or {}


def _begun(pod: Json | None) -> float | None:
    """When the job's program began; one that could not be started has ended, and never began."""
    state = _main(pod)
    if (state.get("terminated") or {}).get("reason") in _NO_START:
        return None
    began = (state.get("running") or state.get("terminated") or {}).get("startedAt")
    return None if began is None else seconds(began)


def _ended_well(pod: Json | None) -> bool:
    """Whether all containers of a pod ended with exit code 0."""
    statuses = (pod or {"status": {}})["status"].get("containerStatuses") or ()
    codes = [
        ((each.get("state") or {}).get("terminated") or {}).get("exitCode") for each in statuses
    ]
    return bool(codes) and all(code == 0 for code in codes)


def _when(pod: Json | None) -> float:
    ended = _main(pod).get("terminated") or {}
    return seconds(ended["finishedAt"]) if ended.get("finishedAt") else 0.0


def seconds(stamp: str) -> float:
    """A time as Kubernetes writes it, in seconds since 1970."""
    return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()


def _said(message: Any) -> str:
    return f": {message}" if message else ""


def _short(text: str) -> str:
    return " ".join(text.split())[:_LONGEST]
