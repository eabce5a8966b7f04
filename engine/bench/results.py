"""What was seen of one request, and the latencies that follow from it.

    sent ── TTFT ── first arrival ── gap ── arrival ── gap ── … ── last arrival ── end of the stream
                    k0 tokens               k1 tokens              kn tokens

All times are seconds of one monotonic clock. An arrival is one read from the socket: events that came
together are one arrival of several tokens, since nothing can be said about the time between them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(slots=True, frozen=True)
class Arrival:
    """One read that brought text: how many events with text, and how many token ids these named (often none)."""

    at_s: float
    events: int
    token_ids: int


@dataclass(slots=True)
class RequestResult:
    """One request, from sending it to its end. ``error`` is a kind ("" when it succeeded), ``message`` its words."""

    sent_s: float
    ended_s: float = 0.0
    arrivals: list[Arrival] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    usage_tokens: int | None = None
    finish_reason: str = ""
    error: str = ""
    message: str = ""

    @property
    def output_tokens(self) -> int:
        """Tokens of the answer: by the server's usage block, else one per event with text."""
        if self.usage_tokens is not None:
            return self.usage_tokens
        return sum(arrival.events for arrival in self.arrivals)

    @property
    def ttft_s(self) -> float | None:
        """Sent → first arrival."""
        return self.arrivals[0].at_s - self.sent_s if self.arrivals else None

    @property
    def tpot_s(self) -> float | None:
        """(last arrival − first arrival) / (output tokens − 1); none where that has no meaning."""
        if self.output_tokens < 2 or len(self.arrivals) < 2:
            return None
        return (self.arrivals[-1].at_s - self.arrivals[0].at_s) / (self.output_tokens - 1)

    @property
    def e2e_s(self) -> float:
        """Sent → end of the stream."""
        return self.ended_s - self.sent_s

    def inter_token_latencies_s(self) -> list[float]:
        """One value per output token after the first arrival: an arrival of k tokens gives k times gap / k."""
        values: list[float] = []
        tokens = self.tokens_per_arrival()
        waited = 0.0
        for (before, after), count in zip(pairwise(self.arrivals), tokens[1:], strict=True):
            waited += after.at_s - before.at_s
            if count:
                values += [waited / count] * count
                waited = 0.0
        return values

    def tokens_per_arrival(self) -> list[int]:
        """Output tokens of each arrival: exact where events carry token ids, else spread evenly over the events."""
        ids = [arrival.token_ids for arrival in self.arrivals]
        if sum(ids) == self.output_tokens:
            return ids
        return spread(self.output_tokens, [arrival.events for arrival in self.arrivals])


def spread(total: int, weights: list[int]) -> list[int]:
    """Whole numbers in proportion to `weights` that add up to `total` (running totals are rounded)."""
    whole = sum(weights)
    shares: list[int] = []
    given = seen = 0
    for weight in weights:
        seen += weight
        share = round(total * seen / whole) - given
        shares.append(share)
        given += share
    return shares
