"""`presage share`: what a share is worth is written and changed, and a daemon takes it over."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

import pytest
from typer.testing import CliRunner, Result

from presage.cli.main import app
from presage.executors.node.shares.daemon import ShareDaemon
from presage.executors.node.shares.terms import read_terms
from presage.executors.node.shares.turns import ShareTerms


def share(*words: object) -> Result:
    return CliRunner().invoke(app, ["share", *map(str, words)])


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Path]:
    made: SimpleQueue[ShareDaemon] = SimpleQueue()

    def serve() -> None:  # it sets the priority of the thread that makes it
        made.put(daemon := ShareDaemon(tmp_path))
        daemon.run()

    thread = Thread(target=serve)
    thread.start()
    daemon = made.get(timeout=30)
    yield tmp_path
    daemon.stop()
    thread.join()


def test_a_share_is_made_and_changed(tmp_path: Path) -> None:
    asked = ("--request", 0.3, "--limit", 0.5, "--memory", "4Gi")
    made = share("set", "mine", "--new", *asked, "--home", tmp_path)
    assert made.exit_code == 0, made.output
    assert "no share daemon runs here" in made.output
    assert read_terms(tmp_path, "mine") == ShareTerms(0.3, 0.5, 4 << 30)
    changed = share("set", "mine", "--limit", 0.8, "--weight", 2, "--soft", "--home", tmp_path)
    assert changed.exit_code == 0, changed.output
    assert read_terms(tmp_path, "mine") == ShareTerms(0.3, 0.8, 4 << 30, 2.0, hard=False)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("other", "--limit", 0.5), "there is no share other"),
        (("mine", "--limit", 0.2), "above its limit"),
        (("mine", "--memory", "much"), "--memory: write memory with its unit"),
        (("mine", "--weight", 0), "a weight is above 0"),
    ],
)
def test_what_makes_no_sense_is_said(words: tuple[object, ...], said: str, tmp_path: Path) -> None:
    share("set", "mine", "--new", "--request", 0.3, "--home", tmp_path)
    before = read_terms(tmp_path, "mine")
    wrong = share("set", *words, "--home", tmp_path)
    assert wrong.exit_code != 0
    assert said in wrong.output
    assert read_terms(tmp_path, "mine") == before


def test_a_daemon_is_asked_and_told(served: Path) -> None:
    told = share("set", "mine", "--new", "--request", 0.3, "--home", served)
    assert told.exit_code == 0
    assert not told.output
    listed = share("ls", "--json", "--home", served)
    assert json.loads(listed.output) == {"shares": []}  # nobody uses it yet


def test_without_a_daemon_it_is_said_how_to_start_one(tmp_path: Path) -> None:
    assert "presage share serve" in share("ls", "--home", tmp_path).output
