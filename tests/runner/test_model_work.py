"""The counts of FLOPs and bytes, against torch's own counter on the models that serve."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from engine.model_shape import ModelShape
from engine.runner.model_work import model_work
from engine.runner.models import layers
from telemetry.step_work import step_work
from tests.model_zoo import FALLBACK_FAMILIES, FAMILIES
from tests.runner.factories import Driver, PagedModel, make_runner

PLAIN_COUNTED = {"mm", "addmm"}


@pytest.fixture(autouse=True)
def _products_that_torch_counts(monkeypatch):
    """oneDNN's packed products are not known to torch's counter; they compute the same."""
    monkeypatch.setattr(layers, "_can_pack", lambda weight: False)


def counted(work):
    """FLOPs of a call by torch's counter: (products with weights, products within attention)."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        work()
    flops = {str(op).removeprefix("aten."): n for op, n in counter.get_flop_counts()["Global"].items()}
    products = sum(n for op, n in flops.items() if op in PLAIN_COUNTED)
    return products, sum(flops.values()) - products


def driver_of(folder):
    return Driver(make_runner(folder, max_num_batched_tokens=256), 4, list(range(128)))


def parts(work, starts, num_tokens, sampled):
    """Our count: (products with weights, attention)."""
    bare = step_work(work, [0] * len(starts), [0] * len(starts), sampled).flops
    products = bare + sum(num_tokens) * work.flops_per_token
    return products, step_work(work, starts, num_tokens, sampled).flops - products


@pytest.mark.parametrize("family", FAMILIES)
def test_prefill_and_decode_are_counted_as_torch_counts_them(zoo, family):
    folder = zoo(family)[0]
    driver = driver_of(folder)
    work = driver.runner.compute().work
    sequence = driver.add(list(range(7)))
    products, attention = counted(lambda: driver.step([(sequence, 7)]))
    ours = parts(work, [0], [7], 1)
    assert products == ours[0]
    # torch counts the whole square of a prefill, we the triangle that is seen: 28 of 49 pairs
    assert attention == pytest.approx(ours[1] * 49 / 28)

    products, attention = counted(lambda: driver.step([(sequence, 1)]))
    assert (products, attention) == parts(work, [7], [1], 1)


@pytest.mark.parametrize("family", ["llama", "qwen3", "smollm2"])
def test_a_mixed_batch_is_counted_as_the_sum_of_its_rows(zoo, family):
    driver = driver_of(zoo(family)[0])
    work = driver.runner.compute().work
    old, new = driver.add(list(range(9))), driver.add(list(range(20, 32)))
    driver.step([(old, 9)])
    products, attention = counted(lambda: driver.step([(old, 1), (new, 5)]))  # the prompt's first chunk: no logits
    assert products == parts(work, [9, 0], [1, 5], 1)[0]
    whole_square = step_work(work, [9, 0], [1, 5], 1).flops - products
    assert attention == whole_square + sum(a.flops_per_pair for a in work.attention) * (25 - 15)


@pytest.mark.parametrize("family", FALLBACK_FAMILIES)
def test_models_of_transformers_are_counted_too(zoo, family):
    folder = zoo(family)[0]
    driver = driver_of(folder)
    work = driver.runner.compute().work
    sequence = driver.add(list(range(7)))
    driver.step([(sequence, 7)])
    products, attention = counted(lambda: driver.step([(sequence, 1)]))
    ours = parts(work, [7], [1], 1)
    assert attention == ours[1]
    # torch's counter does not know the grouped product of the experts: 4 layers, 2 experts for a token, 3 matrices
    experts = 2 * 4 * 2 * 3 * 64 * 96 if family == "mixtral" else 0
    assert ours[0] == products + experts


def test_weights_are_read_once_and_those_of_the_head_only_for_logits(zoo):
    for family, tied in (("llama", False), ("smollm2", True)):
        model = PagedModel(zoo(family)[0])
        work = model_work(model.checkpoint.shapes(), model.shape, model.model, 1.0, torch.device("cpu"))
        matrices = {name: size for name, size in model.checkpoint.shapes().items() if len(size) == 2}
        inside = sum(a * b for name, (a, b) in matrices.items() if ".layers." in name)
        head = model.shape.vocab_size * model.shape.hidden_size
        assert work.weight_bytes == 4 * inside
        assert work.logits_bytes == 4 * head
        assert sum(a * b for a, b in matrices.values()) == inside + (1 if tied else 2) * head
        prompt_chunk, decode = step_work(work, [0], [5], 0), step_work(work, [5], [1], 1)
        kv = model.shape.kv_bytes_per_token("float32")
        assert prompt_chunk.bytes == work.weight_bytes + (5 + 5) * kv
        assert decode.bytes == work.weight_bytes + work.logits_bytes + (6 + 1) * kv


def test_layers_with_windows_are_told_apart(zoo):
    for family, windows in {"llama": {0}, "mistral": {8}, "gemma2": {0, 8}, "gemma3": {0, 8}}.items():
        work = make_runner(zoo(family)[0]).compute().work
        assert {layer.window for layer in work.attention} == windows
        assert sum(layer.num_layers for layer in work.attention) == 4


def test_weights_that_belong_to_no_layer_make_no_count(zoo):
    model = PagedModel(zoo("llama")[0])
    assert model_work({"a.weight": [4, 4]}, model.shape, model.model, 1.0, torch.device("cpu")) is None


def test_the_share_of_experts_is_that_of_the_configuration(zoo):
    assert ModelShape.from_folder(zoo("mixtral")[0]).expert_share == 0.5
    assert ModelShape.from_folder(zoo("llama")[0]).expert_share == 1
