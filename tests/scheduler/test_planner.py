from hypothesis import given
from hypothesis import strategies as st

from engine.scheduler.planner import prefill_chunk
from telemetry.events import SequencePreempted, StepKind
from tests.scheduler.simulation import Simulation


def test_a_prefill_alone_takes_the_whole_budget() -> None:
    assert prefill_chunk([100], 0, left=64, half=32) == 64
    assert prefill_chunk([10], 0, left=64, half=32) == 10


def test_equal_prefills_run_one_after_the_other() -> None:
    assert prefill_chunk([100, 100, 100], 0, left=64, half=32) == 64


def test_a_prefill_leaves_room_for_shorter_ones_behind_it_but_keeps_half() -> None:
    assert prefill_chunk([100, 3], 0, left=64, half=32) == 61
    assert prefill_chunk([100, 60], 0, left=64, half=32) == 32
    assert prefill_chunk([100, 20, 20, 20, 20], 0, left=64, half=32) == 32


def test_room_left_for_a_short_prefill_is_not_taken_by_a_long_one_in_between() -> None:
    assert prefill_chunk([100, 100, 3], 1, left=3, half=32) == 0
    assert prefill_chunk([100, 100, 3], 2, left=3, half=32) == 3


@given(st.lists(st.integers(1, 300), min_size=1, max_size=20), st.integers(1, 256))
def test_chunks_are_within_need_and_budget_and_use_it_up(needs: list[int], budget: int) -> None:
    left = budget
    for i, need in enumerate(needs):
        chunk = prefill_chunk(needs, i, left, budget // 2)
        assert 0 <= chunk <= min(need, left)
        assert i or chunk >= min(need, budget - budget // 2)
        left -= chunk
    assert left == max(0, budget - sum(needs))


def test_every_decode_has_a_row_in_every_step_of_a_long_prefill() -> None:
    """LC-09: running streams must not stall behind prompts."""
    sim = Simulation(num_blocks=2000, max_num_batched_tokens=16)
    sim.enqueue([1, 2, 3], request_id="stream", max_tokens=60)
    for _ in range(20):
        sim.step()
    for i in range(5):
        sim.enqueue(list(range(900)), request_id=f"long{i}", max_tokens=1)
    for _ in range(40):
        plan = sim.step()
        assert plan is not None
        assert plan.starts[0] >= 3
        assert plan.num_tokens[0] == 1
        assert sum(plan.num_tokens) == 16
    assert sim.answers[1].finish == "length"
    assert sim.answers[2].finish == ""
    sim.run()
    sim.check_idle()


def test_four_long_prompts_all_run_before_any_has_finished() -> None:
    """LC-10, first half."""
    sim = Simulation(num_blocks=4000, max_num_seqs=4, max_num_batched_tokens=128)
    for i in range(4):
        sim.enqueue([i] * 2000, request_id=f"q{i}", max_tokens=400)
    most = 0
    while not any(answer.finish for answer in sim.answers.values()):
        sim.step()
        most = max(most, len(sim.scheduler.running))
    assert most == 4


def test_a_short_prompt_overtakes_long_prefills() -> None:
    """LC-10, second half: two long prefills and a decode are running."""
    sim = Simulation(num_blocks=4000, max_num_seqs=4, max_num_batched_tokens=128)
    sim.enqueue([1, 2], request_id="decode", max_tokens=100)
    for i in range(2):
        sim.enqueue([i] * 2000, request_id=f"long{i}", max_tokens=1)
    sim.step()
    sim.step()
    sim.enqueue([9, 9, 9], request_id="short", max_tokens=1)
    sim.step()
    sim.step()
    assert sim.answers[4].finish == "length"
    assert len(sim.scheduler.running) == 3
    sim.run()
    sim.check_idle()


def test_kinds_of_steps() -> None:
    sim = Simulation(max_num_batched_tokens=8)
    sim.enqueue(range(12), request_id="a", max_tokens=6)
    for _ in range(3):
        sim.step()
    sim.enqueue([5], request_id="b", max_tokens=2)
    sim.run()
    kinds = [record.kind for record in sim.steps()]
    assert kinds[:4] == [StepKind.PREFILL, StepKind.PREFILL, StepKind.DECODE, StepKind.MIXED]
    assert kinds[-1] is StepKind.DECODE


def test_the_youngest_is_preempted_and_goes_to_the_head_of_the_queue() -> None:
    sim = Simulation(num_blocks=4, max_num_seqs=2, prefix_cache=False)
    for name in ("old", "young", "next"):
        sim.enqueue([1, 2, 3], request_id=name, max_tokens=10)
    while not (preempted := sim.journal.of(SequencePreempted)):
        sim.step()
    assert preempted[0].seq_id == 2
    assert [sequence.seq_id for sequence in sim.scheduler.queue] == [2, 3]
    assert sim.scheduler.queue.head is not None
    assert sim.scheduler.queue.head.wait_reason == "preempted"
    sim.run()
    sim.check_idle()


def test_an_admission_leaves_a_block_for_each_running_sequence_to_grow_into() -> None:
    sim = Simulation(num_blocks=4, prefix_cache=False)
    sim.enqueue([1, 2], request_id="runs", max_tokens=6)
    sim.step()
    sim.enqueue(range(11), request_id="waits", max_tokens=1)
    sim.step()
    assert sim.scheduler.queue.counts["kv_blocks"] == 1
    sim.run()
    assert sim.journal.of(SequencePreempted) == []
    sim.check_idle()
