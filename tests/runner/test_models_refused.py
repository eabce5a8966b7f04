"""What cannot be served says so in one line, before anything is computed wrongly."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from engine.process import CannotStartError
from tests.model_zoo import make_model_folder
from tests.runner.factories import make_runner


def edit_config(folder, **changes: Any):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return folder


def refusal(folder) -> str:
    with pytest.raises(CannotStartError) as caught:
        make_runner(folder)
    message = str(caught.value)
    assert message.startswith(str(folder))
    assert "\n" not in message
    return message.removeprefix(f"{folder}: ")


def rope(**section: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 10000.0, **section}}


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("llama", {"hidden_act": "relu2"}, "hidden_act 'relu2'; known are silu, gelu, gelu_pytorch_tanh"),
        ("gemma2", {"hidden_activation": "tanh"}, "hidden_act 'tanh'; known are silu"),
        ("llama", {"quantization_config": {"bits": 4}}, "quantization_config {'bits': 4}; only None is supported"),
        ("phi", {"quantization_config": {"bits": 4}}, "quantization_config {'bits': 4}; only None is supported"),
        ("llama", rope(rope_type="longrope"), "rope_type 'longrope'; known are default, linear, dynamic, llama3, yarn"),
        ("llama", rope(rope_type="spiral"), "rope_type 'spiral'; known are default"),
        ("llama", {"rope_parameters": None, "rope_scaling": {"type": "su"}}, "rope_type 'su'; known are default"),
        ("llama", rope(rope_type="linear"), "rope_type 'linear' without 'factor', which it needs"),
        ("llama", rope(rope_type="llama3", factor=8.0), "rope_type 'llama3' without 'low_freq_factor'"),
        ("llama", rope(partial_rotary_factor=0.5), "partial_rotary_factor 0.5; only rotation of whole heads"),
        ("qwen2", {"layer_types": ["linear_attention"] * 4}, "a layer of type 'linear_attention'"),
        ("qwen2", {"use_sliding_window": False}, "type 'sliding_attention' and sliding_window None"),
        ("qwen2", {"layer_types": ["full_attention"] * 3}, "3 layer_types for 4 layers"),
        ("smollm3", {"no_rope_layers": [1, 0]}, "2 no_rope_layers for 4 layers"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention True; only causal attention"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0; only None is supported"),
        ("phi", {"architectures": ["PhiForSequenceClassification"]}, "transformers reads it as a PhiForCausalLM"),
        ("phi", {"model_type": "vitrine"}, "transformers cannot load a PhiForCausalLM"),
        ("phi", {"intermediate_size": 64}, "transformers cannot load a PhiForCausalLM"),
        ("phi", {"num_hidden_layers": 5}, "the weights have no tensor 'model.layers.4."),
        ("phi", {"is_encoder_decoder": True}, "it is an encoder-decoder model"),
    ],
)
def test_a_configuration_that_would_be_computed_wrongly_is_refused(tmp_path, family, changes, words):
    assert words in refusal(edit_config(make_model_folder(family, tmp_path), **changes))


def test_weights_that_the_configuration_knows_nothing_of_are_refused(tmp_path):
    folder = edit_config(make_model_folder("llama", tmp_path, attention_bias=True), attention_bias=False)
    assert "the weights have 'model.layers.0.self_attn.k_proj.bias', of which config.json says" in refusal(folder)


def test_frequencies_stored_by_older_versions_are_no_matter(tmp_path):
    folder = make_model_folder("llama", tmp_path)
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    save_file(weights, folder / "model.safetensors")
    make_runner(folder)


SIZES = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "pad_token_id": None,
}


@pytest.mark.parametrize(
    ("model_type", "changes", "words"),
    [
        # Recurrent, alone and between attention layers
        ("mamba", {}, "not all of its layers use transformers' attention interface"),
        ("jamba", {"num_experts": 2, "use_mamba_kernels": False}, "not all of its layers use"),
        # Attention of their own, with position biases
        ("bloom", {}, "not all of its layers use transformers' attention interface"),
        ("falcon", {"alibi": True}, "not all of its layers use transformers' attention interface"),
        # Through the interface, but with more than it tells: attention sinks; a bidirectional encoder
        ("gpt_oss", {"head_dim": 16, "num_local_experts": 4}, "on a paged KV cache its logits are off by"),
        ("bert", {"num_key_value_heads": 4}, "on a paged KV cache its logits are off by"),
    ],
)
def test_a_model_that_the_fallback_would_compute_wrongly_is_refused(tmp_path, model_type, changes, words):
    torch.manual_seed(0)
    config = AutoConfig.for_model(**(SIZES | {"model_type": model_type} | changes))
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(tmp_path)
    assert words in refusal(tmp_path)


def test_rotation_that_depends_on_the_longest_row_is_refused(tmp_path):
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "original_max_position_embeddings": 64}
    folder = make_model_folder(
        "phi3", tmp_path, rope_parameters={"rope_type": "longrope", "rope_theta": 10000.0, **factors}
    )
    assert "rope_type 'longrope', which is not supported" in refusal(folder)


def test_a_window_that_attention_is_not_told_of_is_refused(tmp_path):
    folder = edit_config(make_model_folder("phi", tmp_path), sliding_window=64)
    assert "sliding_window 64, of which no layer's attention is told" in refusal(folder)


def test_other_kinds_of_layers_are_refused(tmp_path):
    folder = edit_config(make_model_folder("phi", tmp_path), layer_types=["chunked_attention"] * 4)
    assert "layers of type 'chunked_attention', which are not supported" in refusal(folder)
