from __future__ import annotations

from tests.runner.factories import Driver, make_runner

PROMPT = [5, 9, 200, 31, 17]
CREATIVE = {"temperature": 1.2, "top_p": 0.95, "seed": 11}


def driver(folder) -> Driver:
    return Driver(make_runner(folder), 4, list(range(128)))


def alone(folder, prompt=PROMPT, **params) -> list[int]:
    d = driver(folder)
    return d.generate([d.add(prompt, **params)], 15, 64)[0]


def test_a_seed_repeats_its_answer_and_another_seed_gives_another(llama):
    first = alone(llama[0], **CREATIVE)
    assert alone(llama[0], **CREATIVE) == first
    assert alone(llama[0], **{**CREATIVE, "seed": 12}) != first


def test_each_row_of_a_batch_answers_as_it_does_alone(llama):
    folder, _ = llama
    rows = [
        (PROMPT, {}),
        (PROMPT, CREATIVE),
        (PROMPT, {**CREATIVE, "top_k": 1}),
        (list(range(50)), {"temperature": 0.8, "top_k": 20, "seed": 11}),
        ([7], {"temperature": 2.0, "seed": 0}),
    ]
    d = driver(folder)
    together = d.generate([d.add(prompt, **params) for prompt, params in rows], 15, 7)
    assert together == [alone(folder, prompt, **params) for prompt, params in rows]
    assert together[2] == together[0]


def test_a_resumed_sequence_goes_on_with_the_same_draws(llama):
    """After a preemption the slot starts again with prompt and answer so far as known tokens."""
    whole = alone(llama[0], **CREATIVE)
    d = driver(llama[0])
    resumed = d.add(PROMPT + whole[:6], **CREATIVE)
    assert d.generate([resumed], 9, 64)[0] == whole[6:]
