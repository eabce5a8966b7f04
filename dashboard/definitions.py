"""What every number on the pages means: shown on hover, and all together on the help page."""

from __future__ import annotations

from telemetry.metric_labels import BLOCK_STATES, STAGES, WAIT_REASONS
from telemetry.metric_table import BY_NAME


def _help(name: str) -> str:
    """What the metric table says of a metric."""
    return BY_NAME[name].help


DEFINITIONS: dict[str, str] = {
    "TTFT": _help("gen_ai_server_time_to_first_token_seconds"),
    "ITL": _help("vitrine_inter_token_latency_seconds"),
    "TPOT": _help("gen_ai_server_time_per_output_token_seconds"),
    "e2e": _help("gen_ai_server_request_duration_seconds"),
    "p50": "Half of the observations were at most this.",
    "p95": "95 % of the observations were at most this.",
    "p99": "99 % of the observations were at most this.",
    "error rate": "Requests that ended as an error, refused ones too, as a share of all that ended in the window.",
    "objective": "What the service is meant to keep to. The burn says how much of what may miss it was used up: "
    "above 100 % the objective is missed.",
    "tokens in": "Prompt tokens of the request. On charts: those computed in the second, cached ones not among them.",
    "tokens out": "Output tokens delivered. On charts: those sampled in the second.",
    "running": _help("vitrine_requests_running"),
    "waiting": _help("vitrine_requests_waiting"),
    **WAIT_REASONS,
    "KV blocks": _help("vitrine_kv_cache_blocks"),
    **BLOCK_STATES,
    "KV use": _help("vitrine_kv_cache_usage_ratio"),
    "prefix hit rate": "Prompt tokens found in the prefix cache / prompt tokens looked up.",
    "utilisation": _help("vitrine_stage_busy_seconds_total"),
    "step kind": "What the engine steps of the last 10 s computed: prompt tokens (prefill), one token per sequence "
    "(decode), or both (mixed). Idle: the runner waited for a plan with work pending.",
    "step share": "Share of the last 10 s spent in steps of this kind.",
    "FLOP/s": "FLOPs of these steps per second of their execution (matrix products and attention, counted from the "
    "model's shapes), and the share of what this device was measured to reach in a matrix product. Prefill is limited "
    "by it.",
    "memory traffic": "Bytes that these steps have to move (weights once, keys and values) per second of their "
    "execution, and the share of the read bandwidth that this device was measured to reach. Decode of few sequences "
    "is limited by it.",
    "cost": _help("vitrine_serving_cost_per_million_tokens"),
    "queue depth": _help("vitrine_stage_queue_depth"),
    "received": "When the gateway had read the request.",
    **STAGES,
    "unaccounted": "e2e less all parts. Shown among the parts where it passes 2 %.",
    "cached tokens": "Prompt tokens found in the prefix cache, not computed again.",
    "wasted": _help("vitrine_wasted_tokens_total"),
    "gap": "Time since the token before, as the client would have seen it.",
    "step": "The engine step that sampled this token.",
    "heartbeat": "Time since the process last said that it is alive. Over 3 s it is not healthy.",
    "last step": "Time since the scheduler took the last step's result.",
    "restarts": _help("vitrine_replica_restarts_total"),
    "CPU": _help("process_cpu_seconds_total"),
    "memory": _help("process_resident_memory_bytes"),
    "incarnation": "A new number at each start of a replica. Messages of an older one are thrown away.",
    "finish reason": "How it ended: stop, length, abort or error. "
    "Of several, error wins over abort over length over stop.",
}
