"""The executor that a server decides for: the one its settings name, given what it needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from presage.core.ports import CanLimit
from presage.executors.local import LocalExecutor
from presage.executors.ray import RayExecutor
from presage.model import event as ev
from presage.model.cluster import Node
from presage.server.live import LiveExecutor
from presage.server.plans import ElasticPlans

if TYPE_CHECKING:
    from presage.server.service import Service

__all__ = ["make_executor"]


def make_executor(service: Service) -> LiveExecutor:
    """A new executor, of the kind that the settings name."""
    settings = service.settings
    inner: LocalExecutor | RayExecutor
    if settings.ray is not None:
        inner = RayExecutor(settings.data, settings.ray, shared=settings.ray_shared)
    else:
        inner = LocalExecutor(settings.data, settings.nodes)
    return _Prepared(inner, service)


class _Prepared:
    """An executor for a server: before a launch, what it needs of a job is put where it looks, and
    plans of manifests are heard."""

    def __init__(self, inner: LocalExecutor | RayExecutor, service: Service) -> None:
        self._inner = inner
        self._service = service
        self._plans = ElasticPlans(service.store.jobs.get)
        self.stop = inner.stop
        self.resize = inner.resize
        if isinstance(inner, CanLimit):
            self.limit = inner.limit
        self.wait = inner.wait
        self.wake = inner.wake
        self.close = inner.close

    def nodes(self) -> Sequence[Node]:
        """The nodes that exist now."""
        return self._inner.nodes()

    def launch(self, decision: ev.Launch) -> None:
        """Write the job's file from its row, then start it."""
        self._service.write_job_file(decision.job)
        self._inner.launch(decision)

    def poll(self, now: float) -> list[ev.Fact]:
        """What happened, and what plans of manifests ask for because of it."""
        facts = self._inner.poll(now)
        return facts + self._plans.requests(facts)
