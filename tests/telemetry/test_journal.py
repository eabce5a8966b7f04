import os
import random
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from telemetry.events import ProcessStarted, RequestFinished, Stage, StepStarted, Tokenized
from telemetry.journal import JournalOwner, JournalReader, JournalWriter

OWNER = JournalOwner(Stage.SCHEDULER, "r0", 1, 42)
CAPACITY = 4096
RING_AT = 4096
SLOW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def record(number, ids=0):
    return Tokenized(str(number), 0, 0, 0, [[7] * ids], False, "")


def numbers(records):
    return [int(r.request_id) for r in records]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.journal"


@pytest.fixture
def fresh_path(tmp_path):
    counter = iter(range(1_000_000))
    return lambda: tmp_path / f"{next(counter)}.journal"


def test_records_come_back_in_order_with_their_owner(path):
    writer = JournalWriter(path, OWNER)
    for i in range(100):
        writer.append(record(i, i))
    reader = JournalReader(path)
    assert reader.owner == OWNER
    assert numbers(reader.read()) == list(range(100))
    assert list(reader.read()) == []
    assert reader.dropped == 0


def test_a_reader_that_stops_early_loses_nothing(path):
    writer = JournalWriter(path, OWNER)
    for i in range(10):
        writer.append(record(i))
    reader = JournalReader(path)
    assert numbers(reader.read(limit=3)) == [0, 1, 2]
    for one in reader.read():
        assert int(one.request_id) == 3
        break
    later = JournalReader(path, reader.cursor, reader.next_seq)
    assert numbers(later.read()) == list(range(4, 10))
    assert later.dropped == 0


@SLOW
@given(
    sizes=st.lists(st.integers(0, 350), min_size=1, max_size=200),
    read_after=st.sets(st.integers(0, 199)),
    limit=st.integers(1, 50),
)
def test_read_plus_dropped_is_what_was_appended(fresh_path, sizes, read_after, limit):
    where = fresh_path()
    writer = JournalWriter(where, OWNER, CAPACITY)
    reader = JournalReader(where)
    seen = []
    for i, size in enumerate(sizes):
        writer.append(record(i, size))
        if i in read_after:
            seen += numbers(reader.read(limit))
    while reader.unread_bytes():
        seen += numbers(reader.read(limit))
    writer.append(record(len(sizes)))
    seen += numbers(reader.read())
    assert seen == sorted(set(seen))
    assert len(seen) + reader.dropped == len(sizes) + 1
    writer.close()
    reader.close()


def test_records_known_to_an_earlier_reader_are_not_counted_as_dropped(path):
    writer = JournalWriter(path, OWNER, CAPACITY)
    for i in range(500):
        writer.append(record(i))
    reader = JournalReader(path, known_seq=490)
    seen = numbers(reader.read())
    assert seen[-1] == 499
    assert seen[0] < 490
    assert reader.dropped == 0
    late = JournalReader(path, known_seq=100)
    kept = numbers(late.read())
    assert late.dropped == kept[0] - 100


def test_a_record_too_large_is_dropped_and_the_reader_sees_the_gap(path):
    writer = JournalWriter(path, OWNER, CAPACITY)
    writer.append(record(0))
    writer.append(record(1, 2000))
    writer.append(record(2))
    reader = JournalReader(path)
    assert numbers(reader.read()) == [0, 2]
    assert writer.dropped == reader.dropped == 1


def test_a_journal_has_one_life(path):
    JournalWriter(path, OWNER)
    with pytest.raises(FileExistsError):
        JournalWriter(path, OWNER)


@pytest.mark.parametrize("content", [b"", b"short", b"\0" * 8192, b"VJOURN01" + b"\xff" * 8184])
def test_what_is_not_a_journal_is_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(ValueError):
        JournalReader(path)


def test_an_unknown_record_type_is_counted(path):
    class Alien(ProcessStarted, frozen=True, tag="Alien"):
        pass

    writer = JournalWriter(path, OWNER)
    writer.append(Alien(1, 2))
    writer.append(record(1))
    reader = JournalReader(path)
    assert numbers(reader.read()) == [1]
    assert reader.dropped == 1


def _frames(path):
    """(offset in the file, length) of each frame; the ring has not wrapped."""
    data = path.read_bytes()
    head = struct.unpack_from("<Q", data, 16)[0]
    at = 0
    while at < head:
        length = struct.unpack_from("<I", data, RING_AT + at)[0]
        yield RING_AT + at, length
        at += (16 + length + 7) & ~7


def _flip(path, at, value):
    with path.open("r+b") as f:
        f.seek(at)
        f.write(value)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("length", b"\xfe\xff\xff\xff"),
        ("length", b"\x05\x00\x00\x00"),
        ("length", b"\xff\xff\xff\xff"),
        ("crc", b"\x00\x01\x02\x03"),
        ("seq", b"\xff\xff\xff\xff\xff\xff\xff\x7f"),
        ("body", b"\xff\xff\xff"),
    ],
)
def test_a_damaged_frame_is_skipped_and_what_is_lost_counted(path, where, value):
    writer = JournalWriter(path, OWNER, 1 << 16)
    for i in range(20):
        writer.append(record(i, 3))
    frame, _ = list(_frames(path))[10]
    _flip(path, frame + {"length": 0, "crc": 4, "seq": 8, "body": 20}[where], value)
    reader = JournalReader(path)
    seen = numbers(reader.read())
    writer.append(record(20))
    seen += numbers(reader.read())
    assert seen[:10] == list(range(10))
    assert 10 not in seen
    assert seen[-1] == 20
    assert len(seen) + reader.dropped == 21
    if where not in ("length",):
        assert reader.dropped == 1


@SLOW
@given(seed=st.integers(0, 1 << 32), count=st.integers(1, 40))
def test_random_damage_neither_raises_nor_loops(fresh_path, seed, count):
    chance = random.Random(seed)
    where = fresh_path()
    writer = JournalWriter(where, OWNER, CAPACITY)
    for i in range(chance.randrange(1, 100)):
        writer.append(record(i, chance.randrange(100)))
    reader = JournalReader(where)
    for _ in range(count):
        _flip(where, chance.randrange(16, RING_AT + CAPACITY), bytes([chance.randrange(256)]))
    seen = [int(r.request_id) for _ in range(3) for r in reader.read()]
    assert seen == sorted(set(seen))
    assert reader.dropped >= 0


def test_a_damaged_head_is_not_followed(path):
    writer = JournalWriter(path, OWNER, CAPACITY)
    for i in range(10):
        writer.append(record(i))
    _flip(path, 16, (1 << 40).to_bytes(8, sys.byteorder))
    reader = JournalReader(path)
    assert list(reader.read()) == []
    assert reader.damaged == 1
    writer.append(record(10))
    assert numbers(reader.read()) == list(range(11))


_APPENDER = """
import sys, itertools
from pathlib import Path
from telemetry.journal import JournalOwner, JournalWriter
from telemetry.events import Stage, Tokenized
writer = JournalWriter(Path(sys.argv[1]), JournalOwner(Stage.RUNNER, "r0", 1, 1), 1 << 16)
print("go", flush=True)
for i in itertools.count():
    writer.append(Tokenized(str(i), 0, 0, 0, [[7] * (i % 50)], False, ""))
"""


@pytest.mark.parametrize("attempt", range(3))
def test_a_killed_writer_leaves_whole_records_only(path, attempt):
    child = subprocess.Popen([sys.executable, "-c", _APPENDER, str(path)], stdout=subprocess.PIPE, cwd=Path.cwd())
    assert child.stdout.readline() == b"go\n"
    reader = JournalReader(path)
    seen = []
    while len(seen) < 5000 * (attempt + 1):
        seen += numbers(reader.read(1000))
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    while reader.unread_bytes():
        seen += numbers(reader.read())
    assert reader.damaged == 0
    assert seen == sorted(set(seen))
    assert len(seen) + reader.dropped == seen[-1] + 1


def test_every_record_type_survives_the_round_trip(path):
    writer = JournalWriter(path, OWNER)
    records = [
        StepStarted(1, 2, 3, 4),
        RequestFinished("r", 1, "stop", 200, "", "", []),
    ]
    for one in records:
        writer.append(one)
    assert [type(one) for one in JournalReader(path).read()] == [type(one) for one in records]
