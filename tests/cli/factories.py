"""Rows as the dashboard's API gives them."""

from __future__ import annotations

from typing import Any

from telemetry import schema

POINTS = {
    "tokenize_start_at": 0.001,
    "tokenize_end_at": 0.002,
    "enqueued_at": 0.003,
    "scheduled_at": 0.05,
    "first_sampled_at": 0.1,
    "first_increment_at": 0.101,
    "last_sampled_at": 0.5,
    "finished_at": 0.502,
    "sent_at": 0.503,
    "detokenize_s": 0.004,
}


def make_request(**fields: Any) -> dict[str, Any]:
    row = dict.fromkeys(schema.requests.c.keys())
    row |= POINTS | {
        "request_id": "req-1",
        "received_ts": 1_700_000_000.0,
        "state": "finished",
        "finish_reason": "length",
        "http_status": 200,
        "endpoint": "/v1/completions",
        "model": "m",
        "num_sequences": 1,
        "trace_id": "ab" * 16,
        "replica": "r0",
        "prompt_tokens": 1234,
        "cached_tokens": 16,
        "output_tokens": 3,
        "ttft_s": 0.101,
        "tpot_s": 0.2,
        "e2e_s": 0.503,
    }
    return row | fields


def make_sequence(**fields: Any) -> dict[str, Any]:
    row = dict.fromkeys(schema.sequences.c.keys())
    row |= {name: value for name, value in POINTS.items() if name in row}
    return (
        row | {"idx": 0, "wait_spans": [[0.003, 0.05, "kv_blocks"]], "tokens": make_tokens("Hi", "\n", "[b]")} | fields
    )


def make_tokens(*pieces: str) -> dict[str, Any]:
    return {
        "prompt": [{"id": 1, "piece": "a"}] * 5,
        "output": [
            {
                "index": i,
                "id": 100 + i,
                "piece": piece,
                "at_s": 0.1 + 0.2 * i,
                "gap_s": 0.2 if i else None,
                "step_id": 7 + i,
                "slow": False,
            }
            for i, piece in enumerate(pieces)
        ],
    }


def make_answer(request: dict[str, Any], *sequences: dict[str, Any]) -> dict[str, Any]:
    parts = [("queue", 0.053), ("decode", 0.4), ("drain", 0.05)]
    return {
        "request": request,
        "why": "Took 503 ms: mostly decode.",
        "parts": [{"name": name, "css": "", "seconds": s, "share": s / 0.503} for name, s in parts],
        "sequences": list(sequences),
    }
