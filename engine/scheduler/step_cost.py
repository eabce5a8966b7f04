"""How long a step will take: a constant, plus so much per prefill token and per decoding sequence.

The three numbers follow the measured steps by normalised least mean squares (Widrow and Hoff, 1960): after
each step they move along that step's own features, by a share of the error.
"""

from __future__ import annotations

_GAIN = 0.25
_FIRST_GUESS_NS = 20e6
"""Per token, before anything has been measured: what a slow machine takes, so that it is not taken for dead."""


class StepCost:
    """Running estimate of step durations."""

    def __init__(self) -> None:
        self._weights: tuple[float, float, float] | None = None

    def predict_ns(self, prefill_tokens: int, decode_tokens: int) -> int:
        """Expected duration of a step in nanoseconds."""
        if self._weights is None:
            return int(_FIRST_GUESS_NS * (prefill_tokens + decode_tokens))
        constant, per_prefill, per_decode = self._weights
        return int(constant + per_prefill * prefill_tokens + per_decode * decode_tokens)

    def learn(self, prefill_tokens: int, decode_tokens: int, duration_ns: int) -> None:
        """Take a measured step into account. The first one is believed as it is."""
        features = (1.0, float(prefill_tokens), float(decode_tokens))
        weights, gain = (self._weights, _GAIN) if self._weights else ((0.0, 0.0, 0.0), 1.0)
        error = duration_ns - sum(w * x for w, x in zip(weights, features, strict=True))
        scale = gain * error / sum(x * x for x in features)
        constant, per_prefill, per_decode = (max(0.0, w + scale * x) for w, x in zip(weights, features, strict=True))
        self._weights = (constant, per_prefill, per_decode)
