"""Spans made once more from the store, against those that were made when the requests finished."""

import json
import re

import pytest
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from telemetry import schema, token_log
from telemetry.events import FinishReason, WaitReason
from telemetry.otlp_json import otlp_line, otlp_lines
from telemetry.queries import open_reader
from telemetry.replicas import Replicas
from telemetry.rows import request_row, sequence_rows
from telemetry.span_resources import Resources
from telemetry.span_steps import StepTraces
from telemetry.spans import RequestSpans
from telemetry.store import Batch, Store
from tests.telemetry.factories import Story
from tests.telemetry.test_assembly import assemble, only

ADDRESS = ("127.0.0.1", 8000)
NOT_STORED = {"route", "detokenize"}


def usual(story):
    story.complete_request(tokens=range(20, 32))


def preempted(story):
    story.received()
    story.routed()
    story.tokenized()
    seq = story.queued()
    story.admitted(seq, cached=2)
    story.generate(seq, [11, 12])
    story.preempted(seq, at=45)
    story.waits(seq, 45.5, WaitReason.PREEMPTED)
    story.admitted(seq, at=60, attempt=1)
    story.step(70, (seq, 0, 6, 13))
    story.ended(seq, at=71, tokens=3, preemptions=1)
    story.detokenized(seq)
    story.finished(at=80, outputs=[3])
    story.sent(at=81)


def aborted_in_the_queue(story):
    story.received()
    story.routed()
    story.tokenized()
    seq = story.queued()
    story.waits(seq, 5)
    story.ended(seq, at=30, reason=FinishReason.ABORT, tokens=0)
    story.finished(at=31, reason=FinishReason.ABORT, status=0)
    story.sent(at=32)


def refused(story):
    story.received()
    story.routed()
    story.tokenized(error="too long")
    story.finished(at=8, reason=FinishReason.ERROR, status=400, error_type="too_long", error_message="too long")
    story.sent(at=9)


@pytest.fixture
def stored(tmp_path):
    """Puts a story's request into a store with its token log; returns its facts and what is exported of it."""

    def put(make, with_log=True):
        story = Story()
        make(story)
        facts = only(assemble(story, at=5000))
        refs = write_log(tmp_path, facts) if with_log else {}
        store = Store(tmp_path)
        store.commit(Batch(finished={"req-1": request_row(facts, 1.0)}, sequences=sequence_rows(facts, refs)), {}, {})
        store.close()
        reader = open_reader(tmp_path)
        lines = list(otlp_lines(reader, (None, None), ADDRESS))
        reader.close()
        return facts, [json.loads(line) for line in lines]

    return put


def write_log(data, facts):
    (data / schema.TOKEN_FOLDER).mkdir(exist_ok=True)
    lines = token_log.lines(facts, Replicas("run"))
    (data / schema.TOKEN_FOLDER / "tokens-1.jsonl").write_bytes(b"".join(lines))
    return {0: ("tokens-1.jsonl", 0)} if lines else {}


def spans_in(message):
    return {s["name"]: s for r in message["resourceSpans"] for scope in r["scopeSpans"] for s in scope["spans"]}


def attributes_of(span):
    return {a["key"]: a["value"] for a in span.get("attributes", ())}


@pytest.mark.parametrize("make", [usual, preempted, aborted_in_the_queue, refused])
def test_the_spans_are_those_that_were_sent(stored, make):
    facts, (line,) = stored(make)
    sent = spans_in(json.loads(otlp_line(RequestSpans(facts, Resources(), StepTraces(0.0), ADDRESS).make())))
    made = spans_in(line)
    assert set(made) == set(sent) - NOT_STORED
    for name, span in made.items():
        same = ("traceId", "spanId", "parentSpanId", "kind", "status")
        assert {key: span.get(key) for key in same} == {key: sent[name].get(key) for key in same}
        for time in ("startTimeUnixNano", "endTimeUnixNano"):
            assert int(span[time]) == pytest.approx(int(sent[name][time]), abs=2000)
        assert attributes_of(span).keys() == attributes_of(sent[name]).keys()
        assert [e["name"] for e in span.get("events", ())] == [e["name"] for e in sent[name].get("events", ())]


def test_the_json_is_the_protocols(stored):
    _, (line,) = stored(usual)
    root = spans_in(line)["POST /v1/completions"]
    assert re.fullmatch("[0-9a-f]{32}", root["traceId"]) and re.fullmatch("[0-9a-f]{16}", root["spanId"])
    assert root["kind"] == 2
    assert isinstance(root["startTimeUnixNano"], str)
    assert attributes_of(root)["gen_ai.usage.output_tokens"] == {"intValue": "12"}
    ParseDict(line, TracesData())  # no unknown name, no wrong type (its ids are read as base64: any hex is)


def test_without_a_token_log_the_counts_are_there_and_the_itl_is_not(stored):
    _, (line,) = stored(usual, with_log=False)
    decode = attributes_of(spans_in(line)["decode"])
    assert decode["vitrine.decode.tokens"] == {"intValue": "11"}
    assert "vitrine.decode.itl_p50_s" not in decode
