"""Requests that are wrong, odd or huge: refused by name or answered as meant, and nobody else notices."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from telemetry.events import Stage
from tests.e2e.clients import (
    COMPLETIONS,
    MODEL,
    Stream,
    answer,
    choice,
    decoded,
    send,
    send_raw,
    streamed,
    tokenizer_of,
    user,
)
from tests.e2e.served import Served

NEIGHBOUR: dict[str, Any] = {"prompt": "The seven days of the week are", "max_tokens": 60, "ignore_eos": True}


@pytest.fixture(scope="module")
def solo(shared: Served) -> str:
    """What the neighbour is told when it is alone."""
    text: str = choice(shared, **NEIGHBOUR)["text"]
    return text


@pytest.fixture
def neighbour(shared: Served, solo: str) -> Iterator[Stream]:
    """A stream that runs beside the test, and must notice nothing."""
    pids = {stage: shared.pid(stage) for stage in Stage if shared.page(stage)}
    stream = Stream(shared, **NEIGHBOUR).wait_events(2)
    yield stream
    assert stream.finish().text() == solo
    assert shared.status("/health") == 200
    assert {stage: shared.pid(stage) for stage in pids} == pids


def refusal(response: httpx.Response, field: str) -> str:
    """The message of a 400 that names `field`."""
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["param"] or "").startswith(field), error
    message: str = error["message"]
    return message


# --- limits of length ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "field"),
    [
        ({"prompt": "Hi"}, "max_tokens"),
        ({"messages": user("Hi")}, "max_tokens"),
        ({"messages": user("Hi")}, "max_completion_tokens"),
    ],
)
class TestLimitOfTheAnswer:
    def test_what_is_no_count_is_refused_without_inventing_numbers(self, shared, ask, field):
        for value in (-1, 0, 1.5, "5", True, [], {}):
            message = refusal(send(shared, ask | {field: value}), field)
            assert set(re.findall(r"-\d+", message)) <= {str(value)}  # none that the client did not send

    def test_more_than_the_room_left_is_refused_with_the_true_counts(self, shared, ask, field):
        prompt = answer(shared, **ask, **{field: 1})["usage"]["prompt_tokens"]
        context = json.loads(shared.get("/v1/models"))["data"][0]["max_model_len"]
        for value in (context, context - prompt + 1, 10**12):
            message = refusal(send(shared, ask | {field: value}), "max_tokens")
            assert {str(prompt), str(context)} <= set(re.findall(r"-?\d+", message))
            assert not re.search(r"-\d", message)
        assert answer(shared, **ask, **{field: 1})["usage"]["completion_tokens"] == 1

    def test_null_is_as_good_as_nothing(self, shared, ask, field):
        given, none = (choice(shared, **ask, **{field: None}), choice(shared, **ask))
        assert given["token_ids"] == none["token_ids"]
        if "prompt" in ask:
            assert len(none["token_ids"]) == 16


# --- prompts ------------------------------------------------------------------------------------------


def test_empty_prompts_are_refused_and_disturb_nobody(shared, neighbour):
    for prompt in ("", [""], ["a", ""], [], [[]], [[1], []], None):
        refusal(send(shared, {"prompt": prompt, "max_tokens": 1}), "prompt")
    refusal(send(shared, {"max_tokens": 1}), "prompt")
    refusal(send(shared, {"messages": [], "max_tokens": 1}), "messages")
    assert send(shared, {"messages": user(""), "max_tokens": 1}).status_code == 200


def test_ids_that_are_none_of_the_vocabulary_run_nothing(shared, neighbour):
    size = len(tokenizer_of(shared))
    wrong: list[Any] = [[-1], [size], [size + 1000], [2**31], [2**63], [5279552648203111001], [1.0], [True], ["1", 2]]
    wrong += [[[1, 2], [-1]], [[1, 2], [size]], [[[1]]], [1, [2]], [[1], 2], [1, "a"], {"a": 1}, 5]
    for prompt in wrong:
        response = send(shared, {"prompt": prompt, "max_tokens": 1})
        refusal(response, "prompt")
        row = shared.finished_row(response.headers["x-request-id"])
        assert (row["finish_reason"], row["enqueued_at"], row["output_tokens"] or 0) == ("error", None, 0)
    assert send(shared, {"prompt": [size - 1], "max_tokens": 1}).status_code == 200


# --- sampling -----------------------------------------------------------------------------------------


def with_number(field: str, number: str) -> bytes:
    """A body in which a field is a number as it is written here."""
    rest = json.dumps({"model": MODEL, "prompt": "Once upon a time", "max_tokens": 8, "return_token_ids": True})
    return f'{rest[:-1]}, "{field}": {number}}}'.encode()


def test_numbers_that_are_none_are_refused_everywhere(shared, neighbour):
    fields = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
    for field in fields:
        for number in ("NaN", "Infinity", "-Infinity", "1e999", "-1e999"):
            assert send_raw(shared, with_number(field, number)).status_code == 400
    for field in ("temperature", "top_p", "min_p"):
        refusal(send_raw(shared, with_number(field, "-0.1")), field)


def test_a_tiny_temperature_is_greedy_and_a_huge_one_an_answer(shared):
    greedy = choice(shared, prompt="Once upon a time", max_tokens=8)["token_ids"]
    for number in ("1e-4", "1e-30", "1e-45", "0", "0.0", "-0.0", "5e-324"):
        response = send_raw(shared, with_number("temperature", number))
        assert response.json()["choices"][0]["token_ids"] == greedy
    assert send_raw(shared, with_number("temperature", "1e6")).status_code == 200


def sampled(served: Served, **ask: Any) -> str:
    text: str = choice(served, prompt="Once upon a time", temperature=1.5, max_tokens=8, **ask)["text"]
    return text


def test_zero_is_a_value_and_not_a_default(shared):
    refusal(send(shared, {"prompt": "Hi", "temperature": 1.5, "top_p": 0}), "top_p")
    refusal(send(shared, {"prompt": "Hi", "temperature": 1.5, "top_k": -2}), "top_k")
    free = [sampled(shared, seed=seed) for seed in range(5)]
    assert len(set(free)) > 1
    for none in (0, -1, None):
        assert [sampled(shared, seed=seed, top_k=none) for seed in range(5)] == free
    greedy = choice(shared, prompt="Once upon a time", max_tokens=8)["text"]
    assert {sampled(shared, seed=seed, top_k=1) for seed in range(3)} == {greedy}


def test_a_seed_is_any_integer_of_64_bits(shared):
    for seed in (0, -1, 2**63 - 1, -(2**63)):
        assert sampled(shared, seed=seed) == sampled(shared, seed=seed)
    for seed in (2**63, 2**64, -(2**63) - 1, "42", 1.5, True):
        refusal(send(shared, {"prompt": "Hi", "temperature": 1.5, "seed": seed}), "seed")


# --- chats --------------------------------------------------------------------------------------------


def chat_ids(served: Served, messages: list[dict[str, Any]]) -> list[int]:
    """The ids that the engine made of a chat."""
    ids: list[int] = answer(served, messages=messages, max_tokens=1, return_token_ids=True)["prompt_token_ids"]
    return ids


def test_content_may_be_a_list_of_texts(shared):
    part = {"type": "text", "text": "What is the capital of France?"}
    plain = answer(shared, messages=user(part["text"]), max_tokens=16)
    listed = answer(shared, messages=user([part]), max_tokens=16)
    for one in (plain, listed):
        one["choices"][0]["message"].pop("reasoning_content", None)
    assert listed["choices"] == plain["choices"]
    assert listed["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]
    parts = [{"type": "text", "text": text} for text in ("alpha", "beta")]
    both = decoded(shared, chat_ids(shared, user(parts)))
    assert "alpha\nbeta" in both


def test_the_last_turn_may_be_the_assistants(shared):
    turns = [*user("Hi"), {"role": "assistant", "content": [{"type": "text", "text": "Well met"}]}]
    assert "Well met" in decoded(shared, chat_ids(shared, turns))


def test_what_a_server_sent_may_be_sent_back(shared):
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = [
        *user("Hi"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "5", "tool_call_id": "c1"},
    ]
    assert send(shared, {"messages": turns, "max_tokens": 1}).status_code == 200


@pytest.mark.parametrize(
    ("turns", "says"),
    [
        (user([{"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}]), "image_url"),
        (user([{"type": "input_audio", "input_audio": {}}]), "input_audio"),
        (user(None), "content"),
        ([{"role": "wizard", "content": "Hi"}], "role"),
        ([{"content": "Hi"}], "role"),
        ([{"role": "user"}], "content"),
        ([{"role": "user", "content": 5}], "content"),
        (["Hi"], "messages"),
    ],
)
def test_a_turn_that_cannot_be_meant_is_refused_and_its_fault_named(shared, turns, says):
    assert says in refusal(send(shared, {"messages": turns, "max_tokens": 1}), "messages")


def test_a_chat_is_what_hugging_face_renders_and_so_is_its_answer(shared):
    tokenizer = tokenizer_of(shared)
    chats = [
        user("Hello"),
        [{"role": "system", "content": "Be brief."}, *user("  Hello\n")],
        [*user("Hello"), {"role": "assistant", "content": "Hi."}, *user("And now?")],
    ]
    for chat in chats:
        rendered = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        whole = answer(shared, messages=chat, max_tokens=16, return_token_ids=True)
        text = answer(shared, prompt=rendered, max_tokens=16, return_token_ids=True)["choices"][0]
        ids = tokenizer(rendered, add_special_tokens=False)["input_ids"]
        assert whole["prompt_token_ids"] == text["prompt_token_ids"] == ids
        assert whole["usage"]["prompt_tokens"] == len(ids)
        assert whole["choices"][0]["token_ids"] == text["token_ids"]


TEMPLATE = """{{ bos_token }}{% for m in messages %}
{%- if loop.previtem and loop.previtem.role == m.role %}{{ raise_exception("roles must alternate") }}{% endif -%}
{{ m.role }}: {{ m.content }}
{% endfor %}"""


@pytest.fixture
def starting(tmp_path: Path, shared: Served) -> Path:
    """A model whose tokenizer adds a start token, and whose template writes one."""
    folder = tmp_path / "starting"
    shutil.copytree(shared.folder.info().model.path, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    start = "<|im_start|>"
    ids = {t["content"]: t["id"] for t in tokenizer["added_tokens"]}
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": start, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {start: {"id": start, "ids": [ids[start]], "tokens": [start]}},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    for place in folder.glob("chat_template*"):
        place.unlink()
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings |= {"bos_token": start, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_a_start_token_is_added_once_and_the_templates_refusal_is_told(serve, starting):
    served = serve("--model", str(starting), "--served-model-name", MODEL)
    start = tokenizer_of(served).convert_tokens_to_ids("<|im_start|>")
    ids = chat_ids(served, user("Hello"))
    assert ids[0] == start and ids.count(start) == 1
    ids = choice(served, prompt="Hello", max_tokens=1)["prompt_token_ids"]
    assert ids[0] == start and ids.count(start) == 1
    assert send(served, {"prompt": "", "max_tokens": 1}).status_code == 200
    message = refusal(send(served, {"messages": user("a") + user("b"), "max_tokens": 1}), "messages")
    assert "roles must alternate" in message


# --- size ---------------------------------------------------------------------------------------------


def test_numbers_and_lists_beyond_all_measure_are_refused_at_once(shared, neighbour):
    huge: list[dict[str, Any]] = [{"n": 10**6}, {"best_of": 10**6}, {"logprobs": 10**6}, {"stop": ["x" * 2**20]}]
    huge += [{"stop": [f"stop {i}" for i in range(10_000)]}, {"logit_bias": {str(i): 1 for i in range(49_152)}}]
    huge += [{"stop_token_ids": list(range(10_000))}, {"prompt": ["a"] * 10_000}, {"prompt": ["a"] * 200, "n": 2}]
    for ask in huge:
        began = time.monotonic()
        refusal(send(shared, {"prompt": "Hi", "max_tokens": 1} | ask), next(iter(ask)) if "n" not in ask else "n")
        assert time.monotonic() - began < 1
    refusal(send(shared, {"messages": user("Hi"), "max_tokens": 1, "top_logprobs": 21}), "top_logprobs")


MEGA = 1_000_000
WORDS = b"lorem ipsum dolor "


def completion_of(prompt: bytes) -> bytes:
    """A body with a prompt as it is written here."""
    return b'{"model": "%s", "max_tokens": 1, "prompt": %s}' % (MODEL.encode(), prompt)


HUGE = {
    "5 MB of words": (b'"' + WORDS * (5 * MEGA // len(WORDS)) + b'"', 400),
    "27 MB of words": (b'"' + WORDS * (27 * MEGA // len(WORDS)) + b'"', 400),
    "27 MB in one word": (b'"' + b"a" * (27 * MEGA) + b'"', 400),
    "256 texts of 100 kB": (b"[" + b", ".join([b'"' + b"a b " * 25_000 + b'"'] * 256) + b"]", 400),
    "a text just under the limit": (b'"' + b"a b " * 30_000 + b'"', 400),
    "200 MB": (b'"' + WORDS * (200 * MEGA // len(WORDS)) + b'"', 413),
}


def curl(served: Served, body: Path) -> int:
    """POST a file in another process, so that sending it takes no time from this one."""
    command = ["curl", "-sS", "-o", str(body) + ".answer", "-w", "%{http_code}", "-H", "Content-Type: application/json"]
    command += ["-H", "Expect:", "--data-binary", f"@{body}", served.url + COMPLETIONS]
    return int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def slow_answers(served: Served, until: Callable[[], bool]) -> tuple[float, list[float]]:
    """The 99th percentile of ``/health``'s times, asked ten times a second until something is over; and all of them."""
    waits = []
    while not until():
        began = time.monotonic()
        assert served.status("/health") == 200
        waits.append(time.monotonic() - began)
        time.sleep(max(0.0, 0.1 - waits[-1]))
    return sorted(waits)[int(len(waits) * 0.99)], waits


def test_huge_prompts_are_refused_while_everything_else_goes_on(shared, tmp_path):
    bodies = []
    for i, (prompt, _) in enumerate(HUGE.values()):
        bodies.append(tmp_path / f"body{i}")
        bodies[-1].write_bytes(completion_of(prompt))
    gateway = psutil.Process(shared.pid(Stage.GATEWAY))
    before = gateway.memory_info().rss
    alone = streamed(shared, **NEIGHBOUR).largest_gap_s()
    stream = Stream(shared, **NEIGHBOUR | {"max_tokens": 100}).wait_events(5)
    with ThreadPoolExecutor(1) as pool:
        statuses = pool.submit(lambda: [curl(shared, body) for body in bodies])
        p99, waits = slow_answers(shared, statuses.done)
    assert dict(zip(HUGE, statuses.result(), strict=True)) == {name: status for name, (_, status) in HUGE.items()}
    assert p99 < 0.5, waits
    assert stream.finish().largest_gap_s() < 2 * alone + 0.5
    shared.eventually(lambda: gateway.memory_info().rss < before + 200 * 2**20, 5, "memory is given back")
