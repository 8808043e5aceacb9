"""The help of the command line, completion, and the question before work is lost."""

from __future__ import annotations

import io
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from presage.cli._asking import ask_before_loss
from presage.cli.main import app
from presage.client import Client
from presage.model.answers import AtRisk
from presage.model.errors import UserError


def commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield name, command
    names = command.list_commands(None) if hasattr(command, "list_commands") else []
    for child in names:
        yield from commands(f"{name} {child}", command.get_command(None, child))


def test_every_command_and_option_has_a_help_text() -> None:
    missing = []
    for name, command in commands("presage", typer.main.get_command(app)):
        missing += [name] if not command.help else []
        missing += [f"{name} {param.name}" for param in command.params if not param.help]
    assert missing == []


def test_a_newcomer_finds_commands_by_what_they_are_for() -> None:
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80", "TERM": "dumb"}).output
    places = [
        text.index(f"{panel} ─")
        for panel in (
            "Run jobs",
            "Run a cluster",
            "Foresee a training",
            "Study policies and telemetry",
        )
    ]
    assert places == sorted(places)
    assert text.index(" submit ") < text.index(" serve ") < text.index(" predict ")
    assert "─ Commands ─" not in text


@pytest.mark.parametrize(
    ("words", "offered"),
    [("presage sta", ["status"]), ("presage logs --fol", ["--follow"]), ("presage logs x", [])],
)
def test_a_shell_completes(words: str, offered: list[str]) -> None:
    env = {
        "_PRESAGE_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
        "PRESAGE_URL": "http://127.0.0.1:9",
    }
    done = CliRunner().invoke(app, [], prog_name="presage", env=env)
    assert done.output.split() == offered


class Asked(Client):
    """A client whose jobs would lose ten minutes, or nothing."""

    def __init__(self, ask: bool) -> None:
        risk = AtRisk(False, None, 600.0, ask, "10 min of work would be lost")
        self.info = SimpleNamespace(id="job-1", at_risk=risk)

    def job(self, job_id: str) -> Any:
        return SimpleNamespace(info=self.info)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_loses_work_is_asked_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal())
    answers = iter([True, False])
    monkeypatch.setattr("typer.confirm", lambda *_, **__: next(answers))
    ask_before_loss(Asked(True), ["job"], "halt it", yes=False)
    assert "job-1: 10 min of work would be lost" in capsys.readouterr().err
    with pytest.raises(typer.Exit):
        ask_before_loss(Asked(True), ["job"], "halt it", yes=False)
    ask_before_loss(Asked(True), ["job"], "halt it", yes=True)
    ask_before_loss(Asked(False), ["job"], "halt it", yes=False)


def test_in_a_pipe_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(UserError, match=r"10 min .* give --yes to halt it all the same"):
        ask_before_loss(Asked(True), ["job", "job"], "halt it", yes=False)
    ask_before_loss(Asked(False), ["job"], "halt it", yes=False)
