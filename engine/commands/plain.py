"""Text from elsewhere on the operator's terminal."""

from __future__ import annotations


def plain(text: str) -> str:
    """`text` on one line, its control characters written out: what a client sent must not move the cursor."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
