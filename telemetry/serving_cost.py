"""What a million tokens cost now, from what a replica costs per hour.

Over the last `WINDOW_S` seconds: price · time / tokens computed. A replica costs the same when it has nothing to do, so
few tokens are dear ones; without any there is no figure.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable

import msgspec

from telemetry.facts import StepFacts

WINDOW_S = 60
KINDS = ("output", "total")


class _Second(msgspec.Struct):
    second: int
    output: int = 0
    total: int = 0


class ServingCost:
    """Takes steps; tells costs, in the currency of `price_per_hour` (0: nothing is told)."""

    def __init__(self, price_per_hour: float) -> None:
        self._price_per_s = price_per_hour / 3600
        self._since: dict[str, int] = {}  # the second in which a replica was first seen
        self._tokens: defaultdict[str, deque[_Second]] = defaultdict(deque)

    def know(self, replica: str, now_ns: int) -> None:
        """There is a replica, and it costs from now on."""
        self._since.setdefault(replica, now_ns // 1_000_000_000)

    def forget(self, replica: str) -> None:
        """A replica was stopped: it costs nothing more."""
        self._since.pop(replica, None)
        self._tokens.pop(replica, None)

    def add_step(self, step: StepFacts) -> None:
        """A step was made. Prompt tokens from the prefix cache are not computed and do not count."""
        tokens, second = self._tokens[step.scope.replica], step.record.published_ns // 1_000_000_000
        if not tokens or tokens[-1].second < second:
            tokens.append(_Second(second))
        if len(tokens) > WINDOW_S + 1:
            tokens.popleft()
        tokens[-1].output += step.sampled_tokens
        tokens[-1].total += step.sampled_tokens + step.prompt_tokens

    def per_million(self, now_ns: int, replicas: Iterable[str] | None = None) -> dict[str, float]:
        """By kind (``output``, ``total``): what a million tokens cost on these replicas together, or on all."""
        now = now_ns // 1_000_000_000
        chosen = [replica for replica in (self._since if replicas is None else replicas) if replica in self._since]
        paid = self._price_per_s * sum(min(WINDOW_S, max(1, now - self._since[replica])) for replica in chosen)
        recent = [one for r in chosen for one in self._tokens.get(r, ()) if one.second > now - WINDOW_S]
        tokens = {kind: sum(getattr(one, kind) for one in recent) for kind in KINDS}
        return {kind: 1e6 * paid / count for kind, count in tokens.items() if count and paid}

    def replicas(self) -> list[str]:
        """Those that are known."""
        return list(self._since)
