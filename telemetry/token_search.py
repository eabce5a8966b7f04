"""Searching the token log: by request, trace, time and token ids; newest first, file by file, never all in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from telemetry import token_files
from telemetry.rows import LogRef

Row = dict[str, Any]


class TokenQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What a line has to be; "", () and None do not narrow. Times are seconds since the epoch."""

    request_id: str = ""
    trace_id: str = ""
    token_ids: tuple[int, ...] = ()  # one after another, within the prompt or within the answer
    since: float | None = None
    until: float | None = None


class FoundLine(msgspec.Struct, frozen=True):
    """A line that fits, and where it is: `before` of a search that is to go on behind it."""

    ref: LogRef
    line: Row


class _Head(msgspec.Struct):
    """What decides whether a line fits."""

    ts: datetime
    request_id: str
    trace_id: str = ""
    prompt_token_ids: list[int] = []
    output_token_ids: list[int] = []


_head = msgspec.json.Decoder(_Head)


def search(
    folder: Path,
    query: TokenQuery,
    before: LogRef | None = None,
    is_cancelled: Callable[[LogRef], bool] = lambda reached: False,
) -> Iterator[FoundLine]:
    """The lines that fit, from the last one written (before `before`) to the first.

    Holds a block of a file and a line in memory. `is_cancelled` is asked after each block (`token_files.BLOCK_BYTES`),
    also while nothing is found, and told how far the search has come: `before` of one that is to go on from there.
    Closing the iterator ends the search too. Files that are deleted meanwhile, and damaged ones, are passed over.
    """
    needles = _needles(query)
    for name in reversed(token_files.all_names(folder)):
        if before is not None and name > before[0]:
            continue
        end = before[1] if before is not None and name == before[0] else None
        for lines in _blocks_of_lines(folder, name, query.since, end):
            for offset, line in lines:
                if all(needle in line for needle in needles) and _fits(line, query):
                    yield FoundLine((name, offset), msgspec.json.decode(line))
            if lines and is_cancelled((name, lines[-1][0])):
                return


def _blocks_of_lines(
    folder: Path, name: str, since: float | None, end: int | None
) -> Iterator[list[tuple[int, bytes]]]:
    """None of a file whose last line was written too early."""
    try:
        if since is not None and token_files.last_write_ts(folder, name) < since:
            return
        with token_files.opened(folder, name) as blocks:
            yield from token_files.lines_backwards(blocks, end)
    except (OSError, ValueError):
        return


def _needles(query: TokenQuery) -> list[bytes]:
    """What stands in the bytes of every line that fits (as `telemetry.token_log` renders it): few need be decoded."""
    texts = [msgspec.json.encode(text) for text in (query.request_id, query.trace_id) if text]
    return [*texts, ",".join(map(str, query.token_ids)).encode()] if query.token_ids else texts


def _fits(line: bytes, query: TokenQuery) -> bool:
    try:
        head = _head.decode(line)
    except msgspec.MsgspecError:
        return False
    return (
        query.request_id in ("", head.request_id)
        and query.trace_id in ("", head.trace_id)
        and _is_within(head.ts, query)
        and any(_contains(ids, query.token_ids) for ids in (head.prompt_token_ids, head.output_token_ids))
    )


def _is_within(ts: datetime, query: TokenQuery) -> bool:
    """Since the first moment, and before the last."""
    seconds = ts.replace(tzinfo=ts.tzinfo or UTC).timestamp()
    return (query.since is None or seconds >= query.since) and (query.until is None or seconds < query.until)


def _contains(ids: Sequence[int], run: Sequence[int]) -> bool:
    """Whether `run` stands in `ids`, one after another."""
    wanted, count = list(run), len(run)
    return any(list(ids[i : i + count]) == wanted for i in range(len(ids) - count + 1))
