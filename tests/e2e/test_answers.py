"""The right answer, through every client, at every batch size."""

from __future__ import annotations

import json
import random
import subprocess
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.e2e.served import Served

OUTPUT_TOKENS = 24
NEAR_TIE = 1e-3
QUESTION = {"role": "user", "content": "What is the capital of France?"}


@pytest.fixture(scope="module")
def reference(shared: Served):
    """transformers' own model and tokenizer on the same weights."""
    folder = shared.folder.info().model.path
    torch.set_num_threads(2)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def prompts(reference) -> list[list[int]]:
    """Twenty prompts of 8 to 1500 tokens, prose made of the tokenizer's own words."""
    _, tokenizer = reference
    words = ["time", "year", "people", "way", "day", "thing", "woman", "life", "child", "world", "school", "family"]
    chooser = random.Random(7)
    lengths = [8, 9, 15, 16, 17, 24, 32, 33, 48, 64, 100, 128, 200, 256, 333, 512, 640, 800, 1100, 1500]
    text = " ".join(chooser.choice(words) for _ in range(20_000))
    ids = tokenizer(text)["input_ids"]
    return [ids[start : start + n] for n, start in zip(lengths, range(0, 20_000, 777), strict=False)]


@pytest.fixture(scope="module")
def expected(reference, prompts) -> list[list[int]]:
    """What `generate` says, greedily."""
    model, _ = reference
    with torch.inference_mode():
        return [
            model.generate(
                torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), do_sample=False,
                max_new_tokens=OUTPUT_TOKENS,
            )[0, len(ids) :].tolist()
            for ids in prompts
        ]  # fmt: skip


def complete(served: Served, ids: list[int]) -> dict:
    body = {"model": served.folder.info().model.name, "prompt": ids, "max_tokens": OUTPUT_TOKENS, "temperature": 0}
    return served.post("/v1/completions", body | {"return_token_ids": True})


def assert_same_ids(reference, prompt: list[int], expected: list[int], answer: dict) -> None:
    """Equal ids; a difference is allowed only where the reference's two best logits are within 1e-3."""
    got = answer["choices"][0]["token_ids"]
    if got == expected:
        return
    at = next(i for i, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b)
    model, _ = reference
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + expected[:at]])).logits[0, -1]
    best = torch.topk(logits, 2).values
    assert best[0] - best[1] < NEAR_TIE, f"first difference at {at}: {got[at]} instead of {expected[at]}"


def check_all(served: Served, reference, prompts, expected) -> None:
    for prompt, ids in zip(prompts, expected, strict=True):
        assert_same_ids(reference, prompt, ids, complete(served, prompt))
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda ids: complete(served, ids), prompts))
    for prompt, ids, answer in zip(prompts, expected, answers, strict=True):
        assert_same_ids(reference, prompt, ids, answer)


def test_greedy_ids_equal_transformers_alone_and_sixteen_at_once(shared, reference, prompts, expected):
    check_all(shared, reference, prompts, expected)
    again = complete(shared, prompts[-1])
    assert_same_ids(reference, prompts[-1], expected[-1], again)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 16 * ((1500 - 1) // 16)


def test_greedy_ids_equal_transformers_without_prefix_cache_and_with_overlap(serve, reference, prompts, expected):
    served = serve("--dtype", "float32", "--prefix-cache", "off", "--max-num-batched-tokens", "256", "--overlap", "on")
    check_all(served, reference, prompts, expected)
    assert complete(served, prompts[-1])["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_curl_is_told_that_the_capital_of_france_is_paris(shared):
    body = json.dumps({"model": "smollm2-135m-instruct", "messages": [QUESTION], "temperature": 0, "max_tokens": 40})
    command = ["curl", "-sS", f"{shared.url}/v1/chat/completions", "-H", "Content-Type: application/json", "-d", body]
    answer = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    assert "Paris" in answer["choices"][0]["message"]["content"]


def test_openai_client_is_told_the_same_streaming_or_not(shared):
    client = openai.OpenAI(base_url=f"{shared.url}/v1", api_key="none")
    model = client.models.list().data[0].id
    ask = {"model": model, "messages": [QUESTION], "temperature": 0, "max_tokens": 40}
    whole = client.chat.completions.create(**ask)
    assert "Paris" in whole.choices[0].message.content
    pieces = [c.choices[0].delta.content or "" for c in client.chat.completions.create(**ask, stream=True) if c.choices]
    assert "".join(pieces) == whole.choices[0].message.content


def test_the_same_seed_gives_the_same_answer_and_no_seed_another(shared):
    def sample(**more):
        body = {"model": "smollm2-135m-instruct", "prompt": "Once upon a time", "max_tokens": 30, "temperature": 1.0}
        return shared.post("/v1/completions", body | more)["choices"][0]["text"]

    assert sample(seed=42) == sample(seed=42)
    assert len({sample() for _ in range(4)}) > 1


def test_text_of_a_stream_equals_the_whole_text_and_the_tokenizers_decode(shared, reference):
    _, tokenizer = reference
    for seed in range(8):
        body = {
            "model": "smollm2-135m-instruct", "prompt": "😀 你好", "temperature": 2.0, "seed": seed, "max_tokens": 60,
            "return_token_ids": True,
        }  # fmt: skip
        whole = shared.post("/v1/completions", body)["choices"][0]
        client = openai.OpenAI(base_url=f"{shared.url}/v1", api_key="none")
        stream = client.completions.create(
            model=body["model"], prompt=body["prompt"], temperature=2.0, seed=seed, max_tokens=60, stream=True
        )
        streamed = "".join(chunk.choices[0].text for chunk in stream if chunk.choices)
        decoded = tokenizer.decode(whole["token_ids"], clean_up_tokenization_spaces=False, skip_special_tokens=True)
        assert streamed == whole["text"] == decoded
