from __future__ import annotations

import pytest

from engine.messages import Abort, Directory, Enqueue, IdsReply, IdsToText, Refused, SamplingParams, Submit, TextToIds
from engine.process import CannotStartError
from engine.tokenizer.stage import TokenizerStage
from telemetry.events import Stage, Tokenized
from telemetry.gauges import Gauge
from tests.factories import StageRun, byte_level_tokenizer, write_tokenizer_folder

TOKENIZER = byte_level_tokenizer()


@pytest.fixture
def make_run(tmp_path):
    runs = []

    def make(**settings) -> StageRun:
        model = write_tokenizer_folder(tmp_path / "model", TOKENIZER, "{{ messages[0].content }}")
        run = StageRun(tmp_path, Stage.TOKENIZER, model, **settings)
        runs.append(run)
        run.stage = TokenizerStage(run.context)
        return run

    yield make
    for run in runs:
        run.close()


@pytest.fixture
def run(make_run):
    run = make_run()
    run.facts = run.stage.start()
    return run


def submit(request_id: str, text: str = "the fox", gateway: int = 1) -> Submit:
    return Submit(request_id, gateway, 1, SamplingParams(max_tokens=4), texts=(text,))


def test_facts_name_tokenizer_and_context(run):
    assert run.facts == {"tokenizer_sha256": "1" * 64, "max_model_len": "128"}


def test_requests_and_aborts_reach_the_scheduler_in_order(run):
    run.stage.on_messages([submit("a"), Abort("b", 1), submit("b"), Abort("a", 1)])
    got = run.receive(run.scheduler, 4)
    assert [(type(m), m.request_id) for m in got] == [(Enqueue, "a"), (Abort, "b"), (Enqueue, "b"), (Abort, "a")]
    assert run.context.gauges.get(Gauge.SENT_SCHEDULER) == 4


def test_a_request_and_a_refusal_are_both_journaled(run):
    run.stage.on_messages([submit("a"), submit("b", "")])
    [refused] = run.receive(run.gateway)
    assert isinstance(refused, Refused)
    assert (refused.request_id, refused.status, refused.param) == ("b", 400, "prompt")
    assert run.context.gauges.get(Gauge.SENT_GATEWAY) == 1
    first, second = run.records()
    assert isinstance(first, Tokenized)
    assert first.prompt_token_ids == [TOKENIZER.encode("the fox").ids]
    assert first.received_ns <= first.start_ns <= first.end_ns
    assert (second.request_id, second.error, second.prompt_token_ids) == ("b", refused.message, [])


def test_questions_are_answered(run):
    run.stage.on_messages([TextToIds("a", 1, text="dog"), IdsToText("b", 1, (10**6,))])
    answer, refused = run.receive(run.gateway, 2)
    assert answer == IdsReply("a", 1, TOKENIZER.encode("dog").ids)
    assert (refused.request_id, refused.param) == ("b", "tokens")


def test_what_a_dead_gateway_asked_for_is_dropped(run):
    run.stage.on_directory(Directory(2, "", []))
    run.stage.on_messages([submit("old", gateway=1), Abort("old", 1), submit("new", gateway=2)])
    assert [m.request_id for m in run.receive(run.scheduler)] == ["new"]
    assert len(run.records()) == 1


def test_a_template_file_that_cannot_be_used_stops_the_start(make_run, tmp_path):
    (tmp_path / "broken").write_text("{% if %}")
    with pytest.raises(CannotStartError, match="chat template"):
        make_run(chat_template=str(tmp_path / "broken")).stage.start()


@pytest.mark.parametrize("file", ["tokenizer.json", "config.json"])
def test_damaged_model_files_stop_the_start(make_run, tmp_path, file):
    run = make_run()
    (tmp_path / "model" / file).write_text("{")
    with pytest.raises(CannotStartError, match=r"tokenizer\.json|configuration"):
        run.stage.start()
