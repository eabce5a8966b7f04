"""A real conversion, in its own process, of a tiny model."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from safetensors import safe_open
from tokenizers import Tokenizer

from engine.model_shape import ModelShape
from engine.model_store import ModelError, PlainProgress, resolve_model
from engine.model_store.hashing import sha256_of
from tests.model_store.tiny_gguf import CONTEXT, LAYERS, TEMPLATE, write_tiny_gguf

QUIET = PlainProgress(io.StringIO())


@pytest.fixture(scope="module")
def gguf(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("gguf") / "Tiny Model.gguf"
    write_tiny_gguf(file)
    return file


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def model(gguf, cache):
    return resolve_model(str(gguf), "float32", cache, QUIET)


def test_the_model_is_named_after_the_file_and_identified_by_hashes(gguf, model):
    assert model.name == "Tiny-Model"
    assert model.weights_sha256 == sha256_of(gguf)
    assert model.tokenizer_sha256 == sha256_of(Path(model.path) / "tokenizer.json")


def test_the_configuration_says_what_the_file_said(model):
    shape = ModelShape.from_folder(Path(model.path))
    assert (shape.architecture, shape.num_layers, shape.max_positions) == ("LlamaForCausalLM", LAYERS, CONTEXT)
    assert shape.eos_token_ids == (1,)
    assert "quantization_config" not in json.loads((Path(model.path) / "config.json").read_text())


def test_weights_are_bit_equal_to_what_transformers_loads(gguf, model):
    import torch
    from transformers import AutoModelForCausalLM

    expected = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32).state_dict()
    with safe_open(Path(model.path) / "model.safetensors", "pt") as weights:
        stored = {name: weights.get_tensor(name) for name in weights.keys()}  # noqa: SIM118 - not a dict
    assert expected.keys() - stored.keys() <= {"lm_head.weight"}  # tied to the embeddings
    assert all(torch.equal(expected[name], tensor) for name, tensor in stored.items())


def test_the_tokenizer_takes_each_digit_for_itself(model):
    tokenizer = Tokenizer.from_file(f"{model.path}/tokenizer.json")
    assert [t for t, _ in tokenizer.pre_tokenizer.pre_tokenize_str("a  12")] == ["a", "ĠĠ", "1", "2"]
    assert tokenizer.encode("<s>").ids == [0]


def test_the_chat_template_comes_along(model):
    settings = json.loads((Path(model.path) / "tokenizer_config.json").read_text())
    assert settings["chat_template"] == TEMPLATE
    assert settings["model_max_length"] == CONTEXT


def test_the_second_time_nothing_is_done(gguf, cache, model):
    said = io.StringIO()
    assert resolve_model(str(gguf), "float32", cache, PlainProgress(said)) == model
    assert said.getvalue() == ""


def test_a_damaged_file_is_one_line_of_error(gguf, tmp_path):
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(gguf.read_bytes()[:5000])
    with pytest.raises(ModelError, match=r"cannot convert .*damaged\.gguf") as caught:
        resolve_model(str(damaged), "float32", tmp_path / "cache", QUIET)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "cache").rglob(".partial-*"))
