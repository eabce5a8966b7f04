"""From points in time to durations: the definitions of every latency that Vitrine reports.

One request with one sequence::

    received ─┬─ tokenize ─┬─ enqueued ─ queue ─ scheduled ─ prefill ─ first ─ decode ─ last ─ drain ─ sent
    transport ┘  transport ┘                                  sampled         sampled
                                                                 └ [preempted] inside of prefill and decode

    transport  = tokenize start − received, and enqueued − tokenize end (messages on their way, and waiting)
    queue      = first admission − enqueued
    prefill    = first token sampled − first admission, less the waits after preemptions in it
    decode     = last delivered token sampled − first token sampled, less the waits after preemptions in it
    preempted  = every wait from a preemption to the next admission
    drain      = last byte sent − last delivered token sampled
    TTFT       = first increment ready at the gateway − received
    TPOT       = (last − first sampled) / (output tokens − 1)
    e2e        = last byte sent − received

A request that ended early was in some stage at that moment: this stage lasts until the scheduler let go of
the sequence (or the last byte was sent), drain is the rest. One that never reached the tokenizer is all
transport. Of several sequences the one that ended last gives the request's parts, so that they add up to
e2e; a remainder (an attempt on a replica that died) is unaccounted.
"""

from __future__ import annotations

from collections.abc import Sequence

from telemetry.events import RequestRouted, Tokenized
from telemetry.facts import RequestTimes, SequenceTimes, overlap_ns, seconds


def sequence_times(
    *,
    enqueued_ns: int | None,
    scheduled_ns: int | None,
    token_times_ns: Sequence[int],
    delivered: int,
    preempted: Sequence[tuple[int, int]],
    waiting: bool,
    stop_ns: int | None,
    busy_ns: int | None,
) -> SequenceTimes:
    """The time line of a sequence.

    `token_times_ns` are those of all tokens sampled, of which `delivered` count. `waiting` says that it was
    in the queue (again) when it ended; `stop_ns` is when it ended, None while it runs.
    """
    first = token_times_ns[0] if token_times_ns else None
    last = token_times_ns[max(delivered, 1) - 1] if token_times_ns else None
    return SequenceTimes(
        enqueued_ns=enqueued_ns,
        scheduled_ns=scheduled_ns,
        first_sampled_ns=first,
        last_sampled_ns=last,
        work_end_ns=stop_ns if last is None or waiting else last,
        queue_s=_between(enqueued_ns, scheduled_ns if scheduled_ns is not None else stop_ns),
        preempted_s=sum(seconds(a, b) for a, b in preempted),
        prefill_s=_working(scheduled_ns, first if first is not None else stop_ns, preempted),
        decode_s=_working(first, last, preempted),
        detokenize_s=None if busy_ns is None else busy_ns / 1e9,
        tpot_s=_tpot(first, last, delivered),
    )


def request_times(
    *,
    received_ns: int,
    first_routed: RequestRouted | None,
    routed: RequestRouted | None,
    tokenized: Tokenized | None,
    sequences: Sequence[SequenceTimes],
    first_increment_ns: int | None,
    finished_ns: int | None,
    sent_ns: int | None,
) -> RequestTimes:
    """The time line of a request. `sent_ns` None: it still runs, and what depends on the end is None."""
    longest = max(sequences, key=lambda s: s.work_end_ns or 0, default=SequenceTimes())
    start_ns = tokenized.start_ns if tokenized else None
    end_ns = tokenized.end_ns if tokenized else None
    lost_s = seconds(first_routed.at_ns, routed.at_ns) if first_routed and routed else 0.0
    transport_s = _transport(received_ns, start_ns, end_ns, longest.enqueued_ns, sent_ns, lost_s)
    parts = {
        "tokenize_s": _between(start_ns, end_ns),
        "queue_s": longest.queue_s,
        "preempted_s": longest.preempted_s,
        "prefill_s": longest.prefill_s,
        "decode_s": longest.decode_s,
        "drain_s": _between(longest.work_end_ns if longest.enqueued_ns else end_ns, sent_ns),
        "transport_s": transport_s,
    }
    e2e_s = _between(received_ns, sent_ns)
    accounted_s = sum(part for part in parts.values() if part)
    return RequestTimes(
        tokenize_start_ns=start_ns,
        tokenize_end_ns=end_ns,
        enqueued_ns=_earliest([s.enqueued_ns for s in sequences]),
        scheduled_ns=_earliest([s.scheduled_ns for s in sequences]),
        first_sampled_ns=_earliest([s.first_sampled_ns for s in sequences]),
        first_increment_ns=first_increment_ns,
        last_sampled_ns=longest.last_sampled_ns,
        finished_ns=finished_ns,
        sent_ns=sent_ns,
        ttft_s=_between(received_ns, first_increment_ns),
        e2e_s=e2e_s,
        detokenize_s=longest.detokenize_s,
        unaccounted_s=None if e2e_s is None else max(0.0, e2e_s - accounted_s),
        tpot_s=longest.tpot_s,
        **parts,
    )


def _transport(
    received_ns: int,
    start_ns: int | None,
    end_ns: int | None,
    enqueued_ns: int | None,
    sent_ns: int | None,
    lost_s: float,
) -> float | None:
    if start_ns is None or end_ns is None:
        return _between(received_ns, sent_ns)
    there = max(0.0, seconds(received_ns, start_ns) - lost_s)
    return there if enqueued_ns is None else there + seconds(end_ns, enqueued_ns)


def _between(start_ns: int | None, end_ns: int | None) -> float | None:
    return None if start_ns is None or end_ns is None else seconds(start_ns, end_ns)


def _working(start_ns: int | None, end_ns: int | None, preempted: Sequence[tuple[int, int]]) -> float | None:
    if start_ns is None or end_ns is None:
        return None
    return max(0, end_ns - start_ns - overlap_ns(preempted, start_ns, end_ns)) / 1e9


def _tpot(first_ns: int | None, last_ns: int | None, delivered: int) -> float | None:
    if first_ns is None or last_ns is None or delivered < 2:
        return None
    return seconds(first_ns, last_ns) / (delivered - 1)


def _earliest(points: Sequence[int | None]) -> int | None:
    return min((p for p in points if p is not None), default=None)
