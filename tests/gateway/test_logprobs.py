"""Log probabilities, echo and the choice of the best, in answers whole and streamed."""

from __future__ import annotations

import itertools
import json
import math
import threading
from collections.abc import Sequence
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.gateway import delivery
from engine.gateway.answer_options import AnswerOptions
from engine.gateway.best_of import choose_best
from engine.gateway.logprobs import (
    AnswerOffsets,
    chat_logprobs,
    completion_logprobs,
    finite,
    label,
    prompt_logprobs,
    prompt_offsets,
)
from engine.gateway.pieces import Piece
from engine.gateway.responses import ResponseWriter
from engine.messages import Submit, TextLogprob, TokenTextLogprobs
from telemetry.events import FinishReason, RequestFinished
from tests.gateway.rig import FakeReplica, Rig, answer_with_logprobs, events, increment, likely, said


def make_piece(
    index: int = 0, text: str = "", tokens: list[TextLogprob] | None = None, prompt: list[TextLogprob] | None = None
) -> Piece:
    tokens, prompt = tokens or [], prompt or []
    return Piece(
        index=index,
        text=text,
        token_ids=[token.token_id for token in tokens],
        logprobs=[TokenTextLogprobs(token, [token]) for token in tokens],
        finish_reason=FinishReason.LENGTH,
        stop_reason=None,
        prompt_token_ids=[token.token_id for token in prompt],
        cached_tokens=0,
        prompt_text="",
        prompt_logprobs=[TokenTextLogprobs(token, [token]) for token in prompt],
    )


def strict(body: bytes) -> Any:
    """JSON as the standard has it, without NaN and Infinity."""

    def refuse(constant: str) -> NoReturn:
        raise AssertionError(f"{constant} in JSON")

    return json.loads(body, parse_constant=refuse)


@pytest.fixture
def telling(rig: Rig) -> Rig:
    """A gateway whose engine gives log probabilities."""
    rig.replicas[0].script = answer_with_logprobs(rig.replicas[0])
    return rig


# --- tokens in words


def test_a_token_of_whole_characters_is_its_text() -> None:
    assert label(said(1, " the", -1.0)) == " the"
    assert label(said(1, "😀", -1.0)) == "😀"


def test_a_part_of_a_character_is_told_by_its_bytes() -> None:
    assert label(said(1, "\ufffd", -1.0, data=b"\xe2\x80")) == "bytes:\\xe2\\x80"
    assert label(said(1, " \ufffd", -1.0, data=b" \xf0\x9f")) == "bytes: \\xf0\\x9f"
    assert label(said(1, "\ufffd", -1.0, data=b"\xa6")) != label(said(2, "\ufffd", -1.0, data=b"\xa7"))


def test_a_token_that_makes_no_text_goes_by_its_name() -> None:
    assert label(said(1, "</s>", -1.0, data=b"")) == "</s>"


def test_infinity_and_what_is_no_number_become_a_number() -> None:
    assert [finite(x) for x in (-math.inf, math.nan, -1e5, -2.5, 0.0)] == [-9999.0, -9999.0, -9999.0, -2.5, 0.0]


# --- where tokens begin


@given(st.text(max_size=20), st.data())
def test_offsets_count_characters_however_the_bytes_are_cut(text: str, data: st.DataObject) -> None:
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)), max_size=8)) | {0, len(raw)})
    tokens = [said(1, "", -1.0, data=raw[a:b]) for a, b in itertools.pairwise(cuts)]
    offsets = AnswerOffsets(3)
    got = [offsets.next(token) for token in tokens]
    complete = [len(raw[:begin].decode(errors="ignore")) for begin in cuts[:-1]]
    assert got == [3 + count for count in complete]
    assert prompt_offsets(tokens, text) == complete


def test_special_tokens_of_a_prompt_take_room_only_where_they_stand_in_its_text() -> None:
    begin, turn, word = said(0, "<s>", 0.0, data=b""), said(1, "<|turn|>", -1.0, data=b""), said(2, "Hi", -1.0)
    assert prompt_offsets([begin, turn, word, turn], "<|turn|>Hi<|turn|>") == [0, 0, 8, 10]
    assert prompt_offsets([begin, turn, word, turn], "Hi") == [0, 0, 0, 2]


# --- shapes


def test_completion_logprobs_are_parallel_lists() -> None:
    item = TokenTextLogprobs(said(5, "c", -4.0, 3), [said(1, "a", -0.1), said(2, "b", -math.inf, 2)])
    piece = make_piece()
    piece.logprobs = [item]
    got = completion_logprobs(piece, AnswerOptions(logprobs=2), AnswerOffsets(0))
    assert got == {
        "tokens": ["c"],
        "token_logprobs": [-4.0],
        "top_logprobs": [{"c": -4.0, "a": -0.1, "b": -9999.0}],
        "text_offset": [0],
    }
    one = completion_logprobs(piece, AnswerOptions(logprobs=1), AnswerOffsets(0))
    assert one is not None and one["top_logprobs"] == [{"c": -4.0, "a": -0.1}]
    none = completion_logprobs(piece, AnswerOptions(logprobs=0), AnswerOffsets(0))
    assert none is not None and none["top_logprobs"] is None and none["token_logprobs"] == [-4.0]
    assert completion_logprobs(piece, AnswerOptions(), AnswerOffsets(0)) is None


def test_of_two_tokens_with_one_text_the_likelier_one_is_told() -> None:
    item = TokenTextLogprobs(said(9, "x", -1.0), [said(9, "x", -1.0), said(1, "a", -2.0, 2), said(2, "a", -3.0, 3)])
    piece = make_piece()
    piece.logprobs = [item]
    got = completion_logprobs(piece, AnswerOptions(logprobs=3), AnswerOffsets(0))
    assert got is not None and got["top_logprobs"] == [{"x": -1.0, "a": -2.0}]


def test_chat_logprobs_have_bytes_that_join_to_the_text() -> None:
    parts = [said(1, "\ufffd", -1.0, data=b"\xf0\x9f"), said(2, "\ufffd", -1.0, data=b"\x98\x80"), said(3, " a", -2.0)]
    end = said(4, "</s>", -0.5, data=b"")
    got = chat_logprobs(make_piece(tokens=[*parts, end]), AnswerOptions(logprobs=1))
    assert got is not None and got["refusal"] is None
    assert b"".join(bytes(t["bytes"]) for t in got["content"]).decode() == "😀 a"
    assert [t["token"] for t in got["content"]] == ["bytes:\\xf0\\x9f", "bytes:\\x98\\x80", " a", "</s>"]
    assert got["content"][2]["top_logprobs"] == [{"token": " a", "logprob": -2.0, "bytes": [32, 97]}]
    none = chat_logprobs(make_piece(tokens=parts), AnswerOptions(logprobs=0))
    assert none is not None and none["content"][0]["top_logprobs"] == []


def test_prompt_logprobs_are_by_id_with_rank() -> None:
    piece = make_piece()
    item = TokenTextLogprobs(said(7, "z", -5.0, 40), [said(1, "a", -0.1), said(2, "b", -2.0, 2)])
    piece.prompt_logprobs = [TokenTextLogprobs(said(3, "y", 0.0, 0), []), item]
    assert prompt_logprobs(piece, 1) == [
        None,
        {
            "7": {"logprob": -5.0, "rank": 40, "decoded_token": "z"},
            "1": {"logprob": -0.1, "rank": 1, "decoded_token": "a"},
        },
    ]
    second = prompt_logprobs(piece, 0)[1]
    assert second is not None and list(second) == ["7"]


# --- whole answers


async def test_a_completion_has_the_logprobs_of_its_tokens(telling: Rig) -> None:
    body = strict((await telling.complete(max_tokens=3, logprobs=2, return_token_ids=True)).content)
    [choice] = body["choices"]
    assert choice["logprobs"] == {
        "tokens": [" 0", " 1", " 2"],
        "token_logprobs": [-1.0, -1.1, -1.2],
        "top_logprobs": [{f" {i}": -1 - i / 10, " alt0": -3.0} for i in range(3)],
        "text_offset": [0, 2, 4],
    }
    assert len(choice["token_ids"]) == 3


async def test_no_logprobs_unless_asked(telling: Rig) -> None:
    for response in (await telling.complete(), await telling.complete(logprobs=False), await telling.chat()):
        assert response.json()["choices"][0]["logprobs"] is None


async def test_a_chat_has_the_logprobs_of_its_tokens(telling: Rig) -> None:
    body = strict((await telling.chat(max_tokens=2, logprobs=True, top_logprobs=2)).content)
    content = body["choices"][0]["logprobs"]["content"]
    assert [(t["token"], t["logprob"], t["bytes"]) for t in content] == [(" 0", -1.0, [32, 48]), (" 1", -1.1, [32, 49])]
    assert [[a["token"] for a in t["top_logprobs"]] for t in content] == [[" 0", " alt0"], [" 1", " alt0"]]
    bare = (await telling.chat(max_tokens=2, logprobs=True)).json()["choices"][0]["logprobs"]["content"]
    assert [t["top_logprobs"] for t in bare] == [[], []]


async def test_minus_infinity_does_not_reach_json(rig: Rig, replica: FakeReplica) -> None:
    masked = TokenTextLogprobs(said(1, "a", -math.inf), [said(1, "a", -math.inf), said(2, "b", math.nan, 2)])

    def script(submit: Submit) -> None:
        ended = FinishReason.LENGTH
        replica.send(
            increment(
                submit.request_id,
                0,
                "a",
                (1,),
                finish_reason=ended,
                logprobs=[masked],
                prompt_token_ids=[1, 1],
                prompt_logprobs=[masked, masked],
            )
        )

    replica.script = script
    for response in (
        await rig.complete(logprobs=2, echo=True, prompt_logprobs=2),
        await rig.chat(logprobs=True, top_logprobs=2, prompt_logprobs=2),
        await rig.complete(logprobs=2, stream=True),
    ):
        text = response.text.removeprefix("data: ").partition("\n\n")[0]
        body = strict(text.encode())
        told = body["choices"][0]["logprobs"]
        values = told["token_logprobs"][-1:] if "tokens" in told else [t["logprob"] for t in told["content"]]
        assert values == [-9999.0]
        assert text.count("-9999.0") >= 3 and '"b":null' not in text and '"logprob":null' not in text


async def test_prompt_logprobs_stand_in_the_choice_or_at_the_top_of_a_chat(telling: Rig) -> None:
    [choice] = (await telling.complete(prompt="Hey", prompt_logprobs=1)).json()["choices"]
    assert choice["prompt_logprobs"] == [
        None,
        {"101": {"logprob": -0.5, "rank": 1, "decoded_token": "e"}},
        {"121": {"logprob": -0.5, "rank": 1, "decoded_token": "y"}},
    ]
    chat = (await telling.chat(prompt_logprobs=0)).json()
    assert chat["prompt_logprobs"] == [None, {"98": {"logprob": -0.5, "rank": 1, "decoded_token": "b"}}]
    assert "prompt_logprobs" not in chat["choices"][0]
    assert "prompt_logprobs" not in (await telling.complete()).json()["choices"][0]


async def test_a_large_answer_is_written_beside_the_event_loop(telling: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    small = (await telling.complete(logprobs=20, n=2)).json()["choices"]
    writers: list[int] = []
    whole = ResponseWriter.whole

    def noted(self: ResponseWriter, pieces: Sequence[Piece]) -> bytes:
        writers.append(threading.get_ident())
        return whole(self, pieces)

    monkeypatch.setattr(ResponseWriter, "whole", noted)
    monkeypatch.setattr(delivery, "LARGE_ANSWER_BYTES", 10_000)
    assert (await telling.complete(logprobs=20, n=2)).json()["choices"] == small
    await telling.complete(logprobs=0)
    large, usual = writers
    assert large != threading.get_ident() == usual


# --- echo


async def test_an_echo_puts_the_prompt_in_front(telling: Rig) -> None:
    body = (await telling.complete(prompt=["Hey", "you"], n=2, max_tokens=2, echo=True)).json()
    assert [c["text"] for c in body["choices"]] == ["Hey 0 1", "Hey 0 1", "you 0 1", "you 0 1"]
    assert all(c["logprobs"] is None for c in body["choices"])
    assert body["usage"]["completion_tokens"] == 8


async def test_an_echo_with_logprobs_has_those_of_the_prompt_first(telling: Rig) -> None:
    [choice] = (await telling.complete(prompt="Hey", max_tokens=2, echo=True, logprobs=1)).json()["choices"]
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == ["H", "e", "y", " 0", " 1"]
    assert logprobs["token_logprobs"] == [None, -0.5, -0.5, -1.0, -1.1]
    assert logprobs["top_logprobs"] == [None, {"e": -0.5}, {"y": -0.5}, {" 0": -1.0}, {" 1": -1.1}]
    assert logprobs["text_offset"] == [0, 1, 2, 3, 5]
    assert "".join(logprobs["tokens"]) == choice["text"]


async def test_ids_are_echoed_as_the_engine_reads_them(telling: Rig) -> None:
    [choice] = (await telling.complete(prompt=[1, 98], max_tokens=1, echo=True)).json()["choices"]
    assert choice["text"] == "ab 0"


async def test_an_echoed_text_is_the_clients_own(rig: Rig, replica: FakeReplica) -> None:
    """The engine knows only what its vocabulary left of it."""
    intro = {"prompt_token_ids": [1], "prompt_text": "grusse"}
    replica.script = lambda s: replica.send(
        increment(s.request_id, 0, "!", (1,), finish_reason=FinishReason.STOP, **intro)
    )
    assert (await rig.complete(prompt="Grüße", echo=True)).json()["choices"][0]["text"] == "Grüße!"


async def test_an_echo_without_an_answer(telling: Rig) -> None:
    response = await telling.complete(prompt="Hey", max_tokens=0, echo=True, logprobs=1, return_token_ids=True)
    body = response.json()
    [choice] = body["choices"]
    assert (choice["text"], choice["token_ids"], choice["finish_reason"]) == ("Hey", [], "length")
    assert choice["logprobs"]["tokens"] == ["H", "e", "y"]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5]
    assert body["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 0,
        "total_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    finished = await telling.record(RequestFinished)
    assert [s.output_tokens for s in finished.sequences] == [0]


async def test_an_echo_without_an_answer_ends_by_its_length_whatever_was_sampled(
    rig: Rig, replica: FakeReplica
) -> None:
    replica.script = lambda s: replica.send(
        increment(s.request_id, 0, "", (2,), finish_reason=FinishReason.STOP, stop_reason=2, prompt_token_ids=[1])
    )
    [choice] = (await rig.complete(max_tokens=0, echo=True, stop_token_ids=[2])).json()["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("Hi", "length", None)


# --- streams


@pytest.mark.parametrize("echo", [False, True])
async def test_the_chunks_of_a_stream_add_up_to_the_whole(telling: Rig, echo: bool) -> None:
    ask: dict[str, Any] = {"prompt": "Hey", "max_tokens": 4, "logprobs": 2, "echo": echo, "n": 2}
    whole = (await telling.complete(**ask)).json()["choices"]
    chunks = [c for e in events((await telling.complete(stream=True, **ask)).text)[:-1] for c in e["choices"]]
    for choice in whole:
        own = [c for c in chunks if c["index"] == choice["index"]]
        assert "".join(c["text"] for c in own) == choice["text"]
        for field in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert [x for c in own if c["logprobs"] for x in c["logprobs"][field]] == choice["logprobs"][field]


async def test_each_chunk_has_the_logprobs_of_its_own_ids(rig: Rig, replica: FakeReplica) -> None:
    """Text that is held back, or comes later, moves none of them."""
    parts = [said(1, "\ufffd", -1.0, data=b"\xf0\x9f"), said(2, "\ufffd", -2.0, data=b"\x98\x80"), said(3, "b", -3.0)]
    texts = ["", "", "😀b"]

    def script(submit: Submit) -> None:
        for token, text in zip(parts, texts, strict=True):
            ids, logprobs = (token.token_id,), likely(token, 1)
            replica.send(increment(submit.request_id, 0, text, ids, logprobs=logprobs))
        replica.send(increment(submit.request_id, 0, "!", (), finish_reason=FinishReason.ABORT))

    replica.script = script
    for field, read in (("logprobs", rig.complete), ("logprobs", rig.chat)):
        asked = 1 if read == rig.complete else True
        response = await read(stream=True, return_token_ids=True, **{field: asked})
        chunks = [c for e in events(response.text)[:-1] for c in e["choices"]]
        assert [i for c in chunks for i in c["token_ids"]] == [1, 2, 3]
        for chunk in chunks:
            told = chunk["logprobs"]
            assert len(chunk["token_ids"]) == (len(told.get("tokens") or told.get("content")) if told else 0)


async def test_offsets_go_on_from_chunk_to_chunk(telling: Rig) -> None:
    stream = events((await telling.complete(max_tokens=4, logprobs=0, stream=True)).text)[:-1]
    told = [e["choices"][0]["logprobs"] for e in stream]
    assert [at for logprobs in told for at in logprobs["text_offset"]] == [0, 2, 4, 6]
    assert all(logprobs["top_logprobs"] is None for logprobs in told)


# --- the best of several


async def test_the_best_are_told_and_all_are_counted(telling: Rig) -> None:
    """Choice k of three has a mean of about -1, -2 and 0."""
    body = (await telling.complete(prompt=["Hey", "you"], n=2, best_of=3, max_tokens=2, echo=True)).json()
    submit = await telling.replicas[0].saw(Submit)
    assert (submit.n, submit.params.logprobs) == (3, 0)
    assert [c["index"] for c in body["choices"]] == [0, 1, 2, 3]
    assert [c["text"] for c in body["choices"]] == ["Hey 0 1"] * 2 + ["you 0 1"] * 2
    assert all(c["logprobs"] is None for c in body["choices"])
    assert body["usage"]["completion_tokens"] == 12 and body["usage"]["prompt_tokens"] == 6
    assert len((await telling.record(RequestFinished)).sequences) == 6


async def test_the_best_comes_first(telling: Rig) -> None:
    body = (await telling.complete(n=2, best_of=3, max_tokens=1, logprobs=0)).json()
    assert [c["logprobs"]["token_logprobs"] for c in body["choices"]] == [[0.0], [-1.0]]
    one = (await telling.chat(best_of=3, max_tokens=1, logprobs=True)).json()
    assert [t["logprob"] for t in one["choices"][0]["logprobs"]["content"]] == [0.0]


@given(st.lists(st.lists(st.floats(-20, 0), max_size=4), min_size=6, max_size=6), st.integers(1, 2))
def test_the_best_have_the_highest_mean_of_their_prompt(scores: list[list[float]], n: int) -> None:
    pieces = [make_piece(i, str(i), [said(1, "x", s) for s in own]) for i, own in enumerate(scores)]
    chosen = choose_best(pieces, AnswerOptions(n=n, best_of=3))
    assert [piece.index for piece in chosen] == list(range(2 * n))
    for prompt in range(2):
        means = [sum(own) / len(own) if own else -math.inf for own in scores[3 * prompt : 3 * prompt + 3]]
        told = [means[int(piece.text) - 3 * prompt] for piece in chosen[prompt * n : (prompt + 1) * n]]
        assert told == sorted(means, reverse=True)[:n]


def test_a_start_token_that_the_client_did_not_write_moves_nothing() -> None:
    tokens = [
        TextLogprob(1, "<s>", b"<s>", 0.0),
        TextLogprob(5, " Hi", b" Hi", -1.0),
        TextLogprob(6, " you", b" you", -1.0),
    ]
    assert prompt_offsets(tokens, " Hi you") == [0, 0, 3]


def test_letters_that_lost_their_case_are_found() -> None:
    tokens = [TextLogprob(1, "the", b"the", 0.0), TextLogprob(5, "fox", b"fox", -1.0)]
    assert prompt_offsets(tokens, "The Fox") == [0, 3]
