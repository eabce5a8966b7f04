"""Attention for any mix of rows: those that compute one token together, longer chunks one by one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from engine.runner.kv_cache import KVCache
from engine.runner.slots import SlotTable
from engine.runner.step_batch import StepBatch, context_locations


@dataclass(slots=True)
class _SingleTokenRows:
    """Rows of one token (decode): gathered contexts padded to the longest."""

    tokens: Tensor  # [num_rows] index of each row's token in the flat arrays
    context: Tensor  # [num_rows · longest] locations
    mask: Tensor | None  # [num_rows, 1, 1, longest] False behind a row's end; None without padding


@dataclass(slots=True)
class _Chunk:
    """A row of several tokens (prefill): token i sees `start` earlier positions and i + 1 of its own."""

    first: int
    end: int
    context: Tensor  # [start + num_tokens] locations
    mask: Tensor | None  # [num_tokens, start + num_tokens]; None where start is 0: the plain causal mask


class PagedAttention:
    """One step's attention. Built once per step; called once per layer."""

    def __init__(self, cache: KVCache, batch: StepBatch, table: SlotTable) -> None:
        self._cache = cache
        self._locations = torch.from_numpy(batch.locations).to(cache.device)
        self._singles = _single_token_rows(batch, table, cache.device)
        self._chunks = _chunks(batch, table, cache.device)

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Store the step's keys and values, then attend.

        `query` is ``[num_tokens, num_heads, head_dim]``, `key` and `value` ``[num_tokens, num_kv_heads, head_dim]``.
        Returns ``[num_tokens, num_heads · head_dim]``.
        """
        self._cache.write(layer, self._locations, key, value)
        if not self._chunks:
            return self._attend_singles(layer, query).flatten(1)
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        if self._singles is not None:
            out[self._singles.tokens] = self._attend_singles(layer, query[self._singles.tokens])
        for chunk in self._chunks:
            out[chunk.first : chunk.end] = self._attend_chunk(layer, chunk, query[chunk.first : chunk.end])
        return out.flatten(1)

    def _attend_singles(self, layer: int, query: Tensor) -> Tensor:
        """``[num_rows, num_heads, head_dim]`` in and out.

        The query heads that share a KV head take the place of query positions: keys need no repetition.
        """
        assert self._singles is not None
        num_rows, num_heads, head_dim = query.shape
        keys, values = (
            kv.view(num_rows, -1, kv.shape[1], head_dim).transpose(1, 2)
            for kv in self._cache.read(layer, self._singles.context)
        )
        grouped = query.reshape(num_rows, keys.shape[1], -1, head_dim)
        out = functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=self._singles.mask)
        return out.reshape(num_rows, num_heads, head_dim)

    def _attend_chunk(self, layer: int, chunk: _Chunk, query: Tensor) -> Tensor:
        """``[chunk tokens, num_heads, head_dim]`` in and out."""
        keys, values = (kv.transpose(0, 1)[None] for kv in self._cache.read(layer, chunk.context))
        out = functional.scaled_dot_product_attention(
            query.transpose(0, 1)[None],
            keys,
            values,
            attn_mask=chunk.mask,
            is_causal=chunk.mask is None,
            enable_gqa=True,
        )
        return out[0].transpose(0, 1)


def _single_token_rows(batch: StepBatch, table: SlotTable, device: torch.device) -> _SingleTokenRows | None:
    rows = np.flatnonzero(batch.num_tokens == 1)
    if not rows.size:
        return None
    lengths = batch.context_length[rows, None]
    context = context_locations(batch, rows, table)
    mask = None
    if lengths.min() < lengths.max():
        mask = torch.from_numpy(np.arange(lengths.max()) < lengths).to(device)[:, None, None, :]
    return _SingleTokenRows(
        tokens=torch.from_numpy(batch.first_token[rows]).to(device),
        context=torch.from_numpy(context.ravel()).to(device),
        mask=mask,
    )


def _chunks(batch: StepBatch, table: SlotTable, device: torch.device) -> list[_Chunk]:
    chunks = []
    for row in np.flatnonzero(batch.num_tokens > 1):
        first, num_tokens, length = (int(a[row]) for a in (batch.first_token, batch.num_tokens, batch.context_length))
        context = context_locations(batch, np.array([row]), table)[0]
        mask = None
        if length > num_tokens:
            everything = torch.ones(num_tokens, length, dtype=torch.bool, device=device)
            mask = everything.tril(length - num_tokens)
        chunks.append(_Chunk(first, first + num_tokens, torch.from_numpy(context).to(device), mask))
    return chunks
