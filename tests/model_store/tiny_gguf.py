"""A Llama of a few thousand weights as a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np

from tests.factories import SPECIAL, byte_level_tokenizer

HIDDEN, INNER, HEADS, KV_HEADS, LAYERS, CONTEXT = 32, 64, 4, 2, 2, 64
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def write_tiny_gguf(path: Path) -> None:
    vocabulary = json.loads(byte_level_tokenizer().to_str())["model"]
    writer = gguf.GGUFWriter(path, "llama")
    _write_metadata(writer, vocabulary)
    for name, shape in _shapes(len(vocabulary["vocab"])).items():
        seed = sum(map(ord, name))
        writer.add_tensor(name, np.random.default_rng(seed).standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_metadata(writer: gguf.GGUFWriter, vocabulary: dict) -> None:
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(vocabulary["vocab"]))
    pieces = sorted(vocabulary["vocab"], key=vocabulary["vocab"].get)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(pieces)
    writer.add_token_types([control if piece in SPECIAL else normal for piece in pieces])
    writer.add_token_merges([" ".join(pair) for pair in vocabulary["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template(TEMPLATE)


def _shapes(vocab_size: int) -> dict[str, tuple[int, ...]]:
    kv = HIDDEN // HEADS * KV_HEADS
    layer = {
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (kv, HIDDEN),
        "attn_v": (kv, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_gate": (INNER, HIDDEN),
        "ffn_up": (INNER, HIDDEN),
        "ffn_down": (HIDDEN, INNER),
        "attn_norm": (HIDDEN,),
        "ffn_norm": (HIDDEN,),
    }
    layers = {f"blk.{i}.{name}.weight": shape for i in range(LAYERS) for name, shape in layer.items()}
    return {"token_embd.weight": (vocab_size, HIDDEN), "output_norm.weight": (HIDDEN,)} | layers
