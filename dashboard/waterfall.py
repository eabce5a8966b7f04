"""All stages of one request on one time line: where each bar lies, in percent of the whole.

Lanes are table rows with one small drawing each, so that the labels stay text and the drawing needs no
script; x and width are SVG attributes in percent, which scale with the page.

::

    request      ├──────────────────────┃────────────────────┤      ┃ first token
    tokenize      ▆
    queue          ▆▆▆▆▆
    prefill              ▆▆▆ ▆▆▆
    decode                       ▆▆▆▆▆▆▆▆▆▆▆   ▆▆▆▆▆▆▆▆
    detokenize                   ░░░░░░░░░░░░░░░░░░░░░░
    drain                                              ▆▆▆▆
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from dashboard.formatting import count, duration
from dashboard.verdict import REASONS, Row, wait_spans

MAX_SEQUENCES = 8
_LEAST_WIDTH = 0.25
"""Percent: a bar is drawn at least this wide, so that the shortest can be seen."""


class Bar(msgspec.Struct, frozen=True):
    """One bar. ``x`` and ``width`` in percent of the time line."""

    x: float
    width: float
    css: str
    title: str


class Lane(msgspec.Struct, frozen=True):
    """One row."""

    label: str
    stage: str
    bars: list[Bar]
    took_s: float | None
    indent: bool = False


class Tick(msgspec.Struct, frozen=True):
    """One mark of the time axis."""

    x: float
    label: str


class Waterfall(msgspec.Struct, frozen=True):
    """The drawing. ``first_token_x`` is None before there is one."""

    total_s: float
    lanes: list[Lane]
    ticks: list[Tick]
    first_token_x: float | None
    left_out: int  # sequences beyond those drawn


class _Scale:
    def __init__(self, total_s: float) -> None:
        self._total_s = total_s

    def x(self, at_s: float) -> float:
        return round(min(100.0, max(0.0, 100 * at_s / self._total_s)), 3)

    def bar(self, start_s: float, end_s: float, css: str, what: str) -> Bar:
        x = min(self.x(start_s), 100 - _LEAST_WIDTH)
        width = max(self.x(end_s) - x, _LEAST_WIDTH)
        title = f"{what}: {duration(end_s - start_s)}, from {duration(start_s)} to {duration(end_s)}"
        return Bar(x, round(width, 3), css, title)


def draw(request: Row, sequences: Sequence[Row], now_s: float) -> Waterfall:
    """Lay a request out. `now_s`, seconds since it was received, ends what is still going on."""
    total_s = max(request["sent_at"] or request["finished_at"] or now_s, 1e-6)
    scale = _Scale(total_s)
    shown = sequences[:MAX_SEQUENCES] or [_as_sequence(request)]
    lanes = [Lane("request", "gateway", [scale.bar(0, total_s, "soft gateway", "received to last byte")], total_s)]
    lanes += _tokenize(scale, request)
    for sequence in shown:
        lanes += _sequence_lanes(scale, sequence, total_s, numbered=len(sequences) > 1)
    lanes += _drain(scale, request)
    first = request["first_increment_at"]
    first_x = None if first is None else scale.x(first)
    return Waterfall(total_s, lanes, _ticks(total_s), first_x, max(0, len(sequences) - MAX_SEQUENCES))


def _as_sequence(request: Row) -> Row:
    """A running request has no sequence rows yet; its own columns say the same of all of them together."""
    return {**request, "idx": 0, "waits": None, "chunks": None}


def _tokenize(scale: _Scale, request: Row) -> list[Lane]:
    start, end = request["tokenize_start_at"], request["tokenize_end_at"]
    if start is None or end is None:
        return []
    return [Lane("tokenize", "tokenizer", [scale.bar(start, end, "fill tokenizer", "tokenize")], end - start)]


def _drain(scale: _Scale, request: Row) -> list[Lane]:
    start, end = request["last_sampled_at"], request["sent_at"]
    if start is None or end is None:
        return []
    bar = scale.bar(start, end, "fill gateway", "last token to last byte")
    return [Lane("drain", "gateway", [bar], request["drain_s"])]


def _sequence_lanes(scale: _Scale, sequence: Row, now_s: float, numbered: bool) -> list[Lane]:
    suffix = f" #{sequence['idx']}" if numbered else ""
    lanes = [
        _queue(scale, sequence, now_s),
        _prefill(scale, sequence, now_s),
        _decode(scale, sequence, now_s),
        _detokenize(scale, sequence),
    ]
    return [msgspec.structs.replace(lane, label=lane.label + suffix, indent=numbered) for lane in lanes if lane]


def _queue(scale: _Scale, sequence: Row, now_s: float) -> Lane | None:
    """The time in the queue, the reasons for waiting over it, and the waits after a preemption."""
    start = sequence["enqueued_at"]
    if start is None:
        return None
    end = sequence["scheduled_at"] or now_s
    waits = wait_spans(sequence)
    bars = [scale.bar(start, end, "fill scheduler light", "queue")]
    bars += [scale.bar(a, b, _wait_css(reason), f"waiting {REASONS.get(reason, '')}") for a, b, reason in waits]
    return Lane("queue", "scheduler", bars, end - start + sum(b - a for a, b, _ in waits if a >= end))


def _wait_css(reason: str) -> str:
    return "fill wait" if reason == "preempted" else "fill scheduler"


def _prefill(scale: _Scale, sequence: Row, now_s: float) -> Lane | None:
    start, end = sequence["scheduled_at"], sequence["first_sampled_at"] or now_s
    if start is None:
        return None
    bars = [
        scale.bar(a, b, "fill runner", f"prefill of {count(tokens)} tokens in step {step}")
        for a, b, tokens, step in sequence["chunks"] or []
    ]
    return Lane("prefill", "runner", bars or [scale.bar(start, end, "fill runner", "prefill")], end - start)


def _decode(scale: _Scale, sequence: Row, now_s: float) -> Lane | None:
    start = sequence["first_sampled_at"]
    if start is None:
        return None
    end = sequence["last_sampled_at"] or now_s
    pauses = [(a, b) for a, b, reason in wait_spans(sequence) if reason == "preempted"]
    stretches = _without(start, end, pauses)
    bars = [scale.bar(a, b, "fill runner light", "decode") for a, b in stretches]
    return Lane("decode", "runner", bars, sum(b - a for a, b in stretches))


def _without(start: float, end: float, pauses: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The stretches of start…end that lie outside of the pauses (which are in order)."""
    stretches = []
    for pause_start, pause_end in pauses:
        if start < pause_start < end:
            stretches.append((start, pause_start))
            start = pause_end
    return [*stretches, (start, max(start, end))]


def _detokenize(scale: _Scale, sequence: Row) -> Lane | None:
    start, end, busy = sequence["first_sampled_at"], sequence["last_sampled_at"], sequence["detokenize_s"]
    if start is None or end is None or busy is None:
        return None
    what = f"detokenizer, busy for {duration(busy)} while decode goes on"
    return Lane("detokenize", "detokenizer", [scale.bar(start, end, "soft detokenizer", what)], busy)


def _ticks(total_s: float) -> list[Tick]:
    """Four to eight marks at round times."""
    step = 10 ** math.floor(math.log10(total_s / 4))
    step *= next(factor for factor in (1, 2, 2.5, 5, 10) if total_s / (step * factor) <= 8)
    marks = range(int(total_s / step) + 1)
    return [Tick(round(100 * i * step / total_s, 3), duration(i * step)) for i in marks if i * step <= total_s * 0.93]
