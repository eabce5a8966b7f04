"""The list of requests narrowed to those with certain token ids: a search of the token log, page by page."""

from __future__ import annotations

import base64
import time

import msgspec
from starlette.exceptions import HTTPException

from dashboard.filters import ListQuery
from telemetry.queries import Reader
from telemetry.request_list import CursorError, RequestPage
from telemetry.rows import LogRef
from telemetry.token_search import TokenQuery

_SEARCH_S = 1.0
"""A page is searched for so long: one that finds less gives a cursor to go on from."""


def read_token_ids(text: str) -> tuple[int, ...]:
    """``"12"`` or ``"12,7,9"``: ids one after another; none for "". Raises HTTPException 400."""
    if not text.strip():
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise HTTPException(400, f"token must be a token id, or several one after another like 12,7,9, not {text!r}")
    return tuple(map(int, parts))


def find_by_tokens(reader: Reader, query: ListQuery, token_ids: tuple[int, ...], limit: int) -> RequestPage:
    """Requests whose prompt or answer has these ids, the last finished first. Raises CursorError.

    The cursor is a place in the token log; "" when all of it has been looked at.
    """
    search = _Search(reader, token_ids, query)
    found = search.take(limit)
    filters = msgspec.structs.replace(query.filters, ids=frozenset(found))
    rows = {row["request_id"]: row for row in reader.list_requests(filters, len(found)).rows} if found else {}
    return RequestPage([rows[i] for i in found if i in rows], search.cursor)


class _Search:
    """One page's search; afterwards `cursor` says where the next begins."""

    def __init__(self, reader: Reader, token_ids: tuple[int, ...], query: ListQuery) -> None:
        self.cursor = ""
        self._is_late = False
        self._ends_at = time.monotonic() + _SEARCH_S
        before = _decode(query.cursor) if query.cursor else None
        wanted = TokenQuery(token_ids=token_ids, trace_id=query.trace_id.lower())
        self._lines = reader.search_tokens(wanted, before, self._has_to_end)

    def take(self, limit: int) -> list[str]:
        """Ids of at most `limit` requests, each with all its lines."""
        found: dict[str, None] = {}
        for one in self._lines:
            request_id = one.line["request_id"]
            if request_id not in found and len(found) == limit:
                return list(found)
            found[request_id] = None
            self.cursor = _encode(one.ref)
        if not self._is_late:
            self.cursor = ""
        return list(found)

    def _has_to_end(self, reached: LogRef) -> bool:
        self._is_late = time.monotonic() > self._ends_at
        if self._is_late:
            self.cursor = _encode(reached)
        return self._is_late


def _encode(ref: LogRef) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(ref)).decode()


def _decode(cursor: str) -> LogRef:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(cursor), type=LogRef)
    except ValueError as e:
        raise CursorError(f"not a cursor: {cursor!r}") from e
