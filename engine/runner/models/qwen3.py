"""Qwen3 (Yang et al., 2025): Llama with norms of query and key heads, and the windows of Qwen2."""

from __future__ import annotations

from engine.runner.attention.spec import AttentionSpec
from engine.runner.models.layers import Decoder, Layer
from engine.runner.models.qwen2 import qwen_windows
from engine.runner.models.source import ModelSource, head_norms, llama_like, pre_norm_layer, self_attention
from engine.runner.weights import Weights


def qwen3(source: ModelSource) -> Decoder:
    """Raises CannotStartError for a variant that this code would compute wrongly."""
    bias = bool(source.config.get("attention_bias"))
    rotary = source.rotary()
    windows = qwen_windows(source)

    def layer(index: int, weights: Weights) -> Layer:
        attention = self_attention(
            source,
            weights,
            index,
            rotary,
            spec=AttentionSpec(window=windows[index]),
            qkv_bias=bias,
            output_bias=bias,
            norm=head_norms(source, weights),
        )
        return pre_norm_layer(source, weights, attention)

    return llama_like(source, layer)
