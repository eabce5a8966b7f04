"""Llama: RMSNorm, rotary attention with grouped KV heads, SwiGLU (Touvron et al., 2023)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
from torch import Tensor
from torch.nn import functional

from engine.model_shape import ModelShape
from engine.process import CannotStartError
from engine.runner.models.base import Attend
from engine.runner.models.layers import Rotary, projection
from engine.runner.weights import Checkpoint


class LlamaSettings(msgspec.Struct, frozen=True):
    """What config.json says beyond the sizes."""

    norm_epsilon: float
    rope_theta: float
    tied_head: bool

    @classmethod
    def from_folder(cls, folder: Path) -> LlamaSettings:
        """Raises CannotStartError for a variant that this code would compute wrongly."""
        config = json.loads((folder / "config.json").read_text())
        _refuse_unknown_variants(folder, config)
        rope = _rope_parameters(config)
        return cls(
            norm_epsilon=config.get("rms_norm_eps", 1e-6),
            rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0),
            tied_head=bool(config.get("tie_word_embeddings", False)),
        )


def _rope_parameters(config: dict[str, Any]) -> dict[str, Any]:
    """The rope section: "rope_parameters" since transformers 5, "rope_scaling" (often null) before."""
    return config.get("rope_parameters") or config.get("rope_scaling") or {}


def _refuse_unknown_variants(folder: Path, config: dict[str, Any]) -> None:
    rope = _rope_parameters(config)
    expected = {
        "rope_type": (rope.get("rope_type") or rope.get("type") or "default", "default"),
        "hidden_act": (config.get("hidden_act", "silu"), "silu"),
        "attention_bias": (config.get("attention_bias", False), False),
        "mlp_bias": (config.get("mlp_bias", False), False),
        "quantization_config": (config.get("quantization_config"), None),
    }
    for name, (found, known) in expected.items():
        if found != known:
            raise CannotStartError(f"{folder}: config.json has {name} {found!r}; only {known!r} is supported")


class LlamaLayer:
    """One decoder layer."""

    def __init__(self, index: int, shape: ModelShape, checkpoint: Checkpoint, epsilon: float) -> None:
        """Take layer `index` out of the checkpoint."""

        def weight(name: str, *size: int) -> Tensor:
            return checkpoint.tensor(f"model.layers.{index}.{name}.weight", *size)

        hidden, inner, head_dim = shape.hidden_size, shape.intermediate_size, shape.head_dim
        queries, keys = shape.num_heads * head_dim, shape.num_kv_heads * head_dim
        self._index = index
        self._epsilon = epsilon
        self._num_rotated = shape.num_heads + shape.num_kv_heads
        self._num_heads = shape.num_heads
        self._head_dim = head_dim
        self._attention_norm = weight("input_layernorm", hidden)
        self._qkv = projection(
            weight("self_attn.q_proj", queries, hidden),
            weight("self_attn.k_proj", keys, hidden),
            weight("self_attn.v_proj", keys, hidden),
        )
        self._output = projection(weight("self_attn.o_proj", hidden, queries))
        self._mlp_norm = weight("post_attention_layernorm", hidden)
        self._gate_up = projection(weight("mlp.gate_proj", inner, hidden), weight("mlp.up_proj", inner, hidden))
        self._down = projection(weight("mlp.down_proj", hidden, inner))

    def forward(self, hidden: Tensor, rotary: Rotary, angles: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        """``[num_tokens, hidden_size]`` in and out."""
        hidden = hidden + self._attention(self._norm(hidden, self._attention_norm), rotary, angles, attend)
        return hidden + self._mlp(self._norm(hidden, self._mlp_norm))

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(hidden, weight.shape, weight, self._epsilon)

    def _attention(self, hidden: Tensor, rotary: Rotary, angles: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        heads = self._qkv(hidden).view(len(hidden), -1, self._head_dim)
        rotated = rotary.rotate(heads[:, : self._num_rotated], angles)
        query, key = rotated[:, : self._num_heads], rotated[:, self._num_heads :]
        return self._output(attend(self._index, query, key, heads[:, self._num_rotated :]))

    def _mlp(self, hidden: Tensor) -> Tensor:
        gate, up = self._gate_up(hidden).chunk(2, -1)
        return self._down(functional.silu(gate) * up)


class LlamaModel:
    """A `Model` of the Llama family."""

    def __init__(self, folder: Path, shape: ModelShape, checkpoint: Checkpoint, max_positions: int) -> None:
        """Take everything out of the checkpoint. Raises CannotStartError."""
        settings = LlamaSettings.from_folder(folder)
        vocabulary = (shape.vocab_size, shape.hidden_size)
        self._epsilon = settings.norm_epsilon
        self._embedding = checkpoint.tensor("model.embed_tokens.weight", *vocabulary)
        self._layers = [LlamaLayer(i, shape, checkpoint, settings.norm_epsilon) for i in range(shape.num_layers)]
        self._norm = checkpoint.tensor("model.norm.weight", shape.hidden_size)
        self._head = projection(
            self._embedding if settings.tied_head else checkpoint.tensor("lm_head.weight", *vocabulary)
        )
        self._rotary = Rotary(shape.head_dim, settings.rope_theta, max_positions, like=self._norm)

    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """``[num_tokens]`` ids and positions (int64) to ``[num_tokens, hidden_size]``, before the last norm."""
        hidden = functional.embedding(token_ids, self._embedding)
        angles = self._rotary.at(positions)
        for layer in self._layers:
            hidden = layer.forward(hidden, self._rotary, angles, attend)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """``[n, hidden_size]`` to float32 ``[n, vocab_size]``."""
        return self._head(functional.rms_norm(hidden, self._norm.shape, self._norm, self._epsilon)).float()
