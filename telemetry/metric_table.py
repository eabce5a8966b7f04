"""Every metric that is exported, in one table: name, type, labels, help, buckets.

The exporter, the page ``deploy/prometheus/METRICS.md``, the Grafana dashboards, the alerts with their tests and the
hover texts of the operator dashboard are made from it: what a number means is said here, and only here.
Values of ``FACTS`` rows come from records; those of ``LIVE`` rows are read when somebody asks.
"""

from __future__ import annotations

from telemetry import metric_buckets
from telemetry.genai import ENDPOINTS, OPERATIONS
from telemetry.metric import Kind, Metric, each
from telemetry.metric_labels import (
    BLOCK_STATES,
    FINISH_REASONS,
    REPLICA_STATES,
    RESTART_REASONS,
    SCALE_DIRECTIONS,
    SCALE_TRIGGERS,
    SINKS,
    STAGES,
    STEP_KINDS,
    TOKEN_KINDS,
    WAIT_REASONS,
    WASTE_REASONS,
)

_GEN_AI = ("model", "replica", "gen_ai_provider_name", "gen_ai_request_model")
_OPERATION = "gen_ai_operation_name"


# No replica speculates yet: these are here with 0, so that what is made for them need not change when one does.
_SPECULATION = (
    Metric("vitrine_spec_decode_drafts_total", Kind.COUNTER, "Drafts that the model checked. 0 without speculation."),
    Metric("vitrine_spec_decode_draft_tokens_total", Kind.COUNTER, "Tokens drafted."),
    Metric("vitrine_spec_decode_accepted_tokens_total", Kind.COUNTER, "Drafted tokens that were accepted."),
    Metric(
        "vitrine_spec_decode_accepted_tokens_per_position_total",
        Kind.COUNTER,
        "Drafted tokens that were accepted, by their position in the draft, from 0.",
        ("position",),
        initial=(("0",),),
    ),
)

FACTS = (
    Metric(
        "gen_ai_server_request_duration_seconds",
        Kind.HISTOGRAM,
        "End to end (e2e): last byte sent − received, one observation per request, however it ended.",
        (_OPERATION, "error_type"),
        _GEN_AI,
        metric_buckets.DURATION,
        each(OPERATIONS, ("",)),
    ),
    Metric(
        "gen_ai_server_time_to_first_token_seconds",
        Kind.HISTOGRAM,
        "Time to first token (TTFT): first increment ready at the gateway − received, one observation per request "
        "that got so far. Tokenization, queue and prefill are included; the same meaning when not streaming.",
        (_OPERATION,),
        _GEN_AI,
        metric_buckets.TTFT,
        each(OPERATIONS),
    ),
    Metric(
        "gen_ai_server_time_per_output_token_seconds",
        Kind.HISTOGRAM,
        "Time per output token (TPOT): (last sampled − first sampled) / (output tokens − 1), one observation per "
        "sequence, none for a one-token answer.",
        (_OPERATION,),
        _GEN_AI,
        metric_buckets.TPOT,
        each(OPERATIONS),
    ),
    Metric(
        "vitrine_inter_token_latency_seconds",
        Kind.HISTOGRAM,
        "Inter-token latency (ITL): one observation per delivered output token after the first, from the runner's "
        "sample times. A step that yields k tokens gives k observations of gap/k.",
        buckets=metric_buckets.ITL,
    ),
    Metric(
        "vitrine_stage_duration_seconds",
        Kind.HISTOGRAM,
        "Time spent in each stage: tokenize, drain and transport per request, the others per sequence.",
        ("stage",),
        buckets=metric_buckets.STAGE,
        initial=each(STAGES),
        values={"stage": STAGES},
    ),
    Metric(
        "vitrine_requests_total",
        Kind.COUNTER,
        "Requests for completions and chats that have ended, every one exactly once; refused ones as error.",
        ("finish_reason", "endpoint"),
        initial=each(FINISH_REASONS, ENDPOINTS),
        values={"finish_reason": FINISH_REASONS},
    ),
    Metric("vitrine_prompt_tokens_total", Kind.COUNTER, "Prompt tokens of the requests that have ended."),
    Metric(
        "vitrine_generation_tokens_total",
        Kind.COUNTER,
        "Output tokens delivered to clients, without those computed in vain. Counted when their request has ended.",
    ),
    Metric(
        "vitrine_wasted_tokens_total",
        Kind.COUNTER,
        "Tokens computed in vain: sampled but not delivered (past a stop, after an abort or error, on a replica "
        "that died), or computed again after a preemption. Counted when their request has ended.",
        ("reason",),
        initial=each(WASTE_REASONS),
        values={"reason": WASTE_REASONS},
    ),
    Metric(
        "vitrine_request_prompt_tokens",
        Kind.HISTOGRAM,
        "Prompt tokens, one observation per request.",
        buckets=metric_buckets.TOKENS,
    ),
    Metric(
        "vitrine_request_generation_tokens",
        Kind.HISTOGRAM,
        "Output tokens delivered, one observation per request.",
        buckets=(0.0, *metric_buckets.TOKENS),
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
        buckets=metric_buckets.STEP,
        initial=each(STEP_KINDS),
        values={"kind": STEP_KINDS},
    ),
    Metric(
        "vitrine_step_batch_size",
        Kind.HISTOGRAM,
        "Sequences in an engine step.",
        buckets=metric_buckets.powers_of_two(1024),
    ),
    Metric(
        "vitrine_step_batch_tokens",
        Kind.HISTOGRAM,
        "Tokens computed in an engine step.",
        buckets=metric_buckets.powers_of_two(16384),
    ),
    Metric(
        "vitrine_runner_idle_seconds_total",
        Kind.COUNTER,
        "Time that the runner waited for the scheduler with work pending: the scheduling bubble.",
    ),
    *_SPECULATION,
    Metric(
        "vitrine_replica_restarts_total",
        Kind.COUNTER,
        "How often the replica was started again after a stage died.",
        ("reason",),
        initial=each(RESTART_REASONS),
        values={"reason": RESTART_REASONS},
    ),
    Metric(
        "vitrine_scale_decisions_total",
        Kind.COUNTER,
        "Changes of the number of replicas, by who asked for them. 0 as long as their number is set at the start.",
        ("direction", "trigger"),
        ("model",),
        initial=each(SCALE_DIRECTIONS, SCALE_TRIGGERS),
        values={"direction": SCALE_DIRECTIONS, "trigger": SCALE_TRIGGERS},
    ),
)

LIVE = (
    Metric(
        "vitrine_stage_queue_depth",
        Kind.GAUGE,
        "Messages waiting in front of a stage: sent to it and not yet taken.",
        ("stage",),
    ),
    Metric(
        "vitrine_stage_busy_seconds_total",
        Kind.COUNTER,
        "Time that a stage was working. Its rate is the stage's utilisation; the stage nearest to 100 % is the "
        "bottleneck.",
        ("stage",),
    ),
    Metric("vitrine_requests_running", Kind.GAUGE, "Sequences in the running batch."),
    Metric(
        "vitrine_requests_waiting",
        Kind.GAUGE,
        "Sequences in the scheduler's queue, by the reason for which they wait.",
        ("reason",),
        values={"reason": WAIT_REASONS},
    ),
    Metric(
        "vitrine_kv_cache_blocks",
        Kind.GAUGE,
        "The pool of KV cache blocks by state. free + active + cached = the pool.",
        ("state",),
        values={"state": BLOCK_STATES},
    ),
    Metric("vitrine_kv_cache_usage_ratio", Kind.GAUGE, "Active KV blocks / pool, 0 to 1."),
    Metric(
        "vitrine_model_flops_utilization_ratio",
        Kind.GAUGE,
        "FLOPs of the steps of the last 10 s per second of their execution, as a share of what the device was "
        "measured to reach in a matrix product. 0 without steps; absent where the model's work cannot be counted.",
        ("kind",),
        values={"kind": STEP_KINDS},
    ),
    Metric(
        "vitrine_memory_bandwidth_utilization_ratio",
        Kind.GAUGE,
        "Bytes that the steps of the last 10 s had to move (weights, keys and values) per second of their execution, "
        "as a share of the read bandwidth that was measured. 0 without steps; absent where it cannot be counted.",
        ("kind",),
        values={"kind": STEP_KINDS},
    ),
    Metric(
        "vitrine_serving_cost_per_million_tokens",
        Kind.GAUGE,
        "Price of the replica (--price-per-hour) over the last minute per million tokens computed in it: output tokens "
        "or all. Absent without a price, and without tokens.",
        ("kind",),
        values={"kind": TOKEN_KINDS},
    ),
    Metric(
        "vitrine_engine_last_step_age_seconds",
        Kind.GAUGE,
        "Time since the last finished step while work is pending, else 0.",
    ),
    Metric(
        "vitrine_replicas", Kind.GAUGE, "Replicas by state.", ("state",), ("model",), values={"state": REPLICA_STATES}
    ),
    Metric(
        "vitrine_telemetry_events_total",
        Kind.COUNTER,
        "Items that each sink has taken.",
        ("sink",),
        (),
        values={"sink": SINKS},
    ),
    Metric(
        "vitrine_telemetry_dropped_total",
        Kind.COUNTER,
        "Items that each sink has lost: journal records overwritten or damaged, spans not delivered, lines and "
        "rows that could not be written.",
        ("sink",),
        common=(),
        values={"sink": SINKS},
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
        "CPU time (user and system) of a stage's processes, those that are gone included. Its rate of 1 is one core.",
        ("stage",),
        common=("replica",),
    ),
    Metric(
        "process_resident_memory_bytes",
        Kind.GAUGE,
        "Resident memory (RSS) of the process.",
        ("stage",),
        common=("replica",),
    ),
    Metric(
        "process_virtual_memory_bytes", Kind.GAUGE, "Virtual memory of the process.", ("stage",), common=("replica",)
    ),
    Metric("process_open_fds", Kind.GAUGE, "Open file descriptors of the process.", ("stage",), common=("replica",)),
    Metric(
        "process_start_time_seconds",
        Kind.GAUGE,
        "Start of the process since the epoch, in seconds.",
        ("stage",),
        common=("replica",),
    ),
)

BY_NAME = {metric.name: metric for metric in FACTS + LIVE}
