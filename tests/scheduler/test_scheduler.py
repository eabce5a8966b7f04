import pytest

from engine.messages import StepResult
from telemetry.events import (
    FinishReason,
    SequenceAdmitted,
    SequenceEnded,
    SequencePreempted,
    SequenceQueued,
    StepRecord,
    WaitChanged,
    WaitReason,
)
from tests.scheduler.simulation import EOS, Simulation, answer_alone, ended, make_enqueue


def waits(sim: Simulation, seq_id: int) -> list[str]:
    return [record.reason.value for record in sim.journal.of(WaitChanged) if record.seq_id == seq_id]


def test_one_sequence_from_start_to_length() -> None:
    sim = Simulation()
    message = sim.enqueue([1, 2, 3], max_tokens=4)
    sim.run()
    expected = answer_alone([1, 2, 3], 0, message.params, sim.limits.longest_sequence)
    answer = sim.answers[1]
    assert (answer.token_ids, answer.finish) == expected
    assert answer.start is not None
    assert answer.start.prompt_token_ids == [1, 2, 3]
    kinds = [type(record) for record in sim.journal.items]
    assert kinds == [SequenceQueued, SequenceAdmitted, *[StepRecord] * 4, SequenceEnded]
    sim.check_idle()


def test_a_stop_token_counts_as_output_and_ends_the_sequence() -> None:
    sim = Simulation()
    for i in range(20):
        sim.enqueue([i], request_id=f"q{i}", max_tokens=100, ignore_eos=False)
    sim.run()
    stopped = [answer for answer in sim.answers.values() if answer.finish == "stop"]
    assert stopped
    for answer in stopped:
        assert answer.token_ids.index(EOS) == len(answer.token_ids) - 1


def test_answers_do_not_depend_on_the_neighbours() -> None:
    sim = Simulation(num_blocks=20, max_num_seqs=5, max_num_batched_tokens=9)
    messages = [sim.enqueue(range(i, 2 * i), request_id=f"q{i}", n=2, max_tokens=20) for i in range(1, 8)]
    sim.run()
    alone = [
        answer_alone(m.prompts[0], s.seed or 0, m.params, sim.limits.longest_sequence)[0]
        for m in messages
        for s in m.sequences
    ]
    assert sim.texts() == alone
    sim.check_idle()


def test_the_step_record_is_complete() -> None:
    sim = Simulation(max_num_batched_tokens=6, max_num_seqs=1)
    sim.enqueue(range(10), request_id="a", max_tokens=1)
    sim.enqueue(range(9), request_id="b", max_tokens=1)
    sim.run()
    first, second, third = sim.steps()[:3]
    assert (first.seq_ids, first.starts, first.num_tokens, first.sampled) == ([1], [0], [6], [-1])
    assert (second.starts, second.num_tokens) == ([6], [4])
    assert second.sampled == sim.answers[1].token_ids
    assert (first.waiting, first.head_seq_id, first.head_reason) == (1, 2, "max_running")
    assert (third.waiting, third.head_seq_id, third.head_reason) == (0, -1, "")
    assert (first.queried_tokens, first.hit_tokens) == (10, 0)
    assert (third.queried_tokens, third.hit_tokens) == (9, 8)
    assert first.planned_ns <= first.submitted_ns <= first.received_ns <= first.published_ns
    assert first.blocks_free + first.blocks_active + first.blocks_cached == sim.limits.num_blocks
    assert (first.blocks_active, third.blocks_active, third.blocks_cached) == (3, 3, 0)


def test_idle_time_counts_only_while_there_was_work() -> None:
    sim = Simulation()
    for _ in range(2):
        sim.enqueue(max_tokens=2)
        sim.run()
    assert [record.idle_ns for record in sim.steps()] == [0, 100, 0, 100]


def test_reasons_for_waiting_follow_what_is_missing() -> None:
    sim = Simulation(num_blocks=4, max_num_seqs=3, max_num_batched_tokens=4, prefix_cache=False)
    sim.enqueue(range(7), request_id="a", max_tokens=3)
    sim.begin()
    for name in "bcd":
        sim.enqueue(range(9), request_id=name, max_tokens=2)
    sim.begin()
    assert [s.wait_reason for s in sim.scheduler.queue] == ["token_budget", "token_budget", "max_running"]
    sim.end()
    sim.begin()
    assert sim.scheduler.queue.counts[WaitReason.KV_BLOCKS] == 2
    sim.end()
    sim.run()
    assert waits(sim, 2) == ["token_budget", "kv_blocks"]
    assert waits(sim, 4)[0] == "max_running"
    sim.check_idle()


def test_waits_are_journaled_when_they_change_and_not_per_step() -> None:
    sim = Simulation(max_num_seqs=1)
    sim.enqueue(request_id="a", max_tokens=50)
    for i in range(10):
        sim.enqueue(request_id=f"b{i}", max_tokens=1)
    for _ in range(40):
        sim.step()
    assert len(sim.journal.of(WaitChanged)) == 10


def test_a_sequence_admitted_at_once_never_waited() -> None:
    sim = Simulation()
    sim.enqueue()
    sim.run()
    assert sim.journal.of(WaitChanged) == []


def test_preempted_sequences_continue_as_if_nothing_had_happened() -> None:
    """LC-07: the pool is much too small for all; everybody finishes, with few preemptions."""
    sim = Simulation(num_blocks=64, block_size=16, max_num_seqs=64, max_num_batched_tokens=512)
    messages = [sim.enqueue(range(i, i + 60), request_id=f"q{i}", max_tokens=400) for i in range(12)]
    steps = sim.run()
    for message, text in zip(messages, sim.texts(), strict=True):
        assert text == answer_alone(message.prompts[0], 0, message.params, sim.limits.longest_sequence)[0]
    two_by_two = 6 * 400
    assert steps < 1.5 * two_by_two
    preemptions = sim.journal.of(SequencePreempted)
    assert 0 < len(preemptions) < 12 * 5
    attempts = [record.attempt for record in sim.journal.of(SequenceAdmitted)]
    assert len(attempts) == 12 + len(preemptions)
    assert {record.preemptions for record in sim.journal.of(SequenceEnded)} >= {0, 1}
    sim.check_idle()


@pytest.mark.parametrize("budget", [1, 7, 16, 256])
def test_equal_prompts_at_once_with_preemption_and_cache(budget: int) -> None:
    """PC-04, smaller."""
    sim = Simulation(num_blocks=30, max_num_seqs=64, max_num_batched_tokens=budget)
    messages = [sim.enqueue(range(45), request_id=f"q{i}", max_tokens=20) for i in range(16)]
    sim.run(20_000)
    expected = answer_alone(messages[0].prompts[0], 0, messages[0].params, sim.limits.longest_sequence)[0]
    assert sim.texts() == [expected] * 16
    sim.check_idle()


def test_a_lone_sequence_can_use_the_whole_pool() -> None:
    sim = Simulation(num_blocks=3, block_size=4)
    sim.enqueue([1, 2], max_tokens=None)
    sim.run()
    assert len(sim.answers[1].token_ids) == 10
    assert sim.journal.of(SequencePreempted) == []
    sim.check_idle()


def test_a_result_of_another_step_is_an_error() -> None:
    sim = Simulation()
    sim.enqueue()
    sim.begin()
    with pytest.raises(RuntimeError, match="step 9"):
        sim.scheduler.apply(StepResult(9, [1], 0, 0, 0, 0))


def test_leaked_blocks_are_logged_loudly_and_serving_goes_on() -> None:
    sim = Simulation()
    sim.pool.allocate(1)
    sim.enqueue(max_tokens=1)
    sim.run()
    ((event, fields),) = sim.log.items
    assert "books" in event
    assert "nobody is running" in fields["problem"]
    sim.enqueue(max_tokens=1)
    sim.run()
    assert sim.answers[2].finish == "length"


# --- aborts ---------------------------------------------------------------------------------------------


def test_abort_while_queued_frees_at_once_and_computes_nothing() -> None:
    """LC-04."""
    sim = Simulation(max_num_seqs=1)
    sim.enqueue([1], request_id="a", max_tokens=20)
    sim.enqueue([2], request_id="b")
    sim.step()
    sim.abort("b")
    sim.enqueue([2], request_id="b", max_tokens=2)
    sim.abort("b", gateway=0)  # of nobody
    sim.run()
    assert sim.answers[2].finish == "abort"
    assert sim.answers[2].start is None
    assert len(sim.answers[3].token_ids) == 2
    assert not any(2 in record.seq_ids for record in sim.steps())
    assert ended(sim)[2] is FinishReason.ABORT
    sim.check_idle()


def test_abort_before_the_first_plan_leaves_no_trace() -> None:
    """MT-01: nothing is left to run, and still the books say idle."""
    sim = Simulation()
    sim.enqueue(n=3)
    sim.abort()
    assert sim.begin() is None
    assert list(ended(sim).values()) == [FinishReason.ABORT] * 3
    sim.check_idle()


def test_abort_in_the_running_step_keeps_the_blocks_until_its_result() -> None:
    sim = Simulation()
    sim.enqueue([1, 2, 3, 4, 5], max_tokens=20)
    sim.begin()
    sim.abort()
    sim.begin()
    assert sim.answers[1].finish == "abort"
    assert len(sim.scheduler.running) == 0
    assert sim.pool.num_active == 2
    assert ended(sim) == {}
    sim.end()
    assert sim.begin() is None
    assert sim.answers[1].token_ids == []
    assert sim.journal.of(SequenceEnded)[0].output_tokens == 1
    sim.check_idle()


def test_abort_while_preempted() -> None:
    sim = Simulation(num_blocks=4, prefix_cache=False)
    sim.enqueue([1, 2, 3], request_id="a", max_tokens=12)
    sim.enqueue([1, 2, 3], request_id="b", max_tokens=12)
    while not sim.journal.of(SequencePreempted):
        sim.step()
    sim.abort("b")
    sim.run()
    assert [sim.answers[i].finish for i in (1, 2)] == ["length", "abort"]
    sim.check_idle()


def test_abort_twice_or_too_late_does_nothing() -> None:
    sim = Simulation()
    sim.enqueue(max_tokens=3)
    sim.begin()
    sim.abort()
    sim.abort()
    sim.end()
    sim.abort()
    sim.enqueue(request_id="later", max_tokens=2)
    sim.run()
    sim.abort("later")
    assert list(ended(sim).values()) == [FinishReason.ABORT, FinishReason.LENGTH]
    sim.check_idle()


def test_abort_of_one_request_leaves_the_others_alone() -> None:
    sim = Simulation()
    sim.enqueue([1, 2], request_id="a", n=2, max_tokens=9)
    other = sim.enqueue([1, 2], request_id="b", max_tokens=9)
    sim.step()
    sim.begin()
    sim.abort("a")
    sim.end()
    sim.run()
    assert [sim.answers[i].finish for i in (1, 2, 3)] == ["abort", "abort", "length"]
    assert sim.answers[3].token_ids == answer_alone([1, 2], 0, other.params, 256)[0]
    sim.check_idle()


def test_a_half_computed_prompt_that_was_aborted_is_cached_no_further() -> None:
    """PC-06, second half."""
    sim = Simulation(max_num_batched_tokens=8)
    sim.enqueue(range(40), request_id="a")
    sim.step()
    sim.begin()
    sim.abort("a")
    sim.end()
    again = sim.enqueue(range(40), request_id="b")
    sim.run()
    answer = sim.answers[2]
    assert answer.start is not None
    assert answer.start.cached_tokens == 16
    assert answer.token_ids == answer_alone(list(range(40)), 0, again.params, 256)[0]


def test_a_stop_string_frees_the_sequence_silently() -> None:
    sim = Simulation()
    sim.enqueue(max_tokens=50)
    sim.step()
    sim.begin()
    sim.stop_hit(1)
    sim.end()
    sim.stop_hit(1)
    assert sim.begin() is None
    assert sim.answers[1].finish == ""
    assert len(sim.answers[1].token_ids) == 1
    assert ended(sim) == {1: FinishReason.STOP}
    sim.check_idle()


# --- gateways -------------------------------------------------------------------------------------------


def test_a_new_gateway_ends_what_the_old_one_asked_for_silently() -> None:
    sim = Simulation(max_num_seqs=1)
    sim.scheduler.gateway_is(1)
    sim.enqueue(request_id="running", max_tokens=50)
    sim.enqueue(request_id="queued")
    sim.begin()
    sim.scheduler.gateway_is(2)
    sim.end()
    sim.enqueue(request_id="late")
    sim.enqueue([3], request_id="new", gateway=2, max_tokens=2)
    sim.run()
    assert list(ended(sim).values()) == [FinishReason.ABORT, FinishReason.ABORT, FinishReason.LENGTH]
    assert all(answer.finish != "abort" for answer in sim.answers.values())
    sim.check_idle()


def test_a_request_of_a_new_gateway_may_come_before_the_news_of_it() -> None:
    sim = Simulation()
    sim.scheduler.gateway_is(1)
    sim.scheduler.enqueue(make_enqueue(gateway=2, max_tokens=2))
    sim.scheduler.gateway_is(0)
    sim.scheduler.enqueue(make_enqueue(gateway=3, max_tokens=2))
    sim.scheduler.gateway_is(3)
    sim.run()
    assert list(ended(sim).values()) == [FinishReason.ABORT, FinishReason.LENGTH]


# --- prefix cache ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 12])
def test_a_fully_cached_prompt_still_computes_its_last_token(length: int) -> None:
    """PC-03."""
    sim = Simulation(max_num_seqs=1)
    for i in range(3):
        sim.enqueue(range(length), request_id=f"q{i}", max_tokens=4)
    extended = sim.enqueue([*range(length), 99], request_id="extended", max_tokens=4)
    sim.run()
    first, *repeats, last = sim.answers.values()
    for repeat in repeats:
        assert repeat.start is not None
        assert repeat.start.cached_tokens == 4 * ((length - 1) // 4)
        assert repeat.token_ids == first.token_ids
    assert last.start is not None
    assert last.start.cached_tokens == 4 * (length // 4)
    assert last.token_ids == answer_alone(extended.prompts[0], 0, extended.params, 256)[0]


def test_similar_blocks_are_not_taken_for_each_other() -> None:
    """PC-01."""
    size = 8
    block = [100] * size
    similar = [block.copy() for _ in range(size - 1)]
    for j, changed in enumerate(similar):
        changed[j] += 31
        changed[j + 1] -= 1
    swapped = [1, 2, *block[2:]], [2, 1, *block[2:]]
    prompts = [[*p, 5] for p in (block, *similar, *swapped)]
    prompts += [[*range(size), *block, 5], [*range(1, size + 1), *block, 5]]
    sim = Simulation(block_size=size, max_num_seqs=1, max_num_batched_tokens=64)
    messages = [sim.enqueue(prompt, request_id=f"q{i}", max_tokens=8) for i, prompt in enumerate(prompts)]
    sim.run()
    for answer, message in zip(sim.answers.values(), messages, strict=True):
        assert answer.start is not None
        assert answer.start.cached_tokens == 0
        assert answer.token_ids == answer_alone(message.prompts[0], 0, message.params, 512)[0]


def test_a_shared_beginning_is_not_altered_by_its_users() -> None:
    """PC-06, first half."""
    prefix = list(range(14))
    sim = Simulation(num_blocks=200)
    plans = [(prefix, "a"), ([*prefix, 77, 78, 79], "b"), (prefix, "a2")]
    for prompt, name in plans:
        sim.enqueue(prompt, request_id=name, max_tokens=64)
        sim.run()
    sim.enqueue(prefix, request_id="a3", max_tokens=64)
    sim.enqueue([*prefix, 77, 78, 79], request_id="b2", max_tokens=64)
    sim.run()
    a, b, a2, a3, b2 = sim.texts()
    assert a == a2 == a3
    assert b == b2
    assert b == answer_alone([*prefix, 77, 78, 79], 0, make_enqueue(max_tokens=64).params, 800)[0]


def test_the_cached_answer_of_one_turn_serves_the_next() -> None:
    sim = Simulation()
    sim.enqueue(range(6), request_id="turn1", max_tokens=7)
    sim.run()
    sim.enqueue([*range(6), *sim.answers[1].token_ids, 1, 2], request_id="turn2", max_tokens=1)
    sim.run()
    assert sim.answers[2].start is not None
    assert sim.answers[2].start.cached_tokens == 12
