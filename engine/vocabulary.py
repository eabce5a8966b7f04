"""tokenizer.json, loaded for serving."""

from __future__ import annotations

import os
from pathlib import Path

from tokenizers import Tokenizer

from engine.process import CannotStartError


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load ``tokenizer.json`` of a model folder. Raises CannotStartError.

    The library is kept to the calling thread: its pool would compete with the forward pass for the cores.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["RAYON_NUM_THREADS"] = "1"
    file = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as e:  # the library raises bare Exceptions
        raise CannotStartError(f"cannot load {file}: {e}") from e
    tokenizer.no_truncation()  # some models' files ask for these, meant for training batches
    tokenizer.no_padding()
    return tokenizer
