"""Block pool and prefix cache against a model that keeps every block's content."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.scheduler.arrivals import Arrivals
from engine.scheduler.kv_cache import KVCache
from engine.scheduler.sequence import Sequence
from tests.scheduler.simulation import make_enqueue, make_limits

tokens = st.lists(st.integers(0, 1), min_size=1, max_size=14)


class KVCacheMachine(RuleBasedStateMachine):
    """Sequences over two token ids, so that beginnings are often shared, in a small pool."""

    @initialize(num_blocks=st.integers(4, 12), block_size=st.integers(1, 4))
    def start(self, num_blocks: int, block_size: int) -> None:
        self.kv = KVCache(num_blocks, block_size, prefix_cache=True)
        self.arrivals = Arrivals(make_limits(longest_sequence=1000))
        self.held: list[Sequence] = []
        self.content: dict[int, tuple[str, list[int]]] = {}  # block → salt, all token ids up to its last computed one

    @rule(prompt=tokens, spare=st.integers(0, 2), salt=st.sampled_from(["", "s"]))
    def admit(self, prompt: list[int], spare: int, salt: str) -> None:
        sequence = self.arrivals.sequences(make_enqueue(prompt, cache_salt=salt), 0)[0]
        available = self.kv.pool.available
        if not self.kv.admit(sequence, spare):
            assert (available, sequence.blocks) == (self.kv.pool.available, [])
            return
        assert self.kv.pool.available >= spare
        assert sequence.computed < len(prompt) <= sequence.capacity
        self.held.append(sequence)
        self._check_content(sequence)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), count=st.integers(1, 6))
    def compute(self, data: Any, count: int) -> None:
        sequence = data.draw(st.sampled_from(self.held))
        first = sequence.computed
        for position in range(first, min(len(sequence.tokens), first + count)):
            block = sequence.blocks[position // self.kv.block_size]
            assert self.kv.pool._references[block] == 1
            assert not self.kv.pool._retained[block]
            self.content[block] = (sequence.cache_salt, sequence.tokens[: position + 1])
            sequence.computed += 1
        sequence.scheduled = sequence.computed
        self.kv.commit(sequence)
        self._check_content(sequence)

    @precondition(lambda self: self.held and self.kv.pool.available)
    @rule(data=st.data(), token=st.integers(0, 1))
    def sample(self, data: Any, token: int) -> None:
        sequence = data.draw(st.sampled_from(self.held))
        if sequence.remaining:
            return
        sequence.tokens.append(token)
        if sequence.computed == sequence.capacity:
            self.kv.grow(sequence)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: Any) -> None:
        sequence = data.draw(st.sampled_from(self.held))
        self.held.remove(sequence)
        self.kv.release(sequence)
        self.kv.pool.allocate(0)

    @rule()
    def reset(self) -> None:
        """Afterwards nothing is cached, and nothing that is held now will be."""
        cached = self.kv.pool.num_cached
        assert self.kv.reset(self.held) == cached
        assert self.kv.pool.num_cached == len(self.kv._prefixes) == 0

    @invariant()
    def every_block_is_in_one_state(self) -> None:
        if not hasattr(self, "kv"):
            return
        pool = self.kv.pool
        in_use = {block for sequence in self.held for block in sequence.blocks}
        assert pool.problem(idle=not self.held) == ""
        assert in_use | set(pool._free) | set(pool._cached) == set(range(pool.num_blocks))
        assert len(in_use) + len(pool._free) + len(pool._cached) == pool.num_blocks
        assert len(in_use) == pool.num_active
        for block in in_use:
            assert pool._references[block] == sum(block in sequence.blocks for sequence in self.held)
        assert all(pool._retained[block] for block in pool._cached)
        assert len(self.kv._prefixes) == sum(pool._retained)

    def _check_content(self, sequence: Sequence) -> None:
        for end in range(self.kv.block_size, sequence.computed + 1, self.kv.block_size):
            block = sequence.blocks[end // self.kv.block_size - 1]
            assert self.content[block] == (sequence.cache_salt, sequence.tokens[:end])


KVCacheMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestKVCache = KVCacheMachine.TestCase


def run_random_operations(count: int, seed: int) -> None:
    """The same rules without hypothesis, on one cache that lives long."""
    chooser = random.Random(seed)
    kv = KVCache(num_blocks=64, block_size=4, prefix_cache=True)
    arrivals = Arrivals(make_limits(longest_sequence=1000))
    held: list[Sequence] = []
    for _ in range(count):
        roll = chooser.random()
        if roll < 0.3:
            prompt = [chooser.randrange(2) for _ in range(chooser.randint(1, 24))]
            sequence = arrivals.sequences(make_enqueue(prompt, cache_salt=chooser.choice(["", "s"])), 0)[0]
            if kv.admit(sequence, spare=0):
                held.append(sequence)
        elif roll < 0.999 and held:
            advance_or_release(kv, held, chooser)
        elif roll >= 0.999:
            kv.reset(held)
        assert kv.pool.num_free + kv.pool.num_active + kv.pool.num_cached == kv.pool.num_blocks
    assert kv.pool.problem() == ""
    for sequence in held:
        kv.release(sequence)
    assert kv.pool.problem(idle=True) == ""


def advance_or_release(kv: KVCache, held: list[Sequence], chooser: random.Random) -> None:
    at = chooser.randrange(len(held))
    sequence = held[at]
    if chooser.random() < 0.25:
        kv.release(held.pop(at))
        return
    if not sequence.remaining:
        sequence.tokens.append(chooser.randrange(2))
    if sequence.scheduled == sequence.capacity and not kv.pool.available:
        return
    if sequence.scheduled == sequence.capacity:
        kv.grow(sequence)
    computed = min(len(sequence.tokens), sequence.capacity, sequence.scheduled + chooser.randint(1, 9))
    assert all(kv.pool._references[b] for b in sequence.blocks)
    sequence.scheduled = sequence.computed = computed
    kv.commit(sequence)


def test_a_hundred_thousand_random_operations_keep_the_pool_whole() -> None:
    run_random_operations(100_000, seed=1)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_millions_of_random_operations_keep_the_pool_whole(seed: int) -> None:
    run_random_operations(1_000_000, seed)
