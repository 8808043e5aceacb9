"""How a pod ended, from its status. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from presage.executors.kubernetes.reading import Json
from presage.model.event import Outcome
from presage.model.job import ReasonCode

__all__ = ["PodEnd", "ended_as"]


@dataclass(frozen=True, slots=True)
class PodEnd:
    """How it went; without an outcome, the pod was deleted before it ended."""

    outcome: Outcome | None
    text: str = ""
    code: ReasonCode = ReasonCode.REQUESTED
    exit_code: int | None = None


def ended_as(pod: Json) -> PodEnd:
    """The end of a pod whose phase is Succeeded or Failed."""
    status, name = pod.get("status") or {}, pod["metadata"]["name"]
    if status.get("phase") == "Succeeded":
        return PodEnd(Outcome.SUCCEEDED, "", ReasonCode.EXITED, 0)
    for container in status.get("containerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated") or {}
        if ended.get("reason") == "OOMKilled":
            text = f"pod {name} used more memory than it may (OOMKilled)"
            return PodEnd(
                Outcome.OUT_OF_MEMORY, text, ReasonCode.OUT_OF_MEMORY, ended.get("exitCode")
            )
        if ended.get("exitCode"):
            said = ended.get("message") or ended.get("reason") or ""
            text = f"pod {name} ended with exit code {ended['exitCode']}"
            return PodEnd(
                Outcome.FAILED,
                f"{text}: {said}" if said and said != "Error" else text,
                ReasonCode.ERROR,
                ended["exitCode"],
            )
    why = status.get("reason") or "no reason given"
    said = f"pod {name} failed: {why}"
    if status.get("message"):
        said += f": {status['message']}"
    if why in ("NodeLost", "Shutdown", "NodeShutdown", "Terminated"):
        return PodEnd(Outcome.LOST, said, ReasonCode.NODE_LOST)
    if why == "DeadlineExceeded":
        return PodEnd(Outcome.FAILED, said, ReasonCode.TIME_LIMIT)
    return PodEnd(Outcome.FAILED, said, ReasonCode.ERROR)
