"""A placement that looks at the links of nodes: jobs that talk much are kept off each other's.

It goes by what was foreseen of each job when it was submitted (`Estimates.link_share`), and knows
neither how fast links are nor what becomes of steps that meet. A job of which nothing was
foreseen loads nothing here.
"""

from __future__ import annotations

import numpy as np

from presage.model.job import Job, JobState
from presage.policy.request import Floats, Request

__all__ = ["Links"]

_STOPPING = JobState.STOPPING


class Links:
    """The node on whose link the load of this job meets least of the others'.

    A job loads the link of each node it is on, if those are several. To be added to a score that
    says where there is room; alone, it takes the first node among those that tie.
    """

    def __init__(self) -> None:
        self._seen: Request | None = None
        self._loads: Floats = np.zeros(0)

    def __call__(self, request: Request) -> Floats:
        """1 ÷ (1 + own load · loads of others there): how fast it would be if steps lie to each
        other as chance has it. 1 everywhere for a job that is alone or talks to nobody."""
        own = _share(request.job)
        if not own or (request.workers == 1 and not request.job.allocation):
            return np.ones(len(request.capacity.nodes))
        if request is not self._seen:  # one for all workers of a job that are placed together
            self._seen, self._loads = request, _loads(request)
        return np.asarray(1.0 / (1.0 + own * self._loads))


def _loads(request: Request) -> Floats:
    """The sum on each link, without this job and those that are leaving; what is reserved for a
    job that waits counts as if it ran."""
    index, state = request.capacity.index, request.plan.state
    loads = np.zeros(len(request.capacity.nodes))
    running = [
        (job, (*job.allocation, *(job.resizing or ())))
        for job in state.active.values()
        if job.state is not _STOPPING
    ]
    waiting = [(state.jobs[name], workers) for name, workers in state.reservations.items()]
    for job, workers in (*running, *waiting):
        share = _share(job)
        if not share or job is request.job:
            continue
        nodes = {worker.node for worker in workers}
        if len(nodes) > 1:
            for node in nodes & index.keys():
                loads[index[node]] += share
    return loads


def _share(job: Job) -> float:
    said = job.estimates.link_share if job.estimates is not None else None
    return said.p50 if said is not None else 0.0
