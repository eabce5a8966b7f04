"""Facts of finished requests from the rows of the store, so that their spans can be made once more.

What the store does not keep is missing in them: the caller's own span, how the replica was chosen, when
detokenization began. Ids of tokens that no span shows are -1; there are as many of them as there were tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from telemetry.events import (
    FinishReason,
    RequestFinished,
    RequestReceived,
    SequenceDelivered,
    Stage,
    Tokenized,
    WaitReason,
)
from telemetry.facts import Chunk, RequestFacts, RequestTimes, Scope, SequenceFacts, SequenceTimes
from telemetry.journal import JournalOwner
from telemetry.queries import Row

UNKNOWN_ID = -1
_POINTS = ("tokenize_start", "tokenize_end", "enqueued", "scheduled", "first_sampled", "first_increment")
_LATER_POINTS = ("last_sampled", "finished", "sent")
_TEMPLATED = "/v1/chat/completions"


def stored_facts(request: Row, sequences: Sequence[tuple[Row, Row | None]]) -> RequestFacts:
    """`request` is a finished one's row; with it each sequence's row and its token-log line, if that is there."""
    clock = _Clock(request["received_ts"])
    run_id, scope = _scope(request["incarnation_id"])
    return RequestFacts(
        run_id=run_id,
        received=_received(request, clock),
        gateway=JournalOwner(Stage.GATEWAY, "", 0, 0),
        routed=None,
        tokenized=_tokenized(request, [row for row, _ in sequences], clock),
        terminal=_terminal(request, [row for row, _ in sequences], clock),
        state=request["state"],
        scope=scope,
        sequences=[_sequence(row, line, clock) for row, line in sequences],
        wasted={},
        times=_times(request, clock),
    )


class _Clock:
    """Turns seconds since a request was received into points in time: wall-clock nanoseconds."""

    def __init__(self, received_ts: float) -> None:
        self.start_ns = round(received_ts * 1e9)

    def at(self, seconds: float) -> int:
        return self.start_ns + round(seconds * 1e9)

    def maybe(self, seconds: float | None) -> int | None:
        return None if seconds is None else self.at(seconds)


def _scope(incarnation_id: str | None) -> tuple[str, Scope | None]:
    if not incarnation_id:
        return "", None
    run_id, _, own = incarnation_id.rpartition("/")
    replica, _, number = own.rpartition(".")
    return run_id, Scope(replica, int(number))


def _received(row: Row, clock: _Clock) -> RequestReceived:
    return RequestReceived(
        request_id=row["request_id"],
        at_ns=clock.start_ns,
        wall_ns=clock.start_ns,
        endpoint=row["endpoint"],
        model=row["model"],
        stream=row["stream"],
        num_sequences=row["num_sequences"],
        client_request_id=row["client_request_id"] or "",
        trace_id=row["trace_id"],
        parent_span_id="",
        trace_flags=-1,
        tracestate="",
        params=row["params"],
    )


def _tokenized(row: Row, sequences: Sequence[Row], clock: _Clock) -> Tokenized | None:
    start, end = row["tokenize_start_at"], row["tokenize_end_at"]
    if start is None or end is None:
        return None
    counts = {s["prompt_index"]: s["prompt_tokens"] or 0 for s in sequences} or {0: row["prompt_tokens"] or 0}
    prompts = [[UNKNOWN_ID] * count for _, count in sorted(counts.items())]
    failed = row["enqueued_at"] is None and row["finish_reason"] == FinishReason.ERROR
    error = (row["error_message"] or row["error_type"] or "") if failed else ""
    templated = row["endpoint"] == _TEMPLATED
    return Tokenized(row["request_id"], clock.at(start), clock.at(start), clock.at(end), prompts, templated, error)


def _terminal(row: Row, sequences: Sequence[Row], clock: _Clock) -> RequestFinished:
    reason = FinishReason(row["finish_reason"])
    return RequestFinished(
        request_id=row["request_id"],
        at_ns=clock.at(row["finished_at"] or 0.0),
        finish_reason=reason,
        http_status=row["http_status"] or 0,
        error_type=row["error_type"] or "",
        error_message=row["error_message"] or "",
        sequences=[SequenceDelivered(s["idx"], _reason(s) or reason, s["output_tokens"] or 0) for s in sequences],
    )


def _times(row: Row, clock: _Clock) -> RequestTimes:
    points = {f"{name}_ns": clock.maybe(row[f"{name}_at"]) for name in (*_POINTS, *_LATER_POINTS)}
    if points["sent_ns"] is None:
        points["sent_ns"] = points["finished_ns"]
    return RequestTimes(**points, ttft_s=row["ttft_s"], e2e_s=row["e2e_s"], tpot_s=row["tpot_s"])


def _sequence(row: Row, line: Row | None, clock: _Clock) -> SequenceFacts:
    count = row["output_tokens"] or 0
    known = line or {}
    return SequenceFacts(
        index=row["idx"],
        prompt_index=row["prompt_index"],
        seq_id=row["seq_id"],
        seed=row["seed"],
        finish_reason=_reason(row),
        prompt_tokens=row["prompt_tokens"],
        cached_tokens=row["cached_tokens"] or 0,
        token_ids=known.get("output_token_ids") or [UNKNOWN_ID] * count,
        token_times_ns=[clock.at(ms / 1e3) for ms in known.get("token_times_ms") or []],
        step_ids=known.get("step_ids") or [UNKNOWN_ID] * count,
        sampled_tokens=count,
        last_computed_ns=None,  # of tokens that were not delivered nothing is kept
        preemptions=row["preemptions"] or 0,
        preempted=_preempted(row, clock),
        waits=[(clock.at(at_s), reason) for at_s, reason in row["waits"] or []],
        chunks=[Chunk(clock.at(a), clock.at(b), tokens, step) for a, b, tokens, step in row["chunks"] or []],
        stop_string=row["stop_string"] or "",
        detokenized_ns=None,
        times=_sequence_times(row, clock),
    )


def _sequence_times(row: Row, clock: _Clock) -> SequenceTimes:
    spent_s = sum(row[f"{part}_s"] or 0.0 for part in ("queue", "preempted", "prefill", "decode"))
    enqueued = row["enqueued_at"]
    return SequenceTimes(
        enqueued_ns=clock.maybe(enqueued),
        scheduled_ns=clock.maybe(row["scheduled_at"]),
        first_sampled_ns=clock.maybe(row["first_sampled_at"]),
        last_sampled_ns=clock.maybe(row["last_sampled_at"]),
        work_end_ns=None if enqueued is None else clock.at(enqueued + spent_s),
        detokenize_s=row["detokenize_s"],
        tpot_s=row["tpot_s"],
    )


def _preempted(row: Row, clock: _Clock) -> list[tuple[int, int]]:
    changes = pairwise(row["waits"] or [])
    return [(clock.at(a), clock.at(b)) for (a, reason), (b, _) in changes if reason == WaitReason.PREEMPTED]


def _reason(row: Row) -> FinishReason | None:
    return FinishReason(row["finish_reason"]) if row["finish_reason"] else None
