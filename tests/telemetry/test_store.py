import sqlite3
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import update
from sqlalchemy.exc import OperationalError

from telemetry import request_list, retention, schema, store
from telemetry.database import Database
from telemetry.events import ReplicaState
from telemetry.facts import Scope
from telemetry.queries import open_reader
from telemetry.replicas import Replicas, event_row
from telemetry.request_list import CursorError, RequestFilters
from telemetry.rows import request_row, sequence_rows, step_row
from telemetry.store import Batch, Store, StoreError
from tests.telemetry.factories import Story, make_info
from tests.telemetry.test_assembly import Assembly, assemble, only


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request):
    """Where the store is: everything here holds for both kinds."""
    return "" if request.param == "sqlite" else request.getfixturevalue("postgresql").new_database()


@pytest.fixture
def writer(tmp_path, url):
    writer = Store(tmp_path, url)
    yield writer
    writer.close()


@pytest.fixture
def reader(writer, tmp_path, url):
    reader = open_reader(tmp_path, url)
    yield reader
    reader.close()


def done(request_id="req-1", at=0.0, **changes):
    story = Story()
    story.complete_request(request_id, at, **changes)
    return only(assemble(story, at=at + 1000))


def finished_batch(*requests):
    batch = Batch()
    for facts in requests:
        batch.finished[facts.request_id] = request_row(facts, 1.0)
        batch.sequences += sequence_rows(facts, {0: ("tokens-1.jsonl", 17)})
    return batch


def test_a_finished_request_comes_back_with_all_its_columns(writer, reader):
    writer.commit(finished_batch(done()), {}, {})
    row = reader.get_request("req-1")
    assert set(row) == {c.name for c in schema.requests.c}
    assert row["state"] == "finished"
    assert row["received_ts"] == 1_800_000_000
    assert row["ttft_s"] == pytest.approx(0.031)
    assert row["first_increment_at"] == pytest.approx(0.031)
    assert row["params"] == {"max_tokens": 16, "temperature": 0.0}
    assert row["incarnation_id"] == "run/r0.1"
    (sequence,) = reader.get_sequences("req-1")
    assert set(sequence) == {c.name for c in schema.sequences.c}
    assert sequence["waits"] == [[pytest.approx(0.005), "kv_blocks"], [pytest.approx(0.010), ""]]
    assert sequence["chunks"] == [[pytest.approx(0.027), pytest.approx(0.030), 4, 1]]
    assert (sequence["log_file"], sequence["log_offset"]) == ("tokens-1.jsonl", 17)
    assert reader.get_request("nobody") is None


def test_writing_twice_changes_nothing(writer, reader):
    batch = finished_batch(done())
    writer.commit(batch, {}, {})
    writer.commit(batch, {}, {})
    assert len(reader.list_requests().rows) == len(reader.get_sequences("req-1")) == 1


def test_a_finished_request_does_not_run_again(writer, reader):
    story = Story()
    story.received()
    assembly = Assembly("run")
    assemble(story, at=1, assembly=assembly)
    running = Batch(running={"req-1": request_row(only(assembly.live()), 2.0)})
    writer.commit(running, {}, {})
    assert reader.get_request("req-1")["state"] == "tokenizing"
    writer.commit(finished_batch(done()), {}, {})
    writer.commit(running, {}, {})
    assert reader.get_request("req-1")["state"] == "finished"
    assert writer.finished_ids(["req-1", "req-2"]) == {"req-1"}
    assert writer.finished_ids([]) == set()


def test_pages_go_by_key_and_do_not_shift(writer, reader):
    writer.commit(finished_batch(*(done(f"req-{i}", at=float(i // 2)) for i in range(7))), {}, {})
    first = reader.list_requests(limit=3)
    assert [row["request_id"] for row in first.rows] == ["req-6", "req-5", "req-4"]
    writer.commit(finished_batch(done("req-9", at=100.0)), {}, {})
    second = reader.list_requests(limit=3, cursor=first.cursor)
    assert [row["request_id"] for row in second.rows] == ["req-3", "req-2", "req-1"]
    third = reader.list_requests(limit=3, cursor=second.cursor)
    assert [row["request_id"] for row in third.rows] == ["req-0"]
    assert third.cursor == ""
    for bad in ("x", "!!", "e30="):
        with pytest.raises(CursorError):
            reader.list_requests(cursor=bad)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"state": "finished"}, ["b", "a"]),
        ({"state": "running"}, []),
        ({"finish_reason": "length"}, ["b"]),
        ({"trace_id": "1" * 32}, ["a"]),
        ({"id_prefix": "b"}, ["b"]),
        ({"id_prefix": "mine"}, ["a"]),
        ({"id_prefix": "%"}, []),
        ({"replica": "r0", "endpoint": "/v1/completions", "model": "tiny"}, ["b", "a"]),
        ({"min_output_tokens": 4}, ["b"]),
        ({"min_e2e_s": 0.08}, ["b"]),
        ({"min_ttft_s": 1.0}, []),
        ({"since": 1_800_000_000.5}, ["b"]),
        ({"until": 1_800_000_000.5}, ["a"]),
    ],
)
def test_filters(writer, reader, filters, expected):
    a = done("a", trace_id="1" * 32, client_request_id="mine")
    b = done("b", at=1000.0, tokens=(1, 2, 3, 4, 5), reason="length")
    writer.commit(finished_batch(a, b), {}, {})
    found = reader.list_requests(RequestFilters(**filters)).rows
    assert [row["request_id"] for row in found] == expected


def make_steps(count):
    story = Story()
    story.received()
    seq = story.queued()
    for i in range(count):
        story.step(20 + i, (seq, i, 1, i))
    assembly = Assembly("run")
    assemble(story, at=1, assembly=assembly)
    return [step_row(step, 0) for step in assembly.take_steps()]


def test_steps_come_back_with_their_plan_and_are_a_ring(writer, reader, monkeypatch):
    monkeypatch.setattr(retention, "STEPS_KEPT", 10)
    writer.commit(Batch(steps=make_steps(25)), {}, {})
    writer.trim(0.0, [])
    rows = reader.steps(0, 1e12)
    assert [row["step_id"] for row in rows] == list(range(16, 26))
    assert rows[0]["plan"] == [["req-1", 0, 15, 1, 15]]
    assert [row["step_id"] for row in reader.steps(0, 1e12, limit=2)] == [24, 25]
    assert reader.steps(0, 1e12, incarnation_id="other") == []
    assert reader.get_step("run/r0.1", 20)["num_seqs"] == 1
    assert reader.get_step("run/r0.1", 3) is None


def test_samples_are_read_by_window_and_old_ones_go(writer, reader):
    rows = [{"ts": ts, "replica": r, "values": {"running": ts}} for ts in (1, 2, 3) for r in ("", "r0")]
    writer.commit(Batch(samples=rows), {}, {})
    assert [row["values"]["running"] for row in reader.samples(2, 4)] == [2, 3]
    writer.trim(3 + retention.SAMPLES_KEPT_S, [])
    assert [row["ts"] for row in reader.samples(0, 9, "r0")] == [3]


def test_incarnations_and_events(writer, reader):
    replicas = Replicas("run")
    story = Story()
    changes = [(ReplicaState.STARTING, None), (ReplicaState.READY, make_info()), (ReplicaState.UNHEALTHY, None)]
    batch = Batch()
    for i, (state, info) in enumerate(changes):
        record = story.replica_state(state, at=i, info=info, reason=f"because {i}")
        row = replicas.change(record, float(i))
        batch.incarnations[row["id"]] = row
        batch.replica_events.append(event_row(record, float(i)))
    batch.replica_events.append(event_row(story.died(), 3.0))
    writer.commit(batch, {}, {})
    (row,) = reader.incarnations()
    assert (row["id"], row["state"], row["ready_ts"], row["ended_ts"]) == ("run/r0.1", "unhealthy", 1.0, 2.0)
    assert row["model_sha256"] == "mmmmmmmm"
    assert [e["event"] for e in reader.replica_events()] == ["died", "unhealthy", "ready", "starting"]
    assert len(reader.replica_events(since=2.0)) == 2


def test_positions_and_state_move_with_the_rows(writer):
    writer.commit(Batch(), {"/a.journal": (100, 5)}, {"metrics": b"1"})
    writer.commit(Batch(), {"/a.journal": (200, 9), "/b.journal": (1, 1)}, {"metrics": b"2"})
    assert writer.next_seqs() == {"/a.journal": 9, "/b.journal": 1}
    assert writer.state("metrics") == b"2"
    assert writer.state("nothing") is None
    writer.trim(0.0, ["/b.journal"])
    assert writer.next_seqs() == {"/b.journal": 1}


def test_nothing_is_written_when_a_part_of_it_cannot_be(writer, reader):
    batch = finished_batch(done())
    batch.steps.append({**make_steps(1)[0], "kind": None})
    with pytest.raises(Exception, match=r"(?i)not.null"):
        writer.commit(batch, {"/a.journal": (1, 1)}, {})
    assert reader.get_request("req-1") is None
    assert writer.next_seqs() == {}


def test_requests_nobody_knows_of_any_more_are_ended(writer, reader):
    story = Story()
    story.received("lost")
    story.received("open")
    assembly = Assembly("run")
    assemble(story, at=1, assembly=assembly)
    writer.commit(Batch(running={f.request_id: request_row(f, 1.0) for f in assembly.live()}), {}, {})
    assert writer.close_orphans({"open"}) == 1
    row = reader.get_request("lost")
    assert (row["state"], row["finish_reason"], row["error_type"]) == ("finished", "error", "records_lost")
    assert reader.get_request("open")["state"] == "tokenizing"


def test_a_locked_store_fails_soon_and_works_again(tmp_path):
    writer = Store(tmp_path)
    other = sqlite3.connect(tmp_path / schema.STORE_FILE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(OperationalError):
        writer.commit(finished_batch(done()), {}, {})
    other.execute("ROLLBACK")
    other.close()
    writer.commit(finished_batch(done()), {}, {})
    writer.close()


def test_a_damaged_store_is_put_aside(tmp_path):
    (tmp_path / schema.STORE_FILE).write_bytes(b"not a database" * 1000)
    again = Store(tmp_path)
    assert again.set_aside is not None and again.set_aside.exists()
    again.commit(finished_batch(done()), {}, {})
    again.close()


def test_a_store_of_another_schema_is_refused(tmp_path, writer, url):
    with Database(tmp_path, url).open_reader().begin() as connection:
        connection.execute(update(schema.schema_version).values(version=99))
    writer.close()
    with pytest.raises(StoreError, match="schema 99"):
        Store(tmp_path, url)


def test_old_requests_go_with_their_sequences_and_running_ones_stay(tmp_path, url):
    writer = Store(tmp_path, url, retention.Limits(max_age_s=100))
    story = Story()
    story.received("running")
    assembly = Assembly("run")
    assemble(story, at=1, assembly=assembly)
    writer.commit(finished_batch(done("old"), done("new", at=200_000)), {}, {})
    writer.commit(Batch(running={f.request_id: request_row(f, 1.0) for f in assembly.live()}), {}, {})
    reader = open_reader(tmp_path, url)
    ids = lambda: {row["request_id"] for row in reader.list_requests().rows}  # noqa: E731
    received_ts = reader.get_request("old")["received_ts"]
    assert writer.trim(received_ts + 99, []) == 0 and ids() == {"old", "new", "running"}
    assert writer.trim(received_ts + 101, []) == 1 and ids() == {"new", "running"}
    assert reader.get_sequences("old") == [] and reader.get_sequences("new")
    reader.close()
    writer.close()


def test_a_piece_is_deleted_at_a_time(tmp_path, url, monkeypatch):
    monkeypatch.setattr(retention, "REQUESTS_AT_ONCE", 3)
    writer = Store(tmp_path, url, retention.Limits(max_age_s=100))
    writer.commit(finished_batch(*(done(f"req-{i}", at=i) for i in range(8))), {}, {})
    assert [writer.trim(1_900_000_000, []) for _ in range(4)] == [3, 3, 2, 0]
    writer.close()


def test_a_store_that_is_too_large_loses_its_oldest_and_grows_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(retention, "REQUESTS_AT_ONCE", 20)
    writer = Store(tmp_path, "", retention.Limits(max_bytes=400_000))
    for i in range(0, 1000, 10):
        writer.commit(finished_batch(*(done(f"req-{n:04d}", at=n) for n in range(i, i + 10))), {}, {})
        writer.trim(0.0, [])
    reader = open_reader(tmp_path)
    rows = reader.list_requests(limit=1000).rows
    assert rows[0]["request_id"] == "req-0999" and 100 < len(rows) < 900
    assert [row["request_id"] for row in rows] == [f"req-{n:04d}" for n in range(999, 999 - len(rows), -1)]
    assert (tmp_path / schema.STORE_FILE).stat().st_size < 600_000
    reader.close()
    writer.close()


def test_what_postgresql_cannot_hold_is_replaced(tmp_path, postgresql):
    url = postgresql.new_database()
    writer, reader = Store(tmp_path, url), open_reader(tmp_path, url)
    facts = done(client_request_id="a\0b\ud800", params={"prompt": "x\0y"})
    writer.commit(finished_batch(facts), {}, {})
    assert reader.get_request("req-1")["client_request_id"] == "a\ufffdb?"
    reader.close()
    writer.close()


def test_a_database_has_one_writer(tmp_path, postgresql, monkeypatch):
    monkeypatch.setattr(store, "_TAKEOVER_S", 0.3)
    url = postgresql.new_database()
    first = Store(tmp_path, url)
    with pytest.raises(StoreError, match="another vitrine writes to this database"):
        Store(tmp_path, url)
    first.close()
    Store(tmp_path, url).close()


def test_a_lost_connection_costs_a_commit_at_most(tmp_path, postgresql):
    url = postgresql.new_database()
    writer = Store(tmp_path, url)
    postgresql.drop_connections()
    writer.commit(finished_batch(done()), {}, {})  # found out before it is used
    assert writer.finished_ids(["req-1"]) == {"req-1"}
    writer.close()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql://h/d", "mysql:// is not supported"),
        ("nonsense", "not a URL"),
        ("postgresql://ann:geheim@127.0.0.1:1/d", "cannot open the store postgresql"),
    ],
)
def test_a_database_that_cannot_be_reached_is_said_without_its_password(tmp_path, monkeypatch, url, words):
    monkeypatch.setattr(store, "_TAKEOVER_S", 0.0)
    with pytest.raises(StoreError, match=words) as error:
        Store(tmp_path, url)
    assert "geheim" not in str(error.value)


def test_a_missing_driver_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=r"vitrine\[postgres\]"):
        Store(tmp_path, "postgresql://127.0.0.1/d")


def test_pending_rows_are_bounded(monkeypatch):
    monkeypatch.setattr(store, "_PENDING_ROWS", 5)
    batch = finished_batch(*(done(f"req-{i}") for i in range(8)))
    assert batch.shed() == 6
    assert list(batch.finished) == [f"req-{i}" for i in range(3, 8)]


def test_audit(writer, reader):
    reader.append_audit("ann", "restart", "r0", "done")
    reader.append_audit("bob", "drain", "r1", "refused")
    assert [(row["who"], row["action"]) for row in reader.list_audit()] == [("bob", "drain"), ("ann", "restart")]


def test_there_is_no_reader_without_a_store(tmp_path):
    with pytest.raises(FileNotFoundError):
        open_reader(tmp_path)


def test_a_token_line_that_is_gone_is_none(reader, tmp_path):
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "a.jsonl").write_text('{"x": 1}\n')
    assert reader.token_line("a.jsonl", 0) == {"x": 1}
    assert reader.token_line("a.jsonl", 5) is None
    assert reader.token_line("../vitrine.db", 0) is None
    assert str(Scope("r0", 2)) == "r0.2"


def test_a_page_that_has_looked_long_enough_goes_on_from_where_it_was(writer, reader, monkeypatch):
    monkeypatch.setattr(request_list, "PIECE_ROWS", 3)
    monkeypatch.setattr(request_list, "LOOK_S", 0.0)
    writer.commit(
        finished_batch(*(done(f"req-{i}", at=1000 * i, model="a" if i == 0 else "b") for i in range(8))), {}, {}
    )
    pages = [reader.list_requests(RequestFilters(model="a"))]
    while pages[-1].cursor:
        pages.append(reader.list_requests(RequestFilters(model="a"), cursor=pages[-1].cursor))
    assert [[row["request_id"] for row in page.rows] for page in pages] == [[], [], ["req-0"]]


@given(
    wanted=st.lists(st.booleans(), max_size=40), limit=st.integers(1, 5), piece=st.integers(1, 7), look=st.booleans()
)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_pages_together_are_the_whole_list_in_order(tmp_path_factory, wanted, limit, piece, look):
    folder = tmp_path_factory.mktemp("list")
    writer = Store(folder)
    facts = [done(f"req-{i:02d}", at=1000 * (i // 2), model="a" if want else "b") for i, want in enumerate(wanted)]
    writer.commit(finished_batch(*facts), {}, {})
    reader = open_reader(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_list, "PIECE_ROWS", piece)
        patch.setattr(request_list, "LOOK_S", 60.0 if look else 0.0)
        found, cursor = [], None
        while cursor != "":
            page = reader.list_requests(RequestFilters(model="a"), limit, cursor or "")
            assert len(page.rows) <= limit
            found += [row["request_id"] for row in page.rows]
            cursor = page.cursor
    assert found == [f"req-{i:02d}" for i, want in reversed(list(enumerate(wanted))) if want]
    reader.close()
    writer.close()
