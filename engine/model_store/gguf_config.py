"""What a GGUF file says about a model, where transformers does not read it: head sizes, scales, windows, ropes.

Names of metadata and tensors are those of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; where a file says
nothing, what llama.cpp then assumes.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class NotCarriedError(Exception):
    """A file cannot be converted; the message is one clear line."""


class GgufFile(Protocol):
    """What is asked of a file."""

    architecture: str

    def setting(self, name: str) -> Any:
        """Metadata ``<architecture>.<name>``, or None."""
        ...

    def tensor(self, name: str) -> NDArray[Any] | None:
        """A tensor that is not quantized, or None."""
        ...


def complete_config(config: Any, file: GgufFile) -> None:
    """Add to transformers' `config` what its reader leaves out. Raises NotCarriedError for what cannot be added."""
    for step in (_head_size, _gemma_scale, _softcaps, _mistral_window, _rope_scaling, _rope_factors):
        step(config, file)


def _head_size(config: Any, file: GgufFile) -> None:
    size = file.setting("attention.key_length")
    if size is not None and file.architecture in ("llama", "qwen3", "gemma2", "gemma3"):
        config.head_dim = int(size)


def _gemma_scale(config: Any, file: GgufFile) -> None:
    """Scores are scaled by the size of a head, but in the 27B models (known by their layers) by width per head."""
    layers_of_27b = {"gemma2": 46, "gemma3": 62}
    if file.architecture not in layers_of_27b:
        return
    by_width = config.num_hidden_layers == layers_of_27b[file.architecture]
    config.query_pre_attn_scalar = config.hidden_size // config.num_attention_heads if by_width else config.head_dim


def _softcaps(config: Any, file: GgufFile) -> None:
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        value = file.setting(name)
        if value is not None:
            setattr(config, name, float(value))


def _mistral_window(config: Any, file: GgufFile) -> None:
    """Without a word about it there is none: the first Mistral's is transformers' default for all."""
    if config.model_type == "mistral":
        config.sliding_window = file.setting("attention.sliding_window")


def _rope_scaling(config: Any, file: GgufFile) -> None:
    kind = file.setting("rope.scaling.type")
    if kind in (None, "none"):
        return
    if kind not in ("linear", "yarn"):
        raise NotCarriedError(f"its rope scaling {kind!r} cannot be carried over; use the model's Hugging Face folder")
    section: dict[str, Any] = {"rope_type": kind, "factor": float(file.setting("rope.scaling.factor"))}
    if kind == "yarn":
        section["original_max_position_embeddings"] = int(file.setting("rope.scaling.original_context_length"))
    _rope(config).update(section)


def _rope_factors(config: Any, file: GgufFile) -> None:
    """Llama 3 has its scaling as divisors of the frequencies. The section that gives just these is looked for."""
    if file.tensor("rope_factors_long.weight") is not None:
        raise NotCarriedError("its rope scaling 'longrope' cannot be carried over; it is not supported")
    divisors = file.tensor("rope_freqs.weight")
    if divisors is None:
        return
    theta, head_dim = float(_rope(config)["rope_theta"]), 2 * len(divisors)
    factor = float(divisors.max())
    section = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    section |= {"factor": factor, "original_max_position_embeddings": 8192}
    if not np.allclose(divisors, _llama3_divisors(head_dim, theta, factor, 1.0, 4.0, 8192), rtol=1e-3):
        raise NotCarriedError("its rope_freqs are not those of Llama 3; use the model's Hugging Face folder")
    _rope(config).update(section)


def _llama3_divisors(head_dim: int, theta: float, factor: float, low: float, high: float, original: int) -> Any:
    """By how much Llama 3 divides each frequency; see `engine.runner.models.rope_scaling.llama3`."""
    turns = original * theta ** -(np.arange(0, head_dim, 2) / head_dim) / (2 * np.pi)
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return 1 / (kept + (1 - kept) / factor)


def _rope(config: Any) -> dict[str, Any]:
    """The rope section; of Gemma 3, that of the layers without a window, which alone are scaled."""
    section: dict[str, Any] = config.rope_parameters
    everywhere: dict[str, Any] = section.get("full_attention", section)
    return everywhere
