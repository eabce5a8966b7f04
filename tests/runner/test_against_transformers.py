from __future__ import annotations

import itertools
import random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.runner.factories import VOCAB_SIZE, Driver, PagedModel, make_runner, prompts, reference_greedy, save_model


def all_logits(folder, prompt: list[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Logits of every position of a prompt, in one prefill."""
    return PagedModel(folder, dtype).logits([prompt], [[len(prompt)]])[0]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_float32_logits_are_those_of_transformers(tmp_path, tied, kv_heads):
    model = save_model(tmp_path, tie_word_embeddings=tied, num_key_value_heads=kv_heads)
    prompt = prompts([50])[0]
    with torch.inference_mode():
        expected = model(torch.tensor([prompt])).logits[0]
    found = all_logits(tmp_path, prompt)
    assert found.dtype == torch.float32
    # Same operations in another order: only rounding may differ (logits here are about ±20).
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-5)


def test_bfloat16_logits_are_close_to_those_of_transformers(tmp_path):
    model = save_model(tmp_path, dtype="bfloat16").to(torch.bfloat16)
    prompt = prompts([50])[0]
    with torch.inference_mode():
        expected = model(torch.tensor([prompt])).logits[0].float()
        exact = model.float()(torch.tensor([prompt])).logits[0]
    found = all_logits(tmp_path, prompt, torch.bfloat16)
    # Both round differently: our distance from the exact result must be of the size of the reference's own.
    own_error = (expected - exact).square().mean().sqrt()
    assert (found - exact).square().mean().sqrt() < 1.5 * own_error


def test_head_dim_and_rope_theta_of_the_configuration_are_used(tmp_path):
    model = save_model(tmp_path, head_dim=32, rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    prompt = prompts([40])[0]
    with torch.inference_mode():
        expected = model(torch.tensor([prompt])).logits[0]
    torch.testing.assert_close(all_logits(tmp_path, prompt), expected, atol=2e-4, rtol=1e-5)


@pytest.fixture(scope="module")
def expected(llama):
    """Prompts of mixed lengths with the reference's greedy answers."""
    _, model = llama
    return [(p, reference_greedy(model, p, 12)) for p in prompts([1, 3, 40, 17, 64, 8])]


@pytest.mark.parametrize("chunk", [1, 7, 16, 64])
@pytest.mark.parametrize("block_size", [1, 4, 16, 33])
def test_greedy_ids_equal_generate_for_mixed_batches(llama, expected, chunk, block_size):
    num_blocks = 600 // block_size
    runner = make_runner(llama[0], block_size=block_size, kv_blocks=num_blocks)
    shuffled = random.Random(chunk).sample(range(num_blocks), num_blocks)
    driver = Driver(runner, block_size, shuffled)
    sequences = [driver.add(prompt) for prompt, _ in expected]
    assert driver.generate(sequences, 12, chunk) == [answer for _, answer in expected]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), block_size=st.sampled_from([1, 3, 8]))
def test_any_split_into_steps_gives_the_same_ids(llama, expected, data, block_size):
    runner = make_runner(llama[0], block_size=block_size, kv_blocks=600)
    driver = Driver(runner, block_size, list(range(600)))
    sequences = [driver.add(prompt) for prompt, _ in expected[:4]]
    while unfinished := [s for s in sequences if len(s.output) < 5]:
        rows = data.draw(st.lists(st.sampled_from(unfinished), min_size=1, unique_by=id))
        driver.step([(s, data.draw(st.integers(1, len(s.ids) - s.computed))) for s in rows])
    assert [s.output[:5] for s in sequences] == [answer[:5] for _, answer in expected[:4]]


def test_prefix_blocks_can_be_shared_by_two_slots(llama):
    folder, model = llama
    first, second, prefix = prompts([9, 14, 12])
    driver = Driver(make_runner(folder), 4, list(range(20, 100)))
    a, b = driver.add(prefix + first), driver.add(prefix + second)
    driver.step([(a, len(a.ids))])
    driver.share_prefix(a, b, 3)
    driver.generate([a, b], 10, 64)
    assert a.output == reference_greedy(model, prefix + first, 10)
    assert b.output == reference_greedy(model, prefix + second, 10)


def test_a_slot_started_again_has_forgotten_its_former_sequence(llama):
    folder, model = llama
    long, short = prompts([60, 5])
    driver = Driver(make_runner(folder), 4, list(range(100)))
    driver.generate([driver.add(long)], 3, 64)
    driver.next_slot = 0
    driver.free_blocks = list(range(99, -1, -1))
    assert driver.generate([driver.add(short)], 8, 64) == [reference_greedy(model, short, 8)]


def test_minus_one_stands_for_the_token_last_sampled_in_the_slot(llama, expected):
    driver = Driver(make_runner(llama[0]), 4, list(range(128)))
    sequences = [driver.add(prompt) for prompt, _ in expected[:4]]
    answers = driver.generate(sequences, 12, 16, by_reference=True)
    assert answers == [answer for _, answer in expected[:4]]


def test_nothing_of_the_cache_beyond_a_rows_context_reaches_it(llama, expected):
    runner = make_runner(llama[0])
    for layer in runner._cache.layers:
        layer.fill_(float("nan"))
    driver = Driver(runner, 4, list(range(128)))
    sequences = [driver.add(prompt) for prompt, _ in expected]
    assert driver.generate(sequences, 12, 7) == [answer for _, answer in expected]


def test_rows_that_do_not_sample_answer_minus_one(llama):
    driver = Driver(make_runner(llama[0]), 4, list(range(128)))
    prompt = prompts([10])[0]
    assert driver.step([(driver.add(prompt), 6)]) == [-1]
    both = driver.step([(driver.add(prompt), 6), (driver.add(prompt), 10)])
    assert both[0] == -1
    assert 0 <= both[1] < VOCAB_SIZE


def test_warm_up_leaves_no_trace(llama, expected):
    runner = make_runner(llama[0])
    runner.warm_up()
    driver = Driver(runner, 4, list(range(128)))
    prompt, answer = expected[2]
    assert driver.generate([driver.add(prompt)], 12, 64) == [answer]


def test_warm_up_fits_the_smallest_pool(llama):
    make_runner(llama[0], kv_blocks=1, block_size=1).warm_up()


def test_weights_in_several_shards_are_loaded(tmp_path, llama, expected):
    _, model = llama
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    driver = Driver(make_runner(tmp_path), 4, list(range(128)))
    prompt, answer = expected[3]
    assert driver.generate([driver.add(prompt)], 12, 64) == [answer]


def test_times_of_a_step_are_in_order(llama):
    runner = make_runner(llama[0])
    driver = Driver(runner, 4, list(range(128)))
    results = []
    execute = runner.execute
    runner.execute = lambda plan: results.append(execute(plan)) or results[-1]
    driver.generate([driver.add([1, 2, 3])], 3, 8)
    assert [r.step_id for r in results] == [0, 1, 2]
    assert results[0].idle_ns == 0
    for before, after in itertools.pairwise(results):
        assert after.exec_start_ns - before.sampled_ns == after.idle_ns >= 0
        assert after.exec_start_ns <= after.forward_end_ns <= after.sampled_ns
