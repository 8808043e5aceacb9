"""What the executor gives each of its runs. It holds no state of a run, and decides nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from presage.executors.kubernetes.api import Json, KubeApi
from presage.executors.kubernetes.logs import Hear
from presage.executors.kubernetes.monitor import Key
from presage.executors.kubernetes.settings import ClusterUse
from presage.layout import Layout
from presage.model.errors import KubernetesError
from presage.model.event import Fact

__all__ = ["RunContext", "may_pass"]


@dataclass(frozen=True, slots=True)
class RunContext:
    """What a run needs of the executor it belongs to."""

    api: KubeApi
    use: ClusterUse
    layout: Layout
    namespace: str
    node: Callable[[str], Json | None]
    """A node as the cluster has it now."""
    tell: Callable[[Fact], None]
    follow: Callable[[Key, str, str, int], None]
    """Read the log of a worker's pod, which begins so far into ours, from now on; called again and
    again."""
    listen: Callable[[Key, str, str, Hear], None]
    """Hear what the step beside a worker says; called again and again."""
    logs_are_in: Callable[[Key], bool]
    """Whether everything that pods printed was read, or never will be."""
    forget_logs: Callable[[Key], None]
    """Other pods have their place."""


def may_pass(error: KubernetesError) -> bool:
    """Whether the same request may succeed later."""
    return error.status in (0, 409, 410, 429) or error.status >= 500
