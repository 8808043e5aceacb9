"""Events on pods: what their owners see in `kubectl describe pod`, said once for each change.

At most so many are written in a second, and the same words not twice for one pod. What is said is
the caller's; an event that cannot be written is forgotten. A thread writes, so no call waits.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from datetime import UTC, datetime
from uuid import uuid4

from presage.executors.kubernetes.api import EVENTS, Json, KubeApi
from presage.executors.kubernetes.binding import PodName
from presage.model.errors import KubernetesError

__all__ = ["PodEvents", "event_body"]

log = logging.getLogger("presage.kubernetes")

_A_SECOND = 20
_REMEMBERED = 50_000
_WAITING = 10_000
_LONGEST = 1000
"""Characters of a message; the API server takes 1,024."""
SOURCE = "presage"


class PodEvents:
    """Writes events. Any thread may call."""

    def __init__(self, api: KubeApi, *, a_second: float = _A_SECOND) -> None:
        self._api, self._pause_s = api, 1 / a_second
        self._said: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._queue: OrderedDict[str, tuple[PodName, str, str, bool]] = OrderedDict()
        self._lock = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="presage-events", daemon=True)
        self._thread.start()

    def say(self, pod: PodName, reason: str, message: str, *, warning: bool = False) -> None:
        """Let the owner of a pod know. Until it is written, something newer takes its place."""
        message = message if len(message) <= _LONGEST else message[: _LONGEST - 1] + "…"
        with self._lock:
            if self._said.get(pod.uid) == (reason, message):
                return
            self._said[pod.uid] = reason, message
            self._said.move_to_end(pod.uid)
            while len(self._said) > _REMEMBERED:
                self._said.popitem(last=False)
            if len(self._queue) < _WAITING:
                self._queue[pod.uid] = pod, reason, message, warning
                self._lock.notify()

    def close(self) -> None:
        """Stop; what is not written yet is not said."""
        with self._lock:
            self._closed = True
            self._lock.notify()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._lock:
                while not self._queue and not self._closed:
                    self._lock.wait()
                if self._closed:
                    return
                _, (pod, reason, message, warning) = self._queue.popitem(last=False)
            try:
                body = event_body(pod, reason, message, warning=warning)
                self._api.create(EVENTS, body, pod.namespace)
            except KubernetesError as error:
                log.info("no event on pod %s: %s", pod.name, error)
            time.sleep(self._pause_s)


def event_body(pod: PodName, reason: str, message: str, *, warning: bool = False) -> Json:
    """An event on a pod."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{pod.name[:200]}.{uuid4().hex[:16]}", "namespace": pod.namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": pod.name,
            "namespace": pod.namespace,
            "uid": pod.uid,
        },
        "reason": reason,
        "message": message,
        "type": "Warning" if warning else "Normal",
        "source": {"component": SOURCE},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
