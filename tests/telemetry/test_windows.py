"""What exports read: windows of the store, page by page, as JSON lines and CSV."""

import csv
import io
import json
import sqlite3

import msgspec
import pytest

from telemetry import schema
from telemetry.queries import open_reader
from telemetry.rows import request_row, step_row
from telemetry.store import Batch, Store
from telemetry.tabular import REQUEST_COLUMNS, csv_lines, json_lines
from telemetry.windows import each_request, each_step, each_token_line
from tests.telemetry.factories import WALL_NS, Story
from tests.telemetry.test_assembly import Assembly, assemble

WALL_TS = WALL_NS / 1e9


@pytest.fixture
def reader(tmp_path):
    """Seven requests, two of them at the same moment, and their steps."""
    story = Story()
    for i, at in enumerate((0, 100, 200, 200, 300, 400, 500)):
        story.complete_request(f"req-{i}", at, client_request_id="=cmd" if i == 3 else "")
    assembly = Assembly("run")
    batch = Batch()
    for facts in assemble(story, at=5000, assembly=assembly):
        batch.finished[facts.request_id] = request_row(facts, 1.0)
    batch.steps = [step_row(step, WALL_NS - story.start_ns) for step in assembly.take_steps()]
    store = Store(tmp_path)
    store.commit(batch, {}, {})
    store.close()
    reader = open_reader(tmp_path)
    yield reader
    reader.close()


@pytest.mark.parametrize("page_rows", [1, 2, 3, 7, 500])
def test_every_row_comes_once_and_in_order_whatever_a_page_holds(reader, page_rows):
    found = [row["request_id"] for row in each_request(reader, (None, None), page_rows)]
    assert found == [f"req-{i}" for i in range(7)]
    steps = [row["step_id"] for row in each_step(reader, (None, None), page_rows)]
    assert sorted(steps) == list(range(1, 22))


def test_a_window_has_its_begin_and_not_its_end(reader):
    window = (WALL_TS + 0.1, WALL_TS + 0.3)
    assert [row["request_id"] for row in each_request(reader, window)] == ["req-1", "req-2", "req-3"]


def test_steps_tell_when_execution_began(reader):
    first = next(each_step(reader, (None, None)))
    assert first["execute_at"] == pytest.approx(0.001)
    assert first["plan"] == [["req-0", 0, 0, 4, 11]]


def test_json_lines_and_csv_say_the_same(reader):
    rows = list(each_request(reader, (None, None)))
    lines = [json.loads(line) for line in json_lines(rows)]
    table = list(csv.DictReader(io.StringIO(b"".join(csv_lines(rows, REQUEST_COLUMNS)).decode(), newline="")))
    assert lines == rows
    assert list(table[0]) == list(REQUEST_COLUMNS)
    assert [float(row["e2e_s"]) for row in table] == [row["e2e_s"] for row in rows]
    assert json.loads(table[0]["params"]) == rows[0]["params"]
    assert table[0]["error_type"] == ""


def test_a_spreadsheet_sees_no_formula(reader):
    text = b"".join(csv_lines(each_request(reader, (None, None)), REQUEST_COLUMNS)).decode()
    assert ",'=cmd," in text and ",=cmd" not in text


def test_a_sequence_whose_line_is_gone_is_named_without_ids(tmp_path, reader):
    values = dict.fromkeys(schema.sequences.c.keys()) | {"request_id": "req-0", "idx": 0, "prompt_index": 0}
    store = Store(tmp_path)
    store.commit(Batch(sequences=[values | {"log_file": "tokens-1.jsonl", "log_offset": 5}]), {}, {})
    store.close()
    nothing = {"request_id": "req-0", "index": 0, "prompt_token_ids": None, "output_token_ids": None}
    assert list(each_token_line(reader, (None, None))) == [nothing]


def test_a_store_of_the_schema_before_is_brought_up_to_date(tmp_path):
    Store(tmp_path).close()
    with sqlite3.connect(tmp_path / schema.STORE_FILE) as connection:
        connection.execute("ALTER TABLE steps DROP COLUMN execute_at")
        connection.execute("UPDATE schema_version SET version = 1")
    store = Store(tmp_path)
    story = Story()
    assembly = Assembly("run")
    story.complete_request()
    assemble(story, assembly=assembly)
    store.commit(Batch(steps=[step_row(step, 0) for step in assembly.take_steps()]), {}, {})
    store.close()
    Store(tmp_path).close()
    reader = open_reader(tmp_path)
    assert all(msgspec.convert(row["execute_at"], float) > 0 for row in each_step(reader, (None, None)))
    reader.close()
