"""Credit: how much may be in flight on one replica. What has no credit is refused at the door (429)."""

from __future__ import annotations


class Credit:
    """Requests and estimated tokens in flight, and their limits."""

    def __init__(self, max_requests: int, max_tokens: int) -> None:
        self.requests = 0
        self.tokens = 0
        self._max_requests = max_requests
        self._max_tokens = max_tokens

    def has_room(self, tokens: int) -> bool:
        """Whether one more request of `tokens` may go in.

        A request alone always may: its own estimate must not shut it out for ever.
        """
        if not self.requests:
            return True
        return self.requests < self._max_requests and self.tokens + tokens <= self._max_tokens

    def take(self, tokens: int) -> None:
        """One request of `tokens` goes in."""
        self.requests += 1
        self.tokens += tokens

    def give_back(self, tokens: int) -> None:
        """A request that took `tokens` is out again. Raises RuntimeError when none was in."""
        if not self.requests or self.tokens < tokens:
            raise RuntimeError("credit was given back twice")
        self.requests -= 1
        self.tokens -= tokens
