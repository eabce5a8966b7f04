"""The records of one request that is still open, and how they are turned into facts."""

from __future__ import annotations

from telemetry.events import (
    FinishReason,
    RequestFinished,
    RequestReceived,
    RequestRouted,
    SequenceDelivered,
    SequenceDetokenized,
    SequenceEnded,
    SequenceQueued,
    StepRecord,
    Tokenized,
    WaitReason,
)
from telemetry.facts import Chunk, RequestFacts, Scope, SequenceFacts
from telemetry.journal import JournalOwner
from telemetry.timeline import request_times, sequence_times


class SequenceTrack:
    """One sequence in one scheduler."""

    def __init__(self, queued: SequenceQueued) -> None:
        self.queued = queued
        self.ended: SequenceEnded | None = None
        self.cached_tokens = 0
        self.scheduled_ns: int | None = None
        self.waiting_since_ns: int | None = queued.at_ns
        self.preempted: list[tuple[int, int]] = []
        self.lost_tokens = 0
        self.preemptions = 0
        self.waits: list[tuple[int, str]] = []
        self.token_ids: list[int] = []
        self.token_times_ns: list[int] = []
        self.step_ids: list[int] = []
        self.chunks: list[Chunk] = []
        self._computed = 0

    def admit(self, at_ns: int, cached_tokens: int) -> None:
        """It joined the running batch."""
        if self.scheduled_ns is None:
            self.scheduled_ns = at_ns
            self.cached_tokens = cached_tokens
        elif self.waiting_since_ns is not None:
            self.preempted.append((self.waiting_since_ns, at_ns))
        self.waiting_since_ns = None
        self.note_wait(at_ns, "")

    def preempt(self, at_ns: int, lost_tokens: int) -> None:
        """It gave its blocks back."""
        self.preemptions += 1
        self.lost_tokens += lost_tokens
        self.waiting_since_ns = at_ns
        self.note_wait(at_ns, WaitReason.PREEMPTED)

    def note_wait(self, at_ns: int, reason: str) -> None:
        """The reason for waiting is another one."""
        if not self.waits or self.waits[-1][1] != reason:
            self.waits.append((at_ns, reason))

    def ride(self, step: StepRecord, start: int, num_tokens: int, sampled: int) -> float | None:
        """It was part of a step; returns the gap to its token before, in seconds."""
        if not self.token_ids or start < self._computed:
            self.chunks.append(Chunk(step.exec_start_ns, step.sampled_ns, num_tokens, step.step_id))
        self._computed = max(self._computed, start + num_tokens)
        if sampled < 0:
            return None
        gap_s = (step.sampled_ns - self.token_times_ns[-1]) / 1e9 if self.token_times_ns else None
        self.token_ids.append(sampled)
        self.token_times_ns.append(step.sampled_ns)
        self.step_ids.append(step.step_id)
        return gap_s

    def prompt_part(self, start: int, num_tokens: int) -> int:
        """How many of a row's tokens are the prompt's."""
        return max(0, min(num_tokens, self.queued.prompt_tokens - start))

    @property
    def computed_tokens(self) -> int:
        """Up to which position it has been computed at some time (cached tokens are not computed, but lie before)."""
        return self._computed

    @property
    def complete(self) -> bool:
        """Whether it is over and all its tokens have been seen."""
        return self.ended is not None and len(self.token_ids) >= self.ended.output_tokens

    def facts(
        self, delivered: SequenceDelivered | None, detokenized: SequenceDetokenized | None, end_ns: int | None
    ) -> SequenceFacts:
        """What is known; `delivered` and `end_ns` are None while the request runs."""
        count = len(self.token_ids) if delivered is None else min(delivered.output_tokens, len(self.token_ids))
        stop_ns = end_ns
        if end_ns is not None and self.ended is not None:
            stop_ns = min(end_ns, self.ended.at_ns)
        preempted = list(self.preempted)
        if self.scheduled_ns is not None and self.waiting_since_ns is not None and stop_ns is not None:
            preempted.append((self.waiting_since_ns, max(stop_ns, self.waiting_since_ns)))
        return SequenceFacts(
            index=self.queued.index,
            prompt_index=self.queued.prompt_index,
            seq_id=self.queued.seq_id,
            seed=self.queued.seed,
            finish_reason=delivered.finish_reason if delivered else None,
            prompt_tokens=self.queued.prompt_tokens,
            cached_tokens=self.cached_tokens,
            token_ids=self.token_ids[:count],
            token_times_ns=self.token_times_ns[:count],
            step_ids=self.step_ids[:count],
            sampled_tokens=len(self.token_ids),
            last_computed_ns=self.token_times_ns[-1] if self.token_times_ns else None,
            preemptions=self.preemptions,
            preempted=preempted,
            waits=list(self.waits),
            chunks=list(self.chunks),
            stop_string=detokenized.stop_string if detokenized else "",
            detokenized_ns=(detokenized.first_ns, detokenized.at_ns) if detokenized else None,
            times=sequence_times(
                enqueued_ns=self.queued.at_ns,
                scheduled_ns=self.scheduled_ns,
                token_times_ns=self.token_times_ns,
                delivered=count,
                preempted=preempted,
                waiting=self.waiting_since_ns is not None,
                stop_ns=stop_ns,
                busy_ns=detokenized.busy_ns if detokenized else None,
            ),
        )


class Attempt:
    """What one replica did for a request."""

    def __init__(self) -> None:
        self.tokenized: Tokenized | None = None
        self.sequences: dict[int, SequenceTrack] = {}
        self.detokenized: dict[int, SequenceDetokenized] = {}
        self.dead = False  # its replica is gone: nothing more will come

    def settled(self, num_sequences: int) -> bool:
        """Whether nothing more will come."""
        if self.dead or (self.tokenized is not None and self.tokenized.error):
            return True
        return len(self.sequences) >= num_sequences and all(s.complete for s in self.sequences.values())

    @property
    def sampled_tokens(self) -> int:
        """Tokens sampled, over all sequences."""
        return sum(len(s.token_ids) for s in self.sequences.values())


class RequestTrack:
    """One request. Records may come in any order; whatever has come is here."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.received: RequestReceived | None = None
        self.gateway: JournalOwner | None = None
        self.first_routed: RequestRouted | None = None
        self.routed: RequestRouted | None = None
        self.first_increment_ns: int | None = None
        self.finished: RequestFinished | None = None
        self.sent_ns: int | None = None
        self.gateway_died_ns: int | None = None
        self.attempts: dict[Scope, Attempt] = {}
        self.last_ns = 0  # of the latest record
        self.changed = True  # since `facts` was last taken of it while it runs

    def attempt(self, scope: Scope) -> Attempt:
        """What happened on one replica."""
        return self.attempts.setdefault(scope, Attempt())

    def route(self, record: RequestRouted) -> None:
        """A replica was chosen; the last attempt counts."""
        self.first_routed = self.first_routed or record
        if self.routed is None or record.attempt >= self.routed.attempt:
            self.routed = record

    @property
    def scope(self) -> Scope | None:
        """The replica that counts: where it was sent last, or (the record is lost) where it was seen."""
        if self.routed is not None:
            return Scope(self.routed.replica, self.routed.incarnation)
        return next(reversed(self.attempts), None)

    def settled(self) -> bool:
        """Whether no engine stage will say anything more about it."""
        scope = self.scope
        if scope is None:
            return True
        attempt = self.attempts.get(scope)
        return attempt is not None and self.received is not None and attempt.settled(self.received.num_sequences)

    def facts(self, run_id: str, terminal: RequestFinished | None) -> RequestFacts:
        """All that is known. `terminal` is how it ended, or None while it runs. Needs ``received``."""
        assert self.received is not None and self.gateway is not None
        scope = self.scope
        attempt = self.attempts.get(scope, Attempt()) if scope else Attempt()
        end_ns = None if terminal is None else self.sent_ns or terminal.at_ns
        sequences = _sequence_facts(attempt, terminal, end_ns)
        return RequestFacts(
            run_id=run_id,
            received=self.received,
            gateway=self.gateway,
            routed=self.routed,
            tokenized=attempt.tokenized,
            terminal=terminal,
            state="finished" if terminal else _state(attempt),
            scope=scope,
            sequences=sequences,
            wasted={} if terminal is None else self._wasted(sequences, terminal, attempt),
            times=request_times(
                received_ns=self.received.at_ns,
                first_routed=self.first_routed,
                routed=self.routed,
                tokenized=attempt.tokenized,
                sequences=[s.times for s in sequences],
                first_increment_ns=self.first_increment_ns,
                finished_ns=terminal.at_ns if terminal else None,
                sent_ns=end_ns,
            ),
        )

    def _wasted(self, sequences: list[SequenceFacts], terminal: RequestFinished, chosen: Attempt) -> dict[str, int]:
        reason = str(terminal.finish_reason) if terminal.finish_reason in _CUT_SHORT else "stop"
        wasted = {
            reason: sum(s.sampled_tokens - len(s.token_ids) for s in sequences),
            "retry": sum(a.sampled_tokens for a in self.attempts.values() if a is not chosen),
            "preempted": sum(s.lost_tokens for a in self.attempts.values() for s in a.sequences.values()),
        }
        return {reason: count for reason, count in wasted.items() if count}

    def delivered_so_far(self) -> list[SequenceDelivered]:
        """For a terminal that the gateway could not write: what had been sampled counts as delivered."""
        attempt = self.attempts.get(self.scope, Attempt()) if self.scope else Attempt()
        tracks = sorted(attempt.sequences.items())
        return [SequenceDelivered(index, FinishReason.ERROR, len(track.token_ids)) for index, track in tracks]


_CUT_SHORT = (FinishReason.ABORT, FinishReason.ERROR)


def _sequence_facts(attempt: Attempt, terminal: RequestFinished | None, end_ns: int | None) -> list[SequenceFacts]:
    delivered = {d.index: d for d in terminal.sequences} if terminal else {}
    facts = []
    for index, track in sorted(attempt.sequences.items()):
        outcome = delivered.get(index)
        if terminal is not None and outcome is None:
            outcome = SequenceDelivered(index, terminal.finish_reason, 0)
        facts.append(track.facts(outcome, attempt.detokenized.get(index), end_ns))
    return facts


def _state(attempt: Attempt) -> str:
    if not attempt.sequences:
        return "tokenizing"
    waiting = all(s.waiting_since_ns is not None for s in attempt.sequences.values() if s.ended is None)
    return "waiting" if waiting and not all(s.ended for s in attempt.sequences.values()) else "running"
