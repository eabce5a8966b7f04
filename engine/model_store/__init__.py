"""Getting a model: known names, local folders, GGUF files and Hub ids become a folder that can be served."""

from engine.model_store.errors import ModelError
from engine.model_store.progress import PlainProgress, Progress, TerminalProgress, progress_on_stderr
from engine.model_store.store import ModelDetails, ModelStatus, list_models, resolve_model, show_model

__all__ = [
    "ModelDetails",
    "ModelError",
    "ModelStatus",
    "PlainProgress",
    "Progress",
    "TerminalProgress",
    "list_models",
    "progress_on_stderr",
    "resolve_model",
    "show_model",
]
