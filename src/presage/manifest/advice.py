"""What is allowed in a manifest and still likely to disappoint its owner."""

from __future__ import annotations

import shlex
from pathlib import Path

from presage.manifest.quantities import worker_span
from presage.manifest.schema import Manifest
from presage.sources import missing_for, missing_for_git

__all__ = ["advice"]

_CODE = (".py", ".sh")


def advice(manifest: Manifest, folder: Path | None = None) -> list[str]:
    """Sentences for the owner; with the manifest's folder, also about files that are not there."""
    notes = []
    spans = [worker_span(role.workers) for role in manifest.all_roles.values()]
    if manifest.checkpoint is None:
        if any(least < most for least, most in spans):
            notes.append(
                "without checkpoint, a change of workers starts the job from the beginning"
            )
        elif manifest.preemptible:
            notes.append("without checkpoint, a job that is stopped starts from the beginning")
    if manifest.retry.oom and not any(r.resources.memory for r in manifest.all_roles.values()):
        notes.append("retry.oom raises memory, and no memory is given to start from")
    if folder is not None and manifest.image is None and manifest.git is None:
        notes += [
            f"the command names {script}, and the folder of the manifest has no such file"
            for script in _scripts(manifest)
            if not (folder / script).exists()
        ]
    if manifest.git is not None and (missing := missing_for_git()):
        notes.append(missing)
    results = manifest.results.url if manifest.results else None
    addresses = [*manifest.data.values(), *([results] if results else [])]
    return notes + list(dict.fromkeys(filter(None, map(missing_for, addresses))))


def _scripts(manifest: Manifest) -> list[str]:
    """Scripts that the commands start, as far as they can be told from the words."""
    scripts: dict[str, None] = {}
    for role in manifest.all_roles.values():
        command = role.command or ""
        try:
            words = shlex.split(command) if isinstance(command, str) else command
        except ValueError:
            continue
        if any(word in ("cd", "&&", ";", "|") for word in words):
            continue
        script = next((word for word in words if word.endswith(_CODE)), None)
        if script is not None and not any(sign in script for sign in "$`*?\0"):
            scripts[script] = None
    return list(scripts)
