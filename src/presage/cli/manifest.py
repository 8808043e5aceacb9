"""`presage init` and `presage lint`: write a first manifest, and check one.

Thin: what a manifest is, `presage.manifest` says. Neither command talks to a server.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from presage.cli._output import print_json, say
from presage.manifest import EXAMPLE, Manifest, advice, read_manifest
from presage.model.errors import ManifestError, UserError

if TYPE_CHECKING:
    from presage.client import FolderSurvey

__all__ = ["Include", "init", "lint", "sends_json", "surveyed"]

File = Annotated[Path, typer.Argument(help="The manifest to write.")]
Given = Annotated[Path, typer.Argument(metavar="MANIFEST", help="The manifest to check.")]
Include = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN",
        help="Send these files, too, although they are ignored or may hold secrets.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


def init(file: File = Path("presage.yaml"), json: AsJson = False) -> None:
    """Write a manifest with every key explained; a file that is there stays."""
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(EXAMPLE)
    except FileExistsError:
        raise UserError(f"{file} is there already; name another file, or remove it") from None
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}") from None
    if json:
        print_json({"manifest": str(file)})
    else:
        typer.echo(f"wrote {file}; change it, then: presage lint {file}")


def surveyed(checked: Manifest, manifest: Path, include: list[str] | None) -> FolderSurvey | None:
    """What is sent with a job; None if it brings no folder."""
    from presage.client import survey_folder

    if checked.git is not None:
        return None
    return survey_folder(manifest.absolute().parent, include or ())


def sends_json(sends: FolderSurvey | None) -> dict[str, Any] | None:
    """The same for `--json`."""
    if sends is None:
        return None
    largest = [{"path": path, "bytes": size} for path, size in sends.largest]
    facts = {"files": sends.files, "bytes": sends.bytes, "largest": largest}
    return {**facts, "ignored": sends.ignored, "withheld": list(sends.withheld)}


def lint(manifest: Given, include: Include = None, json: AsJson = False) -> None:
    """Check a manifest: the first mistake with its line, or what the job asks for."""
    try:
        parsed = read_manifest(manifest)
    except ManifestError as error:
        if not json:
            raise
        wrong = {"code": error.code, "text": str(error)}
        print_json({"manifest": str(manifest), "valid": False, "error": wrong, "notes": []})
        raise typer.Exit(error.exit_code) from None
    notes = advice(parsed, manifest.absolute().parent)
    sends = surveyed(parsed, manifest, include)
    if json:
        facts = {"valid": True, "error": None, "name": parsed.name, "notes": notes}
        print_json({"manifest": str(manifest), **facts, "sends": sends_json(sends)})
        return
    typer.echo(f"{manifest} is valid: {parsed.name}, {_described(parsed)}, queue {parsed.queue}")
    if sends is not None:
        say(f"it sends {sends.text}")
        if sends.warning:
            say(sends.warning)
    for note in notes:
        say(f"note: {note}")


def _described(manifest: Manifest) -> str:
    """What the job asks for, role by role."""
    parts = []
    for name, role in manifest.all_roles.items():
        asked = role.resources.model_dump(exclude_none=True)
        each = ", ".join(
            f"{key} {'/'.join(value) if isinstance(value, list) else value}"
            for key, value in asked.items()
        )
        parts.append(f"{name} {role.workers}" + (f" × ({each})" if each else ""))
    return " + ".join(parts)
