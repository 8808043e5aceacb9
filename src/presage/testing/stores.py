"""What every store must keep, as tests to inherit, and a throw-away PostgreSQL to run them on.

    class TestMyStore(StoreSuite):
        @pytest.fixture
        def store(self) -> Store:
            return MyStore()

A store that outlives its process inherits `DurableStoreSuite` and says how it is opened.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Protocol, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from presage.core.loop import fold
from presage.core.ports import Entry, KeepsSnapshots, Knowledge, Store
from presage.core.state import State
from presage.model import event as ev
from presage.model.cluster import Device, Node, Worker
from presage.model.errors import StaleLease
from presage.model.job import JobSpec, Reason, ReasonCode, Role, StopIntent
from presage.testing.strategies import job_specs

__all__ = [
    "DurableStore",
    "DurableStoreSuite",
    "KnowledgeSuite",
    "Opener",
    "PostgresCluster",
    "StoreSuite",
]

Step: TypeAlias = tuple[float, tuple[ev.Fact, ...], tuple[ev.Decision, ...]]

_UP = ev.NodeUp(Node("n0", (Device("a100", 1024, 0.5), Device()), labels={"rack": "r0"}))
_SUBMIT = ev.JobSubmitted(JobSpec("a", (Role(),), labels={"who": "Zoë \U0001f600 \\ \" '"}))
_LAUNCH = ev.Launch("a", 1, (Worker(0, 0, "n0", (0,)),))
_STARTED = ev.JobStarted("a", 1, at=0.1 + 0.2)
_STOP = ev.Stop("a", 1, StopIntent.HALT, Reason(ReasonCode.REQUESTED, "line\nbreak; DROP --"))
_STEPS: tuple[Step, ...] = (
    (0.0, (_UP,), ()),
    (0.0, (_SUBMIT,), (_LAUNCH, ev.WakeAt(1e300))),
    (1 / 3, (_STARTED, ev.HaltRequested("a")), (_STOP,)),
)
_EVENTS = [(now, event) for now, *parts in _STEPS for part in parts for event in part]


def _facts() -> st.SearchStrategy[ev.Fact]:
    names = st.text(max_size=8)
    return st.one_of(
        st.builds(ev.JobSubmitted, job_specs()),
        st.builds(ev.StageChanged, names, st.integers(0, 2**62), names),
        st.builds(ev.Progress, names, st.just(1), st.floats(0, 1)),
    )


def _decisions() -> st.SearchStrategy[ev.Decision]:
    finite = st.floats(allow_nan=False, allow_infinity=False)
    reasons = st.builds(Reason, st.sampled_from(ReasonCode), st.text(max_size=20))
    return st.one_of(
        st.builds(ev.WakeAt, finite), st.builds(ev.Reject, st.text(max_size=8), reasons)
    )


_steps = st.lists(
    st.tuples(
        st.floats(0, 1e12),
        st.lists(_facts(), max_size=3).map(tuple),
        st.lists(_decisions(), max_size=2).map(tuple),
    ),
    max_size=5,
)


class StoreSuite:
    """The port `Store`: an ordered journal that fences off former leaders."""

    @pytest.fixture
    def store(self) -> Iterator[Store]:
        """An empty store."""
        raise NotImplementedError

    def test_it_is_read_from_a_position(self, store: Store) -> None:
        """Steps do not matter: positions count events."""
        _write(store, _STEPS)
        for since in (*range(len(_EVENTS) + 2), 99):
            assert list(store.read(since)) == _EVENTS[since:], f"from {since}"

    def test_an_empty_journal_is_read(self, store: Store) -> None:
        """Nothing comes out of it."""
        assert list(store.read()) == []
        assert list(store.read(5)) == []

    def test_an_append_without_events_is_no_event(self, store: Store) -> None:
        """The positions of what follows do not move."""
        _write(store, [_STEPS[0], (0.0, (), ()), *_STEPS[1:]])
        assert list(store.read()) == _EVENTS
        assert list(store.read(3)) == _EVENTS[3:]

    # One suite for several stores, and a store may well hold what earlier examples wrote.
    @settings(
        max_examples=30,
        suppress_health_check=[
            HealthCheck.differing_executors,
            HealthCheck.function_scoped_fixture,
            HealthCheck.too_slow,
        ],
    )
    @given(steps=_steps, skip=st.integers(0, 9))
    def test_any_step_comes_back_equal(self, store: Store, steps: list[Step], skip: int) -> None:
        """Whatever the events hold."""
        before = len(list(store.read()))
        _write(store, steps)
        expected = [(now, event) for now, *parts in steps for part in parts for event in part]
        assert list(store.read(before + skip)) == expected[skip:]

    def test_a_step_that_cannot_be_written_leaves_nothing(self, store: Store) -> None:
        """A number that JSON does not know is refused, or kept: never half of its step."""
        steps = [_STEPS[0], (0.0, (ev.Woke(),), (ev.WakeAt(float("nan")),))]
        try:
            _write(store, steps)
        except ValueError:
            assert list(store.read()) == _EVENTS[:1]
        else:
            assert len(list(store.read())) == 3

    def test_a_former_leader_is_fenced_off(self, store: Store) -> None:
        """A lower lease than the journal has seen writes nothing."""
        store.append(1.0, [ev.Woke()], [], lease=3)
        store.append(2.0, [ev.Woke()], [], lease=3)
        with pytest.raises(StaleLease, match="lease 2 is over: lease 3"):
            store.append(3.0, [ev.Woke()], [], lease=2)
        with pytest.raises(StaleLease, match="lease 0 is over"):
            store.append(3.0, [ev.Woke()], [])
        store.append(4.0, [ev.Woke()], [], lease=4)
        assert [now for now, _ in store.read()] == [1.0, 2.0, 4.0]

    def test_what_was_not_read_to_the_end_does_not_block(self, store: Store) -> None:
        """A reader may stop in the middle, and events may come while it reads."""
        _write(store, _STEPS)
        reader = iter(store.read())
        assert next(reader) == _EVENTS[0]
        store.append(9.0, [ev.Woke()], [])
        assert next(reader) == _EVENTS[1]
        assert list(store.read())[-1] == (9.0, ev.Woke())


class DurableStore(Store, KeepsSnapshots, Protocol):
    """A store on disk."""

    def close(self) -> None:
        """Let go of it."""
        ...


Opener: TypeAlias = Callable[[], DurableStore]


class DurableStoreSuite(StoreSuite):
    """A store that survives, is shared by two servers, and keeps snapshots."""

    @pytest.fixture
    def opener(self) -> Opener:
        """Opens the same store, empty at first, as often as it is called; who opens it closes
        it."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, opener: Opener) -> Iterator[Store]:
        """The store, open."""
        store = opener()
        yield store
        store.close()

    def test_it_survives(self, opener: Opener) -> None:
        """What was appended is there in the next life, leases too."""
        with _open(opener) as store:
            _write(store, _STEPS)
            store.append(2.0, [ev.Woke()], [], lease=7)
        with _open(opener) as store:
            assert list(store.read()) == [*_EVENTS, (2.0, ev.Woke())]
            assert store.position() == len(_EVENTS) + 1
            with pytest.raises(StaleLease):
                store.append(3.0, [ev.Woke()], [], lease=6)

    def test_two_servers_on_one_store(self, opener: Opener) -> None:
        """The second takes over; the first learns it with its next append, and wrote nothing."""
        with _open(opener) as first, _open(opener) as second:
            first.append(1.0, [_UP], [], lease=1)
            second.append(2.0, [_SUBMIT], [], lease=2)
            with pytest.raises(StaleLease, match="lease 1 is over: lease 2"):
                first.append(3.0, [ev.Woke()], [], lease=1)
            with pytest.raises(StaleLease):
                first.save_snapshot(1, 1.0, {}, lease=1)
            second.append(4.0, [ev.Woke()], [], lease=2)
            expected = [(1.0, _UP), (2.0, _SUBMIT), (4.0, ev.Woke())]
            assert list(first.read()) == list(second.read()) == expected
            assert first.load_snapshot() is None

    def test_a_start_from_a_snapshot_gives_the_same_state(self, opener: Opener) -> None:
        """As folding everything does."""
        with _open(opener) as store:
            assert store.load_snapshot() is None
            for number, step in enumerate(_STEPS):
                _write(store, [step])
                state = fold(store.read())
                store.save_snapshot(store.position(), state.now, state.snapshot())
                if number == 1:
                    older = store.load_snapshot()
        assert older is not None
        with _open(opener) as store:
            newest = store.load_snapshot()
            assert newest is not None
            assert newest[0] == store.position() == len(_EVENTS)
            whole = fold(store.read()).snapshot()
            for position, body in (older, newest):
                assert fold(store.read(position), State.restore(body)).snapshot() == whole


def _write(store: Store, steps: Sequence[Step]) -> None:
    for now, facts, decisions in steps:
        store.append(now, facts, decisions)


@contextmanager
def _open(opener: Opener) -> Iterator[DurableStore]:
    store = opener()
    try:
        yield store
    finally:
        store.close()


class KnowledgeSuite:
    """The port `Knowledge`: documents and logs by name, bounded."""

    @pytest.fixture
    def knowledge(self) -> Iterator[Knowledge]:
        """An empty one."""
        raise NotImplementedError

    def test_nothing_is_known_at_first(self, knowledge: Knowledge) -> None:
        """Neither a document nor a log; writing nothing changes nothing."""
        knowledge.write()
        assert knowledge.get("a") is None
        assert knowledge.tail("a", 9) == []

    def test_a_document_is_its_newest_body(self, knowledge: Knowledge) -> None:
        """Whatever bytes it has."""
        for body in (b"one", b"", b"\0\xff" + b"x" * 100_000):
            knowledge.write(Entry("a/b", body))
            assert knowledge.get("a/b") == body
            assert knowledge.tail("a/b", 9) == [body]
        assert knowledge.get("a") is None
        assert knowledge.get("a/b/c") is None

    def test_a_log_keeps_its_newest_lines_in_order(self, knowledge: Knowledge) -> None:
        """And is read from its end."""
        lines = [b"%d" % number for number in range(9)]
        for line in lines:
            knowledge.write(Entry("log", line, 6))
        assert knowledge.tail("log", 99) == lines[3:]
        assert knowledge.tail("log", 2) == lines[7:]
        assert knowledge.get("log") == lines[8]
        knowledge.write(Entry("log", b"less", 2))
        assert knowledge.tail("log", 99) == [lines[8], b"less"]

    def test_one_write_has_many_names_and_many_lines_of_one(self, knowledge: Knowledge) -> None:
        """Each line counts for those before it, in this write and earlier."""
        knowledge.write(*(Entry("log", b"%d" % number, 9) for number in range(5)))
        knowledge.write(Entry("log", b"sum"), Entry("log", b"next", 9), Entry("other", b"o"))
        assert knowledge.tail("log", 99) == [b"sum", b"next"]
        assert knowledge.get("other") == b"o"

    def test_writers_do_not_lose_each_others_lines(self, knowledge: Knowledge) -> None:
        """Any thread may write."""

        def write(writer: int) -> None:
            for number in range(10):
                knowledge.write(Entry("log", b"%d %d" % (writer, number), 1000))

        threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        pairs = [tuple(map(int, line.split())) for line in knowledge.tail("log", 99)]
        assert sorted(pairs) == [(writer, number) for writer in range(4) for number in range(10)]
        assert [pair for pair in pairs if pair[0] == 2] == [(2, number) for number in range(10)]


class PostgresCluster:
    """A PostgreSQL server of one's own, reached through a socket in its directory.

    PostgreSQL refuses to run as root; root runs it as `postgres` or `nobody`.
    """

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self._user = _unprivileged() if os.geteuid() == 0 else None
        self._numbers = count()
        self.directory = Path(tempfile.mkdtemp(prefix="presage-pg-"))
        if self._user is not None:
            shutil.chown(self.directory, self._user)
        data = self.directory / "data"
        self._run("initdb", "-D", str(data), "-U", "presage", "-A", "trust", "-E", "UTF8", "-N")
        with (data / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.write(
                f"listen_addresses = ''\nunix_socket_directories = '{self.directory}'\n"
                "shared_buffers = 16MB\nmax_connections = 100\n"
                "fsync = off\n"  # it outlives its own crashes, though not the machine's
            )
        self.start()

    @staticmethod
    def programs() -> Path | None:
        """Where `initdb` and `pg_ctl` are: on PATH, or where Debian puts them."""
        pg_ctl = shutil.which("pg_ctl")
        if pg_ctl is not None and shutil.which("initdb") is not None:
            return Path(pg_ctl).parent
        newest = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
        return newest[-1].parent if newest else None

    def new_database(self) -> str:
        """The URL of an empty schema, as good as a database of one's own and made at once."""
        import psycopg

        name = f"presage{next(self._numbers)}"
        at = f"host={self.directory} user=presage dbname=postgres"
        with psycopg.connect(at, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {name}".encode())
        options = f"-csearch_path%3D{name}"
        return f"postgresql://presage@/postgres?host={self.directory}&options={options}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._control("start", "-l", str(self.directory / "log"))

    def stop(self, *, how: str = "fast") -> None:
        """Stop it: `fast` ends connections, `immediate` is a crash."""
        self._control("stop", "-m", how)

    def remove(self) -> None:
        """Stop it and remove all of it."""
        self.stop(how="immediate")
        shutil.rmtree(self.directory)

    def _control(self, *arguments: str) -> None:
        self._run("pg_ctl", "-D", str(self.directory / "data"), "-w", *arguments)

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [self._programs / program, *arguments],
            check=True,
            cwd=self.directory,
            user=self._user,
            extra_groups=None if self._user is None else [],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=400,
            env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"},
        )


def _unprivileged() -> str:
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in known)
