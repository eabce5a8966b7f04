"""What can go wrong with a model, in one line for the operator."""

from __future__ import annotations


class ModelError(Exception):
    """A model cannot be had; the message is one line: what is wrong, and what to do about it."""
