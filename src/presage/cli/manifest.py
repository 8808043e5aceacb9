"""`presage init` and `presage lint`: write a first manifest, and check one.

Thin: what a manifest is, `presage.manifest` says. Neither command talks to a server.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from presage.cli._output import print_json, say
from presage.manifest import Manifest, advice, example, read_submission
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
    """Write a manifest that runs on this machine, with every key explained.

    A file that is there stays.
    """
    text = example(_command(file.absolute().parent), gpus=_gpus())
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        raise UserError(f"{file} is there already; name another file, or remove it") from None
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}") from None
    if json:
        print_json({"manifest": str(file)})
    else:
        typer.echo(f"wrote {file}; change it, then: presage lint {file}")


def _command(folder: Path) -> str:
    """What the job runs: a training that is there, else something that always works."""
    python = "python" if shutil.which("python") else "python3"
    if (folder / "train.py").is_file():
        return f"{python} train.py"
    return f"""{python} -c 'print("hello from Presage")'"""


def _gpus() -> int:
    """GPUs of this machine."""
    from presage.telemetry.nvml import open_gpus

    probe, _ = open_gpus()
    if probe is None:
        return 0
    count = len(list(probe.devices()))
    probe.close()
    return count


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
    """Check a manifest: every mistake with its line, or what the job asks for."""
    try:
        asked = read_submission(manifest)
        parsed = asked.first
        list(asked.jobs())  # every point must give a job
    except ManifestError as error:
        mistakes = list(error.mistakes) or [str(error)]
        if json:
            wrong = {"code": error.code, "text": str(error)}
            told = {"valid": False, "error": wrong, "mistakes": mistakes, "notes": []}
            print_json({"manifest": str(manifest), **told})
        else:
            for line in mistakes:
                say(f"error: {line}")
        raise typer.Exit(error.exit_code) from None
    notes = advice(parsed, manifest.absolute().parent)
    sends = surveyed(parsed, manifest, include)
    if json:
        facts: dict[str, object] = {"valid": True, "error": None, "name": parsed.name}
        if asked.sweep is not None:
            facts["jobs"] = asked.size
        print_json(
            {"manifest": str(manifest), **facts, "notes": notes, "sends": sends_json(sends)}
        )
        return
    many = f", {asked.size} jobs" if asked.sweep is not None else ""
    what = f"{parsed.name}{many}, {_described(parsed)}, queue {parsed.queue}"
    typer.echo(f"{manifest} is valid: {what}")
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
