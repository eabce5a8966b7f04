"""What telemetry knows about requests, sequences and steps once their records have been put together.

Points in time are monotonic nanoseconds (``…_ns``, None for "did not happen"), durations are seconds
(``…_s``). The sinks (spans, metrics, token log, store, samples) read these and nothing else.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import msgspec

from telemetry.events import (
    FinishReason,
    RequestFinished,
    RequestReceived,
    RequestRouted,
    StepRecord,
    Tokenized,
)
from telemetry.journal import JournalOwner


class Scope(msgspec.Struct, frozen=True):
    """One incarnation of a replica: what a ``seq_id`` or ``step_id`` is unique in."""

    replica: str
    incarnation: int

    def __str__(self) -> str:
        return f"{self.replica}.{self.incarnation}"


class Chunk(msgspec.Struct, array_like=True, frozen=True):
    """Prompt tokens (or, after a preemption, known tokens) that one step computed for a sequence."""

    start_ns: int
    end_ns: int
    tokens: int
    step_id: int


class SequenceTimes(msgspec.Struct, frozen=True):
    """The time line of one sequence; see `telemetry.timeline` for the definitions."""

    enqueued_ns: int | None = None
    scheduled_ns: int | None = None
    first_sampled_ns: int | None = None
    last_sampled_ns: int | None = None  # of the tokens delivered
    work_end_ns: int | None = None  # from here on it is drain
    queue_s: float | None = None
    preempted_s: float = 0.0
    prefill_s: float | None = None
    decode_s: float | None = None
    detokenize_s: float | None = None
    tpot_s: float | None = None


class SequenceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One (prompt, choice). Lists of tokens hold what was delivered, in order."""

    index: int
    prompt_index: int
    seq_id: int | None
    seed: int | None
    finish_reason: FinishReason | None
    prompt_tokens: int | None
    cached_tokens: int
    token_ids: list[int]
    token_times_ns: list[int]
    step_ids: list[int]
    sampled_tokens: int
    last_computed_ns: int | None  # when the last token was sampled, delivered or not
    preemptions: int
    preempted: list[tuple[int, int]]  # (from, to) of each wait after a preemption
    waits: list[tuple[int, str]]  # (at_ns, reason): each change; "" when admitted
    chunks: list[Chunk]
    stop_string: str
    detokenized_ns: tuple[int, int] | None  # first, last
    times: SequenceTimes

    def gaps_s(self) -> list[float]:
        """ITL, one value per output token after the first: k tokens of one step have k times gap/k."""
        steps = [(at_ns, len(list(tokens))) for at_ns, tokens in itertools.groupby(self.token_times_ns)]
        gaps = [0.0] * (steps[0][1] - 1) if steps else []
        for (before_ns, _), (at_ns, count) in itertools.pairwise(steps):
            gaps += [(at_ns - before_ns) / count / 1e9] * count
        return gaps


class RequestTimes(msgspec.Struct, frozen=True):
    """The time line of one request; see `telemetry.timeline` for the definitions."""

    tokenize_start_ns: int | None = None
    tokenize_end_ns: int | None = None
    enqueued_ns: int | None = None
    scheduled_ns: int | None = None
    first_sampled_ns: int | None = None
    first_increment_ns: int | None = None
    last_sampled_ns: int | None = None
    finished_ns: int | None = None
    sent_ns: int | None = None
    ttft_s: float | None = None
    e2e_s: float | None = None
    tokenize_s: float | None = None
    queue_s: float | None = None
    preempted_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    drain_s: float | None = None
    detokenize_s: float | None = None
    transport_s: float | None = None
    unaccounted_s: float | None = None
    tpot_s: float | None = None


class RequestFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One HTTP call, finished (with ``terminal``) or as far as it has got."""

    run_id: str
    received: RequestReceived
    gateway: JournalOwner
    routed: RequestRouted | None
    tokenized: Tokenized | None
    terminal: RequestFinished | None
    state: str  # tokenizing, waiting, running, finished
    scope: Scope | None
    sequences: list[SequenceFacts]
    wasted: dict[str, int]  # tokens computed in vain, by reason
    times: RequestTimes

    @property
    def request_id(self) -> str:
        """Our id."""
        return self.received.request_id

    @property
    def replica(self) -> str:
        """Where it ran; "" when it was refused before that was decided."""
        return self.scope.replica if self.scope else ""

    @property
    def incarnation_id(self) -> str | None:
        """Key of `schema.incarnations`."""
        return incarnation_id(self.run_id, self.scope) if self.scope else None

    @property
    def finish_reason(self) -> FinishReason | None:
        """How it ended; None while it runs."""
        return self.terminal.finish_reason if self.terminal else None

    @property
    def error_type(self) -> str:
        """What went wrong, "" for nothing; an abort counts as something."""
        if self.terminal is None or self.terminal.finish_reason not in (FinishReason.ERROR, FinishReason.ABORT):
            return ""
        return self.terminal.error_type or str(self.terminal.finish_reason)

    @property
    def refused(self) -> bool:
        """Whether it was the client's mistake: a 4xx, but for 429, which says that the server has no room."""
        return self.terminal is not None and 400 <= self.terminal.http_status < 500 and self.terminal.http_status != 429

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(map(len, self.tokenized.prompt_token_ids)) if self.tokenized else 0

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens found in the prefix cache, each prompt counted with its first choice, as ``usage`` does."""
        by_prompt = {s.prompt_index: s.cached_tokens for s in reversed(self.sequences)}
        return sum(by_prompt.values())

    @property
    def output_tokens(self) -> int:
        """Tokens delivered (so far: sampled), over all sequences."""
        return sum(len(s.token_ids) for s in self.sequences)

    @property
    def preemptions(self) -> int:
        """Over all sequences."""
        return sum(s.preemptions for s in self.sequences)

    def wall_ns(self, at_ns: int) -> int:
        """A point in time as wall-clock nanoseconds. One offset holds for the whole trace."""
        return at_ns + self.received.wall_ns - self.received.at_ns

    def at_s(self, at_ns: int | None) -> float | None:
        """A point in time as seconds since the request was received."""
        return None if at_ns is None else (at_ns - self.received.at_ns) / 1e9


class StepFacts(msgspec.Struct, frozen=True):
    """One engine step, its rows resolved to requests."""

    run_id: str
    scope: Scope
    record: StepRecord
    rows: list[tuple[str, int, int, int, int]]  # (request_id, index, start, num_tokens, sampled)
    prompt_tokens: int  # of the tokens computed, those of prompts
    sampled_tokens: int
    gaps_s: list[float]  # ITL of the tokens sampled
    head_request_id: str
    trace: tuple[str, float] = ("", 0.0)  # of a request in it: its trace id, and when the step sampled since the epoch

    @property
    def duration_s(self) -> float:
        """From the plan's begin to the publication of its result, without the wait behind the step in front of it.

        That wait is none of its own: overlapped, a step is planned while the one before still runs.
        """
        record = self.record
        front_ended_ns = record.exec_start_ns - record.idle_ns if record.idle_ns else 0
        waited_ns = max(0, front_ended_ns - record.submitted_ns)
        return seconds(record.planned_ns + waited_ns, record.published_ns)


def incarnation_id(run_id: str, scope: Scope) -> str:
    """Key of `schema.incarnations`."""
    return f"{run_id}/{scope}"


def seconds(start_ns: int, end_ns: int) -> float:
    """A duration, never negative."""
    return max(0, end_ns - start_ns) / 1e9


def overlap_ns(intervals: Iterable[tuple[int, int]], start_ns: int, end_ns: int) -> int:
    """How much of start…end the intervals cover."""
    return sum(max(0, min(b, end_ns) - max(a, start_ns)) for a, b in intervals)
