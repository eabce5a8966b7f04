"""The pool of KV blocks, with reference counts.

A block is in exactly one of three states::

            allocate                      release, not retained
    free ─────────────▶ active ───────────────────────────────────▶ free
                          ▲ │
                  acquire │ │ release, retained
                          │ ▼
                         cached ──── allocate, when nothing is free: oldest first (evicted) ───▶ active

so that free + active + cached == pool at every moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable


class OutOfBlocksError(Exception):
    """More blocks were asked for than are free or cached: the caller did not look at `available`."""


class BlockPool:
    """Owns the state of every block. What a cached block holds is somebody else's business."""

    def __init__(self, num_blocks: int, on_evict: Callable[[int], None]) -> None:
        """`on_evict` is told of each cached block before it is given away."""
        self.num_blocks = num_blocks
        self.num_active = 0
        self.evicted = 0  # since the start
        self._references = [0] * num_blocks
        self._retained = bytearray(num_blocks)
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: dict[int, None] = {}  # in insertion order: least recently used first
        self._on_evict = on_evict

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing of use."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that nobody uses but whose content may be used again."""
        return len(self._cached)

    @property
    def available(self) -> int:
        """Blocks that can be allocated: the free and the cached ones."""
        return len(self._free) + len(self._cached)

    def is_cached(self, block: int) -> bool:
        """Whether acquiring this block takes it from the available ones."""
        return block in self._cached

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks with one reference each, evicting cached ones when nothing is free.

        Raises OutOfBlocksError, and takes none, when fewer are available.
        """
        if count > self.available:
            raise OutOfBlocksError(f"{count} blocks asked for, {self.available} available")
        blocks = [self._free.pop() if self._free else self._evict() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        self.num_active += count
        return blocks

    def acquire(self, blocks: Iterable[int]) -> None:
        """Take one more reference to each of these cached or active blocks."""
        for block in blocks:
            if not self._references[block]:
                del self._cached[block]
                self.num_active += 1
            self._references[block] += 1

    def retain(self, block: int) -> None:
        """Keep this active block's content when its last reference goes, until it is evicted."""
        self._retained[block] = 1

    def release(self, blocks: Iterable[int]) -> None:
        """Give one reference to each block back. Blocks released earlier are evicted earlier."""
        for block in blocks:
            self._references[block] -= 1
            if self._references[block]:
                continue
            self.num_active -= 1
            if self._retained[block]:
                self._cached[block] = None
            else:
                self._free.append(block)

    def forget_contents(self) -> int:
        """Free all cached blocks, and let active ones be free when they are released; returns how many were cached."""
        forgotten = list(self._cached)
        self._cached.clear()
        self._free += forgotten
        self._retained = bytearray(self.num_blocks)
        return len(forgotten)

    def problem(self, *, idle: bool = False) -> str:
        """What is wrong with the counts, in words; "" when free + active + cached == pool.

        With `idle`, blocks that are still active are wrong too.
        """
        counts = f"free {self.num_free} + active {self.num_active} + cached {self.num_cached}"
        in_use = self.num_blocks - self._references.count(0)
        if self.num_free + self.num_active + self.num_cached != self.num_blocks:
            return f"{counts} != pool {self.num_blocks}"
        if in_use != self.num_active:
            return f"{counts}, but {in_use} blocks are referenced"
        if idle and self.num_active:
            return f"{counts}, but nobody is running"
        return ""

    def _evict(self) -> int:
        block = next(iter(self._cached))
        del self._cached[block]
        self._retained[block] = 0
        self.evicted += 1
        self._on_evict(block)
        return block
