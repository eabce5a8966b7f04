"""Where the store is kept: a SQLite file in the data folder, or a PostgreSQL database. All that differs is here."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Executable, Table, create_engine, event, make_url, select, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, OperationalError

from telemetry import schema

Row = dict[str, Any]

_SQLITE_WAIT_MS = {"writer": 500, "reader": 2000}
_CONNECT_S = 3
_STATEMENT_MS = 10_000
_LOCK_KEY = 0x76697472  # "vitr"
_DRIVER = "postgresql+psycopg"
_ROW_OVERHEAD = 1.6
"""Of a PostgreSQL row, its header, its share of the indexes and of half-empty pages, as a factor on its columns."""


class DatabaseError(Exception):
    """The database cannot be used at all; the message is one clear line for the operator, without any password."""


class Database:
    """How to reach the store, and what to ask each kind differently."""

    def __init__(self, data_path: Path, url: str = "") -> None:
        """`url` names a PostgreSQL database; "" means the file in the data folder. Raises DatabaseError."""
        self.path = None if url else data_path / schema.STORE_FILE
        self._url = _parse(url) if url else make_url(f"sqlite:///{self.path}")
        self.name = str(self.path) if self.path else self._url.render_as_string(hide_password=True)

    def open_writer(self) -> Engine:
        """For the telemetry process: one connection. In PostgreSQL it holds a lock: one writer per database."""
        if self.path:
            return self._open_sqlite("writer")
        engine = self._open_postgresql(pool_size=1, max_overflow=0)
        event.listen(engine, "connect", _lock_database)
        return engine

    def open_reader(self) -> Engine:
        """For the dashboard and for exports."""
        return self._open_sqlite("reader") if self.path else self._open_postgresql(pool_size=4, max_overflow=4)

    def _open_sqlite(self, who: str) -> Engine:
        engine = create_engine(self._url, hide_parameters=True)  # errors are logged, prompts are not

        def set_up(connection: Any, _record: Any) -> None:
            connection.execute(f"PRAGMA busy_timeout = {_SQLITE_WAIT_MS[who]}")
            if who == "writer":
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")

        event.listen(engine, "connect", set_up)
        return engine

    def _open_postgresql(self, **pool: Any) -> Engine:
        try:
            return create_engine(
                self._url,
                hide_parameters=True,
                pool_pre_ping=True,
                connect_args={"connect_timeout": _CONNECT_S, "options": f"-c statement_timeout={_STATEMENT_MS}"},
                **pool,
            )
        except (ModuleNotFoundError, NoSuchModuleError) as e:
            raise DatabaseError(
                f"--store-url names PostgreSQL, whose driver is not installed ({e}): pip install 'vitrine[postgres]'"
            ) from e


def upsert(connection: Connection, table: Table, rows: Iterable[Row], keep_finished: bool = False) -> None:
    """Insert rows; those that exist are replaced (with `keep_finished`, unless their ``state`` is finished)."""
    values = list(rows)
    if not values:
        return
    if connection.dialect.name == "postgresql":
        values = [_storable(row) for row in values]
    connection.execute(_upsert_statement(table, connection.dialect.name, keep_finished), values)


@functools.cache
def _upsert_statement(table: Table, dialect: str, keep_finished: bool) -> Executable:
    """Built once per table: building costs more than executing."""
    statement = (postgresql if dialect == "postgresql" else sqlite).insert(table)
    changed = {c.name: statement.excluded[c.name] for c in table.c if not c.primary_key}
    where = table.c.state != "finished" if keep_finished else None
    made: Executable = statement.on_conflict_do_update(
        index_elements=list(table.primary_key), set_=changed, where=where
    )
    return made


def used_bytes(connection: Connection) -> int:
    """What the rows take. Space that deleted rows have left and new ones will take is not counted."""
    if connection.dialect.name == "sqlite":
        pages, free, size = (
            int(connection.scalar(text(f"PRAGMA {name}")) or 0)
            for name in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * size
    rows = connection.execute(_POSTGRESQL_WIDTHS, {"names": list(schema.metadata.tables)}).all()
    return int(sum(_ROW_OVERHEAD * row.width * row.count for row in rows))


_POSTGRESQL_WIDTHS = text(
    "SELECT t.n_live_tup AS count, coalesce(sum(s.avg_width), 0) AS width FROM pg_stat_user_tables t "
    "LEFT JOIN pg_stats s ON s.schemaname = t.schemaname AND s.tablename = t.relname "
    "WHERE t.schemaname = current_schema() AND t.relname = ANY(:names) GROUP BY t.relname, t.n_live_tup"
)


def is_damaged(error: Exception, database: Database) -> bool:
    """Whether the file is not a database (any more), as opposed to one that cannot be reached now."""
    return database.path is not None and not isinstance(error, OperationalError)


def _parse(url: str) -> Any:
    try:
        parsed = make_url(url)
    except ArgumentError as e:
        raise DatabaseError("--store-url is not a URL like postgresql://user:password@host/database") from e
    if parsed.get_backend_name() != "postgresql":
        raise DatabaseError(f"--store-url: {parsed.drivername}:// is not supported; use postgresql://, or leave it out")
    return parsed.set(drivername=_DRIVER)


def _lock_database(connection: Any, _record: Any) -> None:
    """Held as long as the connection lives, and so by one telemetry process at a time."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", (_LOCK_KEY,))
        held = cursor.fetchone()[0]
    connection.commit()
    if not held:
        connection.close()
        raise OperationalError(None, None, Exception("another vitrine writes to this database: give each one its own"))


def _storable(row: Row) -> Row:
    """PostgreSQL takes neither NUL nor half a surrogate pair in text."""
    return {name: _clean(value) if isinstance(value, str) else value for name, value in row.items()}


def _clean(value: str) -> str:
    return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def oldest_finished(connection: Connection, before_ts: float | None, limit: int) -> list[str]:
    """The ids of the oldest requests that have finished, of those received before a moment if one is given."""
    table = schema.requests.c
    query = select(table.request_id).where(table.state == "finished").order_by(table.received_ts).limit(limit)
    if before_ts is not None:
        query = query.where(table.received_ts < before_ts)
    return list(connection.scalars(query))
