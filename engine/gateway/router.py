"""Which replica gets a request: the ready one with the fewest requests in flight, ties by name."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from engine.gateway.errors import overloaded, unavailable
from engine.gateway.replica_links import ReplicaLink

_REASON = "fewest requests in flight"


class Choice(msgspec.Struct, frozen=True):
    """A decision, with what it was made from: (replica, requests in flight) of each candidate."""

    link: ReplicaLink
    candidates: list[tuple[str, int]]
    reason: str


def choose(links: Iterable[ReplicaLink], tokens: int) -> Choice:
    """Choose for a request of about `tokens` tokens. Raises ApiError 503 or 429."""
    ready = [link for link in links if link.ready]
    if not ready:
        raise unavailable("no replica is ready", "no_replica_ready")
    with_room = [link for link in ready if link.credit.has_room(tokens)]
    if not with_room:
        raise overloaded("all replicas have as much in flight as they may; try again later")
    best = min(with_room, key=lambda link: (link.credit.requests, link.replica))
    candidates = sorted((link.replica, link.credit.requests) for link in ready)
    reason = _REASON if len(ready) > 1 else "the only one ready"
    return Choice(best, candidates, reason)
