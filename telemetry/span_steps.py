"""Engine steps as traces of their own. Which are recorded, and their ids, follow from the step's number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import Link, SpanContext, TraceFlags

from telemetry.events import Stage
from telemetry.facts import Scope, StepFacts, incarnation_id
from telemetry.sampling import SlowSteps
from telemetry.span_ids import server_span_id, span_id
from telemetry.span_resources import MAX_LINKS, SCOPE, Resources

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class StepTraces:
    """A share of all steps, chosen by hash, so that whoever asks gets the same answer; and every slow one."""

    def __init__(self, ratio: float, slow: SlowSteps | None = None) -> None:
        """Without `slow` only the share."""
        self._ratio = ratio
        self._slow = slow

    def note(self, step: StepFacts) -> None:
        """To be told of every step before anybody asks for it."""
        if self._slow is not None:
            self._slow.note(step)

    def context(self, run_id: str, scope: Scope, step_id: int) -> SpanContext | None:
        """The context of a step's root span, or None if the step is not recorded."""
        slow = self._slow is not None and self._slow.has(run_id, scope, step_id)
        if not slow and not self._ratio:
            return None
        digest = blake2b(f"{incarnation_id(run_id, scope)}|{step_id}".encode(), digest_size=24).digest()
        trace_id, own_id = int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:], "big")
        if not slow and trace_id & ((1 << 64) - 1) >= self._ratio * (1 << 64):
            return None
        return SpanContext(trace_id or 1, own_id or 1, False, _SAMPLED)

    def contexts(self, run_id: str, scope: Scope, step_ids: Iterable[int]) -> list[SpanContext]:
        """Those of the steps that are recorded."""
        found = (self.context(run_id, scope, step_id) for step_id in step_ids)
        return [context for context in found if context is not None]


def step_spans(
    step: StepFacts, root: SpanContext, trace_ids: Mapping[str, str], wall_offset_ns: int, resources: Resources
) -> list[ReadableSpan]:
    """A step and its four parts, linked with the requests in its batch whose trace ids are given."""
    record, scope = step.record, step.scope
    parts = (
        ("schedule", Stage.SCHEDULER, record.planned_ns, record.submitted_ns),
        ("execute", Stage.RUNNER, record.exec_start_ns, record.forward_end_ns),
        ("sample", Stage.RUNNER, record.forward_end_ns, record.sampled_ns),
        ("publish", Stage.SCHEDULER, record.received_ns, record.published_ns),
    )
    requests = list(dict.fromkeys(row[0] for row in step.rows if row[0] in trace_ids))
    attributes: dict[str, str | int] = {
        "vitrine.step_id": record.step_id,
        "vitrine.replica": scope.replica,
        "vitrine.step.kind": str(record.kind),
        "vitrine.step.sequences": len(record.seq_ids),
        "vitrine.step.tokens": sum(record.num_tokens),
        "vitrine.step.waiting": record.waiting,
        "vitrine.kv.blocks_free": record.blocks_free,
    }
    if len(requests) > MAX_LINKS:
        attributes["vitrine.links_left_out"] = len(requests) - MAX_LINKS

    def span(name: str, stage: Stage, start_ns: int, end_ns: int, parent: SpanContext | None) -> ReadableSpan:
        own_id = span_id(str(scope), record.step_id, name, 0)
        return ReadableSpan(
            name=name,
            context=SpanContext(root.trace_id, own_id, False, _SAMPLED) if parent else root,
            parent=parent,
            resource=resources.of(stage, scope.replica, scope.incarnation),
            attributes={} if parent else attributes,
            links=() if parent else [_link(r, trace_ids[r]) for r in requests[:MAX_LINKS]],
            start_time=start_ns + wall_offset_ns,
            end_time=max(start_ns, end_ns) + wall_offset_ns,
            instrumentation_scope=SCOPE,
        )

    whole = span("step", Stage.SCHEDULER, record.planned_ns, record.published_ns, None)
    return [whole, *(span(name, stage, start, end, root) for name, stage, start, end in parts)]


def _link(request_id: str, trace_id: str) -> Link:
    return Link(SpanContext(int(trace_id, 16), server_span_id(request_id), False, _SAMPLED))
