"""When two jobs are the same workload: the one place that says so.

There are two ways to be the same, and each is a short name that may be kept on disk:

- `same_needs`: they need the same of a device (memory, utilization, time of a step), however long
  they are. The model tells, with all that changes what it needs; a job that names none is known by
  its command.
- `same_work`: they do the same work from beginning to end, so that what one took tells what the
  other will take. The model and the command tell.

Neither looks at who runs it, nor at how many workers it has. Who asks for less than the same
(one owner's jobs of one size, say) puts these beside it.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256

from presage.model.job import JobSpec

__all__ = ["same_needs", "same_work"]


def same_needs(spec: JobSpec, model: str | None = None) -> str:
    """The name of what a job needs; `model` describes its model better than the spec does."""
    return _name(model or spec.model or " ".join(spec.entrypoint))


def same_work(spec: JobSpec) -> str:
    """The name of the work that a job does."""
    return _name("\0".join((spec.model or "", *spec.entrypoint)))


@lru_cache(4096)
def _name(about: str) -> str:
    return sha256(about.encode()).hexdigest()[:24]
