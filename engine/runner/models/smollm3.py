"""SmolLM3 (Bakouch et al., 2025): Llama where some layers rotate nothing ("NoPE", Yang et al., 2025)."""

from __future__ import annotations

from engine.runner.attention.spec import AttentionSpec
from engine.runner.models.layers import Decoder, Layer
from engine.runner.models.source import ModelSource, llama_like, pre_norm_layer, self_attention
from engine.runner.weights import Weights


def smollm3(source: ModelSource) -> Decoder:
    """Raises CannotStartError for a variant that this code would compute wrongly."""
    config = source.config
    bias = bool(config.get("attention_bias"))
    mlp_bias = bool(config.get("mlp_bias"))
    rotary = source.rotary(theta=2_000_000.0)
    rotated = _rotated_layers(source)
    windows = _windows(source, rotated)

    def layer(index: int, weights: Weights) -> Layer:
        spec = AttentionSpec(window=windows[index])
        rotation = rotary if rotated[index] else None
        attention = self_attention(source, weights, index, rotation, spec=spec, qkv_bias=bias, output_bias=bias)
        return pre_norm_layer(source, weights, attention, mlp_bias=mlp_bias)

    return llama_like(source, layer, tied_by_default=True)


def _rotated_layers(source: ModelSource) -> list[bool]:
    """The field is called no_rope_layers, and has a 1 where a layer rotates. By default every fourth does not."""
    interval = source.config.get("no_rope_layer_interval", 4)
    default = [(i + 1) % interval != 0 for i in range(source.shape.num_layers)]
    return [bool(rotated) for rotated in source.config.per_layer("no_rope_layers", default)]


def _windows(source: ModelSource, rotated: list[bool]) -> list[int | None]:
    """Only with use_sliding_window, and by default in the layers that rotate nothing."""
    window = source.config.get("sliding_window") if source.config.get("use_sliding_window") else None
    default = ["sliding_attention" if window and not r else "full_attention" for r in rotated]
    return source.config.windows(default, window)
