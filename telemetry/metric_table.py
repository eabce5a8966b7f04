"""Every metric that is exported, in one table: name, type, labels, help, buckets.

Values of ``FACTS`` rows come from records; those of ``LIVE`` rows are read when somebody asks.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from telemetry.events import FinishReason, StepKind
from telemetry.genai import ENDPOINTS, OPERATIONS


class Kind(StrEnum):
    """Prometheus types."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(msgspec.Struct, frozen=True):
    """One row. ``initial`` are the values of ``labels`` that exist (with 0) from a replica's start."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()  # besides `common`
    common: tuple[str, ...] = ("model", "replica")
    buckets: tuple[float, ...] = ()
    initial: tuple[tuple[str, ...], ...] = ()


def _grid(low: float, high: float, steps: Iterable[float] = (1, 1.5, 2, 3, 5, 7)) -> tuple[float, ...]:
    """Bounds from `low` to `high`, at `steps` of each power of ten."""
    bounds = (float(f"{step}e{exponent}") for exponent in range(-5, 7) for step in steps)
    return tuple(bound for bound in bounds if low <= bound <= high)


def _powers_of_two(high: int) -> tuple[float, ...]:
    return tuple(float(1 << i) for i in range(high.bit_length()))


_CONVENTION_DURATION = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_DURATION = tuple(
    sorted(
        {0.001, 0.002, 0.003, 0.005, 0.007, 163.84, 327.68, 655.36}
        | {b * k for b in _CONVENTION_DURATION for k in (1, 1.5)}
    )
)
_CONVENTION_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_TTFT = tuple(
    sorted(
        {*_CONVENTION_TTFT, 0.0015, 0.002, 0.003, 0.007, 0.015, 0.03, 0.15, 0.2, 0.35, 1.5, 2.0, 3.5, *_grid(15, 300)}
    )
)
_CONVENTION_TPOT = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_TPOT = tuple(sorted({*_grid(0.0005, 0.007), *_CONVENTION_TPOT, 0.015, 0.02, 0.03, 0.04, 0.06, 1.5, 5.0, 10.0}))
_TOKENS = _powers_of_two(1 << 17)

_GEN_AI = ("model", "replica", "gen_ai_provider_name", "gen_ai_request_model")
_OPERATION = "gen_ai_operation_name"
_BY_OPERATION = tuple((operation,) for operation in OPERATIONS)
_REASONS = tuple(str(reason) for reason in FinishReason)
SINKS = ("spans", "metrics", "token_log", "store")
STAGES = ("tokenize", "queue", "preempted", "prefill", "decode", "detokenize", "drain", "transport")
WASTE_REASONS = ("stop", "abort", "error", "retry", "preempted")
CLIENT_MISTAKES = (
    "invalid_request_error",
    "invalid_api_key",
    "model_not_found",
    "body_too_large",
    "context_length_exceeded",
    "invalid_json",
    "invalid_token_id",
    "invalid_value",
    "method_not_allowed",
    "missing_required_parameter",
    "timeout",
    "unknown_parameter",
    "unknown_url",
    "unsupported_media_type",
    "unsupported_parameter",
)
"""Values of ``error_type`` of requests that were refused for what the client sent (4xx, but for 429)."""
ABORTS = ("abort", "client_disconnected", "slow_reader")
"""Values of ``error_type`` of requests that their client gave up."""
RESTART_REASONS = ("killed", "exit", "hang", "start_timeout", "other")

FACTS = (
    Metric(
        "gen_ai_server_request_duration_seconds",
        Kind.HISTOGRAM,
        "Time from receiving a request to its last byte (e2e), one observation per request.",
        (_OPERATION, "error_type"),
        _GEN_AI,
        _DURATION,
        tuple((operation, "") for operation in OPERATIONS),
    ),
    Metric(
        "gen_ai_server_time_to_first_token_seconds",
        Kind.HISTOGRAM,
        "Time from receiving a request to its first increment at the gateway (TTFT), one observation per request.",
        (_OPERATION,),
        _GEN_AI,
        _TTFT,
        _BY_OPERATION,
    ),
    Metric(
        "gen_ai_server_time_per_output_token_seconds",
        Kind.HISTOGRAM,
        "Mean time per output token after the first (TPOT), one observation per sequence of two tokens or more.",
        (_OPERATION,),
        _GEN_AI,
        _TPOT,
        _BY_OPERATION,
    ),
    Metric(
        "vitrine_inter_token_latency_seconds",
        Kind.HISTOGRAM,
        "Time between a delivered output token and the one before (ITL), from the runner's sample times.",
        buckets=_grid(0.0005, 10),
    ),
    Metric(
        "vitrine_stage_duration_seconds",
        Kind.HISTOGRAM,
        "Time spent in each stage: tokenize, drain and transport per request, the others per sequence.",
        ("stage",),
        buckets=_grid(0.0001, 300),
        initial=tuple((stage,) for stage in STAGES),
    ),
    Metric(
        "vitrine_requests_total",
        Kind.COUNTER,
        "Requests that have ended, every one exactly once; refused ones as error.",
        ("finish_reason", "endpoint"),
        initial=tuple((reason, endpoint) for reason in _REASONS for endpoint in ENDPOINTS),
    ),
    Metric("vitrine_prompt_tokens_total", Kind.COUNTER, "Prompt tokens of the requests that have ended."),
    Metric(
        "vitrine_generation_tokens_total",
        Kind.COUNTER,
        "Output tokens delivered to clients, counted when their request has ended.",
    ),
    Metric(
        "vitrine_wasted_tokens_total",
        Kind.COUNTER,
        "Tokens computed in vain: sampled but not delivered (past a stop, after an abort or error, on a replica "
        "that died), or computed again after a preemption.",
        ("reason",),
        initial=tuple((reason,) for reason in WASTE_REASONS),
    ),
    Metric(
        "vitrine_request_prompt_tokens", Kind.HISTOGRAM, "Prompt tokens, one observation per request.", buckets=_TOKENS
    ),
    Metric(
        "vitrine_request_generation_tokens",
        Kind.HISTOGRAM,
        "Output tokens delivered, one observation per request.",
        buckets=(0.0, *_TOKENS),
    ),
    Metric("vitrine_prefix_cache_queried_tokens_total", Kind.COUNTER, "Prompt tokens looked up in the prefix cache."),
    Metric("vitrine_prefix_cache_hit_tokens_total", Kind.COUNTER, "Prompt tokens found in the prefix cache."),
    Metric(
        "vitrine_prefix_cache_evicted_blocks_total", Kind.COUNTER, "Cached KV blocks that were given to other tokens."
    ),
    Metric("vitrine_preemptions_total", Kind.COUNTER, "Preemptions of the requests that have ended."),
    Metric(
        "vitrine_step_duration_seconds",
        Kind.HISTOGRAM,
        "One engine step, from the begin of its plan to the publication of its tokens.",
        ("kind",),
        buckets=_grid(0.0005, 30),
        initial=tuple((str(kind),) for kind in StepKind),
    ),
    Metric("vitrine_step_batch_size", Kind.HISTOGRAM, "Sequences in an engine step.", buckets=_powers_of_two(1024)),
    Metric(
        "vitrine_step_batch_tokens",
        Kind.HISTOGRAM,
        "Tokens computed in an engine step.",
        buckets=_powers_of_two(16384),
    ),
    Metric(
        "vitrine_runner_idle_seconds_total",
        Kind.COUNTER,
        "Time that the runner waited for the scheduler with work pending: the scheduling bubble.",
    ),
    Metric("vitrine_spec_decode_drafts_total", Kind.COUNTER, "Drafts that were verified by a step."),
    Metric("vitrine_spec_decode_draft_tokens_total", Kind.COUNTER, "Tokens that were drafted."),
    Metric("vitrine_spec_decode_accepted_tokens_total", Kind.COUNTER, "Drafted tokens that were accepted."),
    Metric(
        "vitrine_spec_decode_accepted_tokens_per_position_total",
        Kind.COUNTER,
        "Drafted tokens that were accepted, by their position in the draft.",
        ("position",),
        initial=(("0",),),
    ),
    Metric(
        "vitrine_scale_decisions_total",
        Kind.COUNTER,
        "Decisions to change the number of replicas.",
        ("direction", "trigger"),
        ("model",),
        initial=(("up", "operator"), ("down", "operator")),
    ),
    Metric(
        "vitrine_replica_restarts_total",
        Kind.COUNTER,
        "Incarnations of a replica that failed and were replaced.",
        ("reason",),
        initial=tuple((reason,) for reason in RESTART_REASONS),
    ),
)

LIVE = (
    Metric("vitrine_stage_queue_depth", Kind.GAUGE, "Messages waiting in front of each stage.", ("stage",)),
    Metric(
        "vitrine_stage_busy_seconds_total",
        Kind.COUNTER,
        "Time that a stage was working; its rate is the stage's utilisation.",
        ("stage",),
    ),
    Metric("vitrine_requests_running", Kind.GAUGE, "Sequences in the running batch."),
    Metric("vitrine_requests_waiting", Kind.GAUGE, "Sequences that wait, by reason.", ("reason",)),
    Metric("vitrine_kv_cache_blocks", Kind.GAUGE, "KV blocks by state; the sum is the pool.", ("state",)),
    Metric("vitrine_kv_cache_usage_ratio", Kind.GAUGE, "Active KV blocks / pool, 0-1."),
    Metric(
        "vitrine_model_flops_utilization_ratio",
        Kind.GAUGE,
        "FLOPs of the steps of the last 10 s per second of their execution, as a share of what the device was "
        "measured to reach in a matrix product. 0 without steps; absent where the model's work cannot be counted.",
        ("kind",),
    ),
    Metric(
        "vitrine_memory_bandwidth_utilization_ratio",
        Kind.GAUGE,
        "Bytes that the steps of the last 10 s had to move (weights, keys and values) per second of their execution, "
        "as a share of the read bandwidth that was measured. 0 without steps; absent where it cannot be counted.",
        ("kind",),
    ),
    Metric(
        "vitrine_serving_cost_per_million_tokens",
        Kind.GAUGE,
        "Price of the replica (--price-per-hour) over the last minute per million tokens computed in it: output tokens "
        "or all. Absent without a price, and without tokens.",
        ("kind",),
    ),
    Metric(
        "vitrine_engine_last_step_age_seconds",
        Kind.GAUGE,
        "Time since the last finished step while work is pending, else 0.",
    ),
    Metric("vitrine_replicas", Kind.GAUGE, "Replicas by state.", ("state",), common=("model",)),
    Metric("vitrine_telemetry_events_total", Kind.COUNTER, "Items that each sink has taken.", ("sink",), common=()),
    Metric(
        "vitrine_telemetry_dropped_total",
        Kind.COUNTER,
        "Items that each sink has lost: journal records overwritten or damaged, spans not delivered, lines and "
        "rows that could not be written.",
        ("sink",),
        common=(),
    ),
    Metric(
        "vitrine_telemetry_lag_seconds",
        Kind.GAUGE,
        "Time from a record being made to its interpretation, the longest of the last pass.",
        common=(),
    ),
    Metric(
        "vitrine_build_info",
        Kind.GAUGE,
        "Always 1; what each replica runs.",
        ("version", "revision", "model_sha256", "tokenizer_sha256", "dtype", "device"),
    ),
    Metric(
        "process_cpu_seconds_total",
        Kind.COUNTER,
        "User and system CPU time of each stage's processes.",
        ("stage",),
        common=("replica",),
    ),
    Metric(
        "process_resident_memory_bytes", Kind.GAUGE, "Resident memory of a process.", ("stage",), common=("replica",)
    ),
    Metric("process_virtual_memory_bytes", Kind.GAUGE, "Virtual memory of a process.", ("stage",), common=("replica",)),
    Metric("process_open_fds", Kind.GAUGE, "Open file descriptors of a process.", ("stage",), common=("replica",)),
    Metric(
        "process_start_time_seconds",
        Kind.GAUGE,
        "Start of a process since the epoch, in seconds.",
        ("stage",),
        common=("replica",),
    ),
)

BY_NAME = {metric.name: metric for metric in FACTS + LIVE}
