"""Which requests and steps are exported as spans: a share of all, and always those that somebody will ask about."""

from __future__ import annotations

from collections import deque

import msgspec
from opentelemetry.trace import TraceFlags

from telemetry.facts import RequestFacts, Scope, StepFacts, incarnation_id
from telemetry.samples import percentile

ITL_SHARE = 0.95
"""A request keeps the ITL objective when this share of its tokens does: as the objective itself says."""

_REMEMBERED_STEPS = 50_000


class Objectives(msgspec.Struct, frozen=True):
    """What is slow, in seconds."""

    ttft_s: float
    itl_s: float


def is_slow(facts: RequestFacts, objectives: Objectives) -> bool:
    """Whether a request missed the TTFT objective, or one of its sequences that for ITL."""
    if (facts.times.ttft_s or 0.0) > objectives.ttft_s:
        return True
    return any(
        (percentile(sorted(sequence.gaps_s()), ITL_SHARE) or 0.0) > objectives.itl_s for sequence in facts.sequences
    )


def is_exported(facts: RequestFacts, ratio: float, objectives: Objectives) -> bool:
    """The caller's flag decides where there is one; else `ratio`, and always what failed, was aborted or was slow."""
    flags = facts.received.trace_flags
    if flags >= 0:
        return bool(flags & TraceFlags.SAMPLED)
    if int(facts.received.trace_id[16:], 16) < ratio * (1 << 64):
        return True
    return bool(facts.error_type) or is_slow(facts, objectives)


class SlowSteps:
    """The steps that made a token late, or took longer than a first token may: remembered, for the links to them.

    The latest are kept. A telemetry process that is restarted has forgotten them: requests that were running then
    have no links to slow steps of before.
    """

    def __init__(self, objectives: Objectives) -> None:
        self._objectives = objectives
        self._order: deque[tuple[str, int]] = deque()
        self._known: set[tuple[str, int]] = set()

    def note(self, step: StepFacts) -> None:
        """Remember the step if it was slow."""
        late = max(step.gaps_s, default=0.0) > self._objectives.itl_s
        if not late and step.duration_s <= self._objectives.ttft_s:
            return
        key = (incarnation_id(step.run_id, step.scope), step.record.step_id)
        self._known.add(key)
        self._order.append(key)
        if len(self._order) > _REMEMBERED_STEPS:
            self._known.discard(self._order.popleft())

    def has(self, run_id: str, scope: Scope, step_id: int) -> bool:
        """Whether this step was slow."""
        return bool(self._known) and (incarnation_id(run_id, scope), step_id) in self._known
