"""The executor `ray`: runs jobs on the nodes of a Ray cluster that exists.

A child process, the driver, talks to Ray (`ray.driver`); all else is what every cluster with an
agent on each node has (`fleet`). Ray is not imported here.
"""

from __future__ import annotations

from presage.executors.fleet.executor import LinkedExecutor
from presage.executors.ray.head import RayHead
from presage.executors.ray.link import RayLink

__all__ = ["RayExecutor", "RayHead", "RayLink"]


class RayExecutor(LinkedExecutor):
    """Runs jobs on a Ray cluster."""
