"""Vitrine's inference engine: each sub-package is one process or one responsibility."""

__version__ = "0.1.0"
