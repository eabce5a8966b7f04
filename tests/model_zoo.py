"""Tiny random models of every family, as folders that the whole server can serve.

Each has four layers, so that sliding windows and layers without rotary embedding take turns, and weights,
biases and norms large enough that the logits of any two implementations agree only where the computations do.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tests.factories import CORPUS, SPECIAL

VOCAB_SIZE = 320
MAX_POSITIONS = 256
WINDOW = 8
EOS_ID = SPECIAL.index("</s>")

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_POSITIONS,
    "initializer_range": 0.3,
    "bos_token_id": SPECIAL.index("<s>"),
    "eos_token_id": EOS_ID,
    "pad_token_id": None,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_GEMMA = {"head_dim": 16, "sliding_window": WINDOW, "query_pre_attn_scalar": 20}

_NATIVE: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "tie_word_embeddings": False},
    "llama3": {"model_type": "llama", "tie_word_embeddings": False, "rope_parameters": _LLAMA3_ROPE},
    "mistral": {"model_type": "mistral", "sliding_window": WINDOW},
    "qwen2": {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2},
    "qwen3": {"model_type": "qwen3", "head_dim": 32},
    "smollm2": {"model_type": "llama", "tie_word_embeddings": True},
    "smollm3": {"model_type": "smollm3", "no_rope_layer_interval": 2},
    "gemma2": {"model_type": "gemma2", "attn_logit_softcapping": 5.0, **_GEMMA},
    "gemma3": {"model_type": "gemma3_text", "sliding_window_pattern": 2, **_GEMMA},
}
_FALLBACK: dict[str, dict[str, Any]] = {
    "phi": {"model_type": "phi"},
    "phi3": {"model_type": "phi3", "sliding_window": WINDOW},
    "olmo": {"model_type": "olmo", "clip_qkv": 3.0},
    "olmo2": {"model_type": "olmo2"},
    "granite": {
        "model_type": "granite",
        "attention_multiplier": 0.2,
        "residual_multiplier": 0.7,
        "logits_scaling": 0.5,
    },
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4, "sliding_window": WINDOW},
}

FAMILIES = list(_NATIVE)
"""Families with code of their own in engine/runner/models."""

FALLBACK_FAMILIES = list(_FALLBACK)
"""Families that run through transformers."""


def make_model_folder(family: str, folder: Path, *, seed: int = 0, **overrides: Any) -> Path:
    """Write a model of `family` with configuration, weights and tokenizer into `folder`, and return that.

    `overrides` are fields of its configuration.
    """
    settings = _SIZES | (_NATIVE | _FALLBACK)[family] | overrides
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings), dtype=torch.float32)
    _fill_vectors(model)
    model.save_pretrained(folder)
    _write_generation_config(folder)
    _write_tokenizer(folder)
    return folder


def load_reference(folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The model in `folder` as transformers computes it, attention written out."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()


def _fill_vectors(model: PreTrainedModel) -> None:
    """Biases start at 0 and norms at 1, where forgetting them would go unnoticed.

    Gemma's embeddings are so large that nothing else would count, did not the norms behind each part make it large.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter += 0.2 * torch.randn_like(parameter)
            if ".post_" in name and model.config.model_type.startswith("gemma"):
                parameter += 3


def _write_generation_config(folder: Path) -> None:
    generation = {"bos_token_id": SPECIAL.index("<s>"), "eos_token_id": EOS_ID, "pad_token_id": EOS_ID}
    (folder / "generation_config.json").write_text(json.dumps(generation))


def _write_tokenizer(folder: Path) -> None:
    _tokenizer().save(str(folder / "tokenizer.json"))
    settings = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": "{% for m in messages %}<|turn|>{{ m.role }}: {{ m.content }}{% endfor %}<|turn|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


@cache
def _tokenizer() -> Tokenizer:
    """Byte-level BPE with exactly VOCAB_SIZE tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    return tokenizer
