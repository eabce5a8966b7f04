"""The metrics that others rely on: names, types and labels. A copy on purpose, not made from the table."""

from __future__ import annotations

_OWN = ("model", "replica")
_GEN_AI = (*_OWN, "gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")

CONTRACT: dict[str, tuple[str, tuple[str, ...]]] = {
    "gen_ai_server_request_duration_seconds": ("histogram", (*_GEN_AI, "error_type")),
    "gen_ai_server_time_to_first_token_seconds": ("histogram", _GEN_AI),
    "gen_ai_server_time_per_output_token_seconds": ("histogram", _GEN_AI),
    "vitrine_inter_token_latency_seconds": ("histogram", _OWN),
    "vitrine_stage_duration_seconds": ("histogram", (*_OWN, "stage")),
    "vitrine_stage_queue_depth": ("gauge", (*_OWN, "stage")),
    "vitrine_stage_busy_seconds_total": ("counter", (*_OWN, "stage")),
    "vitrine_requests_running": ("gauge", _OWN),
    "vitrine_requests_waiting": ("gauge", (*_OWN, "reason")),
    "vitrine_requests_total": ("counter", (*_OWN, "finish_reason", "endpoint")),
    "vitrine_prompt_tokens_total": ("counter", _OWN),
    "vitrine_generation_tokens_total": ("counter", _OWN),
    "vitrine_wasted_tokens_total": ("counter", (*_OWN, "reason")),
    "vitrine_request_prompt_tokens": ("histogram", _OWN),
    "vitrine_request_generation_tokens": ("histogram", _OWN),
    "vitrine_kv_cache_blocks": ("gauge", (*_OWN, "state")),
    "vitrine_kv_cache_usage_ratio": ("gauge", _OWN),
    "vitrine_prefix_cache_queried_tokens_total": ("counter", _OWN),
    "vitrine_prefix_cache_hit_tokens_total": ("counter", _OWN),
    "vitrine_prefix_cache_evicted_blocks_total": ("counter", _OWN),
    "vitrine_preemptions_total": ("counter", _OWN),
    "vitrine_step_duration_seconds": ("histogram", (*_OWN, "kind")),
    "vitrine_step_batch_size": ("histogram", _OWN),
    "vitrine_step_batch_tokens": ("histogram", _OWN),
    "vitrine_runner_idle_seconds_total": ("counter", _OWN),
    "vitrine_model_flops_utilization_ratio": ("gauge", (*_OWN, "kind")),
    "vitrine_memory_bandwidth_utilization_ratio": ("gauge", (*_OWN, "kind")),
    "vitrine_serving_cost_per_million_tokens": ("gauge", (*_OWN, "kind")),
    "vitrine_spec_decode_drafts_total": ("counter", _OWN),
    "vitrine_spec_decode_draft_tokens_total": ("counter", _OWN),
    "vitrine_spec_decode_accepted_tokens_total": ("counter", _OWN),
    "vitrine_spec_decode_accepted_tokens_per_position_total": ("counter", (*_OWN, "position")),
    "vitrine_engine_last_step_age_seconds": ("gauge", _OWN),
    "vitrine_replicas": ("gauge", ("model", "state")),
    "vitrine_replica_restarts_total": ("counter", (*_OWN, "reason")),
    "vitrine_scale_decisions_total": ("counter", ("model", "direction", "trigger")),
    "vitrine_telemetry_events_total": ("counter", ("sink",)),
    "vitrine_telemetry_dropped_total": ("counter", ("sink",)),
    "vitrine_telemetry_lag_seconds": ("gauge", ()),
    "vitrine_build_info": (
        "gauge",
        (*_OWN, "version", "revision", "model_sha256", "tokenizer_sha256", "dtype", "device"),
    ),
}  # fmt: skip

STANDARD = "process_"
"""Names that Prometheus' own conventions define begin with this; theirs have the labels ``replica`` and ``stage``."""

WITHOUT_SERIES = {"vitrine_serving_cost_per_million_tokens"}
"""They have none without a flag (--price-per-hour)."""

LABEL_VALUES = {
    ("vitrine_requests_waiting", "reason"): {"kv_blocks", "token_budget", "max_running", "preempted"},
    ("vitrine_requests_total", "finish_reason"): {"stop", "length", "abort", "error"},
    ("vitrine_kv_cache_blocks", "state"): {"free", "active", "cached"},
    ("vitrine_step_duration_seconds", "kind"): {"prefill", "decode", "mixed"},
    ("vitrine_replicas", "state"): {"starting", "ready", "draining", "unhealthy", "stopped"},
    ("vitrine_telemetry_events_total", "sink"): {"spans", "metrics", "token_log", "store"},
    ("vitrine_telemetry_dropped_total", "sink"): {"spans", "metrics", "token_log", "store"},
}

CONVENTION_BUCKETS = {
    "gen_ai_server_request_duration_seconds": (
        0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
    ),
    "gen_ai_server_time_to_first_token_seconds": (
        0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    ),
    "gen_ai_server_time_per_output_token_seconds": (
        0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    ),
}  # fmt: skip
"""OpenTelemetry's semantic conventions for generative AI, section "Generative AI model server metrics"."""
