from __future__ import annotations

import pytest

from engine.detokenizer.pieces import Pieces
from engine.detokenizer.sequences import Sequences
from engine.messages import SamplingParams, SequenceEnd, SequenceStart, StepTokens
from telemetry.events import FinishReason
from tests.factories import byte_level_tokenizer

TOKENIZER = byte_level_tokenizer()
PIECES = Pieces(TOKENIZER)
EOS = TOKENIZER.token_to_id("</s>")


def make_start(seq_id: int = 7, gateway: int = 1, **params) -> SequenceStart:
    return SequenceStart(seq_id, f"req-{seq_id}", gateway, 0, [5, 6], 4, SamplingParams(**params))


def started(**params) -> Sequences:
    sequences = Sequences(PIECES)
    sequences.start(make_start(**params))
    return sequences


def tokens(ids: list[int], finish: str = "", seq_id: int = 7) -> list[StepTokens]:
    """A step for each id; the last one with `finish`."""
    last = len(ids) - 1
    return [StepTokens(i, 100 + i, [seq_id], [t], [finish if i == last else ""]) for i, t in enumerate(ids)]


def feed(sequences: Sequences, steps: list[StepTokens]):
    results = [sequences.step(step) for step in steps]
    increments = [i for r in results for i in r.increments]
    return increments, [s for r in results for s in r.stop_hits], [e for r in results for e in r.ended]


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text).ids


def test_every_token_reaches_the_gateway_even_while_its_text_is_held_back():
    ids = encode("😀 fox")
    increments, _, _ = feed(started(), tokens(ids))
    assert [i.token_ids for i in increments] == [[t] for t in ids]
    assert increments[0].text == ""
    assert "".join(i.text for i in increments) == "😀 fox"
    assert [i.sampled_ns for i in increments] == [100 + n for n in range(len(ids))]


def test_prompt_ids_and_cached_tokens_come_with_the_first_increment_only():
    first, second = feed(started(), tokens(encode("ab")))[0]
    assert (first.prompt_token_ids, first.cached_tokens) == ([5, 6], 4)
    assert (second.prompt_token_ids, second.cached_tokens) == (None, 0)


def test_an_ending_token_is_reported_but_makes_no_text():
    ids = [*encode("a"), EOS]
    increments, hits, (record,) = feed(started(skip_special_tokens=False), tokens(ids, "stop"))
    assert [(i.text, i.token_ids) for i in increments] == [("a", ids[:1]), ("", [EOS])]
    assert (increments[-1].finish_reason, increments[-1].stop_reason) == (FinishReason.STOP, None)
    assert hits == []
    assert (record.seq_id, record.tokens, record.stop_string) == (7, 2, "")


def test_a_stop_token_of_the_request_is_the_stop_reason():
    a, b = encode("ab")
    increments, _, _ = feed(started(stop_token_ids=(b,)), tokens([a, b], "stop"))
    assert (increments[-1].text, increments[-1].stop_reason) == ("", b)


def test_the_token_that_reaches_the_limit_keeps_its_text():
    increments, _, _ = feed(started(), tokens(encode("ab"), "length"))
    assert "".join(i.text for i in increments) == "ab"
    assert increments[-1].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("finish", ["", "length"])
def test_a_stop_string_ends_the_sequence_and_later_tokens_are_dropped(finish):
    sequences = started(stop=("o j",))
    ids = encode("the fo jum")[: len(encode("the fo j"))]
    increments, hits, (record,) = feed(sequences, tokens(ids, finish))
    assert "".join(i.text for i in increments) == "the f"
    assert (increments[-1].finish_reason, increments[-1].stop_reason) == (FinishReason.STOP, "o j")
    assert hits == ([] if finish else [7])  # the scheduler knows already
    assert record.stop_string == "o j"
    assert feed(sequences, tokens(encode("xyz"))) == ([], [], [])


def test_text_held_back_for_a_stop_string_is_flushed_at_the_end():
    ids = [*encode("ab"), EOS]
    increments, _, _ = feed(started(stop=("bZ",)), tokens(ids, "stop"))
    assert [i.text for i in increments] == ["a", "", "b"]


def test_a_stop_string_can_be_included():
    increments, _, _ = feed(started(stop=("bc",), include_stop_str=True), tokens(encode("a b c bc d")))
    assert "".join(i.text for i in increments) == "a b c bc"


def test_an_abort_flushes_and_ends():
    sequences = started()
    feed(sequences, tokens(encode("😀")[:-1]))
    increment, record = sequences.end(SequenceEnd(7, "req-7", 1, 0, FinishReason.ABORT))
    assert (increment.text, increment.finish_reason, increment.token_ids) == ("\ufffd", FinishReason.ABORT, [])
    assert record is not None and record.tokens == len(encode("😀")) - 1
    assert len(sequences) == 0


def test_the_end_of_an_unknown_sequence_is_passed_on():
    increment, record = Sequences(PIECES).end(SequenceEnd(9, "req-9", 1, 2, FinishReason.ERROR, "boom"))
    assert (increment.request_id, increment.index, increment.error) == ("req-9", 2, "boom")
    assert increment.prompt_token_ids is None
    assert record is None


def test_busy_time_is_shared_among_the_rows_of_a_step():
    sequences = started()
    sequences.start(make_start(seq_id=8))
    [a] = encode("a")
    ended = sequences.step(StepTokens(0, 1, [7, 8], [a, a], ["length", "length"])).ended
    assert ended[0].busy_ns == ended[1].busy_ns > 0


def test_sequences_of_a_dead_gateway_are_forgotten():
    sequences = started()
    sequences.start(make_start(seq_id=8, gateway=2))
    sequences.forget(lambda gateway: gateway < 2)
    assert feed(sequences, tokens(encode("a")))[0] == []
    assert len(feed(sequences, tokens(encode("a"), seq_id=8))[0]) == 1
