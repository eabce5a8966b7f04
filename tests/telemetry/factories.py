"""Records as the stages would write them, on a made-up time line (milliseconds since a start)."""

from __future__ import annotations

import itertools

from telemetry.events import (
    FinishReason,
    FirstIncrement,
    ProcessDied,
    ReplicaInfo,
    ReplicaState,
    ReplicaStateChanged,
    RequestFinished,
    RequestReceived,
    RequestRouted,
    ResponseSent,
    SequenceAdmitted,
    SequenceDelivered,
    SequenceDetokenized,
    SequenceEnded,
    SequencePreempted,
    SequenceQueued,
    Stage,
    StepKind,
    StepRecord,
    Tokenized,
    WaitChanged,
    WaitReason,
)
from telemetry.journal import JournalOwner

START_NS = 5_000_000_000_000
WALL_NS = 1_800_000_000_000_000_000

GATEWAY = JournalOwner(Stage.GATEWAY, "", 1, 101)
SUPERVISOR = JournalOwner(Stage.SUPERVISOR, "", 1, 100)


def replica_owner(stage, replica="r0", incarnation=1):
    return JournalOwner(stage, replica, incarnation, 200)


def make_info(**changes):
    values = {
        "version": "0.1.0",
        "revision": "abc",
        "model": "tiny",
        "model_path": "/nowhere",
        "model_sha256": "m" * 8,
        "tokenizer_sha256": "t" * 8,
        "dtype": "float32",
        "device": "cpu",
        "host": "here",
        "flags": {"block_size": "16"},
        "max_model_len": 2048,
        "block_size": 16,
        "num_blocks": 64,
    }
    return ReplicaInfo(**{**values, **changes})


def make_step(step_id, at_ns, rows, kind=StepKind.MIXED, **changes):
    """`rows` are (seq_id, start, num_tokens, sampled); the step is sampled 4 ms after its plan."""
    ms = 1_000_000
    values = {
        "step_id": step_id,
        "kind": kind,
        "planned_ns": at_ns - 4 * ms,
        "submitted_ns": at_ns - 3 * ms,
        "exec_start_ns": at_ns - 3 * ms,
        "forward_end_ns": at_ns - ms,
        "sampled_ns": at_ns,
        "received_ns": at_ns + ms // 10,
        "published_ns": at_ns + ms // 5,
        "idle_ns": 0,
        "seq_ids": [row[0] for row in rows],
        "starts": [row[1] for row in rows],
        "num_tokens": [row[2] for row in rows],
        "sampled": [row[3] for row in rows],
        "blocks_free": 60,
        "blocks_active": 4,
        "blocks_cached": 0,
        "evicted_blocks": 0,
        "queried_tokens": 0,
        "hit_tokens": 0,
        "waiting": 0,
        "head_seq_id": -1,
        "head_reason": "",
    }
    return StepRecord(**{**values, **changes})


class Story:
    """Writes down what happens to requests; ``entries`` are (owner, record) in the order of writing.

    Times are milliseconds since ``START_NS``.
    """

    def __init__(self, start_ns=START_NS, wall_ns=WALL_NS, replica="r0", incarnation=1):
        self.start_ns = start_ns
        self.wall_ns = wall_ns
        self.entries = []
        self.replica = replica
        self.incarnation = incarnation
        self._seq_ids = itertools.count(1)
        self._step_ids = itertools.count(1)

    def ns(self, ms):
        return self.start_ns + int(ms * 1_000_000)

    def gateway(self, record):
        self.entries.append((GATEWAY, record))
        return record

    def supervisor(self, record):
        self.entries.append((SUPERVISOR, record))
        return record

    def stage(self, stage, record):
        self.entries.append((replica_owner(stage, self.replica, self.incarnation), record))
        return record

    # --- gateway ---

    def received(self, request_id="req-1", at=0.0, **changes):
        values = {
            "request_id": request_id,
            "at_ns": self.ns(at),
            "wall_ns": self.wall_ns + int(at * 1_000_000),
            "endpoint": "/v1/completions",
            "model": "tiny",
            "stream": True,
            "num_sequences": 1,
            "client_request_id": "",
            "trace_id": f"{abs(hash(request_id)) % (1 << 128) or 1:032x}",
            "parent_span_id": "",
            "trace_flags": -1,
            "tracestate": "",
            "params": {"max_tokens": 16, "temperature": 0.0},
        }
        return self.gateway(RequestReceived(**{**values, **changes}))

    def routed(self, request_id="req-1", at=1.0, attempt=0):
        candidates = [("r0", 0), ("r1", 3)]
        return self.gateway(
            RequestRouted(request_id, self.ns(at), attempt, self.replica, self.incarnation, candidates, "least loaded")
        )

    def first_increment(self, request_id="req-1", at=31.0):
        return self.gateway(FirstIncrement(request_id, self.ns(at)))

    def finished(self, request_id="req-1", at=60.0, reason=FinishReason.STOP, status=200, outputs=(), **changes):
        """`outputs` are the tokens delivered of each sequence, or (tokens, reason)."""
        pairs = [output if isinstance(output, tuple) else (output, reason) for output in outputs]
        values = {
            "request_id": request_id,
            "at_ns": self.ns(at),
            "finish_reason": reason,
            "http_status": status,
            "error_type": "",
            "error_message": "",
            "sequences": [SequenceDelivered(i, r, n) for i, (n, r) in enumerate(pairs)],
        }
        return self.gateway(RequestFinished(**{**values, **changes}))

    def sent(self, request_id="req-1", at=61.0):
        return self.gateway(ResponseSent(request_id, self.ns(at), 100))

    # --- replica ---

    def tokenized(self, request_id="req-1", start=2.0, end=3.0, prompts=((1, 2, 3, 4),), error=""):
        ids = [list(prompt) for prompt in prompts]
        return self.stage(
            Stage.TOKENIZER,
            Tokenized(request_id, self.ns(start) - 1000, self.ns(start), self.ns(end), ids, False, error),
        )

    def queued(self, request_id="req-1", at=4.0, index=0, prompt_index=0, prompt_tokens=4, seed=7):
        seq_id = next(self._seq_ids)
        self.stage(
            Stage.SCHEDULER,
            SequenceQueued(request_id, index, prompt_index, seq_id, self.ns(at), prompt_tokens, 16, seed),
        )
        return seq_id

    def waits(self, seq_id, at, reason=WaitReason.KV_BLOCKS):
        return self.stage(Stage.SCHEDULER, WaitChanged(seq_id, self.ns(at), reason))

    def admitted(self, seq_id, at=10.0, cached=0, attempt=0):
        return self.stage(Stage.SCHEDULER, SequenceAdmitted(seq_id, self.ns(at), cached, attempt))

    def preempted(self, seq_id, at, lost=5):
        return self.stage(Stage.SCHEDULER, SequencePreempted(seq_id, self.ns(at), lost))

    def step(self, at, *rows, **changes):
        """`rows` are (seq_id, start, num_tokens, sampled); ends (sampled) at `at`."""
        return self.stage(Stage.SCHEDULER, make_step(next(self._step_ids), self.ns(at), rows, **changes))

    def ended(self, seq_id, at=51.0, reason=FinishReason.STOP, tokens=3, cached=0, preemptions=0):
        return self.stage(Stage.SCHEDULER, SequenceEnded(seq_id, self.ns(at), reason, tokens, cached, preemptions, ""))

    def detokenized(self, seq_id, request_id="req-1", index=0, first=30.5, at=51.5, tokens=3, stop_string=""):
        return self.stage(
            Stage.DETOKENIZER,
            SequenceDetokenized(request_id, index, seq_id, self.ns(first), self.ns(at), 300_000, tokens, stop_string),
        )

    # --- supervisor ---

    def replica_state(self, state=ReplicaState.READY, at=0.0, info=None, reason=""):
        return self.supervisor(ReplicaStateChanged(self.ns(at), self.replica, self.incarnation, state, reason, info))

    def died(self, stage=Stage.RUNNER, at=40.0, how="killed by SIGKILL"):
        replica = "" if stage is Stage.GATEWAY else self.replica
        incarnation = 1 if stage is Stage.GATEWAY else self.incarnation
        return self.supervisor(ProcessDied(self.ns(at), stage, replica, incarnation, 200, how))

    # --- whole requests ---

    def generate(self, seq_id, tokens, first_at=30.0, gap=10.0, prompt_tokens=4):
        """A prefill step that samples tokens[0] at `first_at`, then a decode step every `gap`."""
        self.step(first_at, (seq_id, 0, prompt_tokens, tokens[0]), kind=StepKind.PREFILL)
        for i, token in enumerate(tokens[1:], start=1):
            self.step(first_at + i * gap, (seq_id, prompt_tokens + i - 1, 1, token), kind=StepKind.DECODE)

    def complete_request(self, request_id="req-1", at=0.0, tokens=(11, 12, 13), reason=FinishReason.STOP, **received):
        """One sequence that runs through: 61 ms and three tokens by default."""
        last = at + 30.0 + 10.0 * (len(tokens) - 1)
        self.received(request_id, at, **received)
        self.routed(request_id, at + 1)
        self.tokenized(request_id, at + 2, at + 3)
        seq_id = self.queued(request_id, at + 4)
        self.waits(seq_id, at + 5)
        self.admitted(seq_id, at + 10)
        self.generate(seq_id, list(tokens), at + 30)
        self.first_increment(request_id, at + 31)
        self.ended(seq_id, last + 1, reason, len(tokens))
        self.detokenized(seq_id, request_id, first=at + 30.5, at=last + 1.5, tokens=len(tokens))
        self.finished(request_id, last + 10, reason, outputs=[len(tokens)])
        self.sent(request_id, last + 11)
        return seq_id
