"""Which block holds which tokens, so that equal beginnings are computed once.

Only full blocks are entered, and only once they have been computed. What a block's keys and values are
depends on every token before it, so an entry is found by its content *and* the entry before it::

    tokens   │ t0 … t15 │ t16 … t31 │ t32 …
    key      (0, bytes) → entry 7
                        (7, bytes) → entry 9

The link is the number of the entry before, never used twice, instead of a digest of its content: with the
ids themselves compared on each look-up (they are the dictionary's key), no collision of hashes can pass
for a hit. Python hashes bytes with a random key, so nobody can choose ids that collide on purpose.
"""

from __future__ import annotations

from collections.abc import Iterable

ROOT = 0
"""The entry before the first block of every sequence."""


class PrefixCache:
    """Maps contents to blocks. Holds no references: the pool says when a block's content is lost."""

    def __init__(self) -> None:
        self._block_of: dict[tuple[int, bytes], int] = {}
        self._key_of: dict[int, tuple[int, bytes]] = {}
        self._entry_of: dict[int, int] = {}
        self._next_entry = ROOT + 1

    def __len__(self) -> int:
        return len(self._block_of)

    def match(self, contents: Iterable[bytes]) -> list[int]:
        """The blocks of the longest known beginning of `contents`, which starts at a sequence's first token.

        They stay valid until the next allocation, unless the caller acquires them.
        """
        blocks: list[int] = []
        entry = ROOT
        for content in contents:
            block = self._block_of.get((entry, content))
            if block is None:
                break
            blocks.append(block)
            entry = self._entry_of[block]
        return blocks

    def entry(self, block: int) -> int:
        """The entry number of a block that is in the cache."""
        return self._entry_of[block]

    def insert(self, before: int, content: bytes, block: int) -> tuple[int, bool]:
        """Enter a computed block behind the entry `before`.

        Returns the entry's number and whether `block` is now in the cache: where another block already
        holds the same, that one stays, and its entry is the one to go on from.
        """
        key = (before, content)
        known = self._block_of.get(key)
        if known is not None:
            return self._entry_of[known], False
        entry = self._next_entry
        self._next_entry += 1
        self._block_of[key] = block
        self._key_of[block] = key
        self._entry_of[block] = entry
        return entry, True

    def clear(self) -> None:
        """The content of all blocks is lost. Entry numbers go on, so that none means something else later."""
        self._block_of.clear()
        self._key_of.clear()
        self._entry_of.clear()

    def forget(self, block: int) -> None:
        """The block's content is lost. Entries behind it can no longer be found and age out of the pool."""
        del self._block_of[self._key_of.pop(block)]
        del self._entry_of[block]
