"""GGUF file → Hugging Face folder, once, in a process of its own: ``python -m engine.model_store.convert``.

transformers reads the file, dequantizes the weights and translates names and tokenizer; it and torch are gone
with this process, so that no serving process pays for them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

_WHOLE_FILE = "model.safetensors"


def convert(gguf: Path, target: Path, dtype: str) -> None:
    """Write config, weights in `dtype` and tokenizer of `gguf` into the existing folder `target`."""
    _write_tokenizer(gguf, target)
    _write_model(gguf, target, dtype)


def _write_model(gguf: Path, target: Path, dtype: str) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    tied = set(model._tied_weights_keys or ()) if model.config.tie_word_embeddings else set()
    weights = {
        name: tensor.to(getattr(torch, dtype)).contiguous()
        for name, tensor in model.state_dict().items()
        if name not in tied
    }
    save_file(weights, target / _WHOLE_FILE, metadata={"format": "pt"})
    config = model.config.to_dict()
    for key in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        config.pop(key, None)
    _write_json(target / "config.json", config | {"architectures": [type(model).__name__], "dtype": dtype})
    special = ("bos_token_id", "eos_token_id", "pad_token_id")
    _write_json(target / "generation_config.json", {key: config[key] for key in special if config.get(key) is not None})


def _write_tokenizer(gguf: Path, target: Path) -> None:
    from gguf import GGUFReader
    from transformers import AutoTokenizer

    metadata = GGUFReader(gguf)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    pre_tokenizer = _pre_tokenizer(_field(metadata, "tokenizer.ggml.pre"))
    if pre_tokenizer is not None:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizer
    context = _field(metadata, f"{_field(metadata, 'general.architecture')}.context_length")
    if context is not None:
        tokenizer.model_max_length = int(context)
    tokenizer.save_pretrained(target, save_jinja_files=False)


def _pre_tokenizer(name: Any) -> Any:
    """How a vocabulary splits text before merging, where transformers does not read it from the file.

    SmolLM's takes each digit for itself (in llama.cpp's table of pre-tokenizers as well as in the model's own
    tokenizer.json); without that, spaces in front of a number would merge in a way never seen in training.
    """
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    if name != "smollm":
        return None
    return Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)])


def _field(metadata: Any, name: str) -> Any:
    field = metadata.get_field(name)
    return None if field is None else field.contents()


def _write_json(file: Path, value: dict[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
