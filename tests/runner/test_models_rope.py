"""Frequencies and tables against those of transformers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from engine.runner.models import rope_scaling
from engine.runner.models.model_config import ModelConfig
from engine.runner.models.rope import Rotary, frequencies, rope_parameters
from tests.model_zoo import make_model_folder
from tests.runner.factories import PagedModel, prompts
from tests.runner.test_models import assert_same_logits

LENGTH = 512
LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SECTIONS = [
    {"rope_type": "default"},
    {"rope_type": "default", "rope_theta": 500_000.0},
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "dynamic", "factor": 4.0},
    {**LLAMA3, "factor": 8.0, "original_max_position_embeddings": 128},
    {**LLAMA3, "factor": 32.0, "original_max_position_embeddings": 256, "rope_theta": 500_000.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    {"rope_type": "yarn", "factor": 4.0},
    {"rope_type": "yarn", "factor": 0.5, "original_max_position_embeddings": 256},
    {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "beta_fast": 16, "beta_slow": 2},
    {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "truncate": False},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "attention_factor": 1.5},
    {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 64, "mscale": 0.7, "mscale_all_dim": 1.2},
]


def theirs(section: dict) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=64, num_attention_heads=2, max_position_embeddings=LENGTH, rope_parameters=dict(section)
    )


def ours(tmp_path, fields: dict, length: int = LENGTH) -> tuple[torch.Tensor, float]:
    config = ModelConfig(tmp_path, {"max_position_embeddings": LENGTH, **fields})
    return frequencies(config, rope_parameters(config, 10_000.0), 32, length)


@pytest.mark.parametrize("section", SECTIONS, ids=str)
def test_tables_are_those_of_transformers(tmp_path, section):
    rotary = Rotary(*ours(tmp_path, {"rope_parameters": section}), LENGTH, torch.float32, torch.device("cpu"))
    positions = torch.arange(LENGTH)
    cos, sin = LlamaRotaryEmbedding(theirs(section))(torch.zeros(1), positions[None])
    found_cos, found_sin = (table[:, 0] for table in rotary.at(positions))
    # An angle of a few hundred has a rounding error of 3e-5 in float32, and frequencies are rounded on both sides.
    torch.testing.assert_close(found_cos, cos[0], atol=2e-4, rtol=0)
    torch.testing.assert_close(found_sin[:, 16:], sin[0, :, 16:], atol=2e-4, rtol=0)
    torch.testing.assert_close(-found_sin[:, :16], sin[0, :, :16], atol=2e-4, rtol=0)


@pytest.mark.parametrize("section", SECTIONS[2:], ids=str)
def test_frequencies_are_those_of_transformers(tmp_path, section):
    expected, magnitude = ROPE_INIT_FUNCTIONS[section["rope_type"]](theirs(section), torch.device("cpu"))
    found, ours_magnitude = ours(tmp_path, {"rope_parameters": section})
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    assert ours_magnitude == pytest.approx(magnitude, rel=1e-12)


@pytest.mark.parametrize("section", SECTIONS, ids=str)
def test_the_older_form_of_the_section_means_the_same(tmp_path, section):
    old = {("type" if name == "rope_type" else name): value for name, value in section.items()}
    theta = old.pop("rope_theta", 10_000.0)
    fields = {"rope_parameters": None, "rope_scaling": old, "rope_theta": theta}
    expected, magnitude = ours(tmp_path, {"rope_parameters": section})
    found, found_magnitude = ours(tmp_path, fields)
    assert torch.equal(found, expected)
    assert found_magnitude == magnitude


def test_a_section_for_each_type_of_layer_is_told_apart(tmp_path):
    parts = {"full_attention": {"rope_type": "linear", "factor": 2.0}, "sliding_attention": {"rope_theta": 5.0}}
    config = ModelConfig(tmp_path, {"rope_parameters": parts})
    assert rope_parameters(config, 7.0, "full_attention") == {"rope_type": "linear", "factor": 2.0, "rope_theta": 7.0}
    assert rope_parameters(config, 7.0, "sliding_attention") == {"rope_theta": 5.0}


@pytest.mark.parametrize("length", [1, 100, LENGTH])
def test_dynamic_ntk_scales_nothing_within_the_original_context(tmp_path, length):
    found, _ = ours(tmp_path, {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}, length)
    assert torch.equal(found, rope_scaling.default(32, 10_000.0))


@pytest.mark.parametrize("length", [LENGTH, LENGTH + 1, 1000, 4 * LENGTH])
def test_dynamic_ntk_is_that_of_transformers_for_a_sequence_of_the_same_length(length):
    config = theirs({"rope_type": "dynamic", "factor": 4.0})
    expected, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, torch.device("cpu"), seq_len=length)
    found = rope_scaling.dynamic_ntk(32, 10_000.0, 4.0, LENGTH, length)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


@given(
    factor=st.floats(1, 64),
    original=st.integers(32, 8192),
    low=st.floats(0.5, 2),
    width=st.floats(0.5, 8),
    theta=st.sampled_from([1e4, 5e5, 1e6]),
)
def test_llama3_neither_speeds_a_pair_up_nor_slows_it_beyond_the_factor(factor, original, low, width, theta):
    plain = rope_scaling.default(64, theta)
    scaled = rope_scaling.llama3(plain, factor, low, low + width, original)
    assert (scaled <= plain * 1.00001).all()
    assert (scaled >= plain / factor * 0.99999).all()
    assert (scaled.diff() < 0).all()


@pytest.mark.parametrize("section", SECTIONS[2:7], ids=lambda section: section["rope_type"])
def test_a_model_with_scaled_rotation_is_computed_like_transformers_does(tmp_path, section):
    folder = make_model_folder("llama", tmp_path, rope_parameters={"rope_theta": 10_000.0, **section})
    assert_same_logits(folder, split="mixed")


def test_rotation_by_position_makes_a_difference_at_all(zoo):
    """Or else the tests above would compare nothing."""
    folder, _ = zoo("llama")
    row = prompts([20])[0]
    swapped = [row[1], row[0], *row[2:]]
    paged = PagedModel(folder)
    a, b = (paged.logits([r], [[20]])[0][-1] for r in (row, swapped))
    assert (a - b).abs().max() > 0.1
