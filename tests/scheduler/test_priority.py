"""Order of service: priorities, aging, and what preemption makes of them."""

from engine.scheduler.arrivals import Arrivals
from engine.scheduler.sequence import Sequence
from engine.scheduler.waiting_queue import WaitingQueue
from telemetry.events import SequenceAdmitted, SequencePreempted
from tests.scheduler.simulation import Simulation, make_enqueue, make_limits

SECOND = 1_000_000_000


def make_sequence(arrivals: Arrivals, at_s: int, priority: int = 0) -> Sequence:
    return arrivals.sequences(make_enqueue(priority=priority), at_s * SECOND)[0]


def admission_order(sim: Simulation) -> list[int]:
    return [record.seq_id for record in sim.journal.of(SequenceAdmitted)]


def test_a_lower_priority_number_goes_first_and_equal_ones_in_order_of_arrival() -> None:
    sim = Simulation(max_num_seqs=1, priority_aging_ns=10 * SECOND)
    for name, priority in (("a", 0), ("b", 5), ("c", -5), ("d", 0)):
        sim.enqueue(request_id=name, priority=priority, max_tokens=2)
    sim.run()
    assert admission_order(sim) == [3, 1, 4, 2]
    sim.check_idle()


def test_waiting_makes_up_for_priority() -> None:
    """No starvation: ten seconds are worth one level."""
    arrivals = Arrivals(make_limits(priority_aging_ns=10 * SECOND))
    queue = WaitingQueue()
    old = make_sequence(arrivals, at_s=0, priority=2)
    early, late = make_sequence(arrivals, at_s=19), make_sequence(arrivals, at_s=21)
    for sequence in (late, early, old):
        queue.push(sequence)
    assert list(queue) == [early, old, late]


def test_without_aging_priorities_change_nothing() -> None:
    sim = Simulation(max_num_seqs=1)
    for name, priority in (("a", 9), ("b", 0), ("c", -9)):
        sim.enqueue(request_id=name, priority=priority, max_tokens=1)
    sim.run()
    assert admission_order(sim) == [1, 2, 3]


def test_preemption_takes_the_least_urgent_even_if_it_came_first() -> None:
    sim = Simulation(num_blocks=4, max_num_seqs=2, prefix_cache=False, priority_aging_ns=10 * SECOND)
    sim.enqueue([1, 2, 3], request_id="slow", priority=1, max_tokens=10)
    sim.enqueue([1, 2, 3], request_id="urgent", priority=-1, max_tokens=10)
    sim.run()
    assert {record.seq_id for record in sim.journal.of(SequencePreempted)} == {1}
    assert [answer.finish for answer in sim.answers.values()] == ["length"] * 2
    sim.check_idle()


def test_an_urgent_arrival_is_admitted_before_one_that_was_preempted() -> None:
    sim = Simulation(num_blocks=4, max_num_seqs=2, prefix_cache=False, priority_aging_ns=10 * SECOND)
    for name in ("first", "second"):
        sim.enqueue([1, 2, 3], request_id=name, max_tokens=10)
    while not sim.journal.of(SequencePreempted):
        sim.step()
    sim.enqueue([4, 5, 6], request_id="urgent", priority=-1, max_tokens=1)
    sim.run()
    assert admission_order(sim)[2:] == [3, 2]
    sim.check_idle()


def test_prompts_take_their_share_of_a_step_while_others_stream() -> None:
    sim = Simulation(num_blocks=1000, max_num_batched_tokens=40, prefill_share=0.25)
    sim.enqueue([1], request_id="stream", max_tokens=5)
    sim.step()
    sim.enqueue(range(200), request_id="prompt", max_tokens=1)
    sim.step()
    assert [record.num_tokens for record in sim.steps()][-1] == [1, 10]
    sim.run()
    assert max(sum(record.num_tokens) for record in sim.steps()) == 40, "alone, a prompt gets the whole step"
    sim.check_idle()
