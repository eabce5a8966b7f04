"""Building blocks shared by model families. None knows names of weights or fields of a configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from engine.model_shape import ModelShape
from engine.runner.attention.spec import AttentionSpec
from engine.runner.models.base import Attend
from engine.runner.models.rope import Angles, Rotary

Projection = Callable[[Tensor], Tensor]
"""``[n, in_features]`` → ``[n, out_features]``."""

Norm = Callable[[Tensor], Tensor]
"""Same shape in and out; normalizes over the last dimension."""


def projection(*weights: Tensor, biases: Sequence[Tensor] = ()) -> Projection:
    """The product with one weight, or with several of equal width in one go (outputs side by side).

    Weights are ``[out_features, in_features]``, biases (one for each, or none at all) ``[out_features]``. On a CPU
    weights are copied once into the block layout of oneDNN's matrix kernels, which halves the time of a decode step;
    elsewhere they stay as they are.
    """
    weight = weights[0] if len(weights) == 1 else torch.cat(weights)
    bias = torch.cat(list(biases)) if biases else None
    if not _can_pack(weight):
        return lambda x: functional.linear(x, weight, bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, 1)
    multiply = torch.ops.mkldnn._linear_pointwise.default
    return lambda x: multiply(x, packed, bias, "none", [], "")


def _can_pack(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return weight.dtype is torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def rms_norm(weight: Tensor, epsilon: float) -> Norm:
    """RMSNorm (Zhang and Sennrich, 2019) with a weight ``[size]``."""
    return lambda x: functional.rms_norm(x, weight.shape, weight, epsilon)


def head_norm(queries: Tensor, keys: Tensor, num_heads: int, num_kv_heads: int, epsilon: float) -> Norm:
    """RMSNorm of each query and key head, ``[num_tokens, num_heads + num_kv_heads, head_dim]``, in one go.

    Both weights are ``[head_dim]`` (Dehghani et al., "Scaling Vision Transformers to 22 Billion Parameters", 2023).
    """
    weight = torch.cat((queries.expand(num_heads, -1), keys.expand(num_kv_heads, -1)))
    return lambda x: functional.rms_norm(x, x.shape[-1:], None, epsilon) * weight


class Step:
    """What all layers of one forward pass share: positions, and the angles that belong to them."""

    def __init__(self, positions: Tensor, attend: Attend) -> None:
        self.attend = attend
        self._positions = positions
        self._angles: dict[Rotary, Angles] = {}

    def angles(self, rotary: Rotary) -> Angles:
        """Looked up once for all layers that rotate alike."""
        angles = self._angles.get(rotary)
        if angles is None:
            angles = self._angles[rotary] = rotary.at(self._positions)
        return angles


class SelfAttention:
    """Attention with grouped KV heads (Ainslie et al., "GQA", 2023)."""

    def __init__(
        self,
        layer: int,
        shape: ModelShape,
        qkv: Projection,
        output: Projection,
        rotary: Rotary | None,
        spec: AttentionSpec,
        norm: Norm | None = None,
    ) -> None:
        """`norm` (of query and key heads) comes before the rotation; without `rotary` nothing is rotated."""
        self._layer = layer
        self._num_heads = shape.num_heads
        self._num_rotated = shape.num_heads + shape.num_kv_heads
        self._head_dim = shape.head_dim
        self._qkv = qkv
        self._output = output
        self._rotary = rotary
        self._spec = spec
        self._norm = norm

    def __call__(self, hidden: Tensor, step: Step) -> Tensor:
        """``[num_tokens, hidden_size]`` in and out."""
        heads = self._qkv(hidden).view(len(hidden), -1, self._head_dim)
        rotated = heads[:, : self._num_rotated]
        if self._norm is not None:
            rotated = self._norm(rotated)
        if self._rotary is not None:
            rotated = self._rotary.rotate(rotated, step.angles(self._rotary))
        query, key = rotated[:, : self._num_heads], rotated[:, self._num_heads :]
        return self._output(step.attend(self._layer, query, key, heads[:, self._num_rotated :], self._spec))


class GatedMLP:
    """down(activation(gate) · up) (Shazeer, "GLU Variants Improve Transformer", 2020)."""

    def __init__(self, gate_up: Projection, down: Projection, activation: Callable[[Tensor], Tensor]) -> None:
        """`gate_up` gives both halves side by side."""
        self._gate_up = gate_up
        self._down = down
        self._activation = activation

    def __call__(self, hidden: Tensor) -> Tensor:
        """``[num_tokens, hidden_size]`` in and out."""
        gate, up = self._gate_up(hidden).chunk(2, -1)
        return self._down(self._activation(gate) * up)


class Layer(Protocol):
    """One decoder layer."""

    def forward(self, hidden: Tensor, step: Step) -> Tensor:
        """``[num_tokens, hidden_size]`` in and out."""
        ...


class PreNormLayer:
    """Each part behind its norm and added to what went in: the order of Llama and most others."""

    def __init__(self, attention_norm: Norm, attention: SelfAttention, mlp_norm: Norm, mlp: GatedMLP) -> None:
        self._attention_norm = attention_norm
        self._attention = attention
        self._mlp_norm = mlp_norm
        self._mlp = mlp

    def forward(self, hidden: Tensor, step: Step) -> Tensor:
        """``[num_tokens, hidden_size]`` in and out."""
        hidden = hidden + self._attention(self._attention_norm(hidden), step)
        return hidden + self._mlp(self._mlp_norm(hidden))


class Decoder:
    """A `Model` of layers between an embedding and a head."""

    def __init__(
        self, embed: Callable[[Tensor], Tensor], layers: Sequence[Layer], norm: Norm, head: Callable[[Tensor], Tensor]
    ) -> None:
        """`embed` takes ids ``[num_tokens]``; `head` the normalized hidden states, and gives logits."""
        self._embed = embed
        self._layers = layers
        self._norm = norm
        self._head = head

    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """``[num_tokens]`` ids and positions (int64) to ``[num_tokens, hidden_size]``, before the last norm."""
        step = Step(positions, attend)
        hidden = self._embed(token_ids)
        for layer in self._layers:
            hidden = layer.forward(hidden, step)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """``[n, hidden_size]`` to float32 ``[n, vocab_size]``."""
        return self._head(self._norm(hidden)).float()
