from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.detokenizer.stop_strings import StopMatcher

letters = st.text("ab", max_size=12)
stop_lists = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4).map(tuple)


def run(chunks: list[str], stops: tuple[str, ...], include: bool = False) -> tuple[list[str], str]:
    """What is sent after each chunk (and the flush), and the stop string found."""
    matcher = StopMatcher(stops, include)
    sent = []
    for chunk in chunks:
        piece = matcher.push(chunk)
        sent.append(piece.text)
        if piece.stop:
            return sent, piece.stop
    return [*sent, matcher.flush()], ""


def naive(text: str, stops: tuple[str, ...], include: bool) -> tuple[str, str]:
    """Character by character: the first stop string that is complete, the longest of several."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, ""


@given(st.lists(letters, max_size=6), stop_lists, st.booleans())
def test_result_is_that_of_the_naive_search_however_the_text_is_cut(chunks, stops, include):
    sent, stop = run(chunks, stops, include)
    assert ("".join(sent), stop) == naive("".join(chunks), stops, include)


@given(letters, stop_lists)
def test_no_more_is_held_back_than_could_begin_a_stop_string(text, stops):
    matcher = StopMatcher(stops, False)
    piece = matcher.push(text)
    if not piece.stop:
        held = matcher.flush()
        assert piece.text + held == text
        suffixes = [text[i:] for i in range(len(text) + 1)]
        assert held == next(s for s in suffixes if any(stop.startswith(s) for stop in stops))


def test_text_before_a_stop_string_is_sent_at_once_and_its_beginning_never():
    sent, stop = run(["DEF", "GHI J", "KLM"], ("I JK",))
    assert (sent, stop) == (["DEF", "GH", ""], "I JK")


def test_a_stop_string_that_never_comes_is_flushed():
    assert run(["abc", "de"], ("cdeZZZ",)) == (["ab", "", "cde"], "")


def test_the_order_of_the_list_does_not_matter():
    assert run(["abcd"], ("d", "b")) == run(["abcd"], ("b", "d")) == (["a"], "b")


def test_an_included_stop_string_ends_the_text():
    assert run(["abcd"], ("bc",), include=True) == (["abc"], "bc")


@pytest.mark.timeout(20)
def test_hostile_stop_strings_do_not_slow_the_matcher_down():
    stops = tuple("a" * 999 + chr(i) for i in range(98, 114))
    matcher = StopMatcher(stops, False)
    for _ in range(20_000):
        matcher.push("aaaa")
    assert matcher.flush() == "a" * 999
