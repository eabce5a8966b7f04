from __future__ import annotations

import pytest

from engine.detokenizer.stage import DetokenizerStage
from engine.messages import (
    Directory,
    Increments,
    PromptLogprobs,
    Refused,
    SamplingParams,
    SequenceEnd,
    SequenceStart,
    StepTokens,
    StopHit,
    TokenLogprobs,
)
from telemetry.events import FinishReason, SequenceDetokenized, Stage
from telemetry.gauges import Gauge
from tests.factories import StageRun, byte_level_tokenizer, write_tokenizer_folder

TOKENIZER = byte_level_tokenizer()


@pytest.fixture
def run(tmp_path):
    run = StageRun(tmp_path, Stage.DETOKENIZER, write_tokenizer_folder(tmp_path / "model", TOKENIZER))
    run.stage = DetokenizerStage(run.context)
    run.stage.start()
    yield run
    run.close()


def start(seq_id: int, gateway: int = 1, **params) -> SequenceStart:
    return SequenceStart(seq_id, f"req-{seq_id}", gateway, 0, [5], 0, SamplingParams(**params))


def test_one_message_carries_all_increments_of_a_step(run):
    a, b = TOKENIZER.encode("ab").ids
    run.stage.on_messages([start(1), start(2), StepTokens(0, 9, [1, 2, 3], [a, b, a], ["", "length", ""])])
    [message] = run.receive(run.gateway)
    assert isinstance(message, Increments)
    assert (message.replica, message.incarnation) == ("r0", 1)
    assert [(i.request_id, i.text) for i in message.items] == [("req-1", "a"), ("req-2", "b")]
    assert run.context.gauges.get(Gauge.SENT_GATEWAY) == 1
    [record] = run.records()
    assert isinstance(record, SequenceDetokenized)
    assert (record.request_id, record.tokens) == ("req-2", 1)


def test_a_stop_string_is_told_to_the_scheduler(run):
    a, b = TOKENIZER.encode("ab").ids
    run.stage.on_messages([start(1, stop=("ab",)), StepTokens(0, 1, [1], [a], [""]), StepTokens(1, 2, [1], [b], [""])])
    assert run.receive(run.scheduler) == [StopHit(1)]
    first, last = run.receive(run.gateway, 2)
    assert first.items[0].text == last.items[0].text == ""
    assert last.items[0].stop_reason == "ab"
    assert run.context.gauges.get(Gauge.SENT_SCHEDULER) == 1


def test_refusals_and_ends_are_passed_on_in_order(run):
    refused = Refused("req-1", 1, 503, "overloaded", "full")
    run.stage.on_messages([refused, SequenceEnd(4, "req-4", 1, 0, FinishReason.ERROR, "boom")])
    first, second = run.receive(run.gateway, 2)
    assert first == refused
    assert second.items[0].error == "boom"


def test_nothing_is_sent_for_a_gateway_that_is_gone(run):
    [a] = TOKENIZER.encode("a").ids
    run.stage.on_messages([start(1, gateway=1)])
    run.stage.on_directory(Directory(2, "", []))
    run.stage.on_messages(
        [
            StepTokens(0, 1, [1], [a], [""]),
            SequenceEnd(1, "req-1", 1, 0, FinishReason.ABORT),
            start(2, gateway=2),
            StepTokens(1, 2, [2], [a], [""]),
        ]
    )
    [message] = run.receive(run.gateway)
    assert [i.request_id for i in message.items] == ["req-2"]
    assert run.context.gauges.get(Gauge.SENT_GATEWAY) == 1


def test_logprobs_of_prompt_and_answer_reach_the_gateway(run):
    a, b = TOKENIZER.encode("ab").ids
    likely = TokenLogprobs(-0.5, 1, [b], [-0.5])
    begin = SequenceStart(1, "req-1", 1, 0, [a, b], 0, SamplingParams(logprobs=1, prompt_logprobs=1, echo=True))
    run.stage.on_messages([begin, PromptLogprobs(1, 1, [likely]), StepTokens(0, 9, [1], [b], [""], {0: likely})])
    [message] = run.receive(run.gateway)
    [increment] = message.items
    assert increment.prompt_text == "ab"
    assert [item.token.token_id for item in increment.prompt_logprobs] == [a, b]
    assert increment.logprobs[0].top[0].data == b"b"
