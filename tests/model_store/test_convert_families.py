"""GGUF files of every family that can be one: the converted folder is the model that was put in."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch

from engine.model_store import ModelError, PlainProgress, resolve_model
from engine.model_store.convert import convert
from engine.model_store.gguf_config import NotCarriedError
from tests.model_store.zoo_gguf import write_gguf
from tests.model_zoo import WINDOW, load_reference, make_model_folder

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
GEMMA = {"query_pre_attn_scalar": 16}
GEMMA_GGUF = {"attention__sliding_window": WINDOW}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 10_000.0}
YARN_GGUF = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 64}


def converted(family: str, tmp_path: Path, changes: dict, settings: dict) -> tuple[Path, Path]:
    """(folder that was put in, folder that came out)."""
    folder, target = tmp_path / "folder", tmp_path / "converted"
    make_model_folder(family, folder, **changes)
    target.mkdir()
    write_gguf(family, folder, tmp_path / f"{family}.gguf", **settings)
    convert(tmp_path / f"{family}.gguf", target, "float32")
    return folder, target


@pytest.mark.parametrize(
    ("family", "changes", "settings"),
    [
        ("llama3", {"rope_parameters": LLAMA3, "head_dim": 64, "num_attention_heads": 2}, {}),
        ("smollm2", {"rope_parameters": YARN}, YARN_GGUF),
        ("mistral", {"sliding_window": None}, {}),
        ("qwen2", {"use_sliding_window": False}, {}),
        ("qwen3", {}, {}),
        ("gemma2", GEMMA, GEMMA_GGUF | {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 30.0}),
        (
            "gemma3",
            GEMMA
            | {"sliding_window_pattern": 6, "num_hidden_layers": 7}
            | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
            GEMMA_GGUF | {"rope__scaling__type": "linear", "rope__scaling__factor": 8.0},
        ),
        ("phi3", {"sliding_window": None}, {}),
    ],
)
def test_logits_of_the_converted_model_are_those_of_the_original(tmp_path, family, changes, settings):
    folder, target = converted(family, tmp_path, changes, settings)
    ids = torch.randint(320, (1, 60), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected, found = (load_reference(f)(ids).logits for f in (folder, target))
    torch.testing.assert_close(found, expected, atol=1e-4 * float(expected.std()), rtol=0)
    theirs, ours = (json.loads((f / "config.json").read_text()) for f in (folder, target))
    assert ours["rope_parameters"] == theirs["rope_parameters"]


@pytest.mark.parametrize(
    ("family", "settings", "words"),
    [
        ("smollm3", {}, "transformers reads no GGUF files of the architecture 'smollm3'; use the model's Hugging Face"),
        ("qwen2", {"rope__scaling__type": "longrope"}, "its rope scaling 'longrope' cannot be carried over"),
        ("llama3", {}, "its rope_freqs are not those of Llama 3; use the model's Hugging Face folder"),
    ],
)
def test_what_cannot_be_carried_over_is_said(tmp_path, family, settings, words):
    with pytest.raises(NotCarriedError, match=words):
        converted(family, tmp_path, {}, settings)


def test_the_operator_is_told_in_one_line(tmp_path):
    folder = make_model_folder("smollm3", tmp_path / "folder")
    file = tmp_path / "model.gguf"
    write_gguf("smollm3", folder, file)
    with pytest.raises(ModelError) as caught:
        resolve_model(str(file), "float32", tmp_path / "cache", PlainProgress(io.StringIO()))
    assert str(caught.value) == (
        f"cannot convert {file}: transformers reads no GGUF files of the architecture 'smollm3'; use the model's "
        "Hugging Face folder"
    )
