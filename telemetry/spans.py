"""Spans of requests and steps, made ready from facts with their true start and end.

No tracer runs anywhere: ids are hashes (`telemetry.span_ids`), the resource is that of the stage which did the
work, and a request's spans are made when all is known about it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from telemetry.events import Stage
from telemetry.facts import Chunk, RequestFacts, Scope, SequenceFacts
from telemetry.samples import percentile
from telemetry.span_attributes import Attributes, itl_attributes, server_attributes, status
from telemetry.span_ids import REQUEST, server_span_id, span_id
from telemetry.span_resources import MAX_LINKS, SCOPE, Resources
from telemetry.span_steps import StepTraces

_MAX_SLOW_TOKENS = 8
_SLOW_FACTOR = 5
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class _Child(msgspec.Struct, kw_only=True):
    """A span to be made below the SERVER span (or `parent`). ``number`` tells equal names apart."""

    name: str
    resource: Resource
    interval_ns: tuple[int, int]
    attributes: Attributes
    sequence: int = REQUEST
    number: int = 0
    events: Sequence[Event] = ()
    status: Status | None = None
    links: Sequence[Link] = ()
    parent: SpanContext | None = None


class RequestSpans:
    """Makes the spans of one request."""

    def __init__(self, facts: RequestFacts, resources: Resources, steps: StepTraces, address: tuple[str, int]) -> None:
        self._facts = facts
        self._resources = resources
        self._steps = steps
        self._address = address
        received = facts.received
        self._trace_id = int(received.trace_id, 16)
        self._state = TraceState.from_header([received.tracestate]) if received.tracestate else TraceState()
        self._start_ns = received.at_ns
        self._end_ns = max(facts.times.sent_ns or received.at_ns, received.at_ns)
        self._root = self._context(server_span_id(received.request_id))
        self._spans: list[ReadableSpan] = []

    def make(self) -> list[ReadableSpan]:
        """All spans, the SERVER span first."""
        self._add_server()
        self._add_route()
        self._add_tokenize()
        for sequence in self._facts.sequences:
            self._add_queue(sequence)
            self._add_prefill(sequence)
            self._add_decode(sequence)
            self._add_detokenize(sequence)
        return self._spans

    # --- one per request ----------------------------------------------------------------------------

    def _add_server(self) -> None:
        facts = self._facts
        received = facts.received
        parent = None
        if received.parent_span_id:
            parent = SpanContext(self._trace_id, int(received.parent_span_id, 16), True, _SAMPLED, self._state)
        gateway = facts.gateway
        self._spans.append(
            ReadableSpan(
                name=f"POST {received.endpoint}",
                context=self._root,
                parent=parent,
                resource=self._resources.of(Stage.GATEWAY, gateway.replica, gateway.incarnation),
                attributes=server_attributes(facts, self._address),
                kind=SpanKind.SERVER,
                status=status(facts),
                start_time=facts.wall_ns(self._start_ns),
                end_time=facts.wall_ns(self._end_ns),
                instrumentation_scope=SCOPE,
            )
        )

    def _add_route(self) -> None:
        routed = self._facts.routed
        if routed is None:
            return
        attributes = {
            "vitrine.route.replica": routed.replica,
            "vitrine.route.reason": routed.reason,
            "vitrine.route.attempt": routed.attempt,
            "vitrine.route.candidates": [f"{name}: {load} in flight" for name, load in routed.candidates],
        }
        owner = self._facts.gateway
        resource = self._resources.of(Stage.GATEWAY, owner.replica, owner.incarnation)
        interval = (self._start_ns, routed.at_ns)
        self._add(_Child(name="route", resource=resource, interval_ns=interval, attributes=attributes))

    def _add_tokenize(self) -> None:
        tokenized = self._facts.tokenized
        if tokenized is None:
            return
        attributes: Attributes = {
            "vitrine.tokenize.tokens": self._facts.prompt_tokens,
            "vitrine.tokenize.prompts": len(tokenized.prompt_token_ids),
            "vitrine.tokenize.templated": tokenized.templated,
        }
        failed = Status(StatusCode.ERROR, tokenized.error) if tokenized.error else None
        if tokenized.error:
            attributes["error.type"] = self._facts.error_type or "refused"
        interval = (tokenized.start_ns, tokenized.end_ns)
        resource = self._replica(Stage.TOKENIZER)
        self._add(
            _Child(name="tokenize", resource=resource, interval_ns=interval, attributes=attributes, status=failed)
        )

    # --- per sequence -------------------------------------------------------------------------------

    def _add_queue(self, sequence: SequenceFacts) -> None:
        times = sequence.times
        end_ns = times.scheduled_ns or times.work_end_ns
        if times.enqueued_ns is None or end_ns is None:
            return
        events = [
            self._event("waiting", at_ns, {"vitrine.wait.reason": reason})
            for at_ns, reason in sequence.waits
            if reason and at_ns <= end_ns
        ]
        self._add(
            _Child(
                name="queue",
                resource=self._replica(Stage.SCHEDULER),
                interval_ns=(times.enqueued_ns, end_ns),
                attributes={},
                sequence=sequence.index,
                events=events,
                status=None if times.scheduled_ns else self._interrupted(),
            )
        )

    def _add_prefill(self, sequence: SequenceFacts) -> None:
        times = sequence.times
        end_ns = times.first_sampled_ns or times.work_end_ns
        if times.scheduled_ns is None or end_ns is None:
            return
        chunks = [chunk for chunk in sequence.chunks if chunk.end_ns <= end_ns]
        attributes = {
            "vitrine.prefill.cached_tokens": sequence.cached_tokens,
            "vitrine.prefill.computed_tokens": sum(chunk.tokens for chunk in chunks),
            "vitrine.prefill.chunks": len(chunks),
        }
        prefill = _Child(
            name="prefill",
            resource=self._replica(Stage.RUNNER),
            interval_ns=(times.scheduled_ns, end_ns),
            attributes=attributes,
            sequence=sequence.index,
            status=None if times.first_sampled_ns else self._interrupted(),
            links=self._links([chunk.step_id for chunk in chunks], attributes),
        )
        parent = self._add(prefill)
        for number, chunk in enumerate(chunks):
            self._add_chunk(sequence, number, chunk, parent)

    def _add_chunk(self, sequence: SequenceFacts, number: int, chunk: Chunk, parent: SpanContext) -> None:
        attributes = {"vitrine.step_id": chunk.step_id, "vitrine.prefill.computed_tokens": chunk.tokens}
        self._add(
            _Child(
                name="prefill chunk",
                resource=self._replica(Stage.RUNNER),
                interval_ns=(max(chunk.start_ns, sequence.times.scheduled_ns or 0), chunk.end_ns),
                attributes=attributes,
                sequence=sequence.index,
                number=number,
                parent=parent,
            )
        )

    def _add_decode(self, sequence: SequenceFacts) -> None:
        """Up to the last token delivered; where a request was cut short before any was, to the last one sampled."""
        times, delivered = sequence.times, len(sequence.token_ids)
        end_ns = times.last_sampled_ns if delivered > 1 else sequence.last_computed_ns
        if times.first_sampled_ns is None or end_ns is None or sequence.sampled_tokens < 2:
            return
        if delivered < 2 and not self._facts.error_type:
            return  # an answer of one token: what came after it is waste
        attributes: Attributes = {
            "vitrine.decode.steps": max(0, len(sequence.step_ids) - 1),
            "vitrine.decode.tokens": max(0, delivered - 1),
            **itl_attributes(sequence),
        }
        if sequence.sampled_tokens > delivered:
            attributes["vitrine.decode.wasted_tokens"] = sequence.sampled_tokens - delivered
        interval = (times.first_sampled_ns, end_ns)
        self._add(
            _Child(
                name="decode",
                resource=self._replica(Stage.RUNNER),
                interval_ns=interval,
                attributes=attributes,
                sequence=sequence.index,
                events=[*self._preemption_events(sequence, interval), *self._slow_token_events(sequence)],
                status=self._interrupted(),
                links=self._links(sequence.step_ids[1:], attributes),
            )
        )

    def _add_detokenize(self, sequence: SequenceFacts) -> None:
        interval = sequence.detokenized_ns
        if interval is None or not interval[0]:
            return
        attributes: Attributes = {"vitrine.detokenize.busy_s": sequence.times.detokenize_s or 0.0}
        if sequence.stop_string:
            attributes["vitrine.detokenize.stop_string"] = sequence.stop_string
        self._add(
            _Child(
                name="detokenize",
                resource=self._replica(Stage.DETOKENIZER),
                interval_ns=interval,
                attributes=attributes,
                sequence=sequence.index,
            )
        )

    def _preemption_events(self, sequence: SequenceFacts, interval: tuple[int, int]) -> list[Event]:
        events = []
        for start_ns, end_ns in sequence.preempted:
            if interval[0] <= start_ns <= end_ns <= interval[1]:
                events.append(self._event("preempted", start_ns, {}))
                events.append(self._event("resumed", end_ns, {"vitrine.preempted_s": (end_ns - start_ns) / 1e9}))
        return events

    def _slow_token_events(self, sequence: SequenceFacts) -> list[Event]:
        gaps = sequence.gaps_s()
        limit = _SLOW_FACTOR * (percentile(sorted(gaps), 0.5) or 0.0)
        slow = sorted((gap, i) for i, gap in enumerate(gaps, start=1) if gap > limit)[-_MAX_SLOW_TOKENS:]
        return [
            self._event(
                "slow token", sequence.token_times_ns[i], {"vitrine.token.index": i, "vitrine.token.itl_s": gap}
            )
            for gap, i in slow
        ]

    # --- how ----------------------------------------------------------------------------------------

    def _add(self, child: _Child) -> SpanContext:
        """Make a child, kept within its request's span."""
        start_ns = min(max(child.interval_ns[0], self._start_ns), self._end_ns)
        end_ns = min(max(child.interval_ns[1], start_ns), self._end_ns)
        attempt = self._facts.routed.attempt if self._facts.routed else 0
        key = f"{child.name} {child.number}" if child.number else child.name
        context = self._context(span_id(self._facts.request_id, child.sequence, key, attempt))
        attributes = {**child.attributes, "vitrine.request_id": self._facts.request_id}
        if child.sequence != REQUEST:
            attributes["vitrine.sequence.index"] = child.sequence
        self._spans.append(
            ReadableSpan(
                name=child.name,
                context=context,
                parent=child.parent or self._root,
                resource=child.resource,
                attributes=attributes,
                events=child.events,
                links=child.links,
                status=child.status or Status(StatusCode.UNSET),
                start_time=self._facts.wall_ns(start_ns),
                end_time=self._facts.wall_ns(end_ns),
                instrumentation_scope=SCOPE,
            )
        )
        return context

    def _context(self, own_id: int) -> SpanContext:
        return SpanContext(self._trace_id, own_id, False, _SAMPLED, self._state)

    def _replica(self, stage: Stage) -> Resource:
        scope = self._facts.scope or Scope("", 0)
        return self._resources.of(stage, scope.replica, scope.incarnation)

    def _event(self, name: str, at_ns: int, attributes: Attributes) -> Event:
        return Event(name, attributes, self._facts.wall_ns(at_ns))

    def _interrupted(self) -> Status | None:
        """The status of the stage in which a request that failed or was aborted was at its end."""
        return status(self._facts) if self._facts.error_type else None

    def _links(self, step_ids: Sequence[int], attributes: Attributes) -> list[Link]:
        """Links to the steps that are recorded as traces; past `MAX_LINKS` only their number."""
        if self._facts.scope is None:
            return []
        found = self._steps.contexts(self._facts.run_id, self._facts.scope, step_ids)
        if len(found) > MAX_LINKS:
            attributes["vitrine.links_left_out"] = len(found) - MAX_LINKS
        return [Link(context) for context in found[:MAX_LINKS]]
