"""Gemma 3, the text part (Gemma Team, 2025): Gemma 2 with norms of query and key heads instead of capped scores, and
two kinds of layers, most with a window and their own rotation.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from engine.runner.attention.spec import AttentionSpec
from engine.runner.models.gemma2 import gemma_layer, gemma_like, gemma_norm_weight, gemma_scale
from engine.runner.models.layers import Decoder, Layer, Norm
from engine.runner.models.rope import Rotary
from engine.runner.models.source import ModelSource, self_attention
from engine.runner.weights import Weights

TEXT_PREFIXES = ("model.", "language_model.model.", "model.language_model.")
"""Where the text part's weights are: of a text model, and of one with images as stored by transformers 4 and 5."""


def gemma3(source: ModelSource) -> Decoder:
    """Raises CannotStartError for a variant that this code would compute wrongly."""
    config = source.config
    config.expect(attn_logit_softcapping=None)
    bias = bool(config.get("attention_bias"))
    pattern = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern", 6)
    kinds = ["sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(source.shape.num_layers)]
    windows = config.windows(kinds, config.get("sliding_window", 4096))
    rotary_everywhere, rotary_in_window = source.rotary(1_000_000.0, "full_attention"), _rotary_in_window(source)

    def layer(index: int, weights: Weights) -> Layer:
        window = windows[index]
        attention = self_attention(
            source,
            weights,
            index,
            rotary_everywhere if window is None else rotary_in_window,
            spec=AttentionSpec(window, scale=gemma_scale(source)),
            qkv_bias=bias,
            output_bias=bias,
            norm=_head_norms(source, weights),
        )
        return gemma_layer(source, weights, attention)

    prefix = next((p for p in TEXT_PREFIXES if source.checkpoint.has(f"{p}embed_tokens.weight")), TEXT_PREFIXES[0])
    return gemma_like(source, layer, config.get("final_logit_softcapping"), prefix)


def _rotary_in_window(source: ModelSource) -> Rotary:
    """Stretched contexts concern only the layers without a window: older files have no section for the others."""
    section = (source.config.get("rope_parameters") or {}).get("sliding_attention") or {}
    theta = source.config.get("rope_local_base_freq", 10_000.0)
    return source.rotary_of({"rope_theta": theta} | section)


def _head_norms(source: ModelSource, weights: Weights) -> Norm:
    """Like `layers.head_norm`, with Gemma's weights and product."""
    shape, epsilon = source.shape, source.epsilon
    part = weights.under("self_attn.")
    queries, keys = (gemma_norm_weight(part.tensor(f"{name}.weight", shape.head_dim)) for name in ("q_norm", "k_norm"))
    weight = torch.cat((queries.expand(shape.num_heads, -1), keys.expand(shape.num_kv_heads, -1)))
    return lambda x: (functional.rms_norm(x.float(), x.shape[-1:], None, epsilon) * weight).to(x.dtype)
