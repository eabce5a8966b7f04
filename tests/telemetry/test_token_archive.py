"""Rotation, compression and retention of the token log, on a clock that stands still."""

import gzip
import os
import time

import pytest

from telemetry import token_archive, token_files
from telemetry.token_archive import Retention
from telemetry.token_log import Rotation, TokenLog
from tests.telemetry.rig import read_token_lines
from tests.telemetry.token_log_factories import Clock, make_batch, make_line

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def make_log(tmp_path, clock):
    opened = []

    def make(retention=None, committed=("", 0), **rotation):
        opened.append(TokenLog(tmp_path, Rotation(**rotation), retention, clock))
        opened[-1].recover(committed)
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def write(log, *ids, **fields):
    refs = log.write(make_batch(*ids, **fields))
    log.committed(log.position)
    return {request_id: own[0] for request_id, own in refs.items()}


def work(log, times=50):
    log.trim()
    for _ in range(times):
        log.work()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def ids_in(folder):
    return [line["request_id"] for line in read_token_lines(folder)]


def line_of(folder, ref):
    with token_files.opened(folder, ref[0]) as blocks:
        return token_files.line_at(blocks, ref[1])


# --- rotation ---------------------------------------------------------------------------------------


def test_a_file_is_closed_when_it_is_old(make_log, tmp_path, clock):
    log = make_log(max_age_s=HOUR_S)
    write(log, "req-0")
    clock.now += HOUR_S - 2
    write(log, "req-1")
    assert len(names(tmp_path)) == 1
    clock.now += 2
    write(log, "req-2")
    assert len(names(tmp_path)) == 2
    assert ids_in(tmp_path) == ["req-0", "req-1", "req-2"]


def test_a_files_age_counts_from_before_a_restart(make_log, tmp_path, clock):
    first = make_log(max_age_s=HOUR_S)
    write(first, "req-0")
    clock.now += HOUR_S
    write(make_log(committed=first.position, max_age_s=HOUR_S), "req-1")
    assert len(names(tmp_path)) == 2


def test_an_old_file_is_closed_although_nothing_is_written(make_log, tmp_path, clock):
    log = make_log(max_age_s=HOUR_S)
    ref = write(log, "req-0")["req-0"]
    clock.now += HOUR_S
    work(log)
    assert names(tmp_path) == [ref[0] + ".gz"]
    write(log, "req-1")
    assert names(tmp_path)[0] == ref[0] + ".gz"
    assert ids_in(tmp_path) == ["req-0", "req-1"]


def test_without_limits_there_is_one_file(make_log, tmp_path, clock):
    log = make_log(max_age_s=0)
    write(log, "req-0")
    clock.now += 1000 * DAY_S
    work(log)
    write(log, "req-1")
    assert len(names(tmp_path)) == 1


def test_after_an_idle_time_and_a_restart_the_log_goes_on(make_log, tmp_path, clock):
    first = make_log(max_age_s=HOUR_S)
    write(first, "req-0")
    clock.now += HOUR_S
    work(first)
    second = make_log(committed=first.position, max_age_s=HOUR_S)
    clock.now -= 2 * HOUR_S  # a clock that was set back
    ref = write(second, "req-1")["req-1"]
    assert ref > first.position
    assert ids_in(tmp_path) == ["req-0", "req-1"]


# --- compression ------------------------------------------------------------------------------------


def test_lines_are_found_before_while_and_after_a_file_is_compressed(make_log, tmp_path, monkeypatch):
    monkeypatch.setattr(token_archive, "BLOCK_BYTES", 100)
    log = make_log(max_bytes=2000)
    refs = write(log, *(f"req-{i}" for i in range(80)))
    write(log, "req-80")
    compressed = tmp_path / (refs["req-0"][0] + ".gz")
    log.trim()
    while not compressed.exists():
        log.work()
        for request_id, ref in refs.items():
            assert line_of(tmp_path, ref) == make_line(request_id)
    assert not (tmp_path / refs["req-0"][0]).exists()
    assert ids_in(tmp_path) == [f"req-{i}" for i in range(81)]


def test_one_call_compresses_one_block(make_log, tmp_path, monkeypatch):
    monkeypatch.setattr(token_archive, "BLOCK_BYTES", 100)
    log = make_log(max_bytes=1000)
    ref = write(log, *(f"req-{i}" for i in range(40)))["req-0"]
    write(log, "last")
    size = (tmp_path / ref[0]).stat().st_size
    calls = 0
    while not (tmp_path / (ref[0] + ".gz")).exists():
        log.work()
        calls += 1
    assert calls == size // 100 + 1


def test_a_compressed_file_keeps_the_time_of_its_last_line(make_log, tmp_path):
    log = make_log(max_bytes=1)
    ref = write(log, "req-0")["req-0"]
    os.utime(tmp_path / ref[0], (1_000_000_000, 1_000_000_000))
    write(log, "req-1")
    work(log)
    assert names(tmp_path)[0] == ref[0] + ".gz"
    assert token_files.last_write_ts(tmp_path, ref[0]) == 1_000_000_000


def test_lines_that_are_not_committed_are_not_compressed(make_log, tmp_path):
    log = make_log(max_bytes=1)
    for i in range(3):
        log.write(make_batch(f"req-{i}"))
    work(log)
    assert all(name.endswith(".jsonl") for name in names(tmp_path))
    log.committed(log.position)
    work(log)
    assert [name.endswith(".gz") for name in names(tmp_path)] == [True, True, False]


def test_what_is_never_read_again_does_not_hold_up_compression_for_ever(make_log, tmp_path, clock):
    first = make_log(max_bytes=1)
    first.write(make_batch("req-0"))
    second = make_log(committed=("", 0), max_bytes=1)
    write(second, "req-1")
    work(second)
    assert not list(tmp_path.glob("*.gz"))
    clock.now += HOUR_S
    write(second, "req-2")
    work(second)
    assert len(list(tmp_path.glob("*.gz"))) == 2
    assert ids_in(tmp_path) == ["req-0", "req-1", "req-2"]


def test_leftovers_of_a_compression_are_cleaned_up(make_log, tmp_path, clock):
    old, new = token_files.name_at(clock.now - 100), token_files.name_at(clock.now - 50)
    (tmp_path / old).write_bytes(make_line("req-0"))
    (tmp_path / (old + ".gz")).write_bytes(gzip.compress(make_line("req-0")))
    (tmp_path / new).write_bytes(make_line("req-1"))
    (tmp_path / (new + ".gz.part")).write_bytes(b"half")
    make_log(committed=(new, len(make_line("req-1"))))
    assert names(tmp_path) == [old + ".gz", new]


def test_a_full_disk_leaves_the_plain_file(make_log, tmp_path, monkeypatch):
    log = make_log(max_bytes=1)
    write(log, "req-0")
    write(log, "req-1")
    log.trim()
    with monkeypatch.context() as patch:
        patch.setattr(token_archive.os, "write", lambda fd, data: 3)
        with pytest.raises(OSError, match="is the disk full"):
            log.work()
    assert len(names(tmp_path)) == 2
    assert all(name.endswith(".jsonl") for name in names(tmp_path))
    work(log)
    assert names(tmp_path)[0].endswith(".gz")


def test_closing_leaves_no_half_compressed_file(make_log, tmp_path, monkeypatch):
    monkeypatch.setattr(token_archive, "BLOCK_BYTES", 10)
    log = make_log(max_bytes=1)
    write(log, "req-0")
    write(log, "req-1")
    log.work()
    assert list(tmp_path.glob("*.part"))
    log.close()
    assert not list(tmp_path.glob("*.part"))
    assert ids_in(tmp_path) == ["req-0", "req-1"]


# --- retention --------------------------------------------------------------------------------------


def test_files_are_deleted_by_the_age_of_their_last_line(make_log, tmp_path, clock):
    log = make_log(Retention(max_age_s=7 * DAY_S), max_bytes=1)
    for day in range(10):
        ref = write(log, f"req-{day}")[f"req-{day}"]
        os.utime(tmp_path / ref[0], (clock.now, clock.now))
        work(log)
        clock.now += DAY_S
    work(log)
    assert ids_in(tmp_path) == [f"req-{day}" for day in range(3, 10)]


def test_an_idle_log_ends_up_empty(make_log, tmp_path, clock):
    log = make_log(Retention(max_age_s=DAY_S), max_age_s=HOUR_S)
    write(log, "req-0")
    clock.now += 2 * DAY_S
    work(log)
    assert names(tmp_path) == []
    write(log, "req-1")
    assert ids_in(tmp_path) == ["req-1"]


def test_the_oldest_go_when_all_are_too_large(make_log, tmp_path):
    log = make_log(Retention(max_bytes=1000), max_bytes=1)
    for i in range(30):
        write(log, f"req-{i:02d}")
        work(log)
    assert 800 < sum(path.stat().st_size for path in tmp_path.iterdir()) <= 1000
    kept = ids_in(tmp_path)
    assert kept == [f"req-{i:02d}" for i in range(30 - len(kept), 30)]


def test_the_current_file_is_never_deleted(make_log, tmp_path, clock):
    log = make_log(Retention(max_bytes=1, max_age_s=1.0), max_age_s=0)
    write(log, "req-0")
    clock.now += 1000
    work(log)
    assert ids_in(tmp_path) == ["req-0"]


def test_a_file_that_is_being_compressed_can_be_deleted(make_log, tmp_path, clock, monkeypatch):
    monkeypatch.setattr(token_archive, "BLOCK_BYTES", 10)
    log = make_log(Retention(max_age_s=HOUR_S), max_bytes=1)
    write(log, "req-0")
    write(log, "req-1")
    log.work()
    assert list(tmp_path.glob("*.part"))
    clock.now += HOUR_S + 1
    log.trim()
    work(log)
    assert ids_in(tmp_path) == ["req-1"]
    assert len(names(tmp_path)) == 1


# --- bringing it to the disk ------------------------------------------------------------------------


@pytest.mark.parametrize(("fsync", "data", "whole"), [("off", 0, 0), ("rotate", 0, 5), ("always", 3, 5)])
def test_when_data_is_brought_to_the_disk(make_log, monkeypatch, fsync, data, whole):
    calls = []
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append("whole"))
    monkeypatch.setattr(os, "fdatasync", lambda fd: calls.append("data"))
    log = make_log(max_bytes=60, fsync=fsync)
    write(log, "req-0")
    write(log, "req-1")  # fills the first file
    write(log, "req-2")
    work(log)
    assert (calls.count("data"), calls.count("whole")) == (data, whole)


def test_what_cannot_be_brought_to_the_disk_is_not_written(make_log, tmp_path, monkeypatch):
    log = make_log(fsync="always")
    write(log, "req-0")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", lambda fd: (_ for _ in ()).throw(OSError("broken")))
        with pytest.raises(OSError, match="broken"):
            log.write(make_batch("req-1"))
    write(log, "req-1")
    assert ids_in(tmp_path) == ["req-0", "req-1"]


def test_a_slice_of_compression_is_short(make_log, tmp_path):
    """Real data, a real block: a few milliseconds, and never as long as a tick of the collector."""
    log = make_log(max_bytes=500_000)
    ids = list(range(1000, 1200))
    write(log, *(f"req-{i}" for i in range(700)), output_token_ids=ids)
    write(log, "last")
    log.trim()
    slices = []
    for _ in range(6):
        started = time.process_time()
        log.work()
        slices.append(time.process_time() - started)
    assert max(slices) < 0.1
