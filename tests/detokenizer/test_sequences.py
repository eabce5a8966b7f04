from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.detokenizer.pieces import Pieces
from engine.detokenizer.sequences import Sequences
from engine.messages import PromptLogprobs, SamplingParams, SequenceEnd, SequenceStart, StepTokens, TokenLogprobs
from telemetry.events import FinishReason
from tests.detokenizer.kinds import KINDS, ids_of, in_context, pieces_of
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


# --- log probabilities and echo


def logprobs(token_id: int) -> TokenLogprobs:
    return TokenLogprobs(-token_id / 1000, 1, [token_id], [-token_id / 1000])


def with_logprobs(steps: list[StepTokens]) -> list[StepTokens]:
    return [
        msgspec.structs.replace(step, logprobs={i: logprobs(t) for i, t in enumerate(step.token_ids)}) for step in steps
    ]


def test_logprobs_stand_with_their_own_token_while_text_is_held_back():
    ids = encode("😀 END")
    increments, _, _ = feed(started(logprobs=1, stop=("END!",)), with_logprobs(tokens(ids, "length")))
    assert [[item.token.token_id for item in i.logprobs] for i in increments] == [i.token_ids for i in increments]
    assert [i.logprobs[0].token.logprob for i in increments] == [-t / 1000 for t in ids]
    assert b"".join(i.logprobs[0].token.data for i in increments).decode() == "😀 END"
    assert increments[0].text == "" and "".join(i.text for i in increments) == "😀 END"


def test_an_ending_token_has_a_logprob_and_no_bytes():
    increments, _, _ = feed(started(logprobs=0, skip_special_tokens=False), with_logprobs(tokens([EOS], "stop")))
    assert (increments[0].logprobs[0].token.text, increments[0].logprobs[0].token.data) == ("</s>", b"")


def test_tokens_behind_a_stop_string_have_neither_ids_nor_logprobs():
    ids = encode("abcd")
    together = StepTokens(0, 1, [7] * 4, ids, ["", "", "", "length"], {i: logprobs(t) for i, t in enumerate(ids)})
    increments, hits, _ = feed(started(logprobs=1, stop=("bc",)), [together])
    assert "".join(i.text for i in increments) == "a"
    assert [t for i in increments for t in i.token_ids] == ids[:3]
    assert [item.token.token_id for i in increments for item in i.logprobs] == ids[:3]
    assert hits == [7]


def test_only_rows_that_asked_have_logprobs():
    sequences = started()
    sequences.start(make_start(seq_id=8, logprobs=1))
    [a] = encode("a")
    first, second = sequences.step(StepTokens(0, 1, [7, 8], [a, a], ["", ""], {1: logprobs(a)})).increments
    assert (first.logprobs, len(second.logprobs)) == ([], 1)


def prompt_start(ids: list[int], **params) -> SequenceStart:
    return SequenceStart(7, "req-7", 1, 0, ids, 0, SamplingParams(**params))


def test_prompt_logprobs_are_gathered_until_the_first_increment():
    ids = encode("The fox 😀")
    sequences = Sequences(PIECES)
    sequences.start(prompt_start(ids, prompt_logprobs=1, echo=True))
    for start in range(1, len(ids), 2):  # as chunks of the prefill bring them
        sequences.note_prompt(PromptLogprobs(7, start, [logprobs(t) for t in ids[start : start + 2]]))
    first, second = feed(sequences, tokens(encode("ab")))[0]
    assert first.prompt_text == "The fox 😀" and first.text == "a"
    assert [item.token.token_id for item in first.prompt_logprobs] == ids
    assert [item.token.rank for item in first.prompt_logprobs] == [0] + [1] * (len(ids) - 1)
    assert [item.token.logprob for item in first.prompt_logprobs][1:] == [-t / 1000 for t in ids[1:]]
    assert b"".join(item.token.data for item in first.prompt_logprobs).decode() == first.prompt_text
    assert (second.prompt_text, second.prompt_logprobs) == ("", [])


def test_reading_a_prompts_logprobs_is_busy_time():
    ids = encode("The fox") * 100
    sequences = Sequences(PIECES)
    sequences.start(prompt_start(ids, prompt_logprobs=1))
    sequences.note_prompt(PromptLogprobs(7, 1, [logprobs(t) for t in ids[1:]]))
    assert sequences._live[7].busy_ns > 0


def test_a_prompt_of_one_token_has_no_logprob_to_tell():
    sequences = Sequences(PIECES)
    sequences.start(prompt_start(encode("a"), prompt_logprobs=3))
    [first] = feed(sequences, tokens(encode("b")))[0]
    assert [(item.token.text, item.token.rank) for item in first.prompt_logprobs] == [("a", 0)]
    assert first.prompt_text == ""


def test_an_end_without_a_token_still_introduces_the_prompt():
    sequences = Sequences(PIECES)
    sequences.start(prompt_start(encode("ab"), echo=True))
    increment, _ = sequences.end(SequenceEnd(7, "req-7", 1, 0, FinishReason.ABORT))
    assert (increment.prompt_text, increment.prompt_token_ids) == ("ab", encode("ab"))


def test_prompt_logprobs_of_a_sequence_that_is_over_are_dropped():
    Sequences(PIECES).note_prompt(PromptLogprobs(9, 1, [logprobs(1)]))


def test_special_tokens_of_an_echoed_prompt_are_shown_as_those_of_the_answer():
    for skip, text in ((True, "ab"), (False, "a</s>b")):
        sequences = Sequences(PIECES)
        sequences.start(prompt_start(encode("a</s>b"), echo=True, skip_special_tokens=skip))
        assert feed(sequences, tokens(encode("c")))[0][0].prompt_text == text


# --- whole answers, on every kind of tokenizer


def until_stop(text: str, stop: str, include: bool) -> tuple[str, str]:
    at = text.find(stop)
    return (text, "") if at < 0 else (text[: at + len(stop) if include else at], stop)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100, deadline=None)
@given(data=st.data(), skip=st.booleans(), include=st.booleans())
def test_a_stop_string_cuts_the_text_wherever_tokens_begin(kind, data, skip, include):
    prompt, output = data.draw(ids_of(kind, 4)), data.draw(ids_of(kind).filter(bool))
    text = in_context(kind, prompt, output, skip)
    begin = data.draw(st.integers(0, max(len(text) - 1, 0)))
    stop = text[begin : begin + data.draw(st.integers(1, 6))] or "never"
    sequences = Sequences(pieces_of(kind))
    params = SamplingParams(stop=(stop,), include_stop_str=include, skip_special_tokens=skip)
    sequences.start(SequenceStart(7, "req-7", 1, 0, prompt, 0, params))
    increments, hits, [record] = feed(sequences, tokens(output, "length"))
    expected, found = until_stop(text, stop, include)
    assert "".join(i.text for i in increments) == expected
    assert (increments[-1].stop_reason or "", record.stop_string) == (found, found)
    assert increments[-1].finish_reason is (FinishReason.STOP if found else FinishReason.LENGTH)
    assert hits == ([7] if found and len(increments) < len(output) else [])
