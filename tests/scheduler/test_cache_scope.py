"""Who may share cached blocks: salts, resets, and prompts whose log probabilities are asked for."""

import pytest

from engine.messages import PromptLogprobs, StepResult, TokenLogprobs
from telemetry.events import SequencePreempted
from tests.scheduler.simulation import Simulation

PROMPT = list(range(13))


def cached_tokens(sim: Simulation, **how: object) -> int:
    sim.enqueue(PROMPT, max_tokens=1, request_id=f"q{len(sim.answers)}", **how)
    sim.run()
    sim.check_idle()
    start = sim.answers[max(sim.answers)].start
    assert start is not None
    return start.cached_tokens


def test_only_requests_with_the_same_salt_share_blocks() -> None:
    sim = Simulation()
    assert cached_tokens(sim, cache_salt="a") == 0
    assert cached_tokens(sim, cache_salt="b") == 0
    assert cached_tokens(sim) == 0
    assert [cached_tokens(sim, cache_salt=salt) for salt in ("a", "b", "")] == [12, 12, 12]


def test_a_salt_cannot_be_written_as_token_ids() -> None:
    """A salt that spells the bytes of a token id is not a longer prompt."""
    sim = Simulation(block_size=1)
    sim.enqueue([1, 2, 3], max_tokens=1, cache_salt="\x02\x00\x00\x00")
    sim.run()
    sim.enqueue([1, 2, 9], max_tokens=1, request_id="other")
    sim.run()
    assert sim.answers[2].start is not None
    assert sim.answers[2].start.cached_tokens == 0


def test_after_a_reset_nothing_is_found_and_all_is_free() -> None:
    """DA-12: a reset that says it has done something has done it."""
    sim = Simulation()
    cached_tokens(sim)
    assert sim.pool.num_cached == 3
    assert sim.scheduler.reset_cache() == 3
    assert sim.pool.num_free == sim.limits.num_blocks
    assert cached_tokens(sim) == 0
    assert cached_tokens(sim) == 12


def test_a_reset_keeps_what_runs_and_forgets_it_too() -> None:
    sim = Simulation(max_num_batched_tokens=8)
    sim.enqueue(PROMPT, request_id="runs", max_tokens=6)
    sim.step()
    assert sim.scheduler.reset_cache() == 0
    sim.run()
    sim.check_idle()
    assert sim.pool.num_cached == 0
    assert cached_tokens(sim) == 0


def test_who_ended_with_a_step_in_flight_enters_nothing_after_a_reset() -> None:
    sim = Simulation(max_num_batched_tokens=8)
    sim.enqueue(PROMPT, request_id="leaves", max_tokens=6)
    sim.begin()
    sim.abort("leaves")
    sim.scheduler.reset_cache()
    sim.run()
    sim.check_idle()
    assert sim.pool.num_cached == 0


def logprob(token: int) -> TokenLogprobs:
    return TokenLogprobs(-float(token), 1, [], [])


def give_prompt_logprobs(sim: Simulation) -> None:
    """Run to the end, with log probabilities as the runner would send them: token p + 1 at position p."""
    asking: dict[int, int] = {}  # slot → tokens of a prompt that has them
    while (plan := sim.begin()) is not None:
        sim._plans.items.pop(0)
        result = sim.runner.execute(plan)
        for start in plan.starting:
            asking[start.slot] = start.num_prompt if start.params.prompt_logprobs is not None else 0
        rows = zip(plan.slots, plan.starts, plan.num_tokens, strict=True)
        items = {
            row: [logprob(p + 1) for p in range(first, min(first + n, asking[slot] - 1))]
            for row, (slot, first, n) in enumerate(rows)
        }
        changes = {name: getattr(result, name) for name in StepResult.__struct_fields__}
        sim.scheduler.apply(StepResult(**changes | {"prompt_logprobs": {r: i for r, i in items.items() if i}}))


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_a_prompt_whose_log_probabilities_are_asked_for_is_computed_whole(prefix_cache: bool) -> None:
    """PC-07, the scheduler's part: each position once, in order, whatever is cached and however it is cut."""
    sim = Simulation(prefix_cache=prefix_cache, max_num_batched_tokens=5)
    cached_tokens(sim)
    sim.enqueue(PROMPT, request_id="asks", max_tokens=2, prompt_logprobs=0)
    give_prompt_logprobs(sim)
    parts = sim._news.of(PromptLogprobs)
    assert [part.start for part in parts] == [1, 6, 11]
    assert [item for part in parts for item in part.items] == [logprob(p) for p in range(1, len(PROMPT))]
    sim.check_idle()


def test_prompt_log_probabilities_come_once_although_a_preemption_computes_them_again() -> None:
    sim = Simulation(num_blocks=7, block_size=2, max_num_seqs=2, prefix_cache=False)
    sim.enqueue([1] * 4, request_id="first", max_tokens=9)
    sim.enqueue(PROMPT[:5], request_id="asks", max_tokens=6, prompt_logprobs=0)
    give_prompt_logprobs(sim)
    assert sim.scheduler.kv.pool.problem(idle=True) == ""
    assert sim.journal.of(SequencePreempted)[0].seq_id == 2
    positions = [part.start + j for part in sim._news.of(PromptLogprobs) for j in range(len(part.items))]
    assert positions == [1, 2, 3, 4]
