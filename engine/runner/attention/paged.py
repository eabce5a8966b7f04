"""Attention for any mix of rows: those that compute one token together, longer chunks one by one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.runner.attention.scores import attention
from engine.runner.attention.spec import FULL_ATTENTION, AttentionSpec
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
    """A row of several tokens (prefill) and the `earlier` positions that its first token sees.

    ::

                  earlier      the chunk's own
        token 0   x x x x x    x                   without a window
        token 1   x x x x x    x x

        token 0   . . x x x    x                   with a window of 4, earlier = 3
        token 1   . . . x x    x x
    """

    first: int
    end: int
    context: Tensor  # [earlier + num_tokens] locations
    mask: Tensor | None  # [1, 1, num_tokens, earlier + num_tokens]; None: the plain causal triangle


@dataclass(slots=True)
class _WindowPlan:
    """Where the rows of a step find what one kind of layer sees."""

    singles: _SingleTokenRows | None
    chunks: list[_Chunk]


class PagedAttention:
    """One step's attention. Built once per step; called once per layer.

    Layers with equal windows share a plan, which is made when the first of them asks.
    """

    def __init__(self, cache: KVCache, batch: StepBatch, table: SlotTable) -> None:
        self._cache = cache
        self._batch = batch
        self._table = table
        self._locations = torch.from_numpy(batch.locations).to(cache.device)
        self._plans: dict[int | None, _WindowPlan] = {}

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec = FULL_ATTENTION
    ) -> Tensor:
        """Store the step's keys and values, then attend.

        `query` is ``[num_tokens, num_heads, head_dim]``, `key` and `value` ``[num_tokens, num_kv_heads, head_dim]``.
        Returns ``[num_tokens, num_heads · head_dim]``.
        """
        self._cache.write(layer, self._locations, key, value)
        plan = self._plan(spec.window)
        if not plan.chunks and plan.singles is not None:
            return self._attend_singles(layer, plan.singles, query, spec).flatten(1)
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        if plan.singles is not None:
            rows = plan.singles.tokens
            out[rows] = self._attend_singles(layer, plan.singles, query[rows], spec)
        for chunk in plan.chunks:
            out[chunk.first : chunk.end] = self._attend_chunk(layer, chunk, query[chunk.first : chunk.end], spec)
        return out.flatten(1)

    def _plan(self, window: int | None) -> _WindowPlan:
        plan = self._plans.get(window)
        if plan is None:
            plan = self._plans[window] = _window_plan(self._batch, self._table, self._cache.device, window)
        return plan

    def _attend_singles(self, layer: int, rows: _SingleTokenRows, query: Tensor, spec: AttentionSpec) -> Tensor:
        """``[num_rows, num_heads, head_dim]`` in and out.

        The query heads that share a KV head take the place of query positions: keys need no repetition.
        """
        num_rows, num_heads, head_dim = query.shape
        keys, values = (
            kv.view(num_rows, -1, kv.shape[1], head_dim).transpose(1, 2) for kv in self._cache.read(layer, rows.context)
        )
        grouped = query.reshape(num_rows, keys.shape[1], -1, head_dim)
        out = attention(grouped, keys, values, rows.mask, causal=False, spec=spec)
        return out.reshape(num_rows, num_heads, head_dim)

    def _attend_chunk(self, layer: int, chunk: _Chunk, query: Tensor, spec: AttentionSpec) -> Tensor:
        """``[chunk tokens, num_heads, head_dim]`` in and out."""
        keys, values = (kv.transpose(0, 1)[None] for kv in self._cache.read(layer, chunk.context))
        out = attention(query.transpose(0, 1)[None], keys, values, chunk.mask, causal=chunk.mask is None, spec=spec)
        return out[0].transpose(0, 1)


def _window_plan(batch: StepBatch, table: SlotTable, device: torch.device, window: int | None) -> _WindowPlan:
    """The plan for layers whose tokens see `window` positions."""
    rows = np.flatnonzero(batch.num_tokens > 1)
    return _WindowPlan(
        singles=_single_token_rows(batch, table, device, window),
        chunks=[_chunk(batch, table, device, window, int(row)) for row in rows],
    )


def _single_token_rows(
    batch: StepBatch, table: SlotTable, device: torch.device, window: int | None
) -> _SingleTokenRows | None:
    rows = np.flatnonzero(batch.num_tokens == 1)
    if not rows.size:
        return None
    visible = batch.context_length[rows]
    if window is not None:
        visible = np.minimum(visible, window)
    context = context_locations(batch, rows, table, visible)
    mask = None
    if visible.min() < visible.max():
        mask = torch.from_numpy(np.arange(visible.max()) < visible[:, None]).to(device)[:, None, None, :]
    return _SingleTokenRows(
        tokens=torch.from_numpy(batch.first_token[rows]).to(device),
        context=torch.from_numpy(context.ravel()).to(device),
        mask=mask,
    )


def _chunk(batch: StepBatch, table: SlotTable, device: torch.device, window: int | None, row: int) -> _Chunk:
    first, num_tokens, length = (int(a[row]) for a in (batch.first_token, batch.num_tokens, batch.context_length))
    earlier = length - num_tokens
    if window is not None:
        earlier = min(earlier, window - 1)
    context = context_locations(batch, np.array([row]), table, np.array([earlier + num_tokens]))[0]
    mask = None
    if earlier or (window is not None and window < num_tokens):
        mask = _chunk_mask(num_tokens, earlier, window, device)[None, None]
    return _Chunk(first, first + num_tokens, torch.from_numpy(context).to(device), mask)


def _chunk_mask(num_tokens: int, earlier: int, window: int | None, device: torch.device) -> Tensor:
    """``[num_tokens, earlier + num_tokens]``, True where a token sees a position."""
    everything = torch.ones(num_tokens, earlier + num_tokens, dtype=torch.bool, device=device)
    seen = everything.tril(earlier)
    return seen if window is None else seen.triu(earlier - window + 1)
