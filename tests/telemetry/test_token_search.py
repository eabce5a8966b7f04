"""Searching the token log, in plain and compressed files alike."""

import itertools
import os
import tracemalloc
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry import token_files
from telemetry.gzip_blocks import pack
from telemetry.token_search import TokenQuery, search
from tests.telemetry.token_log_factories import make_line

BEGUN_TS = 1_900_000_000


class Log:
    """A folder of files; each line is a second later than the one before."""

    def __init__(self, folder):
        self.folder = folder
        self.count = 0

    def line(self, **fields):
        self.count += 1
        ts = datetime.fromtimestamp(BEGUN_TS + self.count, UTC).isoformat()
        return make_line(f"req-{self.count}", **{"ts": ts, "trace_id": f"trace-{self.count}", **fields})

    def add(self, *lines, compressed=False):
        name, data = token_files.name_at(BEGUN_TS + self.count), b"".join(lines)
        if compressed:
            blocks = [pack(data[i : i + 100]) for i in range(0, len(data) + 1, 100)]
            (self.folder / (name + ".gz")).write_bytes(b"".join(blocks))
        else:
            (self.folder / name).write_bytes(data)
        return name

    def find(self, **query):
        return [
            int(found.line["request_id"].removeprefix("req-")) for found in search(self.folder, TokenQuery(**query))
        ]


@pytest.fixture
def log(tmp_path):
    log = Log(tmp_path)
    log.add(*(log.line(output_token_ids=[i, i + 1, i + 2]) for i in range(10)), compressed=True)
    log.add(*(log.line(prompt_token_ids=[5, 6, 7, i]) for i in range(10)))
    return log


def test_all_lines_come_newest_first(log):
    assert log.find() == list(range(20, 0, -1))


def test_by_request_and_trace(log):
    assert log.find(request_id="req-3") == [3]
    assert log.find(trace_id="trace-13") == [13]
    assert log.find(request_id="req-3", trace_id="trace-13") == []
    assert log.find(request_id="req") == []


def test_by_time(log):
    assert log.find(since=BEGUN_TS + 9, until=BEGUN_TS + 12) == []  # by the files' dates all of them are older
    for path in log.folder.iterdir():
        os.utime(path, (BEGUN_TS + 100, BEGUN_TS + 100))
    assert log.find(since=BEGUN_TS + 9, until=BEGUN_TS + 12) == [11, 10, 9]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ((5, 6, 7), [20, 19, 18, 17, 16, 15, 14, 13, 12, 11, 6]),
        ((11,), [10]),
        ((1, 2), [2, 1]),
        ((6, 5), []),
        ((7, 8), [19, 8, 7]),
        ((1, 1), []),
    ],
)
def test_by_token_ids(log, ids, expected):
    assert log.find(token_ids=ids) == expected


@given(
    lines=st.lists(st.tuples(st.lists(st.integers(0, 12), max_size=6), st.lists(st.integers(0, 12), max_size=6))),
    run=st.lists(st.integers(0, 12), min_size=1, max_size=3),
)
def test_a_run_of_ids_is_found_where_it_stands_and_only_there(lines, run, tmp_path_factory):
    log = Log(tmp_path_factory.mktemp("tokens"))
    log.add(*(log.line(prompt_token_ids=prompt, output_token_ids=output) for prompt, output in lines))
    expected = [n for n, pair in enumerate(lines, 1) if any(_stands(run, ids) for ids in pair)]
    assert log.find(token_ids=tuple(run)) == expected[::-1]


def _stands(run, ids):
    return any(ids[i : i + len(run)] == run for i in range(len(ids)))


def test_a_search_goes_on_where_another_ended(log):
    found, before = [], None
    while page := list(itertools.islice(search(log.folder, TokenQuery(), before), 3)):
        found += [one.line["request_id"] for one in page]
        before = page[-1].ref
    assert found == [f"req-{i}" for i in range(20, 0, -1)]


def test_a_search_is_cancelled_although_it_finds_nothing_and_says_how_far_it_came(log):
    reached = []

    def is_cancelled(ref):
        reached.append(ref)
        return len(reached) == 3

    assert list(search(log.folder, TokenQuery(request_id="req-nobody"), is_cancelled=is_cancelled)) == []
    assert len(reached) == 3
    (first, *_) = search(log.folder, TokenQuery(), before=reached[-1])
    assert first.ref < reached[-1]
    lines = list(search(log.folder, TokenQuery()))
    assert lines[lines.index(first) - 1].ref == reached[-1]


def test_a_search_that_is_closed_leaves_no_file_open(log, monkeypatch):
    closed = []
    real = token_files.os.close
    monkeypatch.setattr(token_files.os, "close", lambda fd: (closed.append(fd), real(fd)))
    lines = search(log.folder, TokenQuery())
    next(lines)
    assert closed == []
    lines.close()
    assert len(closed) == 1


def test_damaged_and_foreign_things_are_passed_over(log):
    log.add(log.line(), b"no json\n", b'{"request_id":4}\n', b'"ts"\n', log.line(), b'{"torn":')
    (log.folder / (token_files.name_at(BEGUN_TS + 500) + ".gz")).write_bytes(b"\x1f\x8b nothing of ours")
    (log.folder / "notes.txt").write_text("hello")
    assert log.find()[:3] == [22, 21, 20]


def test_a_file_deleted_meanwhile_is_passed_over(log):
    lines = search(log.folder, TokenQuery())
    assert next(lines).line["request_id"] == "req-20"
    for path in log.folder.iterdir():
        path.unlink()
    assert [found.line["request_id"] for found in lines] == [f"req-{i}" for i in range(19, 10, -1)]


def test_memory_does_not_grow_with_the_log(tmp_path):
    log = Log(tmp_path)
    log.add(*(log.line(output_token_ids=list(range(200))) for _ in range(16_000)))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) > 40 * token_files.BLOCK_BYTES
    tracemalloc.start()
    try:
        found = sum(1 for _ in search(tmp_path, TokenQuery(trace_id="trace-77")))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == 1
    assert peak_bytes < 8 * token_files.BLOCK_BYTES
