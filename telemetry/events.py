"""The vocabulary: stages, and the records that they append to their journals.

One enum of stages and one set of record types feed the span, the metric, the log line and the page.
A record holds facts only (ids, integers, monotonic timestamps in nanoseconds); what they mean is decided
in the telemetry process. Times named ``…_ns`` are ``time.monotonic_ns()`` of the host that wrote them;
0 stands for "did not happen".

A request is one HTTP call; a sequence is one (prompt, choice) of it, addressed by (request_id, index).
Inside a replica the scheduler numbers sequences (``seq_id``, unique within one incarnation), and step
records use that number.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Stage(StrEnum):
    """Every process of the system, data plane first, in the order in which a request meets them."""

    GATEWAY = "gateway"
    TOKENIZER = "tokenizer"
    SCHEDULER = "scheduler"
    RUNNER = "runner"
    DETOKENIZER = "detokenizer"
    TELEMETRY = "telemetry"
    DASHBOARD = "dashboard"
    SUPERVISOR = "supervisor"


REPLICA_STAGES = (Stage.TOKENIZER, Stage.SCHEDULER, Stage.RUNNER, Stage.DETOKENIZER)
"""The stages of one replica: they start, fail and restart together, under one incarnation number."""


class FinishReason(StrEnum):
    """How a request or sequence ended. Of several reasons error wins over abort over length over stop."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class WaitReason(StrEnum):
    """Why a sequence is not in the running batch."""

    KV_BLOCKS = "kv_blocks"
    TOKEN_BUDGET = "token_budget"
    MAX_RUNNING = "max_running"
    PREEMPTED = "preempted"


class StepKind(StrEnum):
    """What one engine step computed: prompt tokens, one token per sequence, or both."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"


class ReplicaState(StrEnum):
    """The life of a replica as the supervisor sees it."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    UNHEALTHY = "unhealthy"
    STOPPED = "stopped"


class Record(msgspec.Struct, array_like=True, tag=True, frozen=True):
    """Base of all journal records: encoded as a MessagePack array whose first item is the type's name."""


# --- every process --------------------------------------------------------------------------------------


class ProcessStarted(Record, frozen=True):
    """The first record of each journal."""

    at_ns: int
    pid: int


class ProcessStopping(Record, frozen=True):
    """The process was told to end and does so in order. A journal without it ended by a crash."""

    at_ns: int


# --- supervisor -----------------------------------------------------------------------------------------


class AttentionWork(msgspec.Struct, array_like=True, frozen=True):
    """What the attention of some equal layers (`num_layers` of them) costs; sums are over these layers."""

    num_layers: int
    window: int  # positions that a token sees at most, its own included; 0: all before it
    flops_per_pair: int  # of a token and a position that it sees: both products, all query heads
    kv_bytes_per_position: int  # keys and values


class ModelWork(msgspec.Struct, array_like=True, frozen=True):
    """What the forward pass of a model costs: counts from the shapes of its weights and of its attention.

    Matrix products and attention only: norms, rotations, activations, sampling, and the traffic of what lies between
    two products are left out. A product of ``[m, k]`` and ``[k, n]`` is 2·m·k·n FLOPs.
    """

    flops_per_token: int  # of all products with weights of the layers
    flops_per_logits: int  # of the vocabulary projection, for one row
    weight_bytes: int  # read by every step: all layers, but for experts
    logits_bytes: int  # read by steps that sample: the vocabulary projection
    expert_bytes: int  # weights of all experts together
    expert_share: float  # of the experts, those that one token uses
    attention: list[AttentionWork]


class DeviceSpeed(msgspec.Struct, array_like=True, frozen=True):
    """What the device was measured to reach, with the runner's threads and number format."""

    flops_per_s: float  # a large matrix product
    read_bytes_per_s: float  # memory far larger than any cache


class Compute(msgspec.Struct, array_like=True, frozen=True):
    """What utilisation is made from. ``work`` is None for models whose weights cannot be told apart."""

    work: ModelWork | None
    speed: DeviceSpeed


class ReplicaInfo(msgspec.Struct, array_like=True, frozen=True):
    """What every record of one incarnation refers to; comparison between replicas stands on it."""

    version: str
    revision: str
    model: str
    model_path: str
    model_sha256: str
    tokenizer_sha256: str
    dtype: str
    device: str
    host: str
    flags: dict[str, str]
    max_model_len: int
    block_size: int
    num_blocks: int
    compute: Compute | None = None


class ReplicaStateChanged(Record, frozen=True):
    """A replica's incarnation moved to another state. ``info`` comes with READY."""

    at_ns: int
    replica: str
    incarnation: int
    state: ReplicaState
    reason: str
    info: ReplicaInfo | None = None


class ProcessDied(Record, frozen=True):
    """A stage ended without having been asked to. Its replica's incarnation ends with it."""

    at_ns: int
    stage: Stage
    replica: str  # "" for gateway, telemetry, dashboard
    incarnation: int
    pid: int
    exit_status: str  # in words: "killed by SIGKILL", "exit code 1", "no heartbeat for 12.0 s"


# --- gateway --------------------------------------------------------------------------------------------


class RequestReceived(Record, frozen=True):
    """A request was read and checked, or refused: then ``RequestFinished`` follows at once.

    ``wall_ns`` is wall-clock time at ``at_ns`` and fixes the offset for the whole trace. ``trace_id`` (32 hex
    digits) is the caller's, or new; ``parent_span_id`` is "" without a caller's context; ``trace_flags``
    is -1 where the caller sent none. ``params`` are the request's parameters as given, by their API name.
    """

    request_id: str
    at_ns: int
    wall_ns: int
    endpoint: str  # route path, "/v1/completions"; "other" for unknown paths
    model: str  # the name asked for
    stream: bool
    num_sequences: int
    client_request_id: str
    trace_id: str
    parent_span_id: str
    trace_flags: int
    tracestate: str
    params: dict[str, object]


class RequestRouted(Record, frozen=True):
    """A replica was chosen. ``candidates`` are (replica, requests in flight there). One per attempt."""

    request_id: str
    at_ns: int
    attempt: int
    replica: str
    incarnation: int
    candidates: list[tuple[str, int]]
    reason: str


class FirstIncrement(Record, frozen=True):
    """The first piece of text or ids of a request became ready at the gateway: the end of TTFT."""

    request_id: str
    at_ns: int


class SequenceDelivered(msgspec.Struct, array_like=True, frozen=True):
    """What the client got of one sequence: how it ended and how many output tokens belong to it."""

    index: int
    finish_reason: FinishReason
    output_tokens: int


class RequestFinished(Record, frozen=True):
    """The one terminal of a request, journaled before the last byte is written.

    ``http_status`` is what the client saw (0 when it left before the headers). ``output_tokens`` of each
    sequence counts the tokens delivered: the token log's ids are the sampled ones cut to that number.
    """

    request_id: str
    at_ns: int
    finish_reason: FinishReason
    http_status: int
    error_type: str
    error_message: str
    sequences: list[SequenceDelivered]


class ResponseSent(Record, frozen=True):
    """The last byte went to the socket, or the client is known to be gone. The end of e2e."""

    request_id: str
    at_ns: int
    body_bytes: int


# --- tokenizer ------------------------------------------------------------------------------------------


class Tokenized(Record, frozen=True):
    """A request's prompts became ids (or could not: ``error``). Ids are given per prompt, in order."""

    request_id: str
    received_ns: int
    start_ns: int
    end_ns: int
    prompt_token_ids: list[list[int]]
    templated: bool
    error: str


# --- scheduler ------------------------------------------------------------------------------------------


class SequenceQueued(Record, frozen=True):
    """A sequence entered the waiting queue."""

    request_id: str
    index: int
    prompt_index: int
    seq_id: int
    at_ns: int
    prompt_tokens: int
    max_tokens: int
    seed: int


class WaitChanged(Record, frozen=True):
    """The reason for which a sequence waits became another one (also after a preemption)."""

    seq_id: int
    at_ns: int
    reason: WaitReason


class SequenceAdmitted(Record, frozen=True):
    """A waiting sequence joined the running batch, at first or again after a preemption."""

    seq_id: int
    at_ns: int
    cached_tokens: int
    attempt: int  # 0 for the first admission, then counted per preemption


class SequencePreempted(Record, frozen=True):
    """A running sequence gave its blocks back and waits to be computed again."""

    seq_id: int
    at_ns: int
    lost_tokens: int


class StepRecord(Record, frozen=True):
    """One engine step, complete: the plan, what was sampled, and all its times. A struct of arrays.

    Row i computed ``num_tokens[i]`` tokens of sequence ``seq_ids[i]`` starting at position ``starts[i]``;
    ``sampled[i]`` is the id sampled at the end of the row, or -1 where a prompt chunk is not the last.

        planned ── schedule ── submitted ── (transport) ── exec_start ── execute ── forward_end ── sample ── sampled
                                                   ── (transport) ── received ── publish ── published
    """

    step_id: int
    kind: StepKind
    planned_ns: int
    submitted_ns: int
    exec_start_ns: int
    forward_end_ns: int
    sampled_ns: int
    received_ns: int
    published_ns: int
    idle_ns: int  # time the runner waited for this plan since its last step, with work pending
    seq_ids: list[int]
    starts: list[int]
    num_tokens: list[int]
    sampled: list[int]
    blocks_free: int
    blocks_active: int
    blocks_cached: int
    evicted_blocks: int  # cached blocks given to other tokens since the last step
    queried_tokens: int  # prompt tokens looked up in the prefix cache since the last step
    hit_tokens: int  # of these, found
    waiting: int
    head_seq_id: int  # first of the waiting queue, -1 for none
    head_reason: str  # a WaitReason, "" for none


class SequenceEnded(Record, frozen=True):
    """The scheduler let go of a sequence and its blocks. ``output_tokens`` counts all that were sampled."""

    seq_id: int
    at_ns: int
    finish_reason: FinishReason
    output_tokens: int
    cached_tokens: int
    preemptions: int
    error: str


# --- runner ---------------------------------------------------------------------------------------------


class StepStarted(Record, frozen=True):
    """The runner began a step. What it was doing when it died; its times travel in the step record."""

    step_id: int
    at_ns: int
    num_rows: int
    num_tokens: int


# --- detokenizer ----------------------------------------------------------------------------------------


class SequenceDetokenized(Record, frozen=True):
    """All of a sequence's text was made. ``stop_string`` is the one that was hit, or ""."""

    request_id: str
    index: int
    seq_id: int
    first_ns: int
    at_ns: int
    busy_ns: int
    tokens: int
    stop_string: str


AnyRecord = (
    ProcessStarted
    | ProcessStopping
    | ReplicaStateChanged
    | ProcessDied
    | RequestReceived
    | RequestRouted
    | FirstIncrement
    | RequestFinished
    | ResponseSent
    | Tokenized
    | SequenceQueued
    | WaitChanged
    | SequenceAdmitted
    | SequencePreempted
    | StepRecord
    | SequenceEnded
    | StepStarted
    | SequenceDetokenized
)
"""The union that the journal reader decodes. A new record is added here, and only here."""
