"""Block pool and prefix cache in terms of sequences: admit, grow, commit, release."""

from __future__ import annotations

from collections.abc import Iterable

from engine.scheduler.kv_blocks import BlockPool
from engine.scheduler.prefix_cache import ROOT, PrefixCache
from engine.scheduler.sequence import Sequence

_NEVER = 1 << 62
"""More blocks than any sequence has: one that counts so many as entered enters none."""


class KVCache:
    """The KV memory of one replica."""

    def __init__(self, num_blocks: int, block_size: int, *, prefix_cache: bool) -> None:
        self.block_size = block_size
        self.queried_tokens = 0  # prompt tokens looked up in the prefix cache since the start
        self.hit_tokens = 0  # of these, found
        self._reuse = prefix_cache
        self._prefixes = PrefixCache()
        self.pool = BlockPool(num_blocks, on_evict=self._prefixes.forget)

    def admit(self, sequence: Sequence, spare: int) -> bool:
        """Give a sequence blocks for all its known tokens, reusing computed ones, if `spare` stay available.

        All at once, so that a prefill under way never runs out of blocks half-way. Returns False, and
        changes nothing, when there are too few.
        """
        reused = self._reusable(sequence)
        new = -(-len(sequence.tokens) // self.block_size) - len(reused)
        if new + sum(map(self.pool.is_cached, reused)) + spare > self.pool.available:
            return False
        self.pool.acquire(reused)
        sequence.blocks = reused + self.pool.allocate(new)
        sequence.capacity = len(sequence.blocks) * self.block_size
        sequence.scheduled = sequence.computed = len(reused) * self.block_size
        if self._reuse:
            sequence.cached_blocks = len(reused)
            sequence.cache_entry = self._prefixes.entry(reused[-1]) if reused else ROOT
        if sequence.choices is not None:
            sequence.choices.advanced(sequence)
        if not sequence.preemptions:
            self._count_hits(sequence)
        return True

    def grow(self, sequence: Sequence) -> list[int]:
        """Append one block to a sequence; returns it in a list. Raises OutOfBlocksError."""
        blocks = self.pool.allocate(1)
        sequence.blocks += blocks
        sequence.capacity += self.block_size
        return blocks

    def commit(self, sequence: Sequence) -> None:
        """Let others use the full blocks that have been computed since the last call."""
        if sequence.choices is not None:
            sequence.choices.advanced(sequence)
        full = sequence.computed // self.block_size
        if not self._reuse or full <= sequence.cached_blocks:
            return
        contents = sequence.block_contents(self.block_size, full)
        for i in range(sequence.cached_blocks, full):
            block = sequence.blocks[i]
            sequence.cache_entry, inserted = self._prefixes.insert(sequence.cache_entry, contents[i], block)
            if inserted:
                self.pool.retain(block)
        sequence.cached_blocks = full

    def release(self, sequence: Sequence) -> None:
        """Take a sequence's blocks back, last one first: a beginning outlives what follows it."""
        self.pool.release(reversed(sequence.forget_blocks()))
        if sequence.choices is not None:
            sequence.choices.released(sequence)

    def reset(self, holders: Iterable[Sequence]) -> int:
        """Forget what all blocks hold; returns how many cached ones became free.

        Those who hold blocks keep them, but enter nothing any more: what is in front of it is forgotten.
        """
        self._prefixes.clear()
        for sequence in holders:
            sequence.cached_blocks = _NEVER
        return self.pool.forget_contents()

    def _reusable(self, sequence: Sequence) -> list[int]:
        """Computed blocks of its beginning; never the last token's, which must be computed to sample after it.

        Nor any for a sequence whose prompt's log probabilities are asked for: each takes a computed token.
        """
        if sequence.params.prompt_logprobs is not None:
            return []
        if self._reuse:
            count = (len(sequence.tokens) - 1) // self.block_size
            return self._prefixes.match(sequence.block_contents(self.block_size, count))
        choices = sequence.choices
        if choices is None or choices.donor is None:
            return []
        return choices.donor.blocks[: choices.shared_tokens // self.block_size]

    def _count_hits(self, sequence: Sequence) -> None:
        """Only first admissions count: finding one's own blocks after a preemption says nothing of the workload."""
        sequence.cached_tokens = sequence.computed
        if self._reuse and sequence.params.prompt_logprobs is None:
            self.queried_tokens += sequence.num_prompt
            self.hit_tokens += sequence.computed
