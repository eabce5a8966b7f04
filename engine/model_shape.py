"""What everybody needs to know about a model without loading it: its sizes and limits.

Read from config.json and generation_config.json of a Hugging Face folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from engine.config import Config

DTYPE_BYTES = {"bfloat16": 2, "float32": 4}

_NAMES = {
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "hidden_size": ("n_embd", "d_model"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "max_position_embeddings": ("n_positions", "n_ctx", "max_seq_len"),
}
"""What some models call the same thing."""

_NUM_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")

_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma3_text": {
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
    },
}
"""Sizes that a model type leaves out of config.json where they are these."""


class ModelShape(msgspec.Struct, frozen=True):
    """Sizes and limits of a decoder-only model."""

    architecture: str  # "LlamaForCausalLM"
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    eos_token_ids: tuple[int, ...]
    expert_share: float = 1.0  # of the experts of a layer, those that one token uses; without experts 1

    @classmethod
    def from_folder(cls, folder: Path) -> ModelShape:
        """Read a folder. Raises OSError, KeyError or ValueError when it does not hold a known configuration."""
        config = text_config(json.loads((folder / "config.json").read_text()))
        if config.get("is_encoder_decoder"):
            raise ValueError("it is an encoder-decoder model")
        heads, hidden_size = _size(config, "num_attention_heads"), _size(config, "hidden_size")
        return cls(
            architecture=config["architectures"][0],
            num_layers=_size(config, "num_hidden_layers"),
            hidden_size=hidden_size,
            intermediate_size=_size(config, "intermediate_size", 4 * hidden_size),
            num_heads=heads,
            num_kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or hidden_size // heads,
            vocab_size=config["vocab_size"],
            max_positions=_size(config, "max_position_embeddings"),
            eos_token_ids=_eos(folder, config),
            expert_share=_expert_share(config),
        )

    def kv_bytes_per_token(self, dtype: str) -> int:
        """Keys and values of one token over all layers, in bytes."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * DTYPE_BYTES[dtype]

    def max_model_len(self, config: Config) -> int:
        """Longest context in tokens under this configuration."""
        return min(config.max_model_len or self.max_positions, self.max_positions)

    def num_kv_blocks(self, config: Config) -> int:
        """Blocks in the KV pool under this configuration."""
        per_block = self.kv_bytes_per_token(config.dtype) * config.block_size
        return config.kv_blocks or max(1, config.kv_cache_bytes // per_block)

    def longest_sequence(self, config: Config) -> int:
        """Most tokens (prompt and answer) that one sequence can ever have: by context and by pool."""
        return min(self.max_model_len(config), self.num_kv_blocks(config) * config.block_size)


def text_config(config: Any) -> dict[str, Any]:
    """The fields of a config.json that concern text: those of its text part win, where it has one.

    Raises ValueError unless it is an object.
    """
    if not isinstance(config, dict):
        raise ValueError("it is not a JSON object")
    text = config.get("text_config") or {}
    model_type = text.get("model_type") or config.get("model_type", "")
    return _DEFAULTS.get(model_type, {}) | config | text | {"architectures": config.get("architectures")}


def _size(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A size under its usual name or another. Raises KeyError when it is missing and has no default."""
    for key in (name, *_NAMES[name]):
        if config.get(key) is not None:
            return int(config[key])
    if default is None:
        raise KeyError(name)
    return default


def _expert_share(config: Mapping[str, Any]) -> float:
    experts = next((config[key] for key in _NUM_EXPERTS if config.get(key)), 0)
    return min(1.0, config.get("num_experts_per_tok", experts) / experts) if experts else 1.0


def _eos(folder: Path, config: dict[str, Any]) -> tuple[int, ...]:
    """End-of-sequence ids: generation_config.json has the last word."""
    generation = folder / "generation_config.json"
    value = json.loads(generation.read_text()).get("eos_token_id") if generation.exists() else None
    value = config.get("eos_token_id") if value is None else value
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)
