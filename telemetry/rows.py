"""Facts as rows of the store. Keys are the column names of `telemetry.schema`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from telemetry.facts import RequestFacts, SequenceFacts, StepFacts, incarnation_id, seconds
from telemetry.samples import percentile

Row = dict[str, Any]
LogRef = tuple[str, int]
"""Token log file and byte offset of a line."""

_POINTS = (
    "tokenize_start",
    "tokenize_end",
    "enqueued",
    "scheduled",
    "first_sampled",
    "first_increment",
    "last_sampled",
    "finished",
    "sent",
)
_DURATIONS = (
    "ttft_s",
    "e2e_s",
    "tokenize_s",
    "queue_s",
    "preempted_s",
    "prefill_s",
    "decode_s",
    "drain_s",
    "detokenize_s",
    "transport_s",
    "unaccounted_s",
    "tpot_s",
)


def request_row(facts: RequestFacts, updated_ts: float) -> Row:
    """A row of ``requests``, also of one that still runs."""
    received, terminal, times = facts.received, facts.terminal, facts.times
    gaps = sorted(gap for s in facts.sequences for gap in s.gaps_s()) if terminal else []
    return {
        "request_id": received.request_id,
        "received_ts": received.wall_ns / 1e9,
        "updated_ts": updated_ts,
        "state": facts.state,
        "finish_reason": str(terminal.finish_reason) if terminal else None,
        "http_status": terminal.http_status if terminal else None,
        "error_type": facts.error_type or None,
        "error_message": (terminal.error_message or None) if terminal else None,
        "endpoint": received.endpoint,
        "model": received.model,
        "stream": received.stream,
        "num_sequences": received.num_sequences,
        "client_request_id": received.client_request_id or None,
        "trace_id": received.trace_id,
        "replica": facts.replica or None,
        "incarnation_id": facts.incarnation_id,
        "params": received.params,
        "prompt_tokens": facts.prompt_tokens,
        "cached_tokens": facts.cached_tokens,
        "output_tokens": facts.output_tokens,
        "wasted_tokens": sum(facts.wasted.values()),
        "preemptions": facts.preemptions,
        **{f"{point}_at": facts.at_s(getattr(times, f"{point}_ns")) for point in _POINTS},
        **{name: getattr(times, name) for name in _DURATIONS},
        "itl_p50_s": percentile(gaps, 0.5),
        "itl_max_s": gaps[-1] if gaps else None,
    }


def sequence_rows(facts: RequestFacts, refs: Mapping[int, LogRef]) -> list[Row]:
    """Rows of ``sequences``; `refs` says where each one's token-log line is."""
    return [_sequence_row(facts, sequence, refs.get(sequence.index)) for sequence in facts.sequences]


def _sequence_row(facts: RequestFacts, sequence: SequenceFacts, ref: LogRef | None) -> Row:
    times = sequence.times
    return {
        "request_id": facts.request_id,
        "idx": sequence.index,
        "prompt_index": sequence.prompt_index,
        "seq_id": sequence.seq_id,
        "finish_reason": str(sequence.finish_reason) if sequence.finish_reason else None,
        "seed": sequence.seed,
        "prompt_tokens": sequence.prompt_tokens,
        "cached_tokens": sequence.cached_tokens,
        "output_tokens": len(sequence.token_ids),
        "preemptions": sequence.preemptions,
        "stop_string": sequence.stop_string or None,
        "enqueued_at": facts.at_s(times.enqueued_ns),
        "scheduled_at": facts.at_s(times.scheduled_ns),
        "first_sampled_at": facts.at_s(times.first_sampled_ns),
        "last_sampled_at": facts.at_s(times.last_sampled_ns),
        "queue_s": times.queue_s,
        "preempted_s": times.preempted_s,
        "prefill_s": times.prefill_s,
        "decode_s": times.decode_s,
        "detokenize_s": times.detokenize_s,
        "tpot_s": times.tpot_s,
        "waits": [(facts.at_s(at_ns), reason) for at_ns, reason in sequence.waits],
        "chunks": [(facts.at_s(c.start_ns), facts.at_s(c.end_ns), c.tokens, c.step_id) for c in sequence.chunks],
        "log_file": ref[0] if ref else None,
        "log_offset": ref[1] if ref else None,
    }


def step_row(step: StepFacts, wall_offset_ns: int) -> Row:
    """A row of ``steps``. `wall_offset_ns` is wall-clock time less monotonic time of its host."""
    record = step.record
    return {
        "incarnation_id": incarnation_id(step.run_id, step.scope),
        "step_id": record.step_id,
        "planned_ts": (record.planned_ns + wall_offset_ns) / 1e9,
        "kind": str(record.kind),
        "num_seqs": len(record.seq_ids),
        "num_tokens": sum(record.num_tokens),
        "schedule_s": seconds(record.planned_ns, record.submitted_ns),
        "execute_s": seconds(record.exec_start_ns, record.forward_end_ns),
        "sample_s": seconds(record.forward_end_ns, record.sampled_ns),
        "publish_s": seconds(record.received_ns, record.published_ns),
        "idle_s": record.idle_ns / 1e9,
        "duration_s": step.duration_s,
        "blocks_free": record.blocks_free,
        "blocks_active": record.blocks_active,
        "blocks_cached": record.blocks_cached,
        "waiting": record.waiting,
        "head_request_id": step.head_request_id or None,
        "head_reason": record.head_reason or None,
        "execute_at": seconds(record.planned_ns, record.exec_start_ns),
        "plan": msgspec.msgpack.encode(step.rows),
    }
