"""A database that is there, up to date, and honest about trouble: one place that knows SQLite from
PostgreSQL.

Every transaction is short. Whatever the database cannot do just now is `StoreUnavailable`, and
then nothing of the transaction was kept, unless it was lost sight of while it was committed (see
`SqlStore.append`).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    create_engine,
    event,
    func,
    inspect,
    make_url,
    select,
    text,
)
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    NoSuchModuleError,
    OperationalError,
)
from sqlalchemy.exc import InternalError as DatabaseInternalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from presage.model.errors import InternalError, MissingExtra, StoreUnavailable, UserError
from presage.store.tables import NEWEST, make_tables

__all__ = ["Database", "StoreUnavailable"]

_PATIENCE_S = 10
"""How long one statement waits for a lock, a connection or a server."""
_CONNECTIONS = 32
_MIGRATING = 0x50726573616765
"""The advisory lock that one server holds while it migrates a PostgreSQL database."""


class Database:
    """Connections to one database. Any thread may use it; each gets a connection of its own.
    `migrate`: bring its tables up to date; without, they stay as they are."""

    def __init__(self, url: str, *, migrate: bool = True) -> None:
        self.url = _checked(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._engine = _sqlite(self.url) if self.is_sqlite else _postgres(self.url)
        self._writer = self._engine.execution_options(write=True)
        try:
            if migrate:
                self._migrate()
        except BaseException:
            self.close()
            raise

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that sees one moment and changes nothing."""
        with self._troubles(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def read_whole(self) -> Iterator[Connection]:
        """The same for a long look at everything, row by row: what is written meanwhile is not
        seen, and nobody waits for it."""
        options = {} if self.is_sqlite else {"isolation_level": "REPEATABLE READ"}
        engine = self._engine.execution_options(stream_results=True, **options)
        with self._troubles(), engine.begin() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that is on disk when the block ends, whole; or that never was."""
        with self._troubles(), self._writer.begin() as connection:
            yield connection

    def clock(self, connection: Connection) -> float:
        """Now, by the one clock that all servers on this database share."""
        if self.is_sqlite:
            return time.time()
        now = connection.scalar(select(func.extract("epoch", func.clock_timestamp())))
        assert now is not None
        return float(now)

    def close(self) -> None:
        """Give back the connections."""
        self._engine.dispose()

    def revision(self, connection: Connection) -> str | None:
        """The revision its tables are at; None where there are none."""
        return _revision(connection)

    def upgrade(self, connection: Connection, to: str = "head") -> None:
        """Make the tables what a revision has, from whatever they are; UserError if this version
        does not know one of the two."""
        self._upgrade(connection, _revision(connection) or to, to)

    def _migrate(self) -> None:
        """Bring the tables up to date, all of them or none; make them if there are none."""
        with self.read() as connection:
            if _revision(connection) == NEWEST:
                return
        with self.write() as connection:
            if not self.is_sqlite:
                connection.execute(select(func.pg_advisory_xact_lock(_MIGRATING)))
            at = _revision(connection)
            if at is None:
                make_tables(connection)
            elif at != NEWEST:
                self._upgrade(connection, at)

    def _upgrade(self, connection: Connection, at: str, to: str = "head") -> None:
        from alembic import command  # takes long to import, and is needed once a release
        from alembic.config import Config
        from alembic.util import CommandError

        config = Config()
        config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, to)
        except CommandError:
            raise UserError(
                f"{self._name} is at revision {at}, which this version of Presage does not know; "
                "use the newer version that wrote it"
            ) from None

    @contextmanager
    def _troubles(self) -> Iterator[None]:
        try:
            yield
        except (DataError, IntegrityError) as error:
            raise InternalError(f"{self._name} refused a row: {_says(error)}") from error
        except (OperationalError, InterfaceError, DatabaseInternalError, PoolTimeout) as error:
            raise StoreUnavailable(f"{self._name} is unavailable: {_says(error)}") from error
        except DBAPIError as error:
            if error.connection_invalidated:
                raise StoreUnavailable(f"{self._name} is unavailable: {_says(error)}") from error
            if self.is_sqlite and getattr(error.orig, "sqlite_errorname", "") in _NO_DATABASE:
                raise UserError(f"{self._name} is damaged or no database") from None
            raise

    @property
    def _name(self) -> str:
        return str(self.url.database) if self.is_sqlite else self.url.render_as_string()


_NO_DATABASE = ("SQLITE_NOTADB", "SQLITE_CORRUPT")


def _checked(text: str) -> URL:
    try:
        url = make_url(text)
    except ArgumentError:
        url = None
    if url is not None and url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername="postgresql+psycopg")
    if url is None or url.drivername not in ("sqlite", "postgresql+psycopg"):
        raise UserError("the database must be sqlite:///PATH or postgresql://USER@HOST/NAME")
    if url.drivername == "sqlite" and url.database in (None, "", ":memory:"):
        raise UserError("a journal in memory is lost with the process: write sqlite:///PATH")
    return url


def _sqlite(url: URL) -> Engine:
    path = Path(str(url.database))
    try:
        path.touch(mode=0o600)  # digests of tokens are in it
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None
    engine = create_engine(
        url,
        pool_size=_CONNECTIONS,
        max_overflow=0,
        pool_timeout=_PATIENCE_S,
        connect_args={"timeout": _PATIENCE_S, "check_same_thread": False, "isolation_level": None},
    )

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _: Any) -> None:
        _use_wal(connection)
        connection.execute("PRAGMA synchronous=FULL")  # a commit is on disk when it returns
        connection.execute("PRAGMA foreign_keys=ON")

    @event.listens_for(engine, "begin")
    def begun(connection: Connection) -> None:
        # A writer locks first and reads then: what it read is still so when it commits.
        write = connection.get_execution_options().get("write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


def _postgres(url: URL) -> Engine:
    try:
        engine = create_engine(
            url,
            pool_size=_CONNECTIONS,
            max_overflow=0,
            pool_timeout=_PATIENCE_S,
            pool_pre_ping=True,  # the server may have been restarted since
            connect_args={"connect_timeout": _PATIENCE_S, "tcp_user_timeout": _PATIENCE_S * 1000},
        )
    except (ModuleNotFoundError, NoSuchModuleError):
        raise MissingExtra("postgres", "a journal in PostgreSQL") from None

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _: Any) -> None:
        connection.execute(f"SET lock_timeout = '{_PATIENCE_S}s'")
        connection.execute(
            "SELECT set_config('synchronous_commit', 'on', false)"
            " WHERE current_setting('synchronous_commit') = 'off'"
        )
        connection.commit()

    return engine


def _revision(connection: Connection) -> str | None:
    """The revision a database is at; None for an empty one."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    revision = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return None if revision is None else str(revision)


def _says(error: Exception) -> str:
    cause = getattr(error, "orig", None) or error
    return str(cause).strip().splitlines()[0] if str(cause).strip() else type(cause).__name__


def _use_wal(connection: Any) -> None:
    """SQLite does not wait for others that do the same at the same time: try again."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(0.01)
