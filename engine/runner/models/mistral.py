"""Mistral 7B (Jiang et al., 2023): Llama with a sliding window in every layer."""

from __future__ import annotations

from engine.runner.attention.spec import AttentionSpec
from engine.runner.models.layers import Decoder, Layer
from engine.runner.models.source import ModelSource, llama_like, pre_norm_layer, self_attention
from engine.runner.weights import Weights


def mistral(source: ModelSource) -> Decoder:
    """Raises CannotStartError for a variant that this code would compute wrongly."""
    spec = AttentionSpec(window=source.config.get("sliding_window", 4096))
    rotary = source.rotary()

    def layer(index: int, weights: Weights) -> Layer:
        return pre_norm_layer(source, weights, self_attention(source, weights, index, rotary, spec=spec))

    return llama_like(source, layer)
