"""n and best_of: the choices of one prompt share its blocks, with and without the prefix cache."""

import statistics
import time

import pytest

from telemetry.events import SequenceAdmitted
from tests.scheduler.simulation import Simulation

PROMPT = list(range(11))  # two full blocks of four, and a tail of three


def computed_tokens(sim: Simulation) -> int:
    return sum(sum(record.num_tokens) for record in sim.steps())


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_a_prompt_is_computed_once_for_all_its_choices(prefix_cache: bool, max_in_flight: int) -> None:
    sim = Simulation(prefix_cache=prefix_cache, max_in_flight=max_in_flight)
    sim.enqueue(PROMPT, n=4, max_tokens=4)
    sim.run()
    assert computed_tokens(sim) == 11 + 3 * 3 + 4 * 3
    assert [record.cached_tokens for record in sim.journal.of(SequenceAdmitted)] == [0, 8, 8, 8]
    sim.check_idle()


def test_choices_hold_the_same_blocks_while_they_run() -> None:
    sim = Simulation(prefix_cache=False)
    sim.enqueue(PROMPT, n=3, max_tokens=20)
    for _ in range(4):
        sim.step()
    first, *others = sim.scheduler.running.sequences
    assert len(others) == 2
    for other in others:
        assert other.blocks[:2] == first.blocks[:2]
        assert not set(other.blocks[2:]) & set(first.blocks[2:])
    sim.run()
    sim.check_idle()


def test_while_one_choice_computes_the_prompt_the_others_let_later_requests_pass() -> None:
    sim = Simulation(num_blocks=100, max_num_batched_tokens=8, prefix_cache=False)
    sim.enqueue(range(41), request_id="choices", n=2, max_tokens=1)
    sim.enqueue([1, 2], request_id="other", max_tokens=1)
    sim.run()
    assert [record.seq_id for record in sim.journal.of(SequenceAdmitted)] == [1, 3, 2]
    sim.check_idle()


def test_another_choice_computes_the_prompt_when_the_first_is_preempted_or_ends() -> None:
    sim = Simulation(num_blocks=100, max_num_batched_tokens=8, prefix_cache=False)
    sim.enqueue(range(41), n=3, max_tokens=3)
    sim.begin()
    sim.stop_hit(1)
    sim.run()
    assert [record.cached_tokens for record in sim.journal.of(SequenceAdmitted)] == [0, 0, 40]
    sim.check_idle()


def test_choices_whose_prompts_log_probabilities_are_asked_for_compute_at_once() -> None:
    sim = Simulation(num_blocks=100, max_num_batched_tokens=64)
    sim.enqueue(PROMPT, n=3, max_tokens=1, prompt_logprobs=0)
    assert sim.run() == 1
    assert (sim.scheduler.kv.queried_tokens, sim.scheduler.kv.hit_tokens) == (0, 0), "nothing was looked up"
    sim.check_idle()


def test_a_step_is_planned_as_fast_with_thousands_of_choices_waiting() -> None:
    def plan_ns(n: int) -> float:
        sim = Simulation(num_blocks=100_000, max_num_seqs=64, max_num_batched_tokens=128)
        for i in range(4096 // n):
            sim.enqueue([i % 50] * 40, request_id=f"q{i}", n=n, max_tokens=200)
        times = []
        for _ in range(12):
            began = time.perf_counter_ns()
            step = sim.scheduler.schedule()
            times.append(time.perf_counter_ns() - began)
            assert step is not None
            sim.scheduler.submit(step)
            sim.end()
        return statistics.median(times)

    assert plan_ns(16) < 8 * plan_ns(1) + 1_000_000


def test_choices_of_prompts_in_one_block_start_together() -> None:
    sim = Simulation()
    sim.enqueue([1, 2, 3], n=4, max_tokens=1)
    assert sim.run() == 1
    sim.check_idle()
