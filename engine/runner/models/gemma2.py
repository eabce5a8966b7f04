"""Gemma 2 (Gemma Team, 2024): norms around both parts of a layer, capped scores and logits, windows in every other
layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from engine.runner.attention.spec import AttentionSpec
from engine.runner.models.layers import Decoder, GatedMLP, Layer, Norm, Projection, SelfAttention, Step
from engine.runner.models.source import ModelSource, gated_mlp, self_attention
from engine.runner.weights import Weights


class SandwichLayer:
    """Each part between two norms, and added to what went in."""

    def __init__(self, norms: list[Norm], attention: SelfAttention, mlp: GatedMLP) -> None:
        """`norms` stand before and behind attention, before and behind the MLP."""
        self._before_attention, self._behind_attention, self._before_mlp, self._behind_mlp = norms
        self._attention = attention
        self._mlp = mlp

    def forward(self, hidden: Tensor, step: Step) -> Tensor:
        """``[num_tokens, hidden_size]`` in and out."""
        hidden = hidden + self._behind_attention(self._attention(self._before_attention(hidden), step))
        return hidden + self._behind_mlp(self._mlp(self._before_mlp(hidden)))


def gemma2(source: ModelSource) -> Decoder:
    """Raises CannotStartError for a variant that this code would compute wrongly."""
    config = source.config
    bias = bool(config.get("attention_bias"))
    rotary = source.rotary()
    every_other = ["full_attention" if i % 2 else "sliding_attention" for i in range(source.shape.num_layers)]
    windows = config.windows(every_other, config.get("sliding_window", 4096))
    softcap = config.get("attn_logit_softcapping", 50.0)

    def layer(index: int, weights: Weights) -> Layer:
        spec = AttentionSpec(windows[index], softcap, gemma_scale(source))
        attention = self_attention(source, weights, index, rotary, spec=spec, qkv_bias=bias, output_bias=bias)
        return gemma_layer(source, weights, attention)

    return gemma_like(source, layer, config.get("final_logit_softcapping", 30.0))


def gemma_like(
    source: ModelSource, make: Callable[[int, Weights], Layer], final_softcap: float | None, prefix: str = "model."
) -> Decoder:
    """A model of Gemma's form around the layers that `make` gives: embeddings times √hidden_size, capped logits."""
    if source.config.get("use_bidirectional_attention"):
        raise source.config.refusal("use_bidirectional_attention True; only causal attention is supported")
    embedding = source.embedding(prefix)
    scale = torch.tensor(source.shape.hidden_size**0.5).to(embedding)
    head = source.head(embedding, tied_by_default=True)
    return Decoder(
        lambda ids: functional.embedding(ids, embedding) * scale,
        source.layers(make, prefix),
        gemma_norm(source, source.checkpoint.under(prefix), "norm"),
        head if final_softcap is None else _capped(head, final_softcap),
    )


def gemma_layer(source: ModelSource, weights: Weights, attention: SelfAttention) -> SandwichLayer:
    """A layer under Gemma's names."""
    names = (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    )
    activation = source.config.get("hidden_activation") or "gelu_pytorch_tanh"
    return SandwichLayer(
        [gemma_norm(source, weights, name) for name in names], attention, gated_mlp(source, weights, activation)
    )


def gemma_scale(source: ModelSource) -> float:
    """Of attention scores."""
    return 1 / math.sqrt(source.config.get("query_pre_attn_scalar", 256))


def gemma_norm(source: ModelSource, weights: Weights, name: str) -> Norm:
    """RMSNorm over hidden states with Gemma's weights."""
    weight = gemma_norm_weight(weights.tensor(f"{name}.weight", source.shape.hidden_size))
    epsilon = source.epsilon
    return lambda x: functional.rms_norm(x.float(), weight.shape, weight, epsilon).to(x.dtype)


def gemma_norm_weight(stored: Tensor) -> Tensor:
    """What is stored is the distance from 1; the product is taken in float32."""
    return 1 + stored.float()


def _capped(head: Projection, softcap: float) -> Projection:
    return lambda hidden: torch.tanh(head(hidden).float() / softcap) * softcap
