"""The telemetry store as the dashboard reads it: opened when it is there, and a clear error while it is not."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import structlog
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from telemetry import schema
from telemetry.queries import Reader, Row, open_reader

_RECENT = 2000
"""A ranking looks at this many of a window's latest requests, so that a busy hour costs no more than a quiet one."""

log = structlog.get_logger()


class StoreAwayError(Exception):
    """The store cannot be read: telemetry has not made it yet, or is switched off, or the disk is in trouble."""


class Store:
    """Opens the store when it is first needed. Safe for several threads."""

    def __init__(self, data_path: Path, store_url: str = "") -> None:
        self._data_path = data_path
        self._store_url = store_url
        self._lock = threading.Lock()
        self._reader: Reader | None = None

    @contextlib.contextmanager
    def reading(self) -> Iterator[Reader]:
        """The reader. Raises StoreAwayError, also for what goes wrong within the block."""
        try:
            with self._lock:
                if self._reader is None:
                    self._reader = open_reader(self._data_path, self._store_url)
            yield self._reader
        except FileNotFoundError as e:
            raise StoreAwayError("there is no store yet") from e
        except SQLAlchemyError as e:
            log.warning("the store cannot be read", error=str(e))
            raise StoreAwayError("the store cannot be read") from e

    def close(self) -> None:
        """Close all connections."""
        if self._reader is not None:
            self._reader.close()


def slowest(reader: Reader, since_ts: float, limit: int = 6) -> list[Row]:
    """Of a window's latest requests, those whose first token took longest."""
    table = schema.requests.c
    recent = (
        select(schema.requests)
        .where(table.received_ts >= since_ts, table.ttft_s.is_not(None))
        .order_by(table.received_ts.desc())
        .limit(_RECENT)
        .subquery()
    )
    with reader.engine.connect() as connection:
        query = select(recent).order_by(recent.c.ttft_s.desc()).limit(limit)
        return [dict(row) for row in connection.execute(query).mappings()]


def incarnation(reader: Reader, incarnation_id: str | None) -> Row | None:
    """The row that a request or step refers to."""
    with reader.engine.connect() as connection:
        query = select(schema.incarnations).where(schema.incarnations.c.id == incarnation_id)
        row = connection.execute(query).mappings().first()
        return dict(row) if row else None
