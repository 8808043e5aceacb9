"""Journals that earlier versions wrote mean today what they meant then.

`journals/VERSION/` has them, with the states they fold to; `journals/make.py` wrote them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from presage.core.loop import fold
from presage.core.state import State
from presage.model import codec, speed
from presage.model.cluster import Device, Resources, Worker
from presage.model.event import DECISIONS, FACTS, JobExited, JobStarted, event_to_json
from presage.model.job import Job, JobSpec, JobState, OomRetry, Role
from presage.model.speed import SpeedBook
from presage.store.memory import MemoryStore

HOME = Path(__file__).with_name("journals")
JOURNALS = sorted(path for path in HOME.glob("*/*.jsonl") if ".states" not in path.name)
BEGINNINGS = {Job, SpeedBook}
"""How one of these begins is no default but what a submission means."""


def name(path: Path) -> str:
    return f"{path.parent.name} {path.stem}"


def states(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """What so many events of a journal fold to."""
    for line in path.with_suffix(".states.jsonl").read_text().splitlines():
        kept = json.loads(line)
        yield kept["events"], kept["state"]


@pytest.mark.parametrize("path", JOURNALS, ids=name)
def test_an_old_journal_folds_to_what_it_did(path: Path) -> None:
    same_meaning(path)


@pytest.mark.parametrize("path", JOURNALS, ids=name)
def test_an_old_journal_would_be_written_as_it_was(path: Path) -> None:
    lines = [
        json.dumps(
            {
                "now": now,
                "facts": [event_to_json(fact) for fact in facts],
                "decisions": [event_to_json(decision) for decision in decisions],
            }
        )
        for now, facts, decisions in MemoryStore.load(path).steps()
    ]
    assert lines == path.read_text().splitlines()


def test_there_are_journals_with_every_event() -> None:
    told = {type(event) for path in JOURNALS for _, event in MemoryStore.load(path).read()}
    assert told == {*FACTS, *DECISIONS}


# -- other defaults -------------------------------------------------------------------------------


@pytest.mark.parametrize("path", JOURNALS, ids=name)
def test_a_changed_default_changes_no_old_journal(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with other_defaults(
        monkeypatch, *(kind for kind in written_types() if kind not in BEGINNINGS)
    ):
        same_meaning(path)


@pytest.mark.parametrize("path", JOURNALS, ids=name)
def test_nor_does_it_change_an_old_snapshot(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with other_defaults(monkeypatch, *written_types()):
        for _, expected in states(path):
            assert State.restore(expected).snapshot() == expected


def test_with_other_defaults_everything_else_is_different(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the tests above would show nothing."""
    with other_defaults(monkeypatch, *written_types()):
        spec = JobSpec("a", ())
        assert (spec.max_retries, spec.max_lost, spec.oom) == (7, 107, OomRetry(10, 8.5, 7))
        assert Role() == Role("worker*", Resources(7, 7, 7, 7), 8, 8, ("*",))
        assert Worker(0, 0, "n").devices == (7,)
        assert (JobStarted("a", 1).at, Device().type) == (7.0, "gpu*")
        assert Job(spec, 0, 0.0, 0.0).state is not JobState.PENDING


def test_what_is_left_out_is_said_for_every_field_that_may_be() -> None:
    for kind in written_types():
        optional = {f.name for f in dataclasses.fields(kind) if f.init and _has_default(f)}
        assert optional == codec.LEFT_OUT.get(kind.__name__, {}).keys(), kind
    assert codec.LEFT_OUT.keys() <= {kind.__name__ for kind in written_types()}


def test_what_a_fold_counts_with_stays() -> None:
    """Speeds are bounded and weighed by these when a journal is folded. To change one, journal
    it (a field of `SpeedMeasured`), so that journals of before keep theirs."""
    assert (speed.MOST_WORKLOADS, speed.MOST_SIZES, speed.PAST_S) == (500, 32, 14_400.0)


def same_meaning(path: Path) -> None:
    events = list(MemoryStore.load(path).read())
    for count, expected in states(path):
        assert fold(events[:count]).snapshot() == expected
        kept = State.restore(expected)
        kept.check()
        assert kept.snapshot() == expected
        assert fold(events[count:], kept).snapshot() == fold(events).snapshot()


@contextmanager
def other_defaults(monkeypatch: pytest.MonkeyPatch, *kinds: type[Any]) -> Iterator[None]:
    """These types have other defaults, as if somebody had changed their code."""
    for kind in kinds:
        hints, own = get_type_hints(kind), codec._own_defaults(kind)
        given = [f for f in dataclasses.fields(kind) if f.init and _has_default(f)]
        others = tuple(_other(hints[f.name], own[f.name]) for f in given)
        monkeypatch.setattr(kind.__init__, "__defaults__", others)
        for field, other in zip(given, others, strict=True):
            monkeypatch.setattr(field, "default", other)
    _forget()
    yield
    monkeypatch.undo()
    _forget()


def _forget() -> None:
    codec._encoder.cache_clear()
    codec._decoder.cache_clear()


def _other(hint: Any, value: Any) -> Any:
    """Another value of that type."""
    if isinstance(value, Enum):
        return next(other for other in type(value) if other is not value)
    if isinstance(value, bool):
        return not value
    return value + _some(hint) if isinstance(value, str | int | float) else _some(hint)


def _some(hint: Any) -> Any:
    """A value of that type, of which a dataclass has the defaults it has by now."""
    inner = [_some(arg) for arg in get_args(hint) if arg not in (type(None), Ellipsis)]
    if get_origin(hint) is tuple:
        return tuple(inner)
    if get_origin(hint) is Mapping or get_origin(hint) is dict:
        return {inner[0]: inner[1]}
    if inner:
        return inner[0]
    if dataclasses.is_dataclass(hint):
        needed = [f for f in dataclasses.fields(hint) if f.init and not _has_default(f)]
        return hint(**{f.name: _some(get_type_hints(hint)[f.name]) for f in needed})  # type: ignore[operator]
    return {str: "*", int: 7, float: 7.0}[hint] if hint in (str, int, float) else next(iter(hint))


def _has_default(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is not missing or field.default_factory is not missing


def written_types() -> list[type[Any]]:
    """Every type in journals and snapshots; what another one holds goes before it."""
    found: dict[type[Any], None] = {}

    def walk(hint: Any) -> None:
        for inner in get_args(hint):
            walk(inner)
        if dataclasses.is_dataclass(hint) and isinstance(hint, type) and hint not in found:
            for inner in get_type_hints(hint).values():
                walk(inner)
            found[hint] = None

    for kind in (*FACTS, *DECISIONS, Job, SpeedBook):
        walk(kind)
    assert JobExited in found
    return list(found)
