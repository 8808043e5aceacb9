"""The executor that a server decides for: the one its settings name, given what it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from presage.executors.local import LocalExecutor
from presage.model import event as ev
from presage.server.live import LiveExecutor
from presage.server.plans import ElasticPlans

if TYPE_CHECKING:
    from presage.server.service import Service

__all__ = ["make_executor"]


def make_executor(service: Service) -> LiveExecutor:
    """A new executor, of the kind that the settings name."""
    return _Prepared(service)


class _Prepared(LocalExecutor):
    """The local executor; before a launch, what it needs of a job is put where it looks."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._plans = ElasticPlans(service.store.jobs.get)
        super().__init__(service.settings.data, service.settings.nodes)

    def launch(self, decision: ev.Launch) -> None:
        """Write the job's file from its row, then start it."""
        self._service.write_job_file(decision.job)
        super().launch(decision)

    def poll(self, now: float) -> list[ev.Fact]:
        """What happened, and what plans of manifests ask for because of it."""
        facts = super().poll(now)
        return facts + self._plans.requests(facts)
