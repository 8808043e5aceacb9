"""Jobs that nobody submitted here: an executor found them in its world, as pods that others made.

Users see them as they see their own, so each gets a row, with a manifest that says what is known.
Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from presage.manifest import Manifest
from presage.model.cluster import WHOLE_GPU
from presage.model.errors import ManifestError
from presage.model.event import Fact, JobSubmitted
from presage.model.job import JobSpec, Role
from presage.store.records import JobRow

__all__ = ["found_rows"]


def found_rows(now: float, facts: Iterable[Fact], known: Collection[str]) -> list[JobRow]:
    """Rows of the submissions among facts that nobody has given one."""
    return [
        _row(now, fact.spec)
        for fact in facts
        if isinstance(fact, JobSubmitted) and fact.spec.id not in known
    ]


def _row(now: float, spec: JobSpec) -> JobRow:
    return JobRow(
        id=spec.id,
        name=spec.id.rpartition("-")[0] or spec.id,
        owner=spec.owner,
        team=spec.team,
        queue=spec.queue,
        submitted_at=now,
        manifest=_manifest(spec),
    )


def _manifest(spec: JobSpec) -> dict[str, Any]:
    """What a manifest of ours would say; what it cannot say is left out."""
    image, *command = spec.entrypoint or ("",)
    said: dict[str, Any] = {
        "name": spec.id,
        "command": command or [image or "unknown"],
        "priority": spec.priority,
        "queue": spec.queue,
        "labels": dict(spec.labels),
        "roles": {role.name: _role(role) for role in spec.roles},
    }
    if spec.model:
        said["model"] = spec.model
    for key in ("", "model", "labels", "priority", "queue", "roles"):
        said.pop(key, None)
        try:
            return dict(Manifest.from_json(said).to_json())
        except ManifestError:  # names that ours may not have, priorities beyond ours …
            continue
    return {"name": "pods", "command": ["unknown"]}


def _role(role: Role) -> dict[str, Any]:
    ask = role.resources
    resources: dict[str, Any] = {}
    if ask.cpu_milli:
        resources["cpus"] = ask.cpu_milli / 1000
    if ask.memory_mib:
        resources["memory"] = f"{ask.memory_mib}Mi"
    if ask.gpu_milli:
        resources["gpus"] = ask.gpu_milli / WHOLE_GPU
    return {"workers": role.min, "resources": resources}
