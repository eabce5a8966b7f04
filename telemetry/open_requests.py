"""Requests that were not finished when recording ended: where each one was, and what it waited for.

A row has these keys (None for what no record tells)::

    request_id, received_ts, age_s    age at the last record of all
    endpoint, replica, incarnation, num_sequences
    stage                             the process that had it, by its last record
    state                             routing, tokenizing, queueing, waiting, running, delivering
    prompt_tokens, computed_tokens, output_tokens     of all sequences together
    preemptions, wait_reason          the last reason for waiting, also of one that runs by now
    waited_s                          how long it has been waiting, None when it is not
"""

from __future__ import annotations

from collections.abc import Iterable

from telemetry.events import Stage
from telemetry.queries import Row
from telemetry.tracking import Attempt, RequestTrack, SequenceTrack


def open_request_rows(tracks: Iterable[RequestTrack], end_ns: int, wall_offset_ns: int) -> list[Row]:
    """Rows of those that have no terminal, in order of arrival. `end_ns`: when the last record was made."""
    open_tracks = sorted((track for track in tracks if not _over(track)), key=_first_ns)
    return [_row(track, end_ns, wall_offset_ns) for track in open_tracks]


def _over(track: RequestTrack) -> bool:
    """Finished; or, where the gateway's journal is not there (a replica's crash dump), all its sequences ended."""
    if track.finished is not None:
        return True
    if track.received is not None or track.routed is not None:
        return False
    attempts = track.attempts.values()
    return not any(attempt.sequences for attempt in attempts) or not any(_unended(attempt) for attempt in attempts)


def _row(track: RequestTrack, end_ns: int, wall_offset_ns: int) -> Row:
    received, scope = track.received, track.scope
    attempt = track.attempts.get(scope, Attempt()) if scope else Attempt()
    sequences = list(attempt.sequences.values())
    waiting = [s.waiting_since_ns for s in _unended(attempt) if s.waiting_since_ns is not None]
    stage, state = _where(track, attempt)
    return {
        "request_id": track.request_id,
        "received_ts": (received.at_ns + wall_offset_ns) / 1e9 if received else None,
        "age_s": max(0, end_ns - _first_ns(track)) / 1e9,
        "endpoint": received.endpoint if received else None,
        "replica": scope.replica if scope else None,
        "incarnation": scope.incarnation if scope else None,
        "num_sequences": received.num_sequences if received else None,
        "stage": str(stage),
        "state": state,
        "prompt_tokens": _prompt_tokens(attempt),
        "computed_tokens": sum(s.computed_tokens for s in sequences),
        "output_tokens": sum(len(s.token_ids) for s in sequences),
        "preemptions": sum(s.preemptions for s in sequences),
        "wait_reason": _last_reason(sequences),
        "waited_s": max(0, end_ns - min(waiting)) / 1e9 if waiting else None,
    }


def _where(track: RequestTrack, attempt: Attempt) -> tuple[Stage, str]:
    if track.scope is None:
        return Stage.GATEWAY, "routing"
    if attempt.tokenized is None and not attempt.sequences:
        return Stage.TOKENIZER, "tokenizing"
    if not attempt.sequences:
        return (Stage.GATEWAY, "delivering") if _refused(attempt) else (Stage.SCHEDULER, "queueing")
    unended = _unended(attempt)
    if not unended:
        detokenized = len(attempt.detokenized) >= len(attempt.sequences)
        return (Stage.GATEWAY if detokenized else Stage.DETOKENIZER), "delivering"
    if all(s.waiting_since_ns is not None for s in unended):
        return Stage.SCHEDULER, "waiting"
    return Stage.RUNNER, "running"


def _refused(attempt: Attempt) -> bool:
    return attempt.tokenized is not None and bool(attempt.tokenized.error)


def _unended(attempt: Attempt) -> list[SequenceTrack]:
    return [sequence for sequence in attempt.sequences.values() if sequence.ended is None]


def _prompt_tokens(attempt: Attempt) -> int | None:
    if attempt.tokenized is not None:
        return sum(map(len, attempt.tokenized.prompt_token_ids))
    by_prompt = {s.queued.prompt_index: s.queued.prompt_tokens for s in attempt.sequences.values()}
    return sum(by_prompt.values()) if by_prompt else None


def _last_reason(sequences: Iterable[SequenceTrack]) -> str | None:
    waits = [wait for sequence in sequences for wait in sequence.waits if wait[1]]
    return str(max(waits)[1]) if waits else None


def _first_ns(track: RequestTrack) -> int:
    """When it was received, or else first seen."""
    if track.received is not None:
        return track.received.at_ns
    queued = [s.queued.at_ns for attempt in track.attempts.values() for s in attempt.sequences.values()]
    return min(queued, default=track.last_ns)
