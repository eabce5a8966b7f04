"""Qwen2 (Yang et al., 2024): Llama with biases on queries, keys and values, and sliding windows in the upper layers."""

from __future__ import annotations

from engine.runner.attention.spec import AttentionSpec
from engine.runner.models.layers import Decoder, Layer
from engine.runner.models.source import ModelSource, llama_like, pre_norm_layer, self_attention
from engine.runner.weights import Weights


def qwen2(source: ModelSource) -> Decoder:
    """Raises CannotStartError for a variant that this code would compute wrongly."""
    rotary = source.rotary()
    windows = qwen_windows(source)

    def layer(index: int, weights: Weights) -> Layer:
        spec = AttentionSpec(window=windows[index])
        return pre_norm_layer(source, weights, self_attention(source, weights, index, rotary, spec=spec, qkv_bias=True))

    return llama_like(source, layer)


def qwen_windows(source: ModelSource) -> list[int | None]:
    """Only with use_sliding_window, and by default from layer max_window_layers on."""
    config, num_layers = source.config, source.shape.num_layers
    window = config.get("sliding_window", 4096) if config.get("use_sliding_window") else None
    first = config.get("max_window_layers", 28) if window else num_layers
    return config.windows(["full_attention" if i < first else "sliding_attention" for i in range(num_layers)], window)
