import json
import os
from pathlib import Path

import pytest

from telemetry import token_log
from telemetry.events import FinishReason
from telemetry.replicas import Replicas
from telemetry.token_log import Rotation, TokenLog, lines
from telemetry.token_texts import TokenTexts
from tests.telemetry.factories import Story, make_info
from tests.telemetry.test_assembly import abort, assemble, only


@pytest.fixture
def replicas():
    replicas = Replicas("run")
    story = Story()
    replicas.change(story.replica_state(info=make_info()), 1.0)
    return replicas


@pytest.fixture
def make_log(tmp_path):
    opened = []

    def make(committed=("", 0), **settings):
        opened.append(TokenLog(tmp_path, **settings))
        opened[-1].recover(committed)
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def done(request_id="req-1", **changes):
    story = Story()
    story.complete_request(request_id, **changes)
    return only(assemble(story))


def batch(replicas, *ids):
    return [(facts, lines(facts, replicas)) for facts in map(done, ids)]


def read(tmp_path):
    return [json.loads(line) for path in sorted(tmp_path.glob("*.jsonl")) for line in path.read_bytes().splitlines()]


def test_a_line_says_everything(make_log, replicas, tmp_path):
    log = make_log()
    refs = log.write(batch(replicas, "req-1"))
    name, offset = refs["req-1"][0]
    line = json.loads((tmp_path / name).read_bytes()[offset:].splitlines()[0])
    assert line["request_id"] == "req-1"
    assert line["ts"].startswith("2027-01-15T08:00:00.06")
    assert line["model_sha256"] == "mmmmmmmm"
    assert line["prompt_token_ids"] == [1, 2, 3, 4]
    assert line["output_token_ids"] == [11, 12, 13]
    assert line["token_times_ms"] == [30.0, 40.0, 50.0]
    assert line["step_ids"] == [1, 2, 3]
    assert line["params"] == {"max_tokens": 16, "temperature": 0.0}
    assert line["seed"] == 7
    assert line["finish_reason"] == "stop"
    assert line["error"] is None
    assert line["timings"]["ttft_s"] == pytest.approx(0.031)
    assert "output_text" not in line


def test_aborted_requests_have_lines_too(replicas):
    story = Story()
    story.received()
    story.routed()
    story.tokenized()
    abort(story, story.queued())
    (line,) = map(json.loads, lines(only(assemble(story)), replicas))
    assert line["finish_reason"] == "abort"
    assert line["error"]["type"] == "abort"
    assert line["output_token_ids"] == []


def test_one_line_per_sequence(make_log, replicas):
    story = Story()
    story.received(num_sequences=2)
    story.routed()
    story.tokenized(prompts=[[1], [2, 3]])
    for index in range(2):
        seq = story.queued(index=index, prompt_index=index)
        story.admitted(seq)
        story.generate(seq, [index])
        story.ended(seq, tokens=1)
    story.finished(outputs=[(1, FinishReason.STOP), (1, FinishReason.LENGTH)])
    story.sent()
    facts = only(assemble(story))
    found = list(map(json.loads, lines(facts, replicas)))
    assert [(line["index"], line["prompt_token_ids"], line["finish_reason"]) for line in found] == [
        (0, [1], "stop"),
        (1, [2, 3], "length"),
    ]
    assert set(make_log().write([(facts, lines(facts, replicas))])["req-1"]) == {0, 1}


def test_files_rotate_by_size_and_references_stay_right(make_log, replicas, tmp_path):
    log = make_log(rotation=Rotation(max_bytes=1500))
    for i in range(8):
        refs = log.write(batch(replicas, f"req-{i}"))
        name, offset = refs[f"req-{i}"][0]
        with (tmp_path / name).open("rb") as f:
            f.seek(offset)
            assert json.loads(f.readline())["request_id"] == f"req-{i}"
    files = sorted(tmp_path.glob("tokens-*.jsonl"))
    assert len(files) >= 3
    assert [line["request_id"] for line in read(tmp_path)] == [f"req-{i}" for i in range(8)]


def test_lines_past_the_last_commit_are_not_written_again(make_log, replicas, tmp_path):
    log = make_log()
    log.write(batch(replicas, "req-0"))
    committed = log.position
    before = log.write(batch(replicas, "req-1", "req-2"))
    again = make_log(committed)
    after = again.write(batch(replicas, "req-1", "req-2", "req-3"))
    assert {key: after[key] for key in before} == before
    assert [line["request_id"] for line in read(tmp_path)] == ["req-0", "req-1", "req-2", "req-3"]


def test_a_torn_last_line_is_cut_off_and_written_again(make_log, replicas, tmp_path):
    log = make_log()
    log.write(batch(replicas, "req-0"))
    committed = log.position
    log.write(batch(replicas, "req-1"))
    path = tmp_path / log.position[0]
    os.truncate(path, log.position[1] - 10)
    make_log(committed).write(batch(replicas, "req-1"))
    assert [line["request_id"] for line in read(tmp_path)] == ["req-0", "req-1"]


def test_the_commit_may_lie_in_an_older_file(make_log, replicas, tmp_path):
    log = make_log(rotation=Rotation(max_bytes=1))
    log.write(batch(replicas, "req-0"))
    committed = log.position
    log.write(batch(replicas, "req-1"))
    log.write(batch(replicas, "req-2"))
    make_log(committed, rotation=Rotation(max_bytes=1)).write(batch(replicas, "req-1", "req-2", "req-3"))
    assert [line["request_id"] for line in read(tmp_path)] == ["req-0", "req-1", "req-2", "req-3"]


def test_a_full_disk_leaves_no_half_line(make_log, replicas, tmp_path, monkeypatch):
    log = make_log()
    log.write(batch(replicas, "req-0"))
    real = os.write
    monkeypatch.setattr(token_log.os, "write", lambda fd, data: real(fd, data[:20]))
    with pytest.raises(OSError, match="only 20 of"):
        log.write(batch(replicas, "req-1"))
    monkeypatch.undo()
    log.write(batch(replicas, "req-2"))
    assert [line["request_id"] for line in read(tmp_path)] == ["req-0", "req-2"]


def test_text_is_left_out_where_there_is_no_tokenizer(replicas):
    (line,) = map(json.loads, lines(done(), replicas, TokenTexts()))
    assert line["output_text"] == ""


def test_text_is_decoded_with_the_replicas_tokenizer(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "<unk>": 11}))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(Path(tmp_path) / "tokenizer.json"))
    replicas = Replicas("run")
    replicas.change(Story().replica_state(info=make_info(model_path=str(tmp_path))), 1.0)
    (line,) = map(json.loads, lines(done(tokens=(3, 4)), replicas, TokenTexts()))
    assert line["prompt_text"] == "one two three four"
    assert line["output_text"] == "three four"
