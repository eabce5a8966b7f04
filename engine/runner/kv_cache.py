"""The pool of KV blocks, one tensor per layer."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.model_shape import ModelShape


class KVCache:
    """Keys and values of every block: per layer ``[2, num_blocks, block_size, num_kv_heads, head_dim]``.

    Reads and writes address single tokens by location (see `SlotTable.locations`), so that neither knows blocks.
    """

    def __init__(
        self, shape: ModelShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.device = device
        size = (2, num_blocks, block_size, shape.num_kv_heads, shape.head_dim)
        self.layers = [torch.zeros(size, dtype=dtype, device=device) for _ in range(shape.num_layers)]
        by_location = (2, num_blocks * block_size, shape.num_kv_heads, shape.head_dim)
        views = [layer.view(by_location) for layer in self.layers]
        self._keys = [view[0] for view in views]
        self._values = [view[1] for view in views]

    def write(self, layer: int, locations: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store ``[num_tokens, num_kv_heads, head_dim]`` at `locations` ``[num_tokens]`` (int64)."""
        self._keys[layer].index_copy_(0, locations, keys)
        self._values[layer].index_copy_(0, locations, values)

    def read(self, layer: int, locations: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values at `locations` ``[n]``, each ``[n, num_kv_heads, head_dim]``."""
        return self._keys[layer].index_select(0, locations), self._values[layer].index_select(0, locations)
