"""The model families. A new one is a file of its own and a line here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from engine.model_shape import ModelShape
from engine.process import CannotStartError
from engine.runner.models.base import Model
from engine.runner.models.llama import LlamaModel
from engine.runner.weights import Checkpoint

_FAMILIES: dict[str, Callable[[Path, ModelShape, Checkpoint, int], Model]] = {"LlamaForCausalLM": LlamaModel}


def load_model(folder: Path, shape: ModelShape, checkpoint: Checkpoint, max_positions: int) -> Model:
    """Build the model that a folder's config.json names. Raises CannotStartError."""
    family = _FAMILIES.get(shape.architecture)
    if family is None:
        raise CannotStartError(
            f"{folder}: the architecture {shape.architecture!r} is not known; known are {', '.join(_FAMILIES)}"
        )
    return family(folder, shape, checkpoint, max_positions)
