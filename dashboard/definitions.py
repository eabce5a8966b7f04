"""What every number on the pages means: shown on hover, and all together on the help page."""

from __future__ import annotations

DEFINITIONS: dict[str, str] = {
    "TTFT": "Time to first token: first increment ready at the gateway − received, per request. "
    "Tokenization, queue and prefill are included; the same meaning when not streaming.",
    "ITL": "Inter-token latency: one observation per output token after the first, from the runner's sample times. "
    "A step that yields k tokens gives k observations of gap/k.",
    "TPOT": "Time per output token: (last sampled − first sampled) / (output tokens − 1), one per sequence, "
    "none for a one-token answer.",
    "e2e": "Last byte sent − received, per request.",
    "p50": "Half of the observations were at most this.",
    "p95": "95 % of the observations were at most this.",
    "p99": "99 % of the observations were at most this.",
    "error rate": "Requests that ended as an error, refused ones too, as a share of all that ended in the window.",
    "objective": "What the service is meant to keep to. The burn says how much of what may miss it was used up: "
    "above 100 % the objective is missed.",
    "tokens in": "Prompt tokens read, per second.",
    "tokens out": "Output tokens delivered, per second. Tokens computed in vain are not in it.",
    "running": "Sequences in the running batch.",
    "waiting": "Sequences in the scheduler's queue, by the reason for which they wait.",
    "kv_blocks": "Waits because there are not enough free KV blocks for it.",
    "token_budget": "Waits because the step's token budget is used up.",
    "max_running": "Waits because as many sequences run as may.",
    "preempted": "Gave its KV blocks back to others and waits to be computed again. "
    "Every wait from a preemption to the next admission.",
    "KV blocks": "The pool of KV cache blocks by state. free + active + cached = the pool.",
    "free": "KV blocks that hold nothing.",
    "active": "KV blocks of running sequences.",
    "cached": "KV blocks kept for their prefix, given to other tokens when needed.",
    "KV use": "Active blocks / pool, 0–100 %.",
    "prefix hit rate": "Prompt tokens found in the prefix cache / prompt tokens looked up.",
    "utilisation": "Share of time in which a stage was working. The stage nearest to 100 % is the bottleneck.",
    "step kind": "What the engine steps of the last 10 s computed: prompt tokens (prefill), one token per sequence "
    "(decode), or both (mixed). Idle: the runner waited for a plan with work pending.",
    "step share": "Share of the last 10 s spent in steps of this kind.",
    "FLOP/s": "FLOPs of these steps per second of their execution (matrix products and attention, counted from the "
    "model's shapes), and the share of what this device was measured to reach in a matrix product. Prefill is limited "
    "by it.",
    "memory traffic": "Bytes that these steps have to move (weights once, keys and values) per second of their "
    "execution, and the share of the read bandwidth that this device was measured to reach. Decode of few sequences "
    "is limited by it.",
    "cost": "Price of the replicas (--price-per-hour) over the last minute / million tokens computed in it.",
    "queue depth": "Messages waiting in front of a stage: sent to it and not yet taken.",
    "received": "When the gateway had read the request.",
    "tokenize": "The prompt becomes token ids.",
    "queue": "First scheduled − enqueued. Later waits after a preemption are counted apart, as preempted.",
    "prefill": "First scheduled → first token sampled, less the waits after preemptions in it.",
    "decode": "First token sampled → last delivered token sampled, less the waits after preemptions in it.",
    "drain": "Last token sampled → last byte sent.",
    "transport": "Received → tokenizer, tokenizer → scheduler: messages on their way, and waiting to be taken.",
    "detokenize": "Busy time of the detokenizer for this request. It overlaps decode and is not a part of the sum.",
    "unaccounted": "e2e less all parts. Shown among the parts where it passes 2 %.",
    "cached tokens": "Prompt tokens found in the prefix cache, not computed again.",
    "wasted": "Tokens computed but not delivered: past a stop, after an abort.",
    "gap": "Time since the token before, as the client would have seen it.",
    "step": "The engine step that sampled this token.",
    "heartbeat": "Time since the process last said that it is alive. Over 3 s it is not healthy.",
    "last step": "Time since the scheduler took the last step's result.",
    "restarts": "How often the replica was started again after a stage died.",
    "CPU": "Cores' worth of CPU time used by the process in the last second. 100 % is one core.",
    "memory": "Resident memory (RSS) of the process.",
    "incarnation": "A new number at each start of a replica. Messages of an older one are thrown away.",
    "finish reason": "How it ended: stop, length, abort or error. "
    "Of several, error wins over abort over length over stop.",
}
