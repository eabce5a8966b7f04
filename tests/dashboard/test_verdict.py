from __future__ import annotations

import pytest

from dashboard.verdict import longest_wait_reason, parts, sentence, wait_spans
from tests.dashboard.factories import make_refused, make_request, make_sequence


def said(row: dict[str, object], *sequences: dict[str, object]) -> str:
    return sentence(row, sequences).replace("\u00a0", " ")


def test_parts_add_up_to_the_whole() -> None:
    row = make_request("r", 0, queue_s=1.2)
    found = parts(row)
    assert sum(part.seconds for part in found) == pytest.approx(row["e2e_s"], rel=0.02)
    assert [part.name for part in found][:2] == ["tokenize", "queue"]


@pytest.mark.parametrize(("unaccounted", "shown"), [(0.0001, False), (0.1, True)])
def test_the_remainder_is_a_part_where_it_passes_two_percent(unaccounted: float, shown: bool) -> None:
    row = make_request("r", 0) | {"unaccounted_s": unaccounted}
    assert ("unaccounted" in [part.name for part in parts(row)]) is shown


def test_decode_is_named_with_its_pace() -> None:
    assert said(make_request("r", 0)).startswith("Took 810 ms: 746 ms (92 %) generating 48 tokens at 15.9 ms each.")


def test_a_long_queue_is_named_with_its_reason() -> None:
    row = make_request("r", 0, queue_s=2.0)
    waits = [[0.0, "token_budget"], [0.5, "kv_blocks"], [2.0, ""]]
    assert "waiting for free KV blocks" in said(row, make_sequence(row, waits=waits))


def test_a_cached_prompt_is_named() -> None:
    row = make_request("r", 0, prefill_s=5.0)
    assert "computing the prompt of 212 tokens, 96 of them found in the prefix cache" in said(row)


def test_ends_are_named_as_they_were() -> None:
    assert said(make_refused("r", 0)).startswith("Refused by the tokenizer after 3.1 ms.")
    assert said(make_refused("r", 0, tokenize_end_at=None)).startswith("Refused by the gateway after")
    lost = make_request("r", 0, finish_reason="error", http_status=None) | {"e2e_s": None, "sent_at": None}
    assert said(lost) == "Ended, nobody knows when."
    assert said(make_refused("r", 0, http_status=502)).startswith("Failed after")
    assert said(make_request("r", 0, finish_reason="abort")).startswith("Aborted after 810 ms, 48 tokens in")


def test_waits_end_where_the_next_begins() -> None:
    row = make_request("r", 0)
    sequence = make_sequence(row, waits=[[1, "kv_blocks"], [2, "token_budget"], [4, ""], [5, "preempted"]])
    assert wait_spans(sequence) == [(1, 2, "kv_blocks"), (2, 4, "token_budget"), (5, 5, "preempted")]
    assert longest_wait_reason([sequence]) == "token_budget"
    assert longest_wait_reason([make_sequence(row, waits=None)]) == ""
