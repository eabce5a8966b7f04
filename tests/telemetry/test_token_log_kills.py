"""No line is lost, torn or doubled, whenever the process is killed: any system call may be its last."""

import contextlib
import json
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry import token_archive, token_files
from telemetry.token_archive import Retention
from telemetry.token_log import Rotation, TokenLog
from tests.telemetry.rig import read_token_lines
from tests.telemetry.token_log_factories import Clock, Killed, Process, make_batch

BLOCK = 64  # bytes; a file of `ROTATION` has three
ROTATION = Rotation(max_bytes=160, max_age_s=3600)


class Telemetry:
    """The token log and what stands around it: a store that commits whole, and journals that are read again."""

    def __init__(self, folder, retention):
        self.folder = folder
        self.clock = Clock()
        self.retention = retention
        self.finished = []  # requests, as the journals tell of them
        self.rows = {}  # of the store: request id → where its line is
        self.committed = ("", 0)
        self.deaths = 0
        self.process = Process()
        self.start()

    def start(self):
        self.pending = {}
        self.process = Process()
        self.log = TokenLog(self.folder, ROTATION, self.retention, self.clock)
        with self.process.running():
            self.log.recover(self.committed)
        self.check_no_leftovers()

    def kill(self):
        self.deaths += 1
        self.process.end()
        self.start()

    def run(self, operation, argument):
        try:
            with self.process.running():
                getattr(self, operation)(argument)
        except Killed:
            self.kill()

    # --- operations ---

    def finish(self, count):
        self.finished += [f"req-{len(self.finished) + i:03d}" for i in range(count)]

    def write(self, count):
        """Take account of so many requests that nobody has taken account of."""
        news = [i for i in self.finished if i not in self.rows and i not in self.pending][:count]
        self.pending |= self.log.write(make_batch(*news))

    def commit(self, _):
        self.rows |= {request_id: refs[0] for request_id, refs in self.pending.items()}
        self.committed = self.log.position
        self.pending = {}
        self.log.committed(self.committed)

    def work(self, times):
        for _ in range(times):
            self.log.work()

    def trim(self, _):
        self.log.trim()

    def grow_older(self, hours):
        self.write(len(self.finished))  # in that time, journals have been read
        self.clock.now += 3600 * hours

    def be_killed(self, calls):
        self.process.calls_left = calls - 1

    # --- what came of it ---

    def settle(self):
        """Catch up with everything, without being killed any more."""
        self.process.calls_left = None
        with self.process.running():
            self.write(len(self.finished))
            self.commit(0)
            self.trim(0)
            self.work(200)

    def check(self):
        logged = [line["request_id"] for line in read_token_lines(self.folder)]
        kept = self.finished[len(self.finished) - len(logged) :]
        assert sorted(logged) == (kept if self.retention.max_bytes else self.finished)
        for request_id, (name, offset) in self.rows.items():
            if request_id in logged:
                with token_files.opened(self.folder, name) as blocks:
                    assert json.loads(token_files.line_at(blocks, offset))["request_id"] == request_id
        assert len(token_files.plain_names(self.folder)) <= 1
        self.check_no_leftovers()

    def check_no_leftovers(self):
        assert not list(self.folder.glob("*.part"))
        plain, compressed = token_files.plain_names(self.folder), token_files.compressed_names(self.folder)
        assert not set(plain) & set(compressed)


@contextlib.contextmanager
def telemetry(max_bytes=0):
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(token_archive, "BLOCK_BYTES", BLOCK),
        mock.patch.object(token_files, "BLOCK_BYTES", BLOCK),
    ):
        system = Telemetry(Path(folder), Retention(max_bytes=max_bytes))
        yield system
        system.process.end()


OPERATIONS = st.one_of(
    st.tuples(st.just("finish"), st.integers(1, 6)),
    st.tuples(st.just("write"), st.integers(1, 8)),
    st.tuples(st.just("commit"), st.just(0)),
    st.tuples(st.just("work"), st.integers(1, 6)),
    st.tuples(st.just("trim"), st.just(0)),
    st.tuples(st.just("grow_older"), st.integers(1, 2)),
    st.tuples(st.just("be_killed"), st.integers(1, 12)),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(OPERATIONS, max_size=40), st.sampled_from([0, 500]))
def test_whatever_happens_each_request_has_one_line(operations, max_bytes):
    with telemetry(max_bytes) as system:
        for operation, argument in operations:
            system.run(operation, argument)
        system.settle()
        system.check()


@pytest.mark.parametrize("calls", range(1, 30))
def test_rotation_and_compression_may_be_cut_short_anywhere(calls):
    with telemetry() as system:
        system.run("be_killed", calls)
        for _ in range(6):
            for operation, argument in [("finish", 9), ("write", 9), ("commit", 0), ("work", 4)]:
                system.run(operation, argument)
        system.settle()
        system.check()
        assert system.deaths == 1


def test_a_commit_before_the_journals_are_read_again_covers_nothing_new():
    """So it is with journals of earlier runs: they are taken care of first, and committed."""
    with telemetry() as system:
        for operation in ("finish", "write"):
            system.run(operation, 3)
        system.kill()
        system.run("commit", 0)
        system.kill()
        system.settle()
        system.check()
