"""What is particular about models that run through transformers; that they compute right is in test_models."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from structlog.testing import capture_logs
from transformers import AutoConfig, AutoModelForCausalLM

from engine.process import CannotStartError
from engine.runner.models import transformers_check
from tests.model_zoo import load_reference
from tests.runner.factories import PagedModel, prompts
from tests.runner.test_models import assert_equal_but_for_rounding, assert_same_logits, reference_logits
from tests.runner.test_models_refused import SIZES


def loaded_modules(folder) -> set[str]:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from engine.config import Config\n"
        "from engine.runner.model_runner import ModelRunner\n"
        "ModelRunner(Path(sys.argv[1]), Config(dtype='float32', kv_blocks=8, device='cpu'))\n"
        "print(*sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    return set(done.stderr.split())


def test_transformers_is_imported_only_for_them(zoo):
    assert "transformers" not in loaded_modules(zoo("gemma3")[0])
    assert "transformers" in loaded_modules(zoo("phi")[0])


def test_the_log_says_in_one_line_that_they_are_slower(zoo):
    with capture_logs() as lines:
        PagedModel(zoo("phi")[0])
    (line,) = lines
    assert line["architecture"] == "PhiForCausalLM"
    assert "runs through transformers" in line["event"]
    assert "slower" in line["event"]
    with capture_logs() as lines:
        PagedModel(zoo("llama")[0])
    assert not lines


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("gpt2", {"num_key_value_heads": None}),  # other names of sizes, learned positions
        ("opt", {"num_key_value_heads": None, "ffn_dim": 96, "word_embed_proj_dim": 64}),  # a decoder further inside
        ("cohere2", {"sliding_window": 8, "logit_scale": 0.5}),
        ("gemma", {"head_dim": 16}),
        ("qwen2_moe", {"num_experts": 4, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}),
    ],
)
def test_other_models_than_those_of_the_zoo(tmp_path, model_type, changes):
    torch.manual_seed(0)
    settings = {name: value for name, value in (SIZES | changes).items() if value is not None}
    config = AutoConfig.for_model(model_type, **settings)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(tmp_path)
    assert_same_logits(tmp_path, split="mixed")


def test_two_of_them_in_one_process_do_not_meet(zoo):
    """transformers keeps attention functions by name for the whole process."""
    rows = prompts([20])
    models = {family: PagedModel(zoo(family)[0]) for family in ("phi", "olmo2")}
    for family, model in models.items():
        assert_equal_but_for_rounding(model.logits(rows, [[20]]), reference_logits(zoo(family)[1], rows))


@pytest.mark.parametrize("family", ["phi", "mixtral"])
def test_in_bfloat16_rounding_is_told_from_mistakes(zoo, family):
    folder, _ = zoo(family)
    rows = prompts([50])
    theirs = reference_logits(load_reference(folder, torch.bfloat16), rows)[0]
    ours = PagedModel(folder, torch.bfloat16).logits(rows, [[20]] + [[1]] * 30)[0]
    assert transformers_check._relative_difference(ours, theirs) < 0.1


@pytest.mark.parametrize("factor", [0.5, float("nan")])
def test_a_decode_step_that_differs_is_found_even_if_prefill_is_right(zoo, monkeypatch, factor):
    """As where a model keeps something between steps that the cache does not."""
    right = transformers_check.PagedAttention.__call__

    def forgetful(self, layer, query, key, value, spec):
        out = right(self, layer, query, key, value, spec)
        return out if len(query) > 2 else factor * out

    monkeypatch.setattr(transformers_check.PagedAttention, "__call__", forgetful)
    with pytest.raises(CannotStartError, match="on a paged KV cache its logits are off by"):
        PagedModel(zoo("phi")[0])
