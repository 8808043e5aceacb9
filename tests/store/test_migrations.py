"""From any revision to the newest, with what was in the database."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, inspect

from presage.model import event as ev
from presage.model.errors import UserError
from presage.model.job import JobSpec, Role
from presage.store import migrations, open_store
from presage.store.records import JobRow
from presage.store.sql import SqlStore
from presage.store.tables import NEWEST, metadata

REVISION_1 = Path(__file__).parent / "revision_1.sql"


def test_the_tables_are_what_the_revisions_lead_to(store: SqlStore) -> None:
    with store._database.read() as connection:
        context = MigrationContext.configure(connection)
        assert context.get_current_revision() == NEWEST
        assert compare_metadata(context, metadata) == []


def test_the_newest_revision_is_known() -> None:
    assert ScriptDirectory.from_config(_config()).get_current_head() == NEWEST


def test_a_new_database_is_what_the_revisions_lead_to(tmp_path: Path) -> None:
    """Tables are made at once where there are none; whoever went through every revision has the
    same, rows and indexes included."""
    found = []
    for name in ("revisions.db", "new.db"):
        url = f"sqlite:///{tmp_path / name}"
        if name == "revisions.db":
            config = _config()
            with create_engine(url).begin() as connection:
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
        store = open_store(url)
        with store._database.read() as connection:
            context = MigrationContext.configure(connection)
            assert compare_metadata(context, metadata) == []
            tables = inspect(connection)
            indexes = {table: tables.get_indexes(table) for table in tables.get_table_names()}
            rows = {
                table: [tuple(row) for row in connection.exec_driver_sql(f"SELECT * FROM {table}")]
                for table in tables.get_table_names()
            }
            columns = {
                table: {
                    (c["name"], str(c["type"]), c["nullable"]) for c in tables.get_columns(table)
                }
                for table in rows
            }
        store.close()
        found.append((indexes, rows, columns))
    assert found[0] == found[1]
    assert found[0][1]["head"]
    assert found[0][1]["alembic_version"] == [(NEWEST,)]


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    return config


def _revision_1(path: Path) -> None:
    """A database as the first revision made it, with a journal in it."""
    old = sqlite3.connect(path)
    old.executescript(REVISION_1.read_text(encoding="utf-8"))
    assert not old.execute("SELECT 1 FROM sqlite_master WHERE name = 'jobs'").fetchall()
    old.close()


def test_a_database_of_revision_1_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "presage.db"
    _revision_1(path)
    store = open_store(f"sqlite:///{path}")
    submitted = ev.JobSubmitted(JobSpec("a", (Role(),), owner="ann"))
    assert list(store.read_steps()) == [
        (0.5, (submitted,), ()),
        (1.5, (ev.Woke(),), (ev.WakeAt(60.0),)),
    ]
    assert store.position() == 3
    assert store.load_snapshot() == (1, {"events": 1})
    assert store.lease.acquire("b", "", 1.0, now=1e9) == 5
    job = JobRow(id="b", name="b", owner="ann", submitted_at=2.0, manifest={})
    store.append(2.0, [ev.Woke()], [], lease=5, jobs=[job])
    assert store.position() == 4
    assert store.jobs.get("b") is not None
    store.close()


def test_a_database_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "presage.db"
    url = f"sqlite:///{path}"
    open_store(url).close()
    newer = sqlite3.connect(path)
    newer.execute("UPDATE alembic_version SET version_num = '9999'")
    newer.commit()
    with pytest.raises(UserError, match="is at revision 9999, which this version"):
        open_store(url)
    assert newer.execute("SELECT version_num FROM alembic_version").fetchone() == ("9999",)
    newer.close()


def test_a_migration_that_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "presage.db"
    _revision_1(path)
    with sqlite3.connect(path) as before:
        dump = list(before.iterdump())
    with monkeypatch.context() as patch:
        patch.setattr("alembic.op.create_index", _explode)
        with pytest.raises(RuntimeError):
            open_store(f"sqlite:///{path}")
    assert list(before.iterdump()) == dump
    before.close()
    open_store(f"sqlite:///{path}").close()


def test_tables_are_made_all_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "presage.db"
    with monkeypatch.context() as patch:
        patch.setattr("presage.store.tables.insert", _explode)
        with pytest.raises(RuntimeError):
            open_store(f"sqlite:///{path}")
    empty = sqlite3.connect(path)
    assert empty.execute("SELECT name FROM sqlite_master").fetchall() == []
    empty.close()
    open_store(f"sqlite:///{path}").close()


def _explode(*_: object) -> None:
    raise RuntimeError


def test_two_servers_that_start_at_once_migrate_once(tmp_path: Path) -> None:
    stores: list[SqlStore] = []
    url = f"sqlite:///{tmp_path / 'presage.db'}"
    threads = [threading.Thread(target=lambda: stores.append(open_store(url))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stores) == 3
    for store in stores:
        store.close()
