"""Attention over keys and values that lie side by side: torch's fused kernels, or written out where they cannot."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from engine.runner.attention.spec import AttentionSpec


def attention(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, causal: bool, spec: AttentionSpec
) -> Tensor:
    """``[batch, num_heads, n, head_dim]`` in and out; keys and values are ``[batch, num_kv_heads, m, head_dim]``.

    `mask` is bool, False where nothing may be seen, and broadcast to ``[batch, 1, n, m]``. `causal` (only without a
    mask, and for n = m) stands for the lower triangle. The window is in the mask already.
    """
    if spec.softcap is not None:
        return _softcapped(query, keys, values, _triangle(query) if causal else mask, spec.softcap, spec.scale)
    return functional.scaled_dot_product_attention(
        query,
        keys,
        values,
        attn_mask=mask,
        is_causal=causal,
        scale=spec.scale,
        enable_gqa=query.shape[1] != keys.shape[1],
    )


def _softcapped(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, softcap: float, scale: float | None
) -> Tensor:
    """The fused kernels have no place for the cap between product and softmax. Softmax in float32."""
    batch, num_heads, num_tokens, head_dim = query.shape
    grouped = query.reshape(batch, keys.shape[1], -1, num_tokens, head_dim)
    scores = grouped @ keys.unsqueeze(2).transpose(-1, -2) * (head_dim**-0.5 if scale is None else scale)
    scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores.masked_fill(~mask.unsqueeze(1), float("-inf"))
    weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
    return (weights @ values.unsqueeze(2)).reshape(batch, num_heads, num_tokens, head_dim)


def _triangle(query: Tensor) -> Tensor:
    num_tokens = query.shape[-2]
    return torch.ones(1, 1, num_tokens, num_tokens, dtype=torch.bool, device=query.device).tril()
