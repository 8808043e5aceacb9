"""A backup of a server under load, restored elsewhere: nothing that was accepted is lost."""

from __future__ import annotations

import json
import os
import sqlite3
import tarfile
import threading
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import httpx
import pytest

from presage import __version__
from presage.control.records.backup import check_backup, make_backup, restore_backup
from presage.core.ports import Entry
from presage.layout import Layout
from presage.model.errors import BackupError, UserError
from presage.store import open_store
from presage.store.records import JobRow, Token, User
from presage.testing.stores import PostgresCluster
from tests.server.kit import PATIENCE_S, Server, Zygote, eventually


class Crowd:
    """Submits for as long as it lasts, and knows what was accepted, and when."""

    def __init__(self, server: Server, threads: int) -> None:
        self.accepted: list[str] = []
        self._url, self._stop = server.url, threading.Event()
        self._threads = [threading.Thread(target=self._submit) for _ in range(threads)]

    def __enter__(self) -> Crowd:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _submit(self) -> None:
        with httpx.Client(base_url=self._url, timeout=PATIENCE_S) as http:
            while not self._stop.is_set():
                body = {"name": "load", "command": "true", "resources": {"gpus": 8}}
                answer = http.post("/api/v1/jobs", json=body)
                assert answer.status_code == 201, answer.text
                self.accepted.append(answer.json()["id"])


def back_up_under_load(
    serve: Callable[..., Server],
    zygote: Zygote,
    tmp_path: Path,
    databases: tuple[str, str],
    threads: int,
    least: int,
) -> None:
    """Back up while jobs run and come in, restore to another directory, and go on there."""
    source, target = databases
    options = ("--db", source) if source else ()
    first = serve(*options, data=tmp_path / "first", nodes="1x8").start()
    (first.data / "secrets" / "hf").write_text("geheim")
    done = first.submit("echo result", resources={"gpus": 1})
    first.wait(done)
    runs = first.submit("sleep 600", resources={"gpus": 8})
    first.wait(runs, "PROCESSING")
    where = ("--data", str(first.data), *options)
    with Crowd(first, threads) as crowd:
        while len(crowd.accepted) < least:
            crowd._stop.wait(0.01)
        before = list(crowd.accepted)
        made = zygote.run("backup", str(tmp_path / "b.tar"), *where, "--json")
        after = len(crowd.accepted)
    assert made.code == 0, made.err
    assert after > len(before)  # they went on meanwhile
    assert (tmp_path / "b.tar").stat().st_mode & 0o777 == 0o600
    assert made.json["jobs"] >= len(before) + 2
    first.kill()

    there = tmp_path / "elsewhere" / "second"
    options = ("--db", target) if target else ()
    back = zygote.run("restore", str(tmp_path / "b.tar"), "--data", str(there), *options)
    assert back.code == 0, back.err
    second = serve(*options, data=there, nodes="1x8").start()
    assert second.leads()
    store = open_store(target or f"sqlite:///{Layout(there).database}")
    assert all(store.jobs.get(job) for job in before)
    eventually(lambda: len(list(store.read())) == store.position())  # it decides meanwhile
    store.close()
    assert second.logs(done) == "result\n"
    assert (there / "secrets" / "hf").read_text() == "geheim"
    assert (there / "secrets" / "hf").stat().st_mode & 0o777 == first_mode(first)
    again = second.wait(runs, "PROCESSING")
    assert again["attempt"] >= 2  # of the first run nothing is left there
    second.tell(runs, "stop")
    second.wait(before[0], "PROCESSING", "COMPLETED")  # those who waited go on
    assert second.submit() not in before


def first_mode(server: Server) -> int:
    """The mode of a secret at its origin."""
    return (server.data / "secrets" / "hf").stat().st_mode & 0o777


@pytest.mark.engine
@pytest.mark.slow
def test_nothing_accepted_is_lost_in_sqlite(
    serve: Callable[..., Server], zygote: Zygote, tmp_path: Path
) -> None:
    back_up_under_load(serve, zygote, tmp_path, ("", ""), 2, 20)


@pytest.mark.engine
@pytest.mark.slow
def test_nothing_accepted_is_lost_in_postgresql(
    serve: Callable[..., Server], zygote: Zygote, tmp_path: Path, postgres: PostgresCluster
) -> None:
    databases = postgres.new_database(), postgres.new_database()
    back_up_under_load(serve, zygote, tmp_path, databases, 2, 20)


@pytest.mark.engine
@pytest.mark.soak
@pytest.mark.parametrize("kind", ["sqlite", "postgres", "sqlite to postgres"])
def test_nothing_accepted_is_lost_in_a_large_one(
    serve: Callable[..., Server],
    zygote: Zygote,
    tmp_path: Path,
    postgres: PostgresCluster,
    kind: str,
) -> None:
    databases = {
        "sqlite": ("", ""),
        "postgres": (postgres.new_database(), postgres.new_database()),
        "sqlite to postgres": ("", postgres.new_database()),
    }
    back_up_under_load(serve, zygote, tmp_path, databases[kind], 16, 3000)


# -- without a server -----------------------------------------------------------------------------


@pytest.fixture
def filled(tmp_path: Path) -> Layout:
    """A data directory with a bit of everything."""
    layout = Layout(tmp_path / "data")
    layout.prepare()
    store = open_store(f"sqlite:///{layout.database}")
    with store.users.changing() as users:
        users.put(User("ada", "admin", "vision", 1.0))
        users.add_token(Token("digest", "ada", 1.0))
    row = JobRow(id="a", name="a\ud83d", owner="ada", submitted_at=2.0, manifest={"x": [1.5]})
    store.append(2.0, [], [], jobs=[row])
    store.knowledge.write(Entry("models/x", bytes(range(256))))
    store.close()
    layout.secret("hf").write_text("geheim")
    layout.results("a").mkdir(parents=True)
    (layout.results("a") / "model.bin").write_bytes(os.urandom(3_000_000))
    (layout.results("a") / "latest").symlink_to("model.bin")
    (layout.job("a") / "empty").mkdir()
    (layout.job("a") / "same").symlink_to("results")
    layout.run("a", 1).mkdir(parents=True)
    os.mkfifo(layout.wake)
    return layout


def url_of(layout: Layout) -> str:
    return f"sqlite:///{layout.database}"


def rows_of(url: str) -> dict[str, list[tuple[object, ...]]]:
    """Everything in a SQLite database."""
    with sqlite3.connect(url.removeprefix("sqlite:///")) as database:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master")]
        tables = [n for n in names if not n.startswith(("sqlite_", "ix_")) and "_by_" not in n]
        found = {name: database.execute(f"SELECT * FROM {name}").fetchall() for name in tables}
    database.close()
    return found


def test_everything_comes_back_as_it_was(filled: Layout, tmp_path: Path) -> None:
    out = tmp_path / "b.tar"
    made = make_backup(out, filled, url_of(filled))
    assert check_backup(out) == made
    assert (made.jobs, made.version, made.secrets) == (1, __version__, True)
    there = Layout(tmp_path / "there")
    assert restore_backup(out, there.data, "").backup == made
    assert rows_of(url_of(there)) == rows_of(url_of(filled))
    kept = {".gitignore", "secrets", "jobs", "folders", "presage.db"}
    assert {path.name for path in there.data.iterdir()} - {
        "presage.db-wal",
        "presage.db-shm",
    } == kept
    for name in ("model.bin", "latest"):
        new, old = there.results("a") / name, filled.results("a") / name
        assert new.read_bytes() == old.read_bytes()
        assert new.is_symlink() == old.is_symlink()
    assert (there.job("a") / "empty").is_dir()
    assert (there.job("a") / "same").readlink() == Path("results")
    assert there.secret("hf").read_text() == "geheim"
    assert there.data.stat().st_mode & 0o777 == 0o700


@pytest.mark.engine
def test_from_one_database_to_the_other(
    filled: Layout, tmp_path: Path, postgres: PostgresCluster
) -> None:
    out, db = tmp_path / "b.tar", postgres.new_database()
    make_backup(out, filled, url_of(filled))
    restore_backup(out, tmp_path / "there", db)
    store = open_store(db)
    job = JobRow(id="b", name="b", owner="ada", submitted_at=3.0, manifest={})
    store.append(3.0, [], [], jobs=[job])  # numbers go on behind those that are there
    assert [row.id for row in store.jobs.list(limit=10)] == ["b", "a"]
    assert store.knowledge.get("models/x") == bytes(range(256))
    store.close()
    back = tmp_path / "back.tar"
    make_backup(back, Layout(tmp_path / "there"), db)
    restore_backup(back, tmp_path / "again", "")
    assert len(rows_of(f"sqlite:///{Layout(tmp_path / 'again').database}")["jobs"]) == 2
    with pytest.raises(UserError, match="--db is not empty"):
        restore_backup(back, tmp_path / "third", db)


def test_without_secrets(filled: Layout, tmp_path: Path) -> None:
    out = tmp_path / "b.tar"
    make_backup(out, filled, url_of(filled), with_secrets=False)
    restore_backup(out, tmp_path / "there", "")
    assert not (tmp_path / "there" / "secrets").exists()
    assert b"geheim" not in out.read_bytes()


def test_what_is_there_is_never_replaced(filled: Layout, tmp_path: Path) -> None:
    out = tmp_path / "b.tar"
    make_backup(out, filled, url_of(filled))
    with pytest.raises(BackupError, match="is there already"):
        make_backup(out, filled, url_of(filled))
    with pytest.raises(BackupError, match="is not empty"):
        restore_backup(out, filled.data, "")
    (tmp_path / "empty").mkdir()
    restore_backup(out, tmp_path / "empty", "")
    with pytest.raises(BackupError, match="is not there"):
        restore_backup(tmp_path / "nowhere.tar", tmp_path / "x", "")


@pytest.mark.parametrize(
    "damage", ["cut", "flipped", "no tar", "empty", "evil", "newer", "tables"]
)
def test_a_backup_that_is_not_right_changes_nothing(
    filled: Layout, tmp_path: Path, damage: str
) -> None:
    out, there = tmp_path / "b.tar", tmp_path / "there"
    make_backup(out, filled, url_of(filled))
    body = bytearray(out.read_bytes())
    if damage == "cut":
        out.write_bytes(body[: len(body) // 2])
    elif damage == "flipped":
        body[len(body) // 2] ^= 1
        out.write_bytes(body)
    elif damage == "no tar":
        out.write_bytes(os.urandom(20_000))
    elif damage == "empty":
        out.write_bytes(b"")
    else:
        _rewrite(out, damage)
    with pytest.raises(UserError) as wrong:
        restore_backup(out, there, "")
    assert len(str(wrong.value).splitlines()) == 1
    assert not there.exists()
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".part")]
    assert not (tmp_path.parent / "evil").exists()


def _rewrite(out: Path, damage: str) -> None:
    """The same backup with something in it that must not be there."""
    with tarfile.open(out) as old:
        found = [(one, old.extractfile(one).read() if one.isreg() else b"") for one in old]  # type: ignore[union-attr]
    with tarfile.open(out, "w") as new:
        for info, body in found:
            if damage == "evil" and info.name == "manifest.json":
                new.addfile(tarfile.TarInfo("data/../../evil"), BytesIO(b""))
            if damage == "newer" and info.name == "backup.json":
                body = json.dumps({**json.loads(body), "format": 2}).encode()
            if damage == "tables" and info.name.endswith(".json"):
                body = json.dumps({**json.loads(body), "revision": "9999"}).encode()
            info.size = len(body)
            new.addfile(info, BytesIO(body) if info.isreg() else None)


def test_mistakes_are_one_line(zygote: Zygote, tmp_path: Path) -> None:
    said = zygote.run("backup", str(tmp_path / "b.tar"), "--data", str(tmp_path / "none"))
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "is no data directory of a server" in said.err
    said = zygote.run("restore", str(tmp_path / "b.tar"))
    assert (said.code, said.err) == (
        2,
        "error: say where to: --data DIR, a directory that is not there yet\n",
    )
