import pytest

from engine.scheduler.arrivals import Arrivals
from engine.scheduler.sequence import Sequence
from engine.scheduler.waiting_queue import WaitingQueue
from telemetry.events import WaitReason
from tests.scheduler.simulation import make_enqueue, make_limits


def make_queue(count: int) -> tuple[WaitingQueue, list[Sequence]]:
    queue = WaitingQueue()
    sequences = Arrivals(make_limits()).sequences(make_enqueue(n=count), 0)
    for sequence in sequences:
        queue.push(sequence)
    return queue, sequences


def test_first_come_first_served_and_preempted_ones_go_to_the_head() -> None:
    queue, (a, b, c) = make_queue(3)
    assert queue.head is a
    queue.remove(a)
    queue.push(a)
    assert list(queue) == [a, b, c]


def test_those_for_whom_there_is_no_slot_wait_for_one() -> None:
    queue, (a, b, c) = make_queue(3)
    changed = queue.explain(WaitReason.KV_BLOCKS, free_slots=2)
    assert changed == [(a, WaitReason.KV_BLOCKS), (b, WaitReason.KV_BLOCKS), (c, WaitReason.MAX_RUNNING)]


def test_only_changes_are_reported() -> None:
    queue, sequences = make_queue(3)
    queue.explain(WaitReason.KV_BLOCKS, free_slots=2)
    assert queue.explain(WaitReason.KV_BLOCKS, free_slots=2) == []
    queue.remove(sequences[0])
    assert queue.explain(WaitReason.KV_BLOCKS, free_slots=2) == [(sequences[2], WaitReason.KV_BLOCKS)]


def test_a_preempted_sequence_says_so_until_it_is_admitted() -> None:
    queue, (a, _) = make_queue(2)
    queue.remove(a)
    a.preemptions = 1
    queue.push(a)
    queue.explain(WaitReason.TOKEN_BUDGET, free_slots=2)
    queue.explain(WaitReason.KV_BLOCKS, free_slots=2)
    assert a.wait_reason is WaitReason.PREEMPTED
    assert queue.counts[WaitReason.PREEMPTED] == queue.counts[WaitReason.KV_BLOCKS] == 1


def test_counts_follow_those_who_leave() -> None:
    queue, sequences = make_queue(4)
    queue.explain(WaitReason.TOKEN_BUDGET, free_slots=2)
    for sequence in reversed(sequences):
        queue.remove(sequence)
    assert set(queue.counts.values()) == {0}
    with pytest.raises(KeyError):
        queue.remove(sequences[0])
