"""GGUF file → Hugging Face folder, once, in a process of its own: ``python -m engine.model_store.convert``.

transformers reads the file, dequantizes the weights and translates names and tokenizer; it and torch are gone
with this process, so that no serving process pays for them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from engine.model_store.gguf_config import NotCarriedError, complete_config

_WHOLE_FILE = "model.safetensors"


class _File:
    """A `GgufFile` on disk."""

    def __init__(self, path: Path) -> None:
        from gguf import GGUFReader

        self._reader = GGUFReader(path)
        self.architecture = str(self.metadata("general.architecture"))

    def metadata(self, name: str) -> Any:
        field = self._reader.get_field(name)
        return None if field is None else field.contents()

    def setting(self, name: str) -> Any:
        return self.metadata(f"{self.architecture}.{name}")

    def tensor(self, name: str) -> Any:
        return next((tensor.data for tensor in self._reader.tensors if tensor.name == name), None)


def convert(gguf: Path, target: Path, dtype: str) -> None:
    """Write config, weights in `dtype` and tokenizer of `gguf` into the existing folder `target`.

    Raises NotCarriedError for a model that transformers cannot read, or reads only in part.
    """
    file = _File(gguf)
    _check_architecture(file)
    _write_tokenizer(gguf, file, target)
    _write_model(gguf, file, target, dtype)


def _check_architecture(file: _File) -> None:
    from transformers.integrations.gguf.gguf_config_mapping import GGUF_CONFIG_ARCHS
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    names = (*GGUF_SUPPORTED_ARCHITECTURES, *GGUF_CONFIG_ARCHS)
    known = {name.replace("_", "").replace("-", "") for name in names}
    if file.architecture.replace("_", "").replace("-", "") not in known:
        raise NotCarriedError(
            f"transformers reads no GGUF files of the architecture {file.architecture!r}; use the model's Hugging Face "
            "folder"
        )


def _write_model(gguf: Path, file: _File, target: Path, dtype: str) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name)
    complete_config(config, file)
    load: Any = AutoModelForCausalLM.from_pretrained
    model, info = load(gguf.parent, gguf_file=gguf.name, config=config, dtype=torch.float32, output_loading_info=True)
    tied = set(model._tied_weights_keys or ()) if model.config.tie_word_embeddings else set()
    if missing := set(info["missing_keys"]) - tied:
        raise NotCarriedError(f"it has no weights for {min(missing)}")
    weights = {
        name: tensor.to(getattr(torch, dtype)).contiguous()
        for name, tensor in model.state_dict().items()
        if name not in tied
    }
    save_file(weights, target / _WHOLE_FILE, metadata={"format": "pt"})
    fields = model.config.to_dict()
    for key in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        fields.pop(key, None)
    _write_json(target / "config.json", fields | {"architectures": [type(model).__name__], "dtype": dtype})
    special = ("bos_token_id", "eos_token_id", "pad_token_id")
    _write_json(target / "generation_config.json", {key: fields[key] for key in special if fields.get(key) is not None})


def _write_tokenizer(gguf: Path, file: _File, target: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    pre_tokenizer = _pre_tokenizer(file.metadata("tokenizer.ggml.pre"))
    if pre_tokenizer is not None:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizer
    context = file.setting("context_length")
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


def _write_json(file: Path, value: dict[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    try:
        convert(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
    except NotCarriedError as e:
        sys.exit(str(e))
