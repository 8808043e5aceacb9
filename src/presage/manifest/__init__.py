"""The manifest: what a user writes to have a job run, and what the scheduler makes of it.

    name: hello
    command: python train.py --epochs 3
    workers: 2..4
    resources: {cpus: 1, memory: 512Mi, gpus: 1}

`read_manifest` takes a file, `parse_manifest` a text that somebody sent; both raise
`ManifestError` and nothing else. `to_spec` gives the `JobSpec`. What a secret holds is never part
of either.
"""

from __future__ import annotations

import json
from pathlib import Path

from presage.edge import read_yaml
from presage.manifest.advice import advice
from presage.manifest.auto import Needs, resolved, says_auto
from presage.manifest.schema import Manifest, ModelReference, RoleManifest, WorkerResources
from presage.manifest.spec import argv, to_spec
from presage.manifest.submission import (
    LIMITS,
    Submission,
    manifest_schema,
    parse_submission,
    read_submission,
    submission_of,
    with_changes,
)
from presage.model.errors import ManifestError

__all__ = [
    "EXAMPLE",
    "LIMITS",
    "SCHEMA",
    "Manifest",
    "ModelReference",
    "Needs",
    "RoleManifest",
    "Submission",
    "WorkerResources",
    "advice",
    "argv",
    "example",
    "parse_manifest",
    "parse_submission",
    "read_manifest",
    "read_submission",
    "resolved",
    "says_auto",
    "submission_of",
    "to_spec",
    "with_changes",
]

EXAMPLE = Path(__file__).with_name("example.yaml").read_text(encoding="utf-8")
"""A manifest with every key and what it means."""
_EXAMPLE_COMMAND = "command: python train.py --epochs 3\n"
_EXAMPLE_GPUS = "  # gpus: 1 "

SCHEMA = manifest_schema()
"""What may be submitted, as JSON Schema."""


def read_manifest(path: Path) -> Manifest:
    """The manifest in a file."""
    return read_yaml(path, Manifest, ManifestError, LIMITS)


def example(command: str, *, gpus: int) -> str:
    """The example with a command of one's own; it asks for a GPU where there are some."""
    words = json.dumps(command) if ": " in command or " #" in command else command
    text = EXAMPLE.replace(_EXAMPLE_COMMAND, f"command: {words}\n")
    return text.replace(_EXAMPLE_GPUS, "  gpus: 1   ") if gpus else text


def parse_manifest(text: bytes | str, content_type: str = "application/yaml") -> Manifest:
    """The manifest in a text of this media type: JSON or YAML."""
    asked = parse_submission(text, content_type)
    if asked.sweep is not None:
        raise ManifestError("a sweep is many jobs; this takes a manifest of one")
    return asked.first
