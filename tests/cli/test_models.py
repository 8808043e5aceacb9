"""`presage models` as people and programs see it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from presage.cli.main import app
from presage.foresee.champions import Champions
from presage.foresee.own import OwnRun
from presage.layout import Layout
from presage.model.estimate import Estimate
from presage.store import open_store


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with learned(tmp_path) as champions:
        for k in range(24):
            champions.add("memory", OwnRun(f"w{k % 3}", "cpu", float(k), 100.0 + k % 3, 900.0))
        champions.challenge("memory", champions.runs("memory"), 1_800_000_000.0)
    return tmp_path


@contextmanager
def learned(data: Path) -> Iterator[Champions]:
    """What a server learned."""
    store = open_store(f"sqlite:///{Layout(data).database}")
    yield Champions(store.knowledge)
    store.close()


def test_estimates_that_drift_are_told(data: Path) -> None:
    _, text = run("--data", str(data))
    assert "no estimate was judged yet" in text
    with learned(data) as champions:
        for _ in range(6):
            champions.judge("memory", Estimate(90.0, 100.0, 110.0, "MiB", ""), 250.0)
    _, text = run("--data", str(data))
    assert "the latest 6 estimates were off by 150.0% on average; ALERT" in text
    drift = json.loads(run("--data", str(data), "--json")[1])["memory"]["drift"]
    assert (drift["judged"], drift["inside"], drift["drifted"]) == (6, 0.0, True)


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["models", *words])
    return done.exit_code, done.output


def test_versions_are_listed_with_who_answers(data: Path) -> None:
    for words in ((), ("list",)):
        code, text = run(*words, "--data", str(data))
        assert code == 0
        assert "memory: version 1 answers" in text
        (row,) = [line.split() for line in text.splitlines() if "accepted" in line]
        assert row[:3] == ["memory", "1", "yes"]
        assert text.count("QUANTITY") == 1
    code, text = run("--data", str(data), "--json")
    body = json.loads(text)
    assert body["memory"]["champion"] == 1
    assert body["memory"]["versions"][0]["accepted"] is True
    assert body["step_time"]["versions"] == []


def test_versions_are_compared_pinned_and_rolled_back(data: Path) -> None:
    _, text = run("compare", "memory", "0", "1", "--data", str(data), "--json")
    errors = json.loads(text)["errors"]
    assert errors["1"] < errors["0"]
    assert run("pin", "memory", "0", "--data", str(data)) == (
        0,
        "memory: version 0 answers, pinned\n",
    )
    assert run("unpin", "memory", "--data", str(data))[1] == "memory: version 0 answers\n"
    assert run("rollback", "memory", "--data", str(data))[1].startswith("memory: version 1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pin", "memory", "7"), "memory has no version 7; there are 0, 1"),
        (("pin", "joy", "1"), "nothing is learned of 'joy'"),
        (("compare", "step_time", "0", "1"), "there is nothing to compare on"),
        (("rollback", "step_time"), "has had no other champion"),
    ],
)
def test_what_makes_no_sense_is_one_line(data: Path, words: tuple[str, ...], said: str) -> None:
    code, text = run(*words, "--data", str(data))
    assert code == 2
    assert said in text
    assert "Traceback" not in text


def test_without_a_server_nothing_was_learned_and_nothing_is_changed(tmp_path: Path) -> None:
    code, text = run("--data", str(tmp_path))
    assert code == 0
    assert "nothing was learned yet" in text
    code, text = run("pin", "memory", "0", "--data", str(tmp_path))
    assert code == 2
    assert "there is no server's database in" in text
    assert list(tmp_path.iterdir()) == []


def test_the_database_may_be_elsewhere(
    data: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    where = ("--db", f"sqlite:///{Layout(data).database}")
    other = ("--data", str(tmp_path_factory.mktemp("other")))
    assert json.loads(run(*where, *other, "--json")[1])["memory"]["champion"] == 1
    assert run("pin", "memory", "0", *where)[0] == 0
    assert json.loads(run("--data", str(data), "--json")[1])["memory"]["pinned"] is True
