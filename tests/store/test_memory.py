"""The journal in memory and in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from presage.model import event as ev
from presage.model.cluster import Device, Node, Worker
from presage.model.errors import InternalError, StaleLease, UserError
from presage.model.job import JobSpec, Role
from presage.store.memory import MemoryStore

UP = ev.NodeUp(Node("n0", (Device("a100", 1024, 0.5),), labels={"rack": "r0"}))
SUBMIT = ev.JobSubmitted(JobSpec("a", (Role(),), labels={"team": "x"}))
LAUNCH = ev.Launch("a", 1, (Worker(0, 0, "n0", (0,)),))
STARTED = ev.JobStarted("a", 1, at=0.1 + 0.2)


def store() -> MemoryStore:
    journal = MemoryStore()
    journal.append(0.0, [UP], [])
    journal.append(0.0, [SUBMIT], [LAUNCH])
    journal.append(1 / 3, [STARTED], [])
    return journal


EVENTS = [(0.0, UP), (0.0, SUBMIT), (0.0, LAUNCH), (1 / 3, STARTED)]


@pytest.mark.parametrize("since", [0, 1, 3, 4, 9])
def test_it_is_read_from_a_position(since: int) -> None:
    assert list(store().read(since)) == EVENTS[since:]


def test_steps_keep_what_was_decided_together() -> None:
    assert list(store().steps()) == [
        (0.0, (UP,), ()),
        (0.0, (SUBMIT,), (LAUNCH,)),
        (1 / 3, (STARTED,), ()),
    ]


def test_a_former_leader_is_fenced_off() -> None:
    journal = store()
    journal.append(1.0, [ev.Woke()], [], lease=3)
    journal.append(2.0, [ev.Woke()], [], lease=3)
    with pytest.raises(StaleLease, match="lease 2 is over: lease 3"):
        journal.append(3.0, [ev.Woke()], [], lease=2)
    assert len(list(journal.read())) == 6
    assert issubclass(StaleLease, InternalError)


def test_a_file_holds_the_same(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    store().dump(path)
    assert list(MemoryStore.load(path).steps()) == list(store().steps())
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    store().dump(path)
    broken = store()
    broken.append(2.0, [], [ev.WakeAt(float("nan"))])
    with pytest.raises(ValueError, match="JSON compliant"):
        broken.dump(path)
    assert len(list(MemoryStore.load(path).steps())) == 3
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "[]",
        '{"now": 1}',
        '{"now": "x", "facts": [], "decisions": []}',
        '{"now": 1, "facts": [{"type": "Explode"}], "decisions": []}',
        '{"now": 1, "facts": [{"type": "WakeAt", "at": 1}], "decisions": []}',
        '{"now": 1, "facts": [], "decisions": [{"type": "Woke"}]}',
    ],
)
def test_a_line_that_is_no_step_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "journal.jsonl"
    store().dump(path)
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(UserError, match=r"journal.jsonl line 4 is no journal entry"):
        MemoryStore.load(path)
