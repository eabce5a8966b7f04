"""What the processes say to each other: plain typed structs, encoded as MessagePack.

Data plane (one PULL inbox per process, everybody else pushes)::

            Submit, Abort,                 Enqueue,               StepPlan
            TextToIds, IdsToText           Abort                  StepResult
    gateway ───────────────────▶ tokenizer ────────▶ scheduler ⇄ runner
      ▲ ▲                            │                │     ▲
      │ └── Refused, IdsReply, ──────┘                │     └─────────── StopHit ───┐
      │     TextReply                                 └ SequenceStart, StepTokens, ─▶ detokenizer
      │                                                 SequenceEnd, Refused,           │
      │                                                 PromptLogprobs                  │
      └───────────────────────────────── Increments, Refused ───────────────────────────┘

An abort follows the request's own path, first in, first out, so that it never overtakes what it aborts.
Every message that starts or ends something at the gateway carries ``gateway``, the incarnation of the
gateway that asked, and answers carry ``replica`` and ``incarnation``; a receiver throws away what is not
its own, so nobody can answer twice.

Control plane: every process dials in to the supervisor (Hello), and gets the Directory after each change.
"""

from __future__ import annotations

import msgspec

from telemetry.events import Compute, FinishReason, ReplicaInfo, ReplicaState, Stage


class Message(msgspec.Struct, array_like=True, tag=True, frozen=True):
    """Base of all messages: a MessagePack array whose first item is the type's name."""


# --- requests -------------------------------------------------------------------------------------------


class SamplingParams(msgspec.Struct, array_like=True, frozen=True):
    """How to choose tokens and when to stop. Checked by the gateway; nobody else checks again.

    ``max_tokens`` None means "as many as the context leaves room for"; the tokenizer puts a number in.
    ``seed`` None means "not repeatable": the scheduler draws one. ``stop`` strings are matched by the
    detokenizer, ``stop_token_ids`` and the end-of-sequence tokens by the scheduler. What changes the logits
    (bias, penalties, bad words, ``min_tokens``) is the runner's business. ``bad_words`` are texts; the
    tokenizer puts their ids in. ``logprobs`` k asks for the sampled token's log probability and the k most
    likely alternatives; ``prompt_logprobs`` for the same of every prompt token but the first.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: no limit
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str: bool = False
    skip_special_tokens: bool = True
    min_tokens: int = 0  # no end by id before so many answer tokens
    min_p: float = 0.0  # tokens less likely than this share of the most likely one are left out; 0: off
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, added to its logit)
    bad_words: tuple[str, ...] = ()
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    echo: bool = False  # the answer begins with the prompt's text

    @property
    def needs_history(self) -> bool:
        """Whether the next token depends on which tokens came before, beyond what attention sees."""
        return bool(
            self.presence_penalty
            or self.frequency_penalty
            or self.repetition_penalty != 1.0
            or any(len(word) > 1 for word in self.bad_word_ids)
        )


class ChatMessage(msgspec.Struct, array_like=True, frozen=True):
    """One turn, its content already joined to plain text (None only for an assistant's turn)."""

    role: str
    content: str | None
    name: str | None = None


class Submit(Message, frozen=True):
    """Gateway → tokenizer: a whole request. Exactly one of ``texts``, ``token_ids``, ``chat`` is not empty."""

    request_id: str
    gateway: int
    n: int
    params: SamplingParams
    texts: tuple[str, ...] = ()
    token_ids: tuple[tuple[int, ...], ...] = ()
    chat: tuple[ChatMessage, ...] = ()
    priority: int = 0  # lower comes earlier
    cache_salt: str = ""  # only requests with the same salt share cached blocks


class Abort(Message, frozen=True):
    """Gateway → tokenizer → scheduler: the client left, or the gateway ended the request itself.

    The scheduler answers with a SequenceEnd for every sequence of the request that it still has; for a
    request that it does not know (already over) it does nothing.
    """

    request_id: str
    gateway: int


class TextToIds(Message, frozen=True):
    """Gateway → tokenizer: ``POST /tokenize``. Answered by IdsReply or Refused."""

    request_id: str
    gateway: int
    text: str = ""
    chat: tuple[ChatMessage, ...] = ()
    add_special_tokens: bool = True
    return_token_strs: bool = False


class IdsToText(Message, frozen=True):
    """Gateway → tokenizer: ``POST /detokenize``. Answered by TextReply or Refused."""

    request_id: str
    gateway: int
    token_ids: tuple[int, ...]


class IdsReply(Message, frozen=True):
    """Tokenizer → gateway."""

    request_id: str
    gateway: int
    token_ids: list[int]
    token_strs: list[str] | None = None


class TextReply(Message, frozen=True):
    """Tokenizer → gateway."""

    request_id: str
    gateway: int
    text: str


class Refused(Message, frozen=True):
    """Tokenizer or (through the detokenizer) scheduler → gateway: the request cannot be run, none of it.

    ``param`` is the request field to blame, as clients know it; ``status`` an HTTP status.
    """

    request_id: str
    gateway: int
    status: int
    error_type: str
    message: str
    param: str | None = None
    code: str | None = None


class SequenceSpec(msgspec.Struct, array_like=True, frozen=True):
    """One (prompt, choice): ``index`` = prompt_index · n + choice; ``prompt`` indexes Enqueue.prompts."""

    index: int
    prompt: int
    seed: int | None


class Enqueue(Message, frozen=True):
    """Tokenizer → scheduler: a tokenized request. ``params.max_tokens`` is a number here."""

    request_id: str
    gateway: int
    prompts: list[list[int]]
    sequences: list[SequenceSpec]
    params: SamplingParams
    priority: int = 0
    cache_salt: str = ""


# --- scheduler ⇄ runner ---------------------------------------------------------------------------------


class TokenLogprobs(msgspec.Struct, array_like=True, frozen=True):
    """Natural log probabilities under the model's own distribution: no temperature, bias, penalty or filter."""

    logprob: float  # of the token itself
    rank: int  # 1 for the most likely one
    top_ids: list[int]  # the most likely tokens, falling
    top_logprobs: list[float]


class SlotStart(msgspec.Struct, array_like=True, frozen=True):
    """A slot gets a sequence (new or resumed): the runner resets all that it keeps for the slot.

    ``token_ids`` are all tokens known so far, prompt first, where ``params`` need them (`needs_history`, or
    prompt logprobs), else empty. ``stop_ids`` end the sequence; they matter while ``min_tokens`` forbids them.
    """

    slot: int
    seed: int
    num_prompt: int
    params: SamplingParams
    token_ids: list[int] = []
    stop_ids: tuple[int, ...] = ()


class StepPlan(Message, frozen=True):
    """Scheduler → runner: one step, a struct of arrays; row i belongs to ``slots[i]``.

    Row i computes ``num_tokens[i]`` tokens at positions ``starts[i]``…; their ids stand in ``token_ids``,
    rows one after another (sum(num_tokens) in all). If ``samples[i]``, a token is sampled after the row's
    last position. ``new_blocks[i]`` are the block ids to append to the slot's block table before the step.
    ``starting`` slots come first of all; a slot is free again once it is in no later plan (nothing to say).
    """

    step_id: int
    predicted_ns: int
    starting: list[SlotStart]
    slots: list[int]
    starts: list[int]
    num_tokens: list[int]
    samples: list[bool]
    new_blocks: list[list[int]]
    token_ids: list[int]


class StepResult(Message, frozen=True):
    """Runner → scheduler: ``sampled[i]`` is row i's token id, or -1 where the plan asked for none.

    ``logprobs`` has row i's where its sequence asked for them. ``prompt_logprobs`` has those of prompt tokens:
    for a row that starts at position p, item j is about the prompt token at position p + j + 1.
    """

    step_id: int
    sampled: list[int]
    exec_start_ns: int
    forward_end_ns: int
    sampled_ns: int
    idle_ns: int
    logprobs: dict[int, TokenLogprobs] = {}
    prompt_logprobs: dict[int, list[TokenLogprobs]] = {}


# --- scheduler → detokenizer → gateway ------------------------------------------------------------------


class SequenceStart(Message, frozen=True):
    """Scheduler → detokenizer: before the first token of a sequence. ``seq_id`` is unique in the incarnation."""

    seq_id: int
    request_id: str
    gateway: int
    index: int
    prompt_token_ids: list[int]
    cached_tokens: int
    params: SamplingParams


class PromptLogprobs(Message, frozen=True):
    """Scheduler → detokenizer: of prompt tokens from position ``start`` on, each position once, in order."""

    seq_id: int
    start: int
    items: list[TokenLogprobs]


class StepTokens(Message, frozen=True):
    """Scheduler → detokenizer: what one step sampled. ``finish[i]`` is "" while the sequence goes on.

    ``logprobs`` has item i's where its sequence asked for them.
    """

    step_id: int
    sampled_ns: int
    seq_ids: list[int]
    token_ids: list[int]
    finish: list[str]  # "", or a FinishReason: this token is the last
    # A token that ended the sequence by its id (end of sequence, stop token) counts as output but makes no text.
    logprobs: dict[int, TokenLogprobs] = {}


class SequenceEnd(Message, frozen=True):
    """Scheduler → detokenizer: a sequence is over without a last token (abort, error, refused while queued).

    Also for sequences that had no SequenceStart; then the detokenizer only passes the end on.
    """

    seq_id: int
    request_id: str
    gateway: int
    index: int
    finish_reason: FinishReason
    error: str = ""


class StopHit(Message, frozen=True):
    """Detokenizer → scheduler: a stop string was found; free the sequence, its later tokens are waste."""

    seq_id: int


class TextLogprob(msgspec.Struct, array_like=True, frozen=True):
    """A token with its text and bytes (a token may be part of a character) and its log probability."""

    token_id: int
    text: str
    data: bytes
    logprob: float
    rank: int = 0  # 1 for the most likely one; 0: not said


class TokenTextLogprobs(msgspec.Struct, array_like=True, frozen=True):
    """`TokenLogprobs` for people: the token itself and the most likely ones."""

    token: TextLogprob
    top: list[TextLogprob]


class Increment(msgspec.Struct, array_like=True, frozen=True):
    """News of one sequence for the gateway.

    ``token_ids`` are the ids behind this increment (text may be held back for a stop string or a split
    character and come later). With ``finish_reason`` it is the sequence's last. Prompt ids and cached
    tokens come with the first increment of each sequence, and with them, where asked for, the prompt's text
    (``echo``) and its log probabilities, an item for every prompt token (the first one has none: its rank is 0).
    ``logprobs`` belong to ``token_ids``, one by one, where asked for.
    """

    request_id: str
    gateway: int
    index: int
    text: str
    token_ids: list[int]
    sampled_ns: int
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str = ""
    prompt_token_ids: list[int] | None = None
    cached_tokens: int = 0
    prompt_text: str = ""
    prompt_logprobs: list[TokenTextLogprobs] = []
    logprobs: list[TokenTextLogprobs] = []


class Increments(Message, frozen=True):
    """Detokenizer → gateway: all increments of one step in one message."""

    replica: str
    incarnation: int
    items: list[Increment]


DataMessage = (
    Submit
    | Abort
    | TextToIds
    | IdsToText
    | IdsReply
    | TextReply
    | Refused
    | Enqueue
    | StepPlan
    | StepResult
    | SequenceStart
    | PromptLogprobs
    | StepTokens
    | SequenceEnd
    | StopHit
    | Increments
)


# --- control plane --------------------------------------------------------------------------------------


class ReplicaEntry(msgspec.Struct, array_like=True, frozen=True):
    """A replica as the directory shows it. ``inboxes`` maps each of its stages to a ZeroMQ address."""

    replica: str
    incarnation: int
    state: ReplicaState
    reason: str
    since_ns: int
    restarts: int
    inboxes: dict[Stage, str]
    info: ReplicaInfo | None = None


class Hello(Message, frozen=True):
    """Child → supervisor, first of all."""

    stage: Stage
    replica: str
    incarnation: int
    pid: int


class Ready(Message, frozen=True):
    """Child → supervisor: the stage can serve. ``facts`` are what the supervisor cannot know itself.

    The runner says "num_blocks", "device", "dtype"; the tokenizer "tokenizer_sha256", "max_model_len". ``compute`` is
    the runner's too, None where nothing is computed.
    """

    facts: dict[str, str]
    compute: Compute | None = None


class Failed(Message, frozen=True):
    """Child → supervisor: the stage cannot start; ``message`` is one clear line for the operator."""

    message: str


class Directory(Message, frozen=True):
    """Supervisor → children, after Hello and after every change: who there is.

    ``gateway`` is the incarnation of the living gateway, 0 while there is none. A replica not READY (or
    DRAINING) gets no new requests; one that is gone, or has another incarnation than before, has lost all
    that was in flight there.
    """

    gateway: int
    gateway_inbox: str
    replicas: list[ReplicaEntry]


class Drain(Message, frozen=True):
    """Supervisor → gateway: take no new requests; ``deadline_ns`` (monotonic) ends those still running."""

    deadline_ns: int


class Drained(Message, frozen=True):
    """Gateway → supervisor: nothing is in flight any more."""


class ResetCache(Message, frozen=True):
    """Dashboard → supervisor → every scheduler: forget all cached blocks. Each answers with CacheReset."""

    question: int


class CacheReset(Message, frozen=True):
    """Scheduler → supervisor → dashboard: so many cached blocks were freed; those in use are not found any more."""

    question: int
    replica: str
    blocks: int


class SetLogLevel(Message, frozen=True):
    """Dashboard → supervisor → children: from now on log from this level on. ``stage`` "" means every process."""

    level: str
    stage: str


class Stop(Message, frozen=True):
    """Supervisor → child: flush what you have and exit with status 0."""


ControlMessage = Hello | Ready | Failed | Directory | Drain | Drained | ResetCache | CacheReset | SetLogLevel | Stop
