from itertools import count

import pytest

from engine.scheduler.arrivals import Arrivals
from engine.scheduler.kv_cache import KVCache
from engine.scheduler.sequence import Sequence
from tests.scheduler.simulation import make_enqueue, make_limits

BLOCK = 4
_numbers = count()


def make_sequence(prompt: list[int]) -> Sequence:
    return Arrivals(make_limits()).sequences(make_enqueue(prompt, request_id=f"q{next(_numbers)}"), 0)[0]


def compute_all(kv: KVCache, prompt: list[int]) -> Sequence:
    sequence = make_sequence(prompt)
    assert kv.admit(sequence, spare=0)
    sequence.computed = len(prompt)
    kv.commit(sequence)
    return sequence


@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK])
def test_a_repeated_prompt_is_cached_except_for_the_block_of_its_last_token(length: int) -> None:
    kv = KVCache(16, BLOCK, prefix_cache=True)
    prompt = list(range(length))
    kv.release(compute_all(kv, prompt))
    again = make_sequence(prompt)
    assert kv.admit(again, spare=0)
    assert again.computed == again.cached_tokens == BLOCK * ((length - 1) // BLOCK)
    assert again.remaining >= 1
    assert (kv.queried_tokens, kv.hit_tokens) == (2 * length, again.cached_tokens)


def test_only_computed_blocks_are_found() -> None:
    kv = KVCache(16, BLOCK, prefix_cache=True)
    first = make_sequence(list(range(12)))
    kv.admit(first, spare=0)
    first.computed = BLOCK + 3
    kv.commit(first)
    second = make_sequence(list(range(12)))
    kv.admit(second, spare=0)
    assert second.cached_tokens == BLOCK
    assert second.blocks[0] == first.blocks[0]
    assert not set(second.blocks[1:]) & set(first.blocks)


def test_without_prefix_cache_nothing_is_kept_or_counted() -> None:
    kv = KVCache(16, BLOCK, prefix_cache=False)
    kv.release(compute_all(kv, list(range(9))))
    assert (kv.pool.num_free, kv.pool.num_cached) == (16, 0)
    again = make_sequence(list(range(9)))
    kv.admit(again, spare=0)
    assert again.cached_tokens == kv.queried_tokens == 0


def test_admission_keeps_the_spare_blocks_and_changes_nothing_when_it_fails() -> None:
    kv = KVCache(3, BLOCK, prefix_cache=True)
    sequence = make_sequence(list(range(2 * BLOCK)))
    assert not kv.admit(sequence, spare=2)
    assert kv.pool.num_free == 3
    assert sequence.blocks == []
    assert kv.admit(sequence, spare=1)


def test_cached_blocks_that_are_reused_do_not_count_as_room_for_others() -> None:
    kv = KVCache(3, BLOCK, prefix_cache=True)
    kv.release(compute_all(kv, list(range(2 * BLOCK + 1))))
    longer = make_sequence(list(range(4 * BLOCK)))
    assert not kv.admit(longer, spare=0)
    fitting = make_sequence(list(range(3 * BLOCK)))
    assert kv.admit(fitting, spare=0)
    assert fitting.cached_tokens == 2 * BLOCK


def test_a_beginning_outlives_what_follows_it() -> None:
    kv = KVCache(4, BLOCK, prefix_cache=True)
    kv.release(compute_all(kv, list(range(3 * BLOCK))))
    kv.pool.allocate(2)
    again = make_sequence([*range(2 * BLOCK), 99])
    assert kv.admit(again, spare=0) is False
    assert kv._reusable(again) == kv._reusable(make_sequence(list(range(3 * BLOCK))))
    assert len(kv._reusable(again)) == 2


def test_blocks_are_packed_once_and_follow_the_sampled_tokens() -> None:
    sequence = make_sequence([1, 2, 3, 4, 5])
    first = sequence.block_contents(2, 2)
    sequence.tokens.append(6)
    assert sequence.block_contents(2, 3)[1] is first[1]
    assert len(set(sequence.block_contents(2, 3))) == 3
