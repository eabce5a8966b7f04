"""Rotary position embedding: tables made from what config.json says, and their application."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from engine.runner.models import rope_scaling
from engine.runner.models.model_config import ModelConfig

Angles = tuple[Tensor, Tensor]
"""Cosines and signed sines of a step's tokens, ``[num_tokens, 1, head_dim]`` each."""


class Rotary:
    """Rotary position embedding (Su et al., 2021), halves rotated against each other."""

    def __init__(
        self, frequencies: Tensor, magnitude: float, max_positions: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Tables for positions below `max_positions`, made in float32 and kept in `dtype`.

        `frequencies` are angles per position, float32 ``[head_dim / 2]``; `magnitude` multiplies all entries.
        """
        angles = torch.arange(max_positions, dtype=torch.float32)[:, None] * frequencies
        cos, sin = angles.cos() * magnitude, angles.sin() * magnitude
        self._half = len(frequencies)
        self._cos = torch.cat((cos, cos), -1).to(device, dtype)[:, None]
        self._sin = torch.cat((-sin, sin), -1).to(device, dtype)[:, None]

    def at(self, positions: Tensor) -> Angles:
        """The angles of a step's tokens; `positions` is int64 ``[num_tokens]``."""
        return self._cos[positions], self._sin[positions]

    def rotate(self, heads: Tensor, angles: Angles) -> Tensor:
        """Rotate ``[num_tokens, num_heads, head_dim]``."""
        cos, sin = angles
        return torch.addcmul(heads * cos, heads.roll(self._half, -1), sin)


def rope_parameters(config: ModelConfig, theta: float, layer_type: str | None = None) -> dict[str, Any]:
    """The rope section with ``rope_theta``: "rope_parameters" since transformers 5 (which may have a part for each
    `layer_type`), "rope_scaling" (often null) before. `theta` is the family's default.
    """
    section = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if layer_type in section:
        section = section[layer_type]
    return {"rope_theta": config.get("rope_theta") or theta} | {k: v for k, v in section.items() if v is not None}


def frequencies(
    config: ModelConfig, rope: Mapping[str, Any], head_dim: int, max_positions: int
) -> tuple[Tensor, float]:
    """Frequencies and magnitude for `Rotary`. Raises CannotStartError for a kind that is not known.

    Dynamic NTK has frequencies that depend on a sequence's length, and would ask for new keys whenever it grows. The
    cache keeps keys, so the table is that of the longest context served, fixed: up to the length of the training
    (beyond which --max-model-len cannot go) this is what it is without scaling, as it is in transformers.
    """
    kind = rope.get("rope_type") or rope.get("type") or "default"
    trained = config.get("max_position_embeddings")
    original = config.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings") or trained
    theta = float(rope["rope_theta"])
    rotated = rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    if rotated != 1.0:
        raise config.refusal(f"partial_rotary_factor {rotated}; only rotation of whole heads is supported")
    plain = rope_scaling.default(head_dim, theta)
    try:
        match kind:
            case "default":
                return plain, 1.0
            case "linear":
                return rope_scaling.linear(plain, rope["factor"]), 1.0
            case "dynamic":
                return rope_scaling.dynamic_ntk(head_dim, theta, rope["factor"], trained, max_positions), 1.0
            case "llama3":
                low, high = rope["low_freq_factor"], rope["high_freq_factor"]
                return rope_scaling.llama3(plain, rope["factor"], low, high, original), 1.0
            case "yarn":
                return _yarn(rope, head_dim, rope.get("factor") or trained / original, original)
    except KeyError as e:
        raise config.refusal(f"rope_type {kind!r} without {e.args[0]!r}, which it needs") from None
    raise config.refusal(f"rope_type {kind!r}; known are default, linear, dynamic, llama3, yarn")


def _yarn(rope: Mapping[str, Any], head_dim: int, factor: float, original: int) -> tuple[Tensor, float]:
    fast, slow = rope.get("beta_fast") or 32, rope.get("beta_slow") or 1
    table = rope_scaling.yarn(
        head_dim, float(rope["rope_theta"]), factor, original, fast, slow, rope.get("truncate", True)
    )
    magnitude = rope.get("attention_factor")
    if magnitude is None:
        magnitude = rope_scaling.yarn_attention_factor(factor, rope.get("mscale"), rope.get("mscale_all_dim"))
    return table, magnitude
