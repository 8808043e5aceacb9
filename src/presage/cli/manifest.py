"""`presage init` and `presage lint`: write a first manifest, and check one.

Thin: what a manifest is, `presage.manifest` says. Neither command talks to a server.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from presage.cli._output import print_json, say
from presage.manifest import EXAMPLE, Manifest, advice, read_submission
from presage.model.errors import ManifestError, UserError

__all__ = ["init", "lint"]

File = Annotated[Path, typer.Argument(help="The manifest to write.")]
Given = Annotated[Path, typer.Argument(metavar="MANIFEST", help="The manifest to check.")]
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


def lint(manifest: Given, json: AsJson = False) -> None:
    """Check a manifest: the first mistake with its line, or what the job asks for."""
    try:
        asked = read_submission(manifest)
        parsed = asked.first
        list(asked.jobs())  # every point must give a job
    except ManifestError as error:
        if not json:
            raise
        wrong = {"code": error.code, "text": str(error)}
        print_json({"manifest": str(manifest), "valid": False, "error": wrong, "notes": []})
        raise typer.Exit(error.exit_code) from None
    notes = advice(parsed, manifest.absolute().parent)
    if json:
        facts: dict[str, object] = {
            "valid": True,
            "error": None,
            "name": parsed.name,
            "notes": notes,
        }
        if asked.sweep is not None:
            facts["jobs"] = asked.size
        print_json({"manifest": str(manifest), **facts})
        return
    many = f", {asked.size} jobs" if asked.sweep is not None else ""
    what = f"{parsed.name}{many}, {_described(parsed)}, queue {parsed.queue}"
    typer.echo(f"{manifest} is valid: {what}")
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
