"""What a GGUF file does not say, or says where transformers does not look."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine.model_store.gguf_config import NotCarriedError, complete_config


class File:
    def __init__(self, architecture: str, settings: dict[str, Any] | None = None, tensors: dict | None = None) -> None:
        self.architecture = architecture
        self.settings = settings or {}
        self.tensors = tensors or {}

    def setting(self, name: str) -> Any:
        return self.settings.get(name)

    def tensor(self, name: str) -> Any:
        return self.tensors.get(name)


def completed(file: File, **fields: Any) -> SimpleNamespace:
    defaults = {
        "model_type": file.architecture,
        "num_hidden_layers": 2,
        "hidden_size": 5376,
        "num_attention_heads": 32,
        "head_dim": 128,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    }
    config = SimpleNamespace(**(defaults | fields))
    complete_config(config, file)
    return config


@pytest.mark.parametrize(
    ("architecture", "layers", "scalar"),
    [("gemma2", 26, 256), ("gemma2", 46, 168), ("gemma3", 34, 256), ("gemma3", 62, 168)],
)
def test_only_the_27b_gemmas_scale_by_width_per_head(architecture, layers, scalar):
    config = completed(File(architecture, {"attention.key_length": 256}), num_hidden_layers=layers)
    assert config.query_pre_attn_scalar == scalar


def test_mistral_has_a_window_only_where_the_file_says_so():
    assert completed(File("llama"), model_type="mistral", sliding_window=4096).sliding_window is None
    told = File("llama", {"attention.sliding_window": 1024})
    assert completed(told, model_type="mistral").sliding_window == 1024


def test_scaling_of_gemma_3_concerns_the_layers_without_a_window():
    sections = {"full_attention": {"rope_type": "default", "rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    file = File("gemma3", {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0})
    found = completed(file, rope_parameters=sections).rope_parameters
    assert found["full_attention"] == {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
    assert found["sliding_attention"] == {"rope_theta": 1e4}


def test_no_scaling_is_no_scaling():
    for settings in ({}, {"rope.scaling.type": "none"}):
        assert completed(File("qwen2", settings)).rope_parameters == {"rope_type": "default", "rope_theta": 10_000.0}


@pytest.mark.parametrize(
    "file",
    [
        File("phi3", tensors={"rope_factors_long.weight": np.ones(8)}),
        File("llama", tensors={"rope_freqs.weight": np.linspace(1, 8, 64)}),
        File("qwen2", {"rope.scaling.type": "longrope"}),
    ],
    ids=["longrope factors", "other frequencies", "longrope"],
)
def test_scaling_that_cannot_be_carried_over_is_refused(file):
    with pytest.raises(NotCarriedError):
        completed(file)
