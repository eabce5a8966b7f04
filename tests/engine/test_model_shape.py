from __future__ import annotations

import json

import pytest

from engine.model_shape import ModelShape

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "vocab_size": 320,
    "max_position_embeddings": 256,
}


def shape(folder, config) -> ModelShape:
    (folder / "config.json").write_text(json.dumps(config))
    return ModelShape.from_folder(folder)


def test_heads_that_are_not_told_apart_are_all_alike(tmp_path):
    found = shape(tmp_path, LLAMA)
    assert (found.num_kv_heads, found.head_dim, found.eos_token_ids) == (4, 16, ())
    told = shape(tmp_path, LLAMA | {"num_key_value_heads": 2, "head_dim": 32, "eos_token_id": [1, 2]})
    assert (told.num_kv_heads, told.head_dim, told.eos_token_ids) == (2, 32, (1, 2))


def test_other_names_of_the_same_sizes_are_read(tmp_path):
    gpt2 = {"n_layer": 3, "n_embd": 32, "n_head": 4, "n_positions": 128, "n_inner": None}
    found = shape(tmp_path, {"architectures": ["GPT2LMHeadModel"], "vocab_size": 320, **gpt2})
    assert found == ModelShape("GPT2LMHeadModel", 3, 32, 128, 4, 4, 8, 320, 128, ())


def test_sizes_of_the_text_part_win(tmp_path):
    outer = {"architectures": ["XForConditionalGeneration"], "hidden_size": 1, "eos_token_id": 7}
    found = shape(tmp_path, outer | {"text_config": LLAMA})
    assert (found.architecture, found.hidden_size, found.eos_token_ids) == ("XForConditionalGeneration", 64, (7,))


def test_sizes_that_gemma_3_leaves_out_are_known(tmp_path):
    """As google/gemma-3-4b-it has it."""
    text = {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34}
    found = shape(tmp_path, {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text})
    assert (found.num_heads, found.num_kv_heads, found.head_dim, found.vocab_size) == (8, 4, 256, 262_208)


@pytest.mark.parametrize("missing", ["hidden_size", "num_hidden_layers", "max_position_embeddings", "vocab_size"])
def test_a_size_that_is_missing_is_named(tmp_path, missing):
    with pytest.raises(KeyError, match=missing):
        shape(tmp_path, {name: value for name, value in LLAMA.items() if name != missing})


def test_an_encoder_decoder_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match="encoder-decoder"):
        shape(tmp_path, LLAMA | {"is_encoder_decoder": True})
    with pytest.raises(ValueError, match="not a JSON object"):
        shape(tmp_path, [])
