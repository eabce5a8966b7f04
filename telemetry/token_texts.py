"""Token ids in words, for ``--token-log full``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from telemetry.events import ReplicaInfo


class TokenTexts:
    """Decodes with the tokenizer of the replica that served the request; loaded when it is first needed."""

    def __init__(self) -> None:
        self._tokenizers: dict[str, Any] = {}

    def __call__(self, info: ReplicaInfo | None, token_ids: Sequence[int]) -> str:
        """The text, special tokens included; "" where there is no tokenizer."""
        tokenizer = self._tokenizer(info.model_path) if info else None
        return str(tokenizer.decode(list(token_ids), skip_special_tokens=False)) if tokenizer else ""

    def _tokenizer(self, model_path: str) -> Any:
        if model_path not in self._tokenizers:
            self._tokenizers[model_path] = _load(Path(model_path) / "tokenizer.json")
        return self._tokenizers[model_path]


def _load(path: Path) -> Any:
    """The tokenizer in a file, or None when there is none that can be read."""
    from tokenizers import Tokenizer  # only where texts are wanted: it costs memory

    try:
        return Tokenizer.from_file(str(path))
    except Exception:  # what the library raises for a missing or damaged file
        return None
