"""Values of labels, and what each of them means: for the metric table, its page, and the dashboard's hover texts."""

from __future__ import annotations

WAIT_REASONS = {
    "kv_blocks": "Waits because there are not enough free KV blocks for it.",
    "token_budget": "Waits because the step's token budget is used up.",
    "max_running": "Waits because as many sequences run as may.",
    "preempted": "Gave its KV blocks back to others and waits to be computed again. "
    "Every wait from a preemption to the next admission.",
}
BLOCK_STATES = {
    "free": "KV blocks that hold nothing.",
    "active": "KV blocks of running sequences.",
    "cached": "KV blocks kept for their prefix, given to other tokens when needed.",
}
STAGES = {
    "tokenize": "The prompt becomes token ids.",
    "queue": "First scheduled − enqueued. Later waits after a preemption are counted apart, as preempted.",
    "preempted": WAIT_REASONS["preempted"],
    "prefill": "First scheduled → first token sampled, less the waits after preemptions in it.",
    "decode": "First token sampled → last delivered token sampled, less the waits after preemptions in it.",
    "detokenize": "Busy time of the detokenizer for this request. It overlaps decode and is not a part of the sum.",
    "drain": "Last token sampled → last byte sent.",
    "transport": "Received → tokenizer, tokenizer → scheduler: messages on their way, and waiting to be taken.",
}
FINISH_REASONS = {
    "stop": "A stop string, a stop token or the model's end of text.",
    "length": "As many tokens as were asked for, or as the context holds.",
    "abort": "The client left, or was too slow to read.",
    "error": "Refused, or failed.",
}
WASTE_REASONS = {
    "stop": "Sampled past the end of the answer.",
    "abort": "Sampled, and not delivered because the client had left.",
    "error": "Sampled, and not delivered because the request had failed.",
    "retry": "Sampled on a replica that died, and sampled again on another.",
    "preempted": "Computed before a preemption, and again after it.",
}
SINKS = {
    "spans": "Spans for the OTLP endpoint.",
    "metrics": "Journal records interpreted.",
    "token_log": "Lines of the token log.",
    "store": "Rows of the store.",
}
RESTART_REASONS = {
    "killed": "A stage was killed by a signal.",
    "exit": "A stage ended by itself.",
    "hang": "A stage's heartbeat stopped.",
    "start_timeout": "The replica was not ready in time.",
    "other": "Anything else.",
}
STEP_KINDS = {
    "prefill": "Prompt tokens only.",
    "decode": "One token of each sequence.",
    "mixed": "Both.",
}
TOKEN_KINDS = {"output": "Tokens sampled.", "total": "Tokens sampled, and prompt tokens computed."}
REPLICA_STATES = {
    "starting": "Loads the model.",
    "ready": "Takes requests.",
    "draining": "Finishes what it has, and takes nothing new.",
    "unhealthy": "A stage died or hangs; it is about to be replaced.",
    "stopped": "Ended.",
}
SCALE_DIRECTIONS = {"up": "More replicas.", "down": "Fewer replicas."}
SCALE_TRIGGERS = {"operator": "By command.", "autoscaler": "By load."}

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
