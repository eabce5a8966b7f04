"""Where a request's time went: the parts that add up to its duration, and one sentence about them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dashboard.formatting import count, duration, number, percent

Row = Mapping[str, Any]

REASONS = {
    "kv_blocks": "for free KV blocks",
    "token_budget": "for room in the step's token budget",
    "max_running": "for a place in the running batch",
    "preempted": "after being preempted",
}
"""A WaitReason in words, as it follows “waiting”."""

_MENTIONED_FROM = 0.1
_UNACCOUNTED_SHOWN_FROM = 0.02


class Part(msgspec.Struct, frozen=True):
    """One part of a request's duration."""

    name: str
    css: str  # stage colour
    seconds: float
    share: float  # of the whole, 0–1


_PARTS = (
    ("tokenize", "tokenizer"),
    ("queue", "scheduler"),
    ("preempted", "wait"),
    ("prefill", "runner"),
    ("decode", "runner light"),
    ("drain", "gateway"),
    ("transport", "gateway light"),
    ("unaccounted", "unaccounted"),
)


def parts(request: Row) -> list[Part]:
    """The parts known, in the order of time; the remainder only where it passes 2 %."""
    total = request["e2e_s"]
    if not total:
        return []
    found = [
        Part(name, css, request[name + "_s"] or 0.0, (request[name + "_s"] or 0.0) / total) for name, css in _PARTS
    ]
    return [part for part in found if part.seconds > 0 and _worth_showing(part)]


def _worth_showing(part: Part) -> bool:
    return part.name != "unaccounted" or part.share > _UNACCOUNTED_SHOWN_FROM


def sentence(request: Row, sequences: Sequence[Row]) -> str:
    """Why the request took as long as it did, in one sentence or two."""
    if request["state"] != "finished":
        return _running(request)
    opening = _opening(request)
    if _refused(request):
        return opening + "."
    largest = sorted(parts(request), key=lambda part: part.seconds, reverse=True)
    named = [part for i, part in enumerate(largest) if i == 0 or part.share >= _MENTIONED_FROM][:3]
    if not named:
        return opening + "."
    return f"{opening}: {_join([_phrase(part, request, sequences) for part in named])}.{_first_token(request)}"


def _running(request: Row) -> str:
    if request["state"] == "running":
        return f"Running now: {_tokens(request, 'output')} so far.{_first_token(request)}"
    if request["state"] == "waiting":
        return "Waiting in the scheduler's queue; nothing has been computed yet."
    return "On its way to the scheduler: the prompt is being tokenized."


def _tokens(request: Row, which: str) -> str:
    return number(request[f"{which}_tokens"] or 0, "token")


def _opening(request: Row) -> str:
    if request["e2e_s"] is None:
        return "Ended, nobody knows when"
    took = duration(request["e2e_s"])
    if request["finish_reason"] == "error":
        if _refused(request):
            return f"Refused by the {_refused_by(request)} after {took}"
        return f"Failed after {took}"
    if request["finish_reason"] == "abort":
        return f"Aborted after {took}, {_tokens(request, 'output')} in"
    return f"Took {took}"


def _refused(request: Row) -> bool:
    return request["finish_reason"] == "error" and (request["http_status"] or 0) in range(400, 500)


def _refused_by(request: Row) -> str:
    if request["tokenize_end_at"] is None:
        return "gateway"
    return "tokenizer" if request["enqueued_at"] is None else "scheduler"


def _first_token(request: Row) -> str:
    return f" The first token was ready after {duration(request['ttft_s'])}." if request["ttft_s"] else ""


def _phrase(part: Part, request: Row, sequences: Sequence[Row]) -> str:
    amount = f"{duration(part.seconds)} ({percent(part.share)})"
    return amount + " " + _WORDS[part.name](request, sequences)


def _queue_words(_: Row, sequences: Sequence[Row]) -> str:
    return "waiting " + REASONS.get(longest_wait_reason(sequences), "to be scheduled")


def _preempted_words(request: Row, _: Sequence[Row]) -> str:
    times = request["preemptions"] or 0
    return f"preempted, {'once' if times == 1 else f'{count(times)} times'}: its KV blocks went to other sequences"


def _prefill_words(request: Row, _: Sequence[Row]) -> str:
    cached = request["cached_tokens"] or 0
    found = f", {count(cached)} of them found in the prefix cache" if cached else ""
    return f"computing the prompt of {_tokens(request, 'prompt')}{found}"


def _decode_words(request: Row, _: Sequence[Row]) -> str:
    pace = f" at {duration(request['tpot_s'])} each" if request["tpot_s"] else ""
    return f"generating {_tokens(request, 'output')}{pace}"


_WORDS = {
    "tokenize": lambda *_: "turning the prompt into tokens",
    "queue": _queue_words,
    "preempted": _preempted_words,
    "prefill": _prefill_words,
    "decode": _decode_words,
    "drain": lambda *_: "from the last token to the last byte sent",
    "transport": lambda *_: "in messages between the processes",
    "unaccounted": lambda *_: "not accounted for",
}


def longest_wait_reason(sequences: Sequence[Row]) -> str:
    """The WaitReason under which the sequences spent most time before their first step; "" for none."""
    spent: dict[str, float] = defaultdict(float)
    for sequence in sequences:
        for start, end, reason in wait_spans(sequence):
            spent[reason] += end - start
    spent.pop("preempted", None)
    return max(spent, key=lambda reason: spent[reason]) if spent else ""


def wait_spans(sequence: Row) -> list[tuple[float, float, str]]:
    """(start, end, reason) of each wait, in seconds since the request was received.

    A wait that nothing ended (the request was aborted in the queue) has no length.
    """
    changes = [(at, reason) for at, reason in sequence["waits"] or []]
    closed = zip(changes, [*changes[1:], changes[-1]] if changes else [], strict=True)
    return [(at, end, reason) for (at, reason), (end, _) in closed if reason]


def _join(phrases: list[str]) -> str:
    return phrases[0] if len(phrases) == 1 else ", ".join(phrases[:-1]) + " and " + phrases[-1]
