"""What a family builds a model from, and the pieces that most of them build alike."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

from engine.model_shape import ModelShape
from engine.runner.attention.spec import FULL_ATTENTION, AttentionSpec
from engine.runner.models.layers import (
    Decoder,
    GatedMLP,
    Layer,
    Norm,
    PreNormLayer,
    Projection,
    SelfAttention,
    head_norm,
    projection,
    rms_norm,
)
from engine.runner.models.model_config import ModelConfig
from engine.runner.models.rope import Rotary, frequencies, rope_parameters
from engine.runner.weights import Checkpoint, Weights

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}


class ModelSource:
    """A model folder: configuration, sizes and weights."""

    def __init__(self, config: ModelConfig, shape: ModelShape, checkpoint: Checkpoint, max_positions: int) -> None:
        """`max_positions` is the longest context that will be served."""
        self.config = config
        self.shape = shape
        self.checkpoint = checkpoint
        self.max_positions = max_positions

    @property
    def epsilon(self) -> float:
        """What norms add below the root."""
        return float(self.config.get("rms_norm_eps", 1e-6))

    def layers(self, make: Callable[[int, Weights], Layer], prefix: str = "model.") -> list[Layer]:
        """Every decoder layer, made from its index and its part of the weights."""
        return [make(i, self.checkpoint.under(f"{prefix}layers.{i}.")) for i in range(self.shape.num_layers)]

    def embedding(self, prefix: str = "model.") -> Tensor:
        """``[vocab_size, hidden_size]``."""
        name = f"{prefix}embed_tokens.weight"
        return self.checkpoint.tensor(name, self.shape.vocab_size, self.shape.hidden_size)

    def head(self, embedding: Tensor, tied_by_default: bool = False) -> Projection:
        """From hidden states to logits: weights of its own, or the embedding's."""
        if self.config.get("tie_word_embeddings", tied_by_default):
            return projection(embedding)
        return projection(self.checkpoint.tensor("lm_head.weight", *embedding.shape))

    def rotary(self, theta: float = 10_000.0, layer_type: str | None = None) -> Rotary:
        """The rotation that config.json describes (for layers of `layer_type`); `theta` is the family's default."""
        return self.rotary_of(rope_parameters(self.config, theta, layer_type))

    def rotary_of(self, rope: dict[str, object]) -> Rotary:
        """The rotation that a rope section describes."""
        table, magnitude = frequencies(self.config, rope, self.shape.head_dim, self.max_positions)
        return Rotary(table, magnitude, self.max_positions, self.checkpoint.dtype, self.checkpoint.device)

    def activation(self, name: str) -> Callable[[Tensor], Tensor]:
        """Raises CannotStartError for a name that is not known."""
        known = ACTIVATIONS.get(name)
        if known is None:
            raise self.config.refusal(f"hidden_act {name!r}; known are {', '.join(ACTIVATIONS)}")
        return known


def norm(source: ModelSource, weights: Weights, name: str) -> Norm:
    """RMSNorm over hidden states."""
    return rms_norm(weights.tensor(f"{name}.weight", source.shape.hidden_size), source.epsilon)


def head_norms(source: ModelSource, weights: Weights) -> Norm:
    """RMSNorm of query and key heads."""
    shape = source.shape
    queries, keys = (weights.tensor(f"self_attn.{name}.weight", shape.head_dim) for name in ("q_norm", "k_norm"))
    return head_norm(queries, keys, shape.num_heads, shape.num_kv_heads, source.epsilon)


def self_attention(
    source: ModelSource,
    weights: Weights,
    layer: int,
    rotary: Rotary | None,
    *,
    spec: AttentionSpec = FULL_ATTENTION,
    qkv_bias: bool = False,
    output_bias: bool = False,
    norm: Norm | None = None,
) -> SelfAttention:
    """Attention under the names of Llama: q_proj, k_proj, v_proj and o_proj."""
    shape = source.shape
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    sizes = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
    part = weights.under("self_attn.")
    qkv = linear(part, sizes, shape.hidden_size, bias=qkv_bias)
    output = linear(part, {"o_proj": shape.hidden_size}, queries, bias=output_bias)
    return SelfAttention(layer, shape, qkv, output, rotary, spec, norm)


def gated_mlp(source: ModelSource, weights: Weights, activation: str, bias: bool = False) -> GatedMLP:
    """MLP under the names of Llama: gate_proj, up_proj and down_proj."""
    hidden, inner = source.shape.hidden_size, source.shape.intermediate_size
    part = weights.under("mlp.")
    gate_up = linear(part, {"gate_proj": inner, "up_proj": inner}, hidden, bias=bias)
    return GatedMLP(gate_up, linear(part, {"down_proj": hidden}, inner, bias=bias), source.activation(activation))


def linear(weights: Weights, sizes: dict[str, int], in_features: int, *, bias: bool) -> Projection:
    """Projections that are computed in one go; `sizes` are their names and output features."""
    matrices = [weights.tensor(f"{name}.weight", size, in_features) for name, size in sizes.items()]
    biases = [weights.tensor(f"{name}.bias", size) for name, size in sizes.items()] if bias else []
    return projection(*matrices, biases=biases)


def pre_norm_layer(
    source: ModelSource, weights: Weights, attention: SelfAttention, *, mlp_bias: bool = False
) -> PreNormLayer:
    """A layer under the names of Llama."""
    activation = source.config.get("hidden_act", "silu")
    return PreNormLayer(
        norm(source, weights, "input_layernorm"),
        attention,
        norm(source, weights, "post_attention_layernorm"),
        gated_mlp(source, weights, activation, mlp_bias),
    )


def llama_like(source: ModelSource, make: Callable[[int, Weights], Layer], tied_by_default: bool = False) -> Decoder:
    """A model of Llama's form around the layers that `make` gives."""
    embedding = source.embedding()
    return Decoder(
        lambda ids: functional.embedding(ids, embedding),
        source.layers(make),
        norm(source, source.checkpoint.under("model."), "norm"),
        source.head(embedding, tied_by_default),
    )
