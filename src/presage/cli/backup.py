"""`presage backup` and `presage restore`: a server in one file, and back."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from presage.cli._output import print_json, progress, say
from presage.layout import Layout
from presage.model.errors import BackupError

__all__ = ["backup", "restore"]

Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


def backup(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write.")],
    data: Annotated[
        Path | None,
        typer.Option(
            help="The server's data directory.", show_default="~/.local/share/presage/server"
        ),
    ] = None,
    db: Annotated[str | None, typer.Option(help="The server's --db, if it has one.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="The server's --config, for both of them.")
    ] = None,
    no_secrets: Annotated[
        bool, typer.Option("--no-secrets", help="Leave the secrets of jobs out.")
    ] = False,
    json: Json = False,
) -> None:
    """Write everything a server has to one file; the server may run."""
    from presage.control.records.backup import make_backup
    from presage.control.site.settings import default_data

    if config is not None:
        from presage.control.site.config import read_server_file

        storage = read_server_file(config).storage
        data, db = data or storage.data, db or storage.db
    layout = Layout((data or default_data()).expanduser().absolute())
    if not layout.data.is_dir() or (not db and not layout.database.is_file()):
        raise BackupError(f"{layout.data} is no data directory of a server; give --data or --db")
    url = db or f"sqlite:///{layout.database}"
    with progress("backup") as report:
        made = make_backup(out, layout, url, with_secrets=not no_secrets, report=report)
    if json:
        print_json(asdict(made))
        return
    secrets = "the secrets of jobs are in it: keep it safe" if made.secrets else "without secrets"
    typer.echo(
        f"{out}: {_count(made.jobs, 'job')}, {_count(made.files, 'file')}, {_size(made.bytes)}"
    )
    say(secrets)


def restore(
    file: Annotated[Path, typer.Argument(metavar="IN", help="A backup.")],
    data: Annotated[
        Path | None, typer.Option(help="The data directory to make; it must not have anything.")
    ] = None,
    db: Annotated[
        str | None,
        typer.Option(help="An empty database to fill.", show_default="SQLite in --data"),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only say whether the backup is whole.")
    ] = False,
    json: Json = False,
) -> None:
    """Make a server's data directory of a backup, or check one."""
    from presage.control.records.backup import check_backup, restore_backup

    if check:
        info = check_backup(file)
        if json:
            print_json(asdict(info))
        else:
            typer.echo(
                f"{file} is whole: {_count(info.jobs, 'job')}, {_count(info.files, 'file')}"
            )
        return
    if data is None:
        raise BackupError("say where to: --data DIR, a directory that is not there yet")
    made = restore_backup(file, data.expanduser().absolute(), db or "")
    if json:
        print_json(asdict(made))
        return
    typer.echo(
        f"{made.data}: {_count(made.backup.jobs, 'job')}, {_count(made.backup.files, 'file')}"
    )
    more = " --db …" if db else ""
    say(f"start it with `presage serve --data {made.data}{more}`; the old server must not run")


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.1f} MiB"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
