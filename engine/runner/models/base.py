"""What the runner asks of a model."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from engine.runner.attention.spec import FULL_ATTENTION, AttentionSpec


class Attend(Protocol):
    """Attention of one step: knows the rows and the cache, which a model does not."""

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec = FULL_ATTENTION, /
    ) -> Tensor:
        """``[num_tokens, heads, head_dim]`` each in, ``[num_tokens, num_heads · head_dim]`` out."""
        ...


class Model(Protocol):
    """A decoder-only transformer over flat token rows."""

    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """``[num_tokens]`` ids and positions (int64) to ``[num_tokens, hidden_size]``."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """``[n, hidden_size]`` to float32 ``[n, vocab_size]``."""
        ...
