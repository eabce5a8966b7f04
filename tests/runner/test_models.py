"""Every family, ours and those that run through transformers, against transformers' own computation."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.model_zoo import FALLBACK_FAMILIES, FAMILIES, WINDOW, load_reference, make_model_folder
from tests.runner.factories import Driver, PagedModel, make_runner, prompts, reference_greedy

LENGTHS = [50, 21, WINDOW + 1]


def whole() -> list[list[int]]:
    return [LENGTHS]


def in_chunks(size: int) -> list[list[int]]:
    return [[max(0, min(size, n - at)) for n in LENGTHS] for at in range(0, max(LENGTHS), size)]


def prompt_then_tokens() -> list[list[int]]:
    """Rows that prefill, continue a prefill and decode within one step."""
    first, *others = LENGTHS
    together = [[1, 1, 0]] * (others[0] - 5) + [[1, 0, 1]] * others[1]
    return [[10, 0, 0], [6, 5, 0], *together, [first - 16 - len(together), 0, 0]]


SPLITS = {"whole": whole(), "chunks": in_chunks(7), "tokens": in_chunks(1), "mixed": prompt_then_tokens()}


def reference_logits(model, rows: list[list[int]]) -> list[torch.Tensor]:
    with torch.inference_mode():
        return [model(torch.tensor([row])).logits[0].float() for row in rows]


def assert_equal_but_for_rounding(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    """Same operations in another order: measured are up to 3e-5 of the logits' standard deviation, with a mixture of
    experts (whose router's weights make more of a difference) 1.2e-4.
    """
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, theirs, atol=3e-4 * float(theirs.std()), rtol=0)


def assert_same_logits(folder, model=None, split: str = "chunks") -> None:
    rows = prompts(LENGTHS)
    expected = reference_logits(model or load_reference(folder), rows)
    assert_equal_but_for_rounding(PagedModel(folder).logits(rows, SPLITS[split]), expected)


@pytest.mark.parametrize("family", FAMILIES + FALLBACK_FAMILIES)
def test_float32_logits_are_those_of_transformers_however_rows_are_split_into_steps(zoo, family):
    folder, model = zoo(family)
    rows = prompts(LENGTHS)
    expected = reference_logits(model, rows)
    paged = PagedModel(folder)
    for split in SPLITS.values():
        assert_equal_but_for_rounding(paged.logits(rows, split), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_logits_are_as_close_to_the_exact_ones_as_those_of_transformers(zoo, family):
    folder, _ = zoo(family)
    rows = prompts(LENGTHS)
    rounded = load_reference(folder, torch.bfloat16)
    theirs = torch.cat(reference_logits(rounded, rows))
    exact = torch.cat(reference_logits(rounded.float(), rows))
    own_error = (theirs - exact).square().mean().sqrt()
    for split in ("whole", "mixed"):
        ours = torch.cat(PagedModel(folder, torch.bfloat16).logits(rows, SPLITS[split]))
        assert (ours - exact).square().mean().sqrt() < 1.5 * own_error


@pytest.mark.parametrize("family", FAMILIES + FALLBACK_FAMILIES)
def test_forty_greedy_ids_equal_generate(zoo, family):
    folder, model = zoo(family)
    rows = prompts([30, 1, WINDOW + 1])
    driver = Driver(make_runner(folder), 4, list(range(128)))
    answers = driver.generate([driver.add(row) for row in rows], 40, 7)
    assert answers == [reference_greedy(model, row, 40) for row in rows]


@pytest.mark.parametrize("family", FAMILIES + FALLBACK_FAMILIES)
def test_a_row_does_not_depend_on_its_neighbours(zoo, family):
    folder, _ = zoo(family)
    rows = prompts(LENGTHS)
    paged = PagedModel(folder)
    together = paged.logits(rows, SPLITS["mixed"])
    for i, row in enumerate(rows):
        alone = paged.logits([row], [[step[i]] for step in SPLITS["mixed"] if step[i]])
        assert_equal_but_for_rounding(alone, [together[i]])


VARIANTS = [
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("llama", {"hidden_act": "gelu"}),
    ("llama", {"num_key_value_heads": 4, "head_dim": 32}),
    ("llama", {"num_key_value_heads": 1}),
    ("mistral", {"sliding_window": None}),
    ("mistral", {"sliding_window": 1}),
    ("qwen2", {"use_sliding_window": False}),
    ("qwen2", {"layer_types": ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]}),
    ("qwen3", {"attention_bias": True, "tie_word_embeddings": True}),
    ("qwen3", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}),
    ("smollm3", {"no_rope_layers": [0, 1, 1, 0], "attention_bias": True, "mlp_bias": True}),
    ("smollm3", {"use_sliding_window": True, "sliding_window": WINDOW, "tie_word_embeddings": False}),
    ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None, "attention_bias": True}),
    ("gemma2", {"final_logit_softcapping": 2.0, "tie_word_embeddings": False}),
    ("gemma3", {"final_logit_softcapping": 5.0, "attention_bias": True}),
    ("gemma3", {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
]


@pytest.mark.parametrize(("family", "changes"), VARIANTS)
def test_variants_of_a_family_are_computed_like_transformers_does(tmp_path, family, changes):
    assert_same_logits(make_model_folder(family, tmp_path, **changes), split="mixed")


@pytest.mark.parametrize("family", ["qwen2", "gemma2", "smollm3"])
def test_which_layers_are_of_which_kind_follows_from_other_fields_where_it_is_not_said(zoo, tmp_path, family):
    folder, model = zoo(family)
    config = json.loads((folder / "config.json").read_text())
    for name in ("layer_types", "no_rope_layers"):
        config.pop(name, None)
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    assert_same_logits(tmp_path, model)


def test_older_configuration_files_mean_the_same(zoo, tmp_path):
    """rope_theta beside the section, "type", sliding_window_pattern instead of layer_types."""
    folder, model = zoo("gemma3")
    config = json.loads((folder / "config.json").read_text())
    for name in ("rope_parameters", "layer_types"):
        del config[name]
    (tmp_path / "config.json").write_text(json.dumps(config | {"rope_theta": 1e6, "rope_local_base_freq": 1e4}))
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    assert_same_logits(tmp_path, model)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_text_part_of_a_gemma_3_with_images_is_served(zoo, tmp_path, prefix):
    folder, model = zoo("gemma3")
    text = json.loads((folder / "config.json").read_text())
    config = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    save_file({name.replace("model.", prefix, 1): w for name, w in weights.items()}, tmp_path / "model.safetensors")
    assert_same_logits(tmp_path, model)


@pytest.mark.parametrize("family", ["gemma2", "mixtral"])
def test_weights_in_several_shards_are_the_same_weights(zoo, tmp_path, family):
    _, model = zoo(family)
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert_same_logits(tmp_path, model)
