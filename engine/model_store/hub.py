"""Models from the Hugging Face Hub."""

from __future__ import annotations

import re
from pathlib import Path

from engine.model_store.errors import ModelError
from engine.model_store.progress import Progress

_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]


def is_hub_id(name: str) -> bool:
    """Whether `name` looks like ``owner/model``."""
    return re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name) is not None


def fetch_from_hub(name: str, progress: Progress) -> Path:
    """The folder of a Hub model, downloaded into the Hub library's own cache. Raises ModelError."""
    from huggingface_hub import snapshot_download

    try:
        with progress.working(f"fetching {name} from the Hugging Face Hub"):
            return Path(snapshot_download(name, allow_patterns=_PATTERNS))
    except Exception as e:  # the library raises its own errors, httpx's and OSError
        reason = (str(e).strip().splitlines() or [type(e).__name__])[0]
        raise ModelError(
            f"cannot get {name} from the Hugging Face Hub: {reason.rstrip('.')}; "
            "check the name and the network, or give --model a local folder or GGUF file"
        ) from None
