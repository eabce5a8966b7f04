"""Two steps in flight: the next one is planned before the tokens of the one before are known."""

from engine.messages import StepPlan
from telemetry.events import SequenceEnded, SequencePreempted, WaitChanged
from tests.scheduler.simulation import EOS, Simulation, answer_alone


def plans_in_flight(sim: Simulation) -> list[StepPlan]:
    return list(sim._plans.items)


def test_the_second_plan_names_the_token_of_the_first_by_its_slot() -> None:
    sim = Simulation(max_in_flight=2)
    sim.enqueue([1, 2, 3], max_tokens=5)
    sim.begin()
    first, second = plans_in_flight(sim)
    assert (first.token_ids, first.samples) == ([1, 2, 3], [True])
    assert (second.token_ids, second.starts, second.samples, second.starting) == ([-1], [3], [True], [])
    sim.run()
    sim.check_idle()


def test_answers_are_the_same_and_no_row_is_wasted_on_a_known_limit() -> None:
    sim = Simulation(max_in_flight=2)
    message = sim.enqueue([1, 2, 3], max_tokens=5)
    steps = sim.run()
    assert sim.texts() == [answer_alone([1, 2, 3], 0, message.params, sim.limits.longest_sequence)[0]]
    assert steps == 5
    sim.check_idle()


def test_an_end_by_id_is_learned_one_step_late_and_its_row_is_waste() -> None:
    sim = Simulation(max_in_flight=2)
    for i in range(20):
        sim.enqueue([i], request_id=f"q{i}", max_tokens=100, ignore_eos=False)
    sim.run()
    stopped = {seq_id: answer for seq_id, answer in sim.answers.items() if answer.finish == "stop"}
    assert stopped
    ends = {record.seq_id: record for record in sim.journal.of(SequenceEnded)}
    for seq_id, answer in stopped.items():
        assert answer.token_ids.index(EOS) == len(answer.token_ids) - 1
        assert ends[seq_id].output_tokens == len(answer.token_ids) + 1
    sim.check_idle()


def test_a_prefill_goes_on_while_its_first_chunk_is_computed() -> None:
    sim = Simulation(max_in_flight=2, max_num_batched_tokens=4)
    sim.enqueue(range(12), max_tokens=1)
    sim.begin()
    assert [(plan.starts, plan.num_tokens) for plan in plans_in_flight(sim)] == [([0], [4]), ([4], [4])]
    sim.run()
    sim.check_idle()


def test_who_was_preempted_with_a_token_in_flight_gets_it_and_comes_back_with_it() -> None:
    sim = Simulation(num_blocks=4, max_num_seqs=2, prefix_cache=False, max_in_flight=2)
    messages = [sim.enqueue([i, 2, 3], request_id=f"q{i}", max_tokens=10) for i in range(2)]
    sim.begin()
    while not sim.journal.of(SequencePreempted):
        sim.end()
        sim.begin()
    waiting = sim.scheduler.queue.head
    assert waiting is not None
    assert waiting.pending == waiting.rows_in_flight == 1
    assert not waiting.blocks
    sim.run()
    limit = sim.limits.longest_sequence
    assert sim.texts() == [answer_alone(m.prompts[0], 0, m.params, limit)[0] for m in messages]
    sim.check_idle()


def test_nobody_is_preempted_for_blocks_that_come_free_with_the_step_in_flight() -> None:
    sim = Simulation(num_blocks=4, max_num_seqs=2, prefix_cache=False, max_in_flight=2)
    sim.enqueue(range(7), request_id="leaves", max_tokens=9)
    sim.enqueue([1, 2, 3], request_id="stays", max_tokens=9)
    sim.begin()
    sim.stop_hit(1)
    sim.run()
    assert sim.journal.of(SequencePreempted) == []
    assert sim.answers[2].finish == "length"
    sim.check_idle()


def test_aborts_between_two_steps_in_flight_free_everything_once() -> None:
    sim = Simulation(max_in_flight=2)
    sim.enqueue(n=3, max_tokens=50)
    sim.begin()
    sim.abort()
    assert sim.pool.num_active > 0, "the runner still writes there"
    sim.run()
    assert len(sim.journal.of(SequenceEnded)) == 3
    sim.check_idle()


def test_those_who_came_while_two_steps_were_in_flight_say_why_they_wait() -> None:
    sim = Simulation(max_in_flight=2, max_num_seqs=1)
    sim.enqueue(request_id="runs", max_tokens=9)
    sim.begin()
    sim.enqueue(request_id="waits", max_tokens=1)
    sim.begin()
    assert [record.reason for record in sim.journal.of(WaitChanged)] == ["max_running"]
    sim.run()
    sim.check_idle()


def test_who_awaits_the_last_token_is_not_preempted_and_nobody_is_for_those_blocks() -> None:
    """All blocks are taken when the second needs one more, and the first gives its own back with the step in flight."""
    sim = Simulation(num_blocks=6, max_num_seqs=2, prefix_cache=False, max_in_flight=2)
    sim.enqueue(range(9), request_id="nearly done", max_tokens=8)
    sim.enqueue([1], request_id="grows", max_tokens=12)
    sim.run()
    assert min(record.blocks_free for record in sim.steps()) == 0
    assert sim.journal.of(SequencePreempted) == []
    assert [answer.finish for answer in sim.answers.values()] == ["length", "length"]
    sim.check_idle()
