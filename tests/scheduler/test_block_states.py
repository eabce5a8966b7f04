"""Block pool and prefix cache against a model that keeps every block's content."""

from __future__ import annotations

from typing import Any

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
        self.content: dict[int, list[int]] = {}  # block → all token ids up to its last computed one

    @rule(prompt=tokens, spare=st.integers(0, 2))
    def admit(self, prompt: list[int], spare: int) -> None:
        sequence = self.arrivals.sequences(make_enqueue(prompt))[0]
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
        for position in range(sequence.computed, min(len(sequence.tokens), sequence.computed + count)):
            block = sequence.blocks[position // self.kv.block_size]
            assert self.kv.pool._references[block] == 1
            assert not self.kv.pool._retained[block]
            self.content[block] = sequence.tokens[: position + 1]
            sequence.computed += 1
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
            assert self.content[sequence.blocks[end // self.kv.block_size - 1]] == sequence.tokens[:end]


KVCacheMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestKVCache = KVCacheMachine.TestCase
