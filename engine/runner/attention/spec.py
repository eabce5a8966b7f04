"""What a layer's attention does beyond plain causal attention."""

from __future__ import annotations

import msgspec


class AttentionSpec(msgspec.Struct, frozen=True):
    """Settings of one layer, given at each call of `Attend`."""

    window: int | None = None  # a token sees this many positions, its own included; None: all before it
    softcap: float | None = None  # scores become softcap · tanh(score / softcap) (Gemma 2, 2024, section 2)
    scale: float | None = None  # of the scores; None: 1 / √head_dim


FULL_ATTENTION = AttentionSpec()
