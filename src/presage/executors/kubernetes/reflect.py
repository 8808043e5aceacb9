"""A local copy of what a cluster holds of one kind, kept current by a thread.

    pods = Reflector(api, PODS, "team-a", labels="app=x", on_change=wake)
    pods.start()                     # the first list; raises KubernetesError
    pods.objects()                   # what there is now: a snapshot
    for change in pods.changes(): …  # what happened since the last call, in order
    pods.close()

It lists, then watches from there. A watch that ends is resumed by resourceVersion (bookmarks keep
that young); when the version is too old (410), it lists again, and the differences are changes
like any others, so a reader need not know. While nobody answers, it tries again and again:
`trouble` says why, `away_s` for how long. It writes nothing to the cluster.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from presage.executors.kubernetes.api import Json, KubeApi, ObjectList, Resource, hang_up
from presage.model.errors import KubernetesError

__all__ = ["Change", "Reflector"]

log = logging.getLogger("presage.kubernetes")

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0
_GONE = 410


@dataclass(frozen=True, slots=True)
class Change:
    """Something that happened to an object."""

    object: Json
    """As it is now; when it was deleted, as it was last."""
    deleted: bool = False


class Reflector:
    """The objects of one kind, in one namespace or in all. Any thread may read; objects belong to
    the reflector and are not to be changed."""

    def __init__(
        self,
        api: KubeApi,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        keep: Callable[[Json], Json] = lambda item: item,
        on_change: Callable[[], object] = lambda: None,
    ) -> None:
        """`keep` makes of an object what is kept of it (its metadata must stay)."""
        self._api = api
        self._resource = resource
        self._where: dict[str, Any] = {"namespace": namespace, "labels": labels, "fields": fields}
        self._keep = keep
        self._on_change = on_change
        self._lock = threading.Lock()
        self._items: dict[tuple[str, str], Json] = {}
        self._changes: list[Change] = []
        self._version = ""
        self._heard = time.monotonic()
        self._closed = threading.Event()
        self._opened: list[Any] = []
        self._thread: threading.Thread | None = None
        self.trouble = ""
        """Why the copy may be old; empty while all is well."""
        self.lists = 0
        """How often everything was listed."""

    def start(self) -> None:
        """List once, and go on in a thread; raises KubernetesError if the first list fails."""
        self._take(self._api.list(self._resource, **self._where))
        name = f"watch-{self._resource.plural}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def objects(self) -> dict[tuple[str, str], Json]:
        """All there are, by namespace and name."""
        with self._lock:
            return dict(self._items)

    def get(self, name: str, namespace: str = "") -> Json | None:
        """One of them."""
        return self._items.get((namespace, name))

    def changes(self, most: int | None = None) -> list[Change]:
        """What happened since the last call, in order, at most so much; the first time, all that
        is there."""
        with self._lock:
            taken = self._changes[:most]
            del self._changes[: len(taken)]
        return taken

    def away_s(self) -> float:
        """For how long the cluster has not been heard; 0 while a watch is open."""
        return time.monotonic() - self._heard if self.trouble else 0.0

    def drop(self) -> None:
        """Hang up; the watch is resumed."""
        for answer in list(self._opened):
            hang_up(answer)

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self.drop()
        if self._thread is not None:
            self._thread.join()

    # -- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._closed.is_set():
            before = self._heard
            try:
                if not self._version:
                    self._take(self._api.list(self._resource, **self._where))
                self._follow()
            except KubernetesError as error:
                if error.status == _GONE:
                    self._version = ""
                    continue
                if not self._closed.is_set() and not self.trouble:
                    log.info("watching %s: %s", self._resource.plural, error)
                self.trouble = str(error)
            except Exception as error:  # an object that makes no sense must not end the watch
                log.exception("watching %s", self._resource.plural)
                self.trouble, self._version = str(error), ""
            else:
                self.trouble = ""
            if self._heard > before:
                pause_s = _FIRST_PAUSE_S
            if self.trouble:
                self._closed.wait(pause_s)
                pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)

    def _follow(self) -> None:
        """One watch, until its end."""
        events = self._api.watch(self._resource, self._version, opened=self._opened, **self._where)
        for kind, item in events:
            self._heard = time.monotonic()
            self.trouble = ""
            self._version = item["metadata"]["resourceVersion"]
            if kind != "BOOKMARK":
                self._change(self._keep(item), deleted=kind == "DELETED")
                self._on_change()
            if self._closed.is_set():
                return

    def _take(self, listing: ObjectList) -> None:
        """Everything was listed: what differs from what was known has changed."""
        there = {_key(item): self._keep(item) for item in listing.items}
        gone = [item for key, item in self._items.items() if key not in there]
        for item in gone:
            self._change(item, deleted=True)
        for key, item in there.items():
            known = self._items.get(key)
            if known is None or _version(known) != _version(item):
                if known is not None and known["metadata"]["uid"] != item["metadata"]["uid"]:
                    self._change(known, deleted=True)
                self._change(item)
        self._version = listing.version
        self._heard = time.monotonic()
        self.trouble = ""
        self.lists += 1
        self._on_change()

    def _change(self, item: Json, *, deleted: bool = False) -> None:
        with self._lock:
            if deleted:
                self._items.pop(_key(item), None)
            else:
                self._items[_key(item)] = item
            self._changes.append(Change(item, deleted))


def _key(item: Json) -> tuple[str, str]:
    meta = item["metadata"]
    return meta.get("namespace", ""), meta["name"]


def _version(item: Json) -> str:
    return str(item["metadata"].get("resourceVersion"))
