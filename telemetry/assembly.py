"""Puts the records of one run together: records in, facts about requests and steps out. No I/O.

Records of different journals come in any order. The gateway's journal is to be read first on every pass and
`advance` to be called after it, so that whatever happened before a record of the gateway has been fed.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Any

from telemetry.events import (
    AnyRecord,
    FinishReason,
    FirstIncrement,
    ProcessDied,
    ReplicaState,
    ReplicaStateChanged,
    RequestFinished,
    RequestReceived,
    RequestRouted,
    ResponseSent,
    SequenceAdmitted,
    SequenceDetokenized,
    SequenceEnded,
    SequencePreempted,
    SequenceQueued,
    Stage,
    StepRecord,
    Tokenized,
    WaitChanged,
)
from telemetry.facts import RequestFacts, Scope, StepFacts
from telemetry.journal import JournalOwner
from telemetry.tracking import RequestTrack, SequenceTrack

SETTLE_NS = 2_000_000_000
"""A request is closed at the latest this long after its last byte, whatever its stages still owe."""

STALE_NS = 900_000_000_000
"""A request of which nothing was heard for this long has lost its records to an overrun ring."""

ORPHAN_NS = 30_000_000_000
"""Records whose request was never seen to be received are kept this long."""

_REMEMBERED = 20_000
_LINGERING = 256
"""Sequences kept after their end, for steps that were recorded a little later."""


class Assembly:
    """All open requests of one run. Memory is bounded by `max_open` requests and their tokens."""

    def __init__(self, run_id: str, max_open: int = 20_000) -> None:
        self.run_id = run_id
        self.shed = 0  # requests given up: too many open at once, or their first record was lost
        self._max_open = max_open
        self._open: dict[str, RequestTrack] = {}
        self._closed: OrderedDict[str, None] = OrderedDict()  # the latest, so that stragglers open nothing
        self._sequences: dict[tuple[Scope, int], SequenceTrack] = {}
        self._ended: deque[tuple[Scope, int]] = deque()  # in the order in which they may be forgotten
        self._steps: list[StepFacts] = []
        self._deaths: list[ProcessDied] = []  # read in this pass
        self._deaths_due: list[ProcessDied] = []  # read in an earlier pass: their journals are at the end now

    def feed(self, owner: JournalOwner, record: AnyRecord) -> None:
        """Take one record of `owner`'s journal."""
        handler = _HANDLERS.get(type(record))
        if handler is not None:
            handler(self, owner, record)

    def take_steps(self) -> list[StepFacts]:
        """The steps fed since the last call."""
        steps, self._steps = self._steps, []
        return steps

    def advance(self, now_ns: int) -> list[RequestFacts]:
        """Call after every pass over all journals; returns the requests that are complete by now."""
        self._apply_deaths()
        closed = [self._close(track) for track in list(self._open.values()) if self._is_over(track, now_ns)]
        return [facts for facts in closed if facts is not None]

    def trace_ids(self, request_ids: Iterable[str]) -> dict[str, str]:
        """The traces of those of the requests that are open and exported (the caller did not forbid it)."""
        tracks = {request_id: self._open.get(request_id) for request_id in request_ids}
        received = {key: track.received for key, track in tracks.items() if track and track.received}
        return {key: record.trace_id for key, record in received.items() if record.trace_flags != 0}

    def open_ids(self) -> set[str]:
        """The ids of the open requests."""
        return set(self._open)

    def open_tracks(self) -> list[RequestTrack]:
        """What is known of the open requests, also of those whose first record is not there."""
        return list(self._open.values())

    def live(self) -> list[RequestFacts]:
        """The open requests that have changed since the last call."""
        changed = [t for t in self._open.values() if t.changed and t.received is not None]
        for track in changed:
            track.changed = False
        return [track.facts(self.run_id, None) for track in changed]

    def close_all(self, at_ns: int, error_type: str, message: str) -> list[RequestFacts]:
        """Everything has ended: close what is open; requests without a terminal end with this error."""
        self._deaths_due.extend(self._deaths)
        self._apply_deaths()
        closed = []
        for track in list(self._open.values()):
            end_ns = max(track.last_ns, at_ns)
            closed.append(self._close(track, _terminal(track, end_ns, error_type, message)))
        return [facts for facts in closed if facts is not None]

    # --- the gateway's records ----------------------------------------------------------------------

    def _on_received(self, owner: JournalOwner, record: RequestReceived) -> None:
        if track := self._track(record.request_id, record.at_ns):
            track.received = record
            track.gateway = owner

    def _on_routed(self, _: JournalOwner, record: RequestRouted) -> None:
        if track := self._track(record.request_id, record.at_ns):
            track.route(record)

    def _on_first_increment(self, _: JournalOwner, record: FirstIncrement) -> None:
        track = self._track(record.request_id, record.at_ns)
        if track and track.first_increment_ns is None:
            track.first_increment_ns = record.at_ns

    def _on_finished(self, _: JournalOwner, record: RequestFinished) -> None:
        track = self._track(record.request_id, record.at_ns)
        if track and track.finished is None:
            track.finished = record

    def _on_sent(self, _: JournalOwner, record: ResponseSent) -> None:
        if track := self._track(record.request_id, record.at_ns):
            track.sent_ns = record.at_ns

    # --- a replica's records ------------------------------------------------------------------------

    def _on_tokenized(self, owner: JournalOwner, record: Tokenized) -> None:
        if track := self._track(record.request_id, record.end_ns):
            track.attempt(_scope(owner)).tokenized = record

    def _on_queued(self, owner: JournalOwner, record: SequenceQueued) -> None:
        sequence = SequenceTrack(record)
        self._sequences[_scope(owner), record.seq_id] = sequence
        if track := self._track(record.request_id, record.at_ns):
            track.attempt(_scope(owner)).sequences[record.index] = sequence

    def _on_wait(self, owner: JournalOwner, record: WaitChanged) -> None:
        if sequence := self._sequence(owner, record.seq_id, record.at_ns):
            sequence.note_wait(record.at_ns, record.reason)

    def _on_admitted(self, owner: JournalOwner, record: SequenceAdmitted) -> None:
        if sequence := self._sequence(owner, record.seq_id, record.at_ns):
            sequence.admit(record.at_ns, record.cached_tokens)

    def _on_preempted(self, owner: JournalOwner, record: SequencePreempted) -> None:
        if sequence := self._sequence(owner, record.seq_id, record.at_ns):
            sequence.preempt(record.at_ns, record.lost_tokens)

    def _on_ended(self, owner: JournalOwner, record: SequenceEnded) -> None:
        if sequence := self._sequence(owner, record.seq_id, record.at_ns):
            sequence.ended = record
            self._ended.append((_scope(owner), record.seq_id))
            if len(self._ended) > _LINGERING:
                self._sequences.pop(self._ended.popleft(), None)

    def _on_detokenized(self, owner: JournalOwner, record: SequenceDetokenized) -> None:
        if track := self._track(record.request_id, record.at_ns):
            track.attempt(_scope(owner)).detokenized[record.index] = record

    def _on_step(self, owner: JournalOwner, record: StepRecord) -> None:
        scope = _scope(owner)
        rows: list[tuple[str, int, int, int, int]] = []
        gaps_s: list[float] = []
        prompt_tokens = 0
        for seq_id, start, num_tokens, sampled in zip(
            record.seq_ids, record.starts, record.num_tokens, record.sampled, strict=False
        ):
            sequence = self._sequence(owner, seq_id, record.sampled_ns)
            if sequence is None:
                rows.append(("", 0, start, num_tokens, sampled))
                continue
            gap_s = sequence.ride(record, start, num_tokens, sampled)
            if gap_s is not None:
                gaps_s.append(gap_s)
            prompt_tokens += sequence.prompt_part(start, num_tokens)
            rows.append((sequence.queued.request_id, sequence.queued.index, start, num_tokens, sampled))
        sampled_tokens = sum(token >= 0 for token in record.sampled)
        head = self._sequences.get((scope, record.head_seq_id))
        head_id = head.queued.request_id if head else ""
        trace = self._trace_of(rows, record.sampled_ns)
        self._steps.append(
            StepFacts(self.run_id, scope, record, rows, prompt_tokens, sampled_tokens, gaps_s, head_id, trace)
        )

    def _trace_of(self, rows: list[tuple[str, int, int, int, int]], at_ns: int) -> tuple[str, float]:
        track = self._open.get(rows[0][0]) if rows else None
        if track is None or track.received is None:
            return "", 0.0
        return track.received.trace_id, (at_ns + track.received.wall_ns - track.received.at_ns) / 1e9

    # --- the supervisor's records -------------------------------------------------------------------

    def _on_died(self, _: JournalOwner, record: ProcessDied) -> None:
        self._deaths.append(record)

    def _on_state(self, _: JournalOwner, record: ReplicaStateChanged) -> None:
        if record.state in (ReplicaState.UNHEALTHY, ReplicaState.STOPPED):
            stage = Stage.SCHEDULER
            died = ProcessDied(record.at_ns, stage, record.replica, record.incarnation, 0, record.reason)
            self._deaths.append(died)

    # --- how ----------------------------------------------------------------------------------------

    def _track(self, request_id: str, at_ns: int) -> RequestTrack | None:
        track = self._open.get(request_id)
        if track is None:
            track = self._new_track(request_id)
        if track is not None:
            track.last_ns = max(track.last_ns, at_ns)
            track.changed = True
        return track

    def _new_track(self, request_id: str) -> RequestTrack | None:
        if request_id in self._closed:
            return None
        if len(self._open) >= self._max_open:
            self._forget(request_id)
            self.shed += 1
            return None
        track = self._open[request_id] = RequestTrack(request_id)
        return track

    def _sequence(self, owner: JournalOwner, seq_id: int, at_ns: int) -> SequenceTrack | None:
        sequence = self._sequences.get((_scope(owner), seq_id))
        if sequence is not None:
            track = self._open.get(sequence.queued.request_id)
            if track is not None:
                track.last_ns = max(track.last_ns, at_ns)
                track.changed = True
        return sequence

    def _forget(self, request_id: str) -> None:
        self._closed[request_id] = None
        if len(self._closed) > _REMEMBERED:
            self._closed.popitem(last=False)

    def _apply_deaths(self) -> None:
        for death in self._deaths_due:
            if death.replica:
                self._end_scope(Scope(death.replica, death.incarnation))
            elif death.stage is Stage.GATEWAY:
                self._end_gateway(death)
        self._deaths_due, self._deaths = self._deaths, []

    def _end_scope(self, scope: Scope) -> None:
        for track in self._open.values():
            if scope in track.attempts or track.scope == scope:
                track.attempt(scope).dead = True
        self._sequences = {key: track for key, track in self._sequences.items() if key[0] != scope}

    def _end_gateway(self, death: ProcessDied) -> None:
        for track in self._open.values():
            gateway = track.gateway
            if gateway is not None and gateway.incarnation == death.incarnation and track.gateway_died_ns is None:
                track.gateway_died_ns = death.at_ns

    def _is_over(self, track: RequestTrack, now_ns: int) -> bool:
        if track.received is None:
            return now_ns - track.last_ns > ORPHAN_NS
        sent = track.finished is not None and track.sent_ns is not None
        over_ns = track.sent_ns if sent else track.gateway_died_ns
        if over_ns is None:
            return now_ns - track.last_ns > STALE_NS
        return track.settled() or now_ns - over_ns > SETTLE_NS

    def _close(self, track: RequestTrack, terminal: RequestFinished | None = None) -> RequestFacts | None:
        del self._open[track.request_id]
        self._forget(track.request_id)
        if track.received is None:
            self.shed += 1
            return None
        return track.facts(self.run_id, terminal or _own_terminal(track))


def _scope(owner: JournalOwner) -> Scope:
    return Scope(owner.replica, owner.incarnation)


def _own_terminal(track: RequestTrack) -> RequestFinished:
    if track.gateway_died_ns is not None:
        return _terminal(track, track.gateway_died_ns, "gateway_died", "the gateway died")
    return _terminal(track, track.last_ns, "records_lost", "the end of this request was not recorded")


def _terminal(track: RequestTrack, at_ns: int, error_type: str, message: str) -> RequestFinished:
    """The gateway's terminal, or one in its place."""
    if track.finished is not None:
        return track.finished
    sequences = track.delivered_so_far()
    return RequestFinished(track.request_id, at_ns, FinishReason.ERROR, 0, error_type, message, sequences)


_HANDLERS: dict[type, Callable[[Assembly, JournalOwner, Any], None]] = {
    RequestReceived: Assembly._on_received,
    RequestRouted: Assembly._on_routed,
    FirstIncrement: Assembly._on_first_increment,
    RequestFinished: Assembly._on_finished,
    ResponseSent: Assembly._on_sent,
    Tokenized: Assembly._on_tokenized,
    SequenceQueued: Assembly._on_queued,
    WaitChanged: Assembly._on_wait,
    SequenceAdmitted: Assembly._on_admitted,
    SequencePreempted: Assembly._on_preempted,
    SequenceEnded: Assembly._on_ended,
    SequenceDetokenized: Assembly._on_detokenized,
    StepRecord: Assembly._on_step,
    ProcessDied: Assembly._on_died,
    ReplicaStateChanged: Assembly._on_state,
}
