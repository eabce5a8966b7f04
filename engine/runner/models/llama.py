"""Llama (Touvron et al., 2023; with the rope scaling of Llama 3), and all that take its form, like SmolLM2."""

from __future__ import annotations

from engine.runner.models.layers import Decoder, Layer
from engine.runner.models.source import ModelSource, llama_like, pre_norm_layer, self_attention
from engine.runner.weights import Weights


def llama(source: ModelSource) -> Decoder:
    """Raises CannotStartError for a variant that this code would compute wrongly."""
    bias = bool(source.config.get("attention_bias"))
    mlp_bias = bool(source.config.get("mlp_bias"))
    rotary = source.rotary()

    def layer(index: int, weights: Weights) -> Layer:
        attention = self_attention(source, weights, index, rotary, qkv_bias=bias, output_bias=bias)
        return pre_norm_layer(source, weights, attention, mlp_bias=mlp_bias)

    return llama_like(source, layer)
