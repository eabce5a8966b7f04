"""Models of the zoo as GGUF files, written as llama.cpp's converter does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

from tests.factories import SPECIAL

ARCHITECTURES = {
    "llama": "llama",
    "llama3": "llama",
    "smollm2": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma2": "gemma2",
    "gemma3": "gemma3",
    "phi3": "phi3",
    "smollm3": "smollm3",
}


def write_gguf(family: str, folder: Path, path: Path, **settings: Any) -> None:
    """Write the model in `folder` to `path`. `settings` are further metadata of its architecture, dots as ``__``."""
    architecture = ARCHITECTURES[family]
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, architecture)
    _write_sizes(writer, config)
    for name, value in settings.items():
        add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}[type(value)]
        add(f"{architecture}.{name.replace('__', '.')}", value)
    _write_vocabulary(writer, folder)
    for name, weight in _tensors(architecture, folder, config).items():
        writer.add_tensor(name, np.ascontiguousarray(weight, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_sizes(writer: gguf.GGUFWriter, config: dict) -> None:
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    rope = config["rope_parameters"]
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])


def _write_vocabulary(writer: gguf.GGUFWriter, folder: Path) -> None:
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]
    pieces = sorted(vocabulary["vocab"], key=vocabulary["vocab"].get)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(pieces)
    writer.add_token_types([control if piece in SPECIAL else normal for piece in pieces])
    writer.add_token_merges([" ".join(pair) for pair in vocabulary["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_pad_token_id(1)


def _tensors(architecture: str, folder: Path, config: dict) -> dict[str, np.ndarray]:
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    tensors = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        stem, kind = name.rsplit(".", 1)
        if architecture == "llama" and stem.endswith(("q_proj", "k_proj")):
            weight = _interleave(weight, heads[stem.rsplit(".", 1)[1]])
        if architecture.startswith("gemma") and stem.endswith("norm"):
            weight = weight + 1
        tensors[f"{names.get_name(stem)}.{kind}"] = weight
    if config["rope_parameters"].get("rope_type") == "llama3":
        tensors["rope_freqs.weight"] = _llama3_divisors(config)
    return tensors


def _interleave(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """llama.cpp rotates neighbours, not halves."""
    halves = weight.reshape(num_heads, 2, len(weight) // num_heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def _llama3_divisors(config: dict) -> np.ndarray:
    import torch
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](LlamaConfig(**config), torch.device("cpu"))
    head_dim, theta = 2 * len(frequencies), config["rope_parameters"]["rope_theta"]
    return theta ** -(np.arange(0, head_dim, 2) / head_dim) / frequencies.numpy()
